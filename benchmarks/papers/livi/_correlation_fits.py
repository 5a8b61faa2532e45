"""A small network whose weights are identified, its chains, and what is fitted to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import Tensor

from benchmarks.common import fixed_seed
from benchmarks.shared.replay import cosine, train
from benchmarks.shared.start import begin_at
from pyro_implicit import (
    HyperNetworkGuide,
    LinearisedELBO,
    MMNNGuide,
    SingularValueELBO,
    posterior_draws,
    refine,
)
from pyro_implicit.chains import HMC
from pyro_implicit.chains.convergence import r_hats

__all__ = ["GUIDES", "SETTINGS", "chains", "data", "fit", "layers", "mode", "model"]

SETTINGS: dict[str, Any] = {
    "biases": (2.0, 0.0, -2.0),  # of the prior, for each unit
    "num_rows": 100,
    "noise": 0.1,
    "num_chains": 16,
    "chain_steps": 40_000,  # gradients of each, half for the warm-up
    "num_particles": 8,
    "rates": (5e-3, 2e-2),  # of which the one with the higher bound is taken
    "init_scale": 0.05,
    "scale": 0.01,
    "num_draws": 5000,
}
Draws = dict[str, Tensor]


def model(x: Tensor, y: Tensor | None = None) -> None:
    """
    One hidden layer of tanh units, whose prior tells them apart: weights into them are positive,
    and their biases lie in order, so that no other place or sign of a unit is as good.
    """
    centres = SETTINGS["biases"]
    size = [len(centres)]
    w = pyro.sample("w", dist.LogNormal(0.5, 0.5).expand(size).to_event(1))
    b = pyro.sample("b", dist.Normal(torch.tensor(centres), 0.5).to_event(1))
    v = pyro.sample("v", dist.Normal(0.0, 1.0).expand(size).to_event(1))
    c = pyro.sample("c", dist.Normal(0.0, 1.0))
    f = (v * (w * x + b).tanh()).sum(-1) + c
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, SETTINGS["noise"]), obs=y)


def data() -> tuple[Tensor, Tensor]:
    """Inputs ``(N, 1)`` and targets ``(N,)`` of a network of this kind, from the random state."""
    b = torch.tensor(SETTINGS["biases"])
    v = torch.tensor([(-1.0) ** k * (1.5 if k == 1 else 1.0) for k in range(len(b))])
    x = 4 * torch.rand(SETTINGS["num_rows"], 1) - 2
    f = (v * (_SLOPE * x + b).tanh()).sum(-1)
    return x, f + SETTINGS["noise"] * torch.randn(len(x))


def layers(draws: Draws) -> tuple[Tensor, Tensor]:
    """
    Weights before the hidden units and after them.

    :param dict draws: by site, ``(..., *shape)``.
    :returns: ``(..., 2 h)`` and ``(..., h + 1)`` for ``h`` units.
    """
    return torch.cat([draws["w"], draws["b"]], -1), torch.cat(
        [draws["v"], draws["c"][..., None]], -1
    )


def chains(x: Tensor, y: Tensor, seed: int, num_steps: int) -> tuple[Draws, float]:
    """
    Hamiltonian Monte Carlo from modes, in chains that are moved together.

    :param int num_steps: gradients of each.
    :returns: draws by site, ``(C, T, *shape)``, and the worst r-hat of a weight.
    """
    count = SETTINGS["num_chains"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that r-hat is high: it is in the rows
        found = refine(
            model,
            count,
            x,
            y,
            num_chains=count,
            num_steps=num_steps,
            kernel=HMC(max_leapfrog=200),
            seed=seed,
            progress=False,
        )
    worst = max(float(values.max()) for values in r_hats(found.draws).values())
    return found.draws, worst


def mode(x: Tensor, y: Tensor, seed: int) -> Draws:
    """Where all guides begin, by site."""
    found = refine(model, 1, x, y, num_chains=1, num_steps=0, seed=seed, progress=False)
    return {name: values[0, 0] for name, values in found.draws.items()}


def fit(
    method: str, start: Draws, x: Tensor, y: Tensor, *, num_steps: int, seed: int, quiet: bool
) -> tuple[Draws, dict[str, float]]:
    """
    :param str method: a key of :data:`GUIDES`.
    :returns: draws by site, ``(S, *shape)``, of the rate with the highest value of the objective;
        that rate and value.
    """
    found = []
    for rate in SETTINGS["rates"]:
        with fixed_seed(seed):
            try:
                guide, bound = _trained(method, start, (x, y), num_steps, rate, quiet)
            except FloatingPointError:  # at this rate it diverges: the other one counts
                continue
            draws = posterior_draws(guide, SETTINGS["num_draws"], x, y)
        found.append((draws, {"rate": rate, "bound": bound}))
    if not found:
        raise SystemExit(f"error: the loss of {method} is not finite at any rate")
    return max(found, key=lambda one: one[1]["bound"])


def _trained(
    method: str, start: Draws, rows: tuple[Tensor, Tensor], num_steps: int, rate: float, quiet: bool
) -> tuple[Any, float]:
    make, objective = GUIDES[method]
    guide = make(init_loc_fn=begin_at(start), init_scale=SETTINGS["init_scale"])
    options = {"vectorize_particles": True, "max_plate_nesting": 1}
    bound = train(
        model,
        guide,
        objective(SETTINGS["num_particles"], **options),
        rows,
        num_steps=num_steps,
        rate=rate,
        schedule=cosine,
        bar=None if quiet else method,
        light=True,
    )
    return guide, bound


_SLOPE = 1.6
_PLAIN = {"init_from": None, "scale": SETTINGS["scale"]}
_perceptron = partial(HyperNetworkGuide, model, hidden_dims=(50,), **_PLAIN)
#: how to make a guide, and its objective
GUIDES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "mean-field": (partial(AutoNormal, model), Trace_ELBO),
    "full-rank Gaussian": (partial(AutoMultivariateNormal, model), Trace_ELBO),
    "autoregressive": (partial(HyperNetworkGuide, model, init_from=None), LinearisedELBO),
    "perceptron": (_perceptron, LinearisedELBO),
    "perceptron, singular value": (_perceptron, partial(SingularValueELBO, num_iterations=50)),
    "MMNN": (partial(MMNNGuide, model, hidden_shapes=[(10, 10)], **_PLAIN), LinearisedELBO),
}
