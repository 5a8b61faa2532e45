"""Parameters of a model that leave their domain where chains are."""

# Shape legend: m unconstrained latents.
from __future__ import annotations

import warnings

import torch
from torch import Tensor

from pyro_implicit.chains.density import ChainDensity
from pyro_implicit.chains.supports import evenly
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.value_errors import refuses_parameter

__all__ = ["check_domain"]

_POINTS = 32  # that are looked at, each by one run of the model
_SHARE = 0.1  # of them, two at least: rounding puts a probability above 1 here and there


def check_domain(density: ChainDensity, points: Tensor) -> None:
    """
    Refuses chains at places where the model's distributions have no parameters.

    Chains go by densities without the checks of ``torch.distributions``, as all of their steps
    would wait for these; a probability of 1.2 then has a density, and nothing turns a chain back.
    Where a user has turned checks off they stay so.

    :param ChainDensity density: of the chains, out of :meth:`ChainDensity.ready`.
    :param torch.Tensor points: where chains are or were, shape ``(N, m)``.
    :raises SiteError: if a tenth of some points are outside.
    """
    chosen = evenly(points, _POINTS)
    count, each = len(chosen), (_refused(density, point) for point in chosen)
    told = [text for text in each if text]
    if len(told) >= max(2, _SHARE * count):
        raise SiteError(
            f"at {len(told)} of {count} points of the chains that were looked at the model has no "
            f"density: {told[-1]} Its distribution would go on with any number there, and chains "
            "with it. Let no value of the latents lead out of the domain: logits= in place of "
            "probs=, f.exp() for a rate or a scale, or priors on what is allowed."
        )


def _refused(density: ChainDensity, point: Tensor) -> str:
    """What a distribution says of its parameters there; empty where it takes them."""
    try:
        with torch.no_grad(), density.typed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            density.log_joint(point)
    except ValueError as error:
        return str(error).partition(", but found")[0] + "." if refuses_parameter(error) else ""
    except Exception:  # whatever else a model does there was told where chains began
        return ""
    return ""
