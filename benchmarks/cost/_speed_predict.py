"""Predictions and tables of log-likelihoods, over loops by hand that give the same."""

# Shape legend: S draws, N rows, D features, C classes.
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Predictive
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.common import fixed_seed
from benchmarks.cost._speed_models import linear
from benchmarks.cost._speed_timing import Job, Row, Settings, medians, rows_of
from benchmarks.shared.images import GUIDES, NETWORKS
from pyro_implicit import BayesianModule, HyperNetworkGuide, fit, predict, to_arviz

__all__ = [
    "arviz",
    "by_pyro",
    "hand_arviz",
    "hand_linear",
    "hand_network",
    "linear_model",
    "network_model",
    "predictions",
]

HAND, PYRO = "hand loop", "Pyro's Predictive"
OURS, PARALLEL = "predict", "predict, parallel"
NUM_FEATURES, NOISE = 5, 0.1
FIT_STEPS = 10  # recorded, as those of most fits before a prediction are
GROUPS = ("posterior", "posterior_predictive", "log_likelihood")


def predictions(settings: Settings, rounds: int, seed: int) -> Iterator[Row]:
    """Rows of ``predict`` for a network and for a linear model."""
    with fixed_seed(seed):
        yield from _of_network(settings, rounds)
    with fixed_seed(seed):
        yield from _of_linear_model(settings, rounds)


def _of_network(settings: Settings, rounds: int) -> Iterator[Row]:
    make, shape = NETWORKS[settings["network"]]
    rows, size, num_draws = settings["images"], settings["image_batch"], settings["num_draws"]
    x, plain = torch.rand(rows, *shape), make()
    model = network_model(make())
    guide = GUIDES[settings["guide"]](model).setup(x[:size], torch.zeros(min(size, rows)).long())
    jobs = {
        HAND: lambda: hand_network(plain, guide, x, num_draws, size),
        PYRO: lambda: by_pyro(model, guide, x, num_draws, size, "logits"),
    }
    jobs |= _our_jobs(model, guide, x, num_draws, size, "logits")
    bases = {PYRO: (HAND, None), OURS: (HAND, 1.1), PARALLEL: (OURS, 1.0)}
    what = f"predict, {settings['network']}, {rows} rows x {num_draws} draws"
    yield from rows_of(what, medians(jobs, rounds), bases)


def network_model(module: nn.Module) -> Callable[..., None]:
    """
    :param module: a network that gives logits.
    :returns: a model of rows and classes, with a standard normal prior on all weights.
    """
    net = BayesianModule(module, dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        logits = net(x)
        with pyro.plate("data", len(x)):
            pyro.deterministic("logits", logits, event_dim=1)
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return model


def _of_linear_model(settings: Settings, rounds: int) -> Iterator[Row]:
    rows, size, num_draws = settings["rows"], settings["row_batch"], settings["num_draws"]
    what = f"predict, linear, {rows} rows x {num_draws} draws in batches of {size}"
    yield from _of_rows(what, (rows, size, num_draws), rounds, 1.5)
    rows, num_draws = settings["few_rows"], settings["many_draws"]
    what = f"predict, linear, {rows} rows x {num_draws} draws"
    yield from _of_rows(what, (rows, rows, num_draws), rounds, None)


def _of_rows(
    what: str, sizes: tuple[int, int, int], rounds: int, goal: float | None
) -> Iterator[Row]:
    rows, size, num_draws = sizes
    x = torch.randn(rows, NUM_FEATURES)
    y = x[:, 0] + NOISE * torch.randn(rows)
    guide = HyperNetworkGuide(linear_model, init_from=None).setup(x, y)
    fit(linear_model, guide, x, y, num_steps=FIT_STEPS, progress=False)
    jobs = {
        HAND: lambda: hand_linear(guide, x, num_draws, size),
        PYRO: lambda: by_pyro(linear_model, guide, x, num_draws, size, "y"),
    }
    jobs |= _our_jobs(linear_model, guide, x, num_draws, size, "y")
    bases = {PYRO: (HAND, None), OURS: (HAND, goal), PARALLEL: (OURS, 1.0)}
    yield from rows_of(what, medians(jobs, rounds), bases)


def _our_jobs(
    model: Callable[..., Any], guide: Any, x: Tensor, num_draws: int, size: int, site: str
) -> dict[str, Job]:
    def job(parallel: bool) -> Job:
        options: dict[str, Any] = {"sites": [site], "parallel": parallel, "batch_size": size}
        return lambda: predict(model, guide, x, num_samples=num_draws, **options)

    return {OURS: job(False), PARALLEL: job(True)}


@torch.no_grad()
def hand_network(net: nn.Module, guide: Any, x: Tensor, num_draws: int, size: int) -> Tensor:
    """
    :param net: the network whose weights the guide draws.
    :param guide: a guide with sites named after the weights.
    :param Tensor x: ``(N, *shape)``.
    :param int num_draws: S.
    :param int size: rows at a time.
    :returns: logits ``(S, N, C)``.
    """
    names = [name for name, _ in net.named_parameters()]
    draws = guide.sample(num_draws)
    weights = [{name: draws[name][s] for name in names} for s in range(num_draws)]
    batches = x.split(size)
    logits = [torch.stack([functional_call(net, w, (b,)) for w in weights]) for b in batches]
    return torch.cat(logits, 1)


@torch.no_grad()
def by_pyro(model: Any, guide: Any, x: Tensor, num_draws: int, size: int, site: str) -> Tensor:
    """The same by Pyro's ``Predictive``, one batch after the other."""
    known = Predictive(model, guide.sample(num_draws), return_sites=(site,))
    return torch.cat([known(batch)[site] for batch in x.split(size)], 1)


def linear_model(x: Tensor, y: Tensor | None = None) -> None:
    """A linear regression with known noise."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(NUM_FEATURES), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(linear(x, w), NOISE), obs=y)


@torch.no_grad()
def hand_linear(guide: Any, x: Tensor, num_draws: int, size: int) -> Tensor:
    """
    :param guide: one of :func:`linear_model`.
    :param Tensor x: ``(N, D)``.
    :param int num_draws: S.
    :param int size: rows at a time.
    :returns: new observations ``(S, N)``.
    """
    draws, found = guide.sample(num_draws)["w"], []
    for batch in x.split(size):
        means = [batch @ w for w in draws]
        found.append(torch.stack([mean + NOISE * torch.randn_like(mean) for mean in means]))
    return torch.cat(found, 1)


def arviz(settings: Settings, rounds: int, seed: int) -> Iterator[Row]:
    """Rows of ``to_arviz`` for a linear model."""
    rows, num_draws = settings["arviz_rows"], settings["arviz_draws"]
    with fixed_seed(seed):
        x = torch.randn(rows, NUM_FEATURES)
        y = x[:, 0] + NOISE * torch.randn(rows)
        guide = HyperNetworkGuide(linear_model, init_from=None).setup(x, y)
        options: dict[str, Any] = {"num_samples": num_draws, "groups": GROUPS}
        jobs = {
            HAND: lambda: hand_arviz(guide, x, y, num_draws),
            "to_arviz": lambda: to_arviz(linear_model, guide, x, y, **options),
        }
        ms = medians(jobs, rounds)
    what = f"to_arviz, {rows} rows x {num_draws} draws"
    yield from rows_of(what, ms, {"to_arviz": (HAND, 2.0)})


@torch.no_grad()
def hand_arviz(guide: Any, x: Tensor, y: Tensor, num_draws: int) -> tuple[np.ndarray, np.ndarray]:
    """
    :param guide: one of :func:`linear_model`.
    :param Tensor x: ``(N, D)``.
    :param Tensor y: ``(N,)``.
    :param int num_draws: S.
    :returns: new observations, and log-likelihoods in float64, each ``(S, N)``.
    """
    new = np.empty((num_draws, len(x)), dtype=np.float32)
    scores = np.empty((num_draws, len(x)))
    for s, w in enumerate(guide.sample(num_draws)["w"]):
        there = dist.Normal(x @ w, NOISE, validate_args=False)
        new[s], scores[s] = there.sample().numpy(), there.log_prob(y).numpy()
    return new, scores
