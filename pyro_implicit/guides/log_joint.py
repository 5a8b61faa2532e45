"""The model's log-density as a function of one flat unconstrained vector."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from pyro import poutine
from pyro.poutine import Trace
from torch import Tensor

from pyro_implicit.exceptions import NonFiniteError, SiteError
from pyro_implicit.guides.site import LatentSite

__all__ = ["LogJoint"]


class LogJoint:
    """
    ``log p(data, latents) + log|dlatents/du|`` at unconstrained ``u``.

    :param model: a Pyro model.
    :param sites: its latent sites, in the order in which ``u`` holds them.
    :param args: arguments of the model.
    :param kwargs: keyword arguments of the model.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        sites: Sequence[LatentSite],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.model, self.sites, self.args, self.kwargs = model, sites, args, kwargs

    def values(self, u: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """
        :param torch.Tensor u: shape ``(m,)``.
        :returns: constrained values by site, and the sum of the log-Jacobians, shape ``()``.
        """
        values, correction = {}, u.new_zeros(())
        for site, part in zip(self.sites, u.split([s.numel for s in self.sites]), strict=True):
            values[site.name], log_density = site.constrain(site.unpack(part))
            correction = correction - log_density.sum()
        return values, correction

    def trace(self, u: Tensor) -> tuple[Trace, Tensor]:
        """The model's trace with its latents at ``u``, and the sum of the log-Jacobians."""
        values, correction = self.values(u)
        with poutine.block():
            conditioned = poutine.condition(self.model, data=values)
            trace = poutine.trace(conditioned).get_trace(*self.args, **self.kwargs)
        return trace, correction

    def __call__(self, u: Tensor) -> Tensor:
        """
        :param torch.Tensor u: shape ``(m,)``.
        :returns: the log-density, shape ``()``.
        """
        trace, correction = self.trace(u)
        return trace.log_prob_sum() + correction

    def check_deterministic(self, u: Tensor) -> None:
        """
        :raises SiteError: if two evaluations at ``u`` differ: the model then draws something.
        :raises NonFiniteError: if the density is not finite there.
        """
        with torch.no_grad():
            first, second = self(u), self(u)
        if not torch.isfinite(first):
            raise NonFiniteError(
                f"the model's log-density at the start is {first.item()}, so no mode can be sought "
                "from there. Give an init_loc_fn that starts where the density is positive, and "
                "look for NaN in the data."
            )
        if not torch.allclose(first, second):
            raise SiteError(
                "two evaluations of the model at the same latents differ by "
                f"{(first - second).abs().item():.3g} nats, so it has no one mode to start from: a "
                "latent site is hidden from this guide, or a plate draws a random subsample. Call "
                "guide.setup(...) with the whole data, or leave init_from out."
            )
