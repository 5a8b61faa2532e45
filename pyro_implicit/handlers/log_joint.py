"""The model's log-density as a function of one flat unconstrained vector."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import pyro
import torch
from pyro import poutine
from pyro.infer.util import is_validation_enabled
from pyro.poutine import Trace
from torch import Tensor

from pyro_implicit.exceptions import ImplicitError, NonFiniteError, SiteError
from pyro_implicit.handlers.enumeration.discrete_latents import (
    EnumerationNeeded,
    NoticeEnumeration,
    enumerated,
    nesting_of,
)
from pyro_implicit.handlers.enumeration.listed_rows import check_listed_rows
from pyro_implicit.handlers.enumeration.sum_out import sum_out
from pyro_implicit.handlers.flat_latents import by_site
from pyro_implicit.handlers.looks.unvalidated import Unvalidated
from pyro_implicit.handlers.masks.replicates import Replicates
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.observations.large_numbers import InDouble
from pyro_implicit.handlers.observations.observed_shape import check_observation
from pyro_implicit.handlers.observations.other_shape import check_event
from pyro_implicit.handlers.pointwise import is_auxiliary, is_delta
from pyro_implicit.handlers.rows.latent_rows import AtDraw, Cuts, at_rows, by_number, check_permuted
from pyro_implicit.handlers.rows.row_order import BY_NUMBER
from pyro_implicit.handlers.rows.row_slices import is_recording
from pyro_implicit.handlers.supports.support_edge import warning_of_edge

__all__ = ["LogJoint"]

#: What models raise at latents where they cannot be evaluated; other errors are bugs to be seen.
_ERRORS_OUTSIDE_OF_DOMAIN = (ValueError, ArithmeticError, torch.linalg.LinAlgError)
#: between densities in single and in double precision; the latter is taken above it
_MAX_ROUNDING_IN_NATS = 0.01
_ADVICE_ON_ALL_DATA = (
    ": a latent site of the model is not among the draws, or a plate draws a random subsample. "
    "Pass all data, write pyro.plate(name, size, subsample_size=len(x)), and draw every latent."
)


class _Site(Protocol):
    """What is needed of a latent site, such as a guide's."""

    name: str

    @property
    def numel(self) -> int: ...

    def unpack(self, flat: Tensor) -> Tensor: ...

    def constrain(self, unconstrained: Tensor) -> tuple[Tensor, Tensor]: ...


class LogJoint:
    """
    ``log p(data, latents) + log|dlatents/du|`` at unconstrained ``u``.

    Discrete latents that are marked for enumeration are summed out. Latents of the rows of a plate
    are in the order of the rows' numbers, whatever the order in which the arguments name them.

    :param model: a Pyro model.
    :param sites: its latent sites, in the order in which ``u`` holds them.
    :param args: arguments of the model.
    :param kwargs: keyword arguments of the model.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        sites: Sequence[_Site],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.model, self.args, self.kwargs = model, args, kwargs
        self.sites: Sequence[Any] = sites
        self._nesting: int | None = None  # of a model with latents to sum out
        self._cuts: Cuts | None = None  # rows that are named in another order, once it is known

    def by_number(self, draws: Mapping[str, Tensor], u: Tensor) -> dict[str, Tensor]:
        """
        Puts draws of rows that are in the order of the arguments into that of their numbers.

        :param dict draws: by site, shape ``(..., *site_shape)``.
        :param torch.Tensor u: any unconstrained point, shape ``(m,)``.
        :returns: the same draws, shape ``(..., *site_shape)``.
        """
        if self._cuts is None:
            self.trace(u)
        return by_number(draws, self._cuts or {})

    def values(self, u: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """
        Maps one unconstrained point to values of the sites.

        :param torch.Tensor u: shape ``(m,)``.
        :returns: constrained values by site, and the sum of the log-Jacobians, shape ``()``.
        """
        values, correction = {}, u.new_zeros(())
        for site, part in by_site(u, self.sites):
            values[site.name], log_density = site.constrain(site.unpack(part))
            correction = correction - log_density.sum()
        return values, correction

    def trace(self, u: Tensor) -> tuple[Trace, Tensor]:
        """
        The model's trace with its latents at an unconstrained point.

        Where Pyro's validation is off, that of distributions made before is off as well: what
        vectorises or records a model cannot follow it.

        :param torch.Tensor u: shape ``(m,)``.
        :returns: the trace, and the sum of the log-Jacobians, shape ``()``.
        :raises ShapeError: where a plate names some of its rows twice and so leaves out others.
        :raises SiteError: where rows are named in another order, and a support differs by row.
        """
        values, correction = self.values(u)
        at: Any = AtDraw(values, BY_NUMBER)
        if self._cuts is not None:
            at = poutine.condition(data=at_rows(values, self._cuts))
        # handlers outside of the block do not see the model
        with poutine.block(), nullcontext() if is_validation_enabled() else Unvalidated():
            conditioned = at(Replicates(values)(self.model))
            if u.dtype == torch.float64:  # of which single data would leave little
                conditioned = InDouble()(conditioned)
            if self._nesting is None:
                try:
                    with NoticeEnumeration():
                        trace = self._traced(conditioned)
                    self._note(at)
                    return trace, correction
                except EnumerationNeeded:
                    self._nesting = nesting_of(conditioned, self.args, self.kwargs)
            trace = self._traced(enumerated(conditioned, self._nesting))
            trace.compute_log_prob()
            sum_out(trace)
            if self._cuts is None:
                check_listed_rows(conditioned, self.args, self.kwargs, {}, self._nesting)
            self._note(at)
        return trace, correction

    def _note(self, at: Any) -> None:
        """Keeps in which order plates name their rows, which no later run changes."""
        if self._cuts is None and not is_recording():
            check_permuted(at.cuts, self.sites)
            self._cuts = at.cuts

    def _traced(self, model: Callable[..., Any]) -> Trace:
        trace = poutine.trace(model).get_trace(*self.args, **self.kwargs)
        for site in self.sites:
            node: Any = trace.nodes.get(site.name)
            if node is None:
                raise SiteError(
                    f"the guide draws latent {site.name!r}, and the model samples no site of that "
                    "name at these arguments: it is another model, or has changed since the guide "
                    "was made. Hand over the model that the guide was made for, or make a guide of "
                    "this one."
                )
            check_event(node, node["value"])
        return trace

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

        :param torch.Tensor u: shape ``(m,)``.
        :returns: the log-density or NaN, shape ``()``.
        """
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Encountered ")  # Pyro's, of NaN and infinity
                return self(u)
        except ImplicitError:
            raise
        except _ERRORS_OUTSIDE_OF_DOMAIN:
            return u.sum() * math.nan

    def in_double(self, u: Tensor) -> Tensor:
        """
        The log-density for searches, in double precision where the model takes latents in it.

        Where large terms cancel (a Beta of concentration 1e6) single precision knows the density to
        some nats, and whoever looks for its maximum finds the rounding.

        :param torch.Tensor u: shape ``(m,)``.
        :returns: the log-density or NaN, shape ``()``; by single precision if the model has weights
            in it, say.
        """
        if u.dtype == torch.float32 and u.device.type != "mps":
            try:
                found = self.value(u.double())
            except (ImplicitError, IndexError, RuntimeError, TypeError):
                return self.value(u)
            if found.dtype == torch.float64 and bool(found.isfinite()):
                return found
        return self.value(u)

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
        except _ERRORS_OUTSIDE_OF_DOMAIN as error:
            return f" (the model says: {str(error).strip().splitlines()[0]})"
        terms = {
            f"site {name!r}": float(node["log_prob_sum"])
            for name, node in trace.nodes.items()
            if "log_prob_sum" in node
        }
        terms["the Jacobian of the supports"] = float(correction)
        bad = [f"of {what} is {term}" for what, term in terms.items() if not math.isfinite(term)]
        if bad:
            observed = [trace.nodes[name] for name in trace.observation_nodes]
            at_edge = [notes for notes in map(warning_of_edge, observed) if notes is not None]
            return f" (the log-density {', that '.join(bad)}{'; '.join(['', *at_edge])})"
        top = max(terms, key=lambda what: abs(terms[what]))
        return f" (the largest term is that of {top}, {terms[top]:.3g})"

    def check_deterministic(self, u: Tensor, remedy: str) -> None:
        """
        Refuses models that draw random numbers beside their latents.

        :param torch.Tensor u: shape ``(m,)``.
        :param str remedy: what follows and what to write instead, for the message.
        :raises SiteError: if two evaluations at ``u`` differ.
        """
        with torch.no_grad():
            self._check_observed(u)
            first, second = self(u), self(u)
        if not torch.allclose(first, second, equal_nan=True):
            drawn = self._drawn(u)
            if drawn:
                remedy += (
                    f" It draws {drawn} by itself: hand over the observations, as in (model, "
                    "guide, x, y), and let the guide draw every latent."
                )
            raise SiteError(
                "two evaluations of the model at the same latents differ by "
                f"{(first - second).abs().item():.3g} nats{remedy}"
            )

    def _drawn(self, u: Tensor) -> list[str]:
        """Names of sites that the model draws at each run, subsamples left out."""
        nodes = self.trace(u)[0].nodes.items()
        known = {site.name for site in self.sites}
        return [
            name
            for name, node in nodes
            if node["type"] == "sample" and not (node["is_observed"] or is_auxiliary(node))
            if name not in known and not is_delta(node)
        ]

    def _check_observed(self, u: Tensor) -> None:
        """
        Refuses observations that a density would only broadcast.

        :raises ShapeError: for another shape than that of their distribution.
        """
        trace, _ = self.trace(u)
        for name in trace.observation_nodes:
            if not is_auxiliary(trace.nodes[name]):
                check_observation(trace.nodes[name])

    # ---- at many draws: one run of the model for each, networks in evaluation mode

    def at_draws(self, u: Tensor) -> Tensor:
        """
        The log-densities at many draws, in double precision where single one does not tell them.

        :param torch.Tensor u: shape ``(n, m)``.
        :returns: shape ``(n,)``.
        :raises SiteError: if two evaluations at one of them differ.
        """
        with torch.no_grad(), evaluation_mode():
            self.check_deterministic(u[0], _ADVICE_ON_ALL_DATA)
            is_rough = float((self(u[0]) - self.in_double(u[0])).abs()) > _MAX_ROUNDING_IN_NATS
            return torch.stack([self.in_double(row) if is_rough else self(row) for row in u])

    def scores(self, u: Tensor) -> Tensor:
        """
        The gradients of the log-density at many draws.

        :param torch.Tensor u: shape ``(n, m)``.
        :returns: shape ``(n, m)``.
        :raises NonFiniteError: if one is not finite.
        :raises SiteError: if two evaluations at one of the draws differ.
        """
        rows = []
        with evaluation_mode():
            self.check_deterministic(u[0], _ADVICE_ON_ALL_DATA)
            for row in u:
                leaf = row.detach().requires_grad_(True)
                with torch.enable_grad():
                    rows.append(torch.autograd.grad(self(leaf), leaf)[0])
        scores = torch.stack(rows)
        bad = int((~scores.isfinite().all(-1)).sum())
        if bad:
            raise NonFiniteError(
                f"the gradient of the model's log-density is not finite at {bad} of {len(u)} draws;"
                " look for a likelihood scale that reaches 0, or for NaN in the data"
            )
        return scores
