"""A guide whose draws are picked from some that are there."""

# Shape legend: n draws, m unconstrained latents.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit._checks import check_count
from pyro_implicit.exceptions import DensityError
from pyro_implicit.guides.draw_quantiles import DrawQuantiles
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.flat_latents import by_site

__all__ = ["DrawsGuide"]


class _Pick(dist.Categorical):
    """Which draw: equally likely, and without a density, since the draws are not all there are."""

    def log_prob(self, value: Tensor) -> Tensor:
        raise DensityError(
            "chains have no density: they can be drawn from (predict, posterior_draws, to_arviz), "
            "and no objective can train them."
        )

    def expand(self, batch_shape: Any, _instance: Any = None) -> _Pick:
        probs = self.probs.expand(torch.Size(batch_shape) + self.probs.shape[-1:])
        return _Pick(probs, validate_args=False)


class DrawsGuide(DrawQuantiles):
    """
    A guide of all latents at once, over a set of unconstrained draws.

    :param sites: the latents, in the order of the draws' entries.
    :param torch.dtype dtype: that the model's latents have.
    """

    def __init__(self, sites: Sequence[LatentSite], dtype: torch.dtype) -> None:
        self.sites, self.dtype = list(sites), dtype

    @property
    def unconstrained(self) -> Tensor:
        """The draws to pick from, shape ``(n, m)``."""
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """
        Picks a draw, as Pyro sample sites.

        :param args: arguments of the model, of no use here.
        :param kwargs: keyword arguments of the model.
        :returns: constrained values by site.
        """
        draws = self.unconstrained
        equal = torch.ones(len(draws), device=draws.device)
        infer: Any = {"is_auxiliary": True}
        pick = pyro.sample("_chains_pick", _Pick(equal, validate_args=False), infer=infer)
        flat = draws[pick].to(self.dtype)
        frames = {frame.name: frame for site in self.sites for frame in site.frames}
        # each is a statement of its own, to be made once
        plates = {
            name: pyro.plate(name, frame.full_size, dim=frame.dim) for name, frame in frames.items()
        }
        return {site.name: site.sample(part, plates) for site, part in by_site(flat, self.sites)}

    def sample(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """
        Picks several draws: without repetition, as long as there are enough.

        :param int num_samples: how many.
        :param args: arguments of the model, of no use here.
        :param kwargs: keyword arguments of the model.
        :returns: constrained draws by site, shape ``(num_samples, *site_shape)``.
        :raises ArgumentError: unless it is a positive integer.
        """
        num_samples = check_count("num_samples", num_samples)
        draws = self.unconstrained
        rounds = -(-num_samples // len(draws))
        picks = torch.cat([torch.randperm(len(draws)) for _ in range(rounds)])[:num_samples]
        return self.constrained(draws[picks.to(draws.device)])

    def constrained(self, flat: Tensor) -> dict[str, Tensor]:
        """
        Maps draws to the supports of the latents.

        :param torch.Tensor flat: unconstrained draws, shape ``(..., m)``.
        :returns: values by site, shape ``(..., *site_shape)``, of the model's own type.
        """
        batch = flat.shape[:-1]
        flat = flat.to(self.dtype)
        return {
            site.name: site.value(part.reshape(*batch, *site.unconstrained_shape))
            for site, part in by_site(flat, self.sites)
        }
