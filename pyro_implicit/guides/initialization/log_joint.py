"""The model's log-density as a function of one flat unconstrained vector."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine import Trace
from torch import Tensor

from pyro_implicit.exceptions import ImplicitError, SiteError
from pyro_implicit.guides.latent_site import LatentSite

__all__ = ["LogJoint"]

#: what models raise at latents outside of where they can be evaluated; others are bugs to be seen
_REFUSALS = (ValueError, ArithmeticError, torch.linalg.LinAlgError)


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
        Maps one unconstrained point to values of the sites.

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
        The log-density at one unconstrained point.

        :param torch.Tensor u: shape ``(m,)``.
        :returns: the log-density, shape ``()``.
        """
        trace, correction = self.trace(u)
        return trace.log_prob_sum() + correction

    def value(self, u: Tensor) -> Tensor:
        """
        The log-density for searches, which may go too far.

        It is NaN, without a warning, where the model refuses its latents (a distribution says under
        validation that a parameter of it is NaN).
        """
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Encountered ")  # Pyro's, of NaN and infinity
                return self(u)
        except ImplicitError:
            raise
        except _REFUSALS:
            return u.sum() * math.nan

    def explain(self, u: Tensor) -> str:
        """
        Names the sites that make a log-density what it is.

        :param torch.Tensor u: shape ``(m,)``.
        :returns: for a message: which sites have a log-density that is not finite, or else which
            has the largest.
        """
        try:
            with torch.no_grad(), pyro.validation_enabled(False):
                trace, correction = self.trace(u)
                trace.log_prob_sum()
        except _REFUSALS as error:
            return f" (the model says: {str(error).strip().splitlines()[0]})"
        terms = {
            f"site {name!r}": float(node["log_prob_sum"])
            for name, node in trace.nodes.items()
            if "log_prob_sum" in node
        }
        terms["the Jacobian of the supports"] = float(correction)
        bad = [f"of {what} is {term}" for what, term in terms.items() if not math.isfinite(term)]
        if bad:
            return f" (the log-density {', that '.join(bad)})"
        top = max(terms, key=lambda what: abs(terms[what]))
        return f" (the largest term is that of {top}, {terms[top]:.3g})"

    def check_deterministic(self, u: Tensor) -> None:
        """
        Refuses models that draw random numbers beside their latents.

        :raises SiteError: if two evaluations at ``u`` differ: the model then draws something.
        """
        with torch.no_grad():
            first, second = self(u), self(u)
        if not torch.allclose(first, second):
            raise SiteError(
                "two evaluations of the model at the same latents differ by "
                f"{(first - second).abs().item():.3g} nats, so it has no one mode to start from: a "
                "latent site is hidden from this guide, or a plate draws a random subsample. Call "
                "guide.setup(...) with the whole data, or leave init_from out."
            )
