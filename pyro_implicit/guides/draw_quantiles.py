"""Medians and quantiles of whatever can be drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_implicit._checks import check_instance, check_number
from pyro_implicit._random import RandomStream

__all__ = ["DrawQuantiles"]

_EXPECTED_QUANTILES = "several numbers between 0 and 1, such as [0.05, 0.95]"
_MAX_NUMBERS_AT_ONCE = 2**23  # half of what torch.quantile takes


class DrawQuantiles:
    """
    What Pyro's autoguides tell of their marginals, from draws: for guides with ``sample``.

    The draws are the same at each call, so that medians and quantiles agree with each other and
    from call to call, and random numbers outside go on as if nothing had been drawn.
    """

    #: draws by site: ``sample(num_samples, *args, **kwargs)``, with the arguments of the model
    sample: Callable[..., dict[str, Tensor]]

    def median(self, *args: Any, num_samples: int = 1000, **kwargs: Any) -> dict[str, Tensor]:
        """
        Estimates marginal medians of the posterior from draws.

        :param int num_samples: number of draws that the medians are taken over.
        :returns: the marginal posterior median of each latent entry, by site. Entries that belong
            together, as those of a simplex or a covariance, need not fit together as medians.
        """
        return {
            name: values[0]
            for name, values in self.quantiles(
                [0.5], *args, num_samples=num_samples, **kwargs
            ).items()
        }

    def quantiles(
        self,
        quantiles: Sequence[float] | np.ndarray | Tensor,
        *args: Any,
        num_samples: int = 1000,
        **kwargs: Any,
    ) -> dict[str, Tensor]:
        """
        Estimates marginal quantiles of the posterior from draws.

        :param quantiles: numbers between 0 and 1.
        :param int num_samples: number of draws that the quantiles are taken over.
        :raises ArgumentError: for anything else.
        :returns: marginal quantiles by site, shape ``(len(quantiles), *site_shape)``.
        """
        if isinstance(quantiles, (np.ndarray, Tensor)):
            quantiles = quantiles.tolist()
        check_instance("quantiles", quantiles, (list, tuple), _EXPECTED_QUANTILES)
        levels = [check_number("quantiles", one, minimum=0, maximum=1) for one in quantiles]
        with RandomStream(0):
            draws = self.sample(num_samples, *args, **kwargs)
        return {name: _quantiles(value, levels) for name, value in draws.items()}


def _quantiles(draws: Tensor, levels: list[float]) -> Tensor:
    """Quantiles over the first dimension, in parts: torch takes at most 2**24 numbers at once."""
    wanted = torch.tensor(levels).to(draws)
    parts = draws.reshape(len(draws), -1).split(max(_MAX_NUMBERS_AT_ONCE // len(draws), 1), -1)
    found = torch.cat([torch.quantile(part, wanted, dim=0) for part in parts], -1)
    return found.reshape(len(levels), *draws.shape[1:])
