"""How a fit of one of Pyro's examples is judged, whether it is a guide or the draws of a chain."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from pyro import poutine
from pyro.infer import MCMC, NUTS, TraceEnum_ELBO
from torch import Tensor
from torch.distributions import biject_to

from pyro_implicit import log_predictive_density, posterior_draws

__all__ = ["Bound", "HeldOut", "Moments", "Predictive", "chain", "draws_of"]

Draws = Mapping[str, Tensor]
Scores = dict[str, float]


def draws_of(fitted: Any, num_draws: int, *args: Any, **kwargs: Any) -> Draws:
    """Those of a chain as they are, of a guide as many as asked for."""
    if isinstance(fitted, Mapping):
        return fitted
    return posterior_draws(fitted, num_draws, *args, **kwargs)


def chain(model: Any, *args: Any, num_draws: int, warmup: int, **options: Any) -> Draws:
    """Draws of Pyro's NUTS."""
    kernel = NUTS(model, **options)
    run = MCMC(kernel, num_samples=num_draws, warmup_steps=warmup, disable_progbar=True)
    run.run(*args)
    return run.get_samples()


@dataclass
class Bound:
    """
    The evidence bound of a guide, and the log evidence by the same draws as importance weights.

    Each draw is one of Pyro's ``TraceEnum_ELBO``, which sums out what is enumerated and asks
    the guide for its density, whichever guide it is.
    """

    model: Any
    args: tuple[Any, ...]
    nesting: int
    num_draws: int

    @torch.no_grad()
    def __call__(self, guide: Any) -> Scores:
        """Both, in nats."""
        options: Any = {"max_plate_nesting": self.nesting, "strict_enumeration_warning": False}
        one = TraceEnum_ELBO(**options)
        weights = [-one.loss(self.model, guide, *self.args) for _ in range(self.num_draws)]
        logs = torch.tensor(weights, dtype=torch.double)
        evidence = logs.logsumexp(0) - math.log(len(logs))
        return {"bound": float(logs.mean()), "evidence": float(evidence)}


class Moments:
    """
    Means and deviations beside those of reference draws, in unconstrained space.

    :param model: a Pyro model, which tells the supports.
    :param args: its arguments.
    :param reference: draws by site.
    :param int num_draws: of a guide.
    """

    def __init__(self, model: Any, args: tuple[Any, ...], reference: Draws, num_draws: int) -> None:
        self.args, self.num_draws = args, num_draws
        with poutine.trace() as seen:
            poutine.condition(model, {k: v[0] for k, v in reference.items()})(*args)
        self.supports = {name: seen.trace.nodes[name]["fn"].support for name in reference}
        self.reference = self._flat(reference)

    def _flat(self, draws: Draws) -> Tensor:
        parts = [biject_to(s).inv(draws[name]) for name, s in self.supports.items()]
        return torch.cat([part.detach().double().reshape(len(part), -1) for part in parts], -1)

    def __call__(self, fitted: Any) -> Scores:
        """Root mean square of errors of means, in deviations, and of log-deviations."""
        found = self._flat(draws_of(fitted, self.num_draws, *self.args))
        shift = (found.mean(0) - self.reference.mean(0)) / self.reference.std(0)
        ratio = (found.std(0) / self.reference.std(0)).log()
        return {"error": float(torch.cat([shift, ratio]).square().mean().sqrt())}


@dataclass
class HeldOut:
    """Log predictive density of each held-out row, by the package's function for both sides."""

    model: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    num_draws: int
    per: float  # numbers in a row, on average

    def __call__(self, guide: Any) -> Scores:
        """The mean, in nats a number."""
        density = log_predictive_density(
            self.model, guide, *self.args, num_samples=self.num_draws, seed=0, **self.kwargs
        )
        return {"held-out": float(density.mean()) / self.per}


@dataclass
class Predictive:
    """
    Log predictive density by draws alone, for guides and chains.

    :param likelihood: from one draw of all sites to log-densities, of one shape.
    """

    likelihood: Callable[[Draws], Tensor]
    args: tuple[Any, ...]
    num_draws: int

    @torch.no_grad()
    def __call__(self, fitted: Any) -> Scores:
        """The mean over data of the log of the mean over draws, in nats."""
        draws = draws_of(fitted, self.num_draws, *self.args)
        count = len(next(iter(draws.values())))
        rows = [self.likelihood({k: v[i] for k, v in draws.items()}) for i in range(count)]
        return {"held-out": float((torch.stack(rows).logsumexp(0) - math.log(count)).mean())}
