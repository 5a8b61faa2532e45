"""The network of 97 weights: what fits of several kinds cost, and how well they predict."""

# Shape legend: N rows.
from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor, nn

from benchmarks.common import fixed_seed
from benchmarks.cost._speed_models import TARGETS, Target
from benchmarks.cost._speed_timing import Row, Settings, row
from benchmarks.shared.uci_peers import has_laplace
from pyro_implicit import HyperNetworkGuide, fit, log_predictive_density

__all__ = ["WHAT", "gaussian_score", "network"]

WHAT = "network of 97 weights, whole fit"
_NOISE = 0.1
_NUM_TEST = 1000
_NUM_DRAWS = 500
_MAP_RATE = 0.01
LAPLACE = {"laplace-torch, all weights": "all", "laplace-torch, last layer": "last_layer"}


def network(settings: Settings, rounds: int, seed: int) -> Iterator[Row]:
    """Rows of guides by fit, and of laplace-torch if it is installed: one run each."""
    del rounds
    with fixed_seed(seed):
        target = TARGETS["network of 97 weights"]()
        test = _rows(_NUM_TEST)
    for name in ("HyperNetworkGuide", "AutoMultivariateNormal"):
        yield _by_fit(name, target, test, settings, seed)
    if not has_laplace():
        yield row(WHAT, "laplace-torch", None, note="left out: pip install laplace-torch")
        return
    for name, weights in LAPLACE.items():
        yield _by_laplace(name, weights, target, test, settings, seed)


def _rows(count: int) -> tuple[Tensor, Tensor]:
    """New rows of the curve that the network was trained on."""
    x = 2 * torch.rand(count, 1) - 1
    return x, torch.sin(3 * x[:, 0]) + _NOISE * torch.randn(count)


def _by_fit(name: str, target: Target, test: Any, settings: Settings, seed: int) -> Row:
    guide: Any
    options: dict[str, Any] = {"num_steps": settings["fit_steps"], "seed": seed, "progress": False}
    with fixed_seed(seed):
        begin = time.process_time()
        if name == "HyperNetworkGuide":
            guide = HyperNetworkGuide(target.model)
        else:
            guide = AutoMultivariateNormal(target.model)
            objective = Trace_ELBO(8, vectorize_particles=True, max_plate_nesting=1)
            options["objective"] = objective
        result = fit(target.model, guide, *target.args, **options)
        spent = 1e3 * (time.process_time() - begin)
        found = log_predictive_density(target.model, guide, *test, num_samples=_NUM_DRAWS)
    score = float(found.mean())
    note = f"{result.num_steps} steps ({result.reason}): {_said(score)}"
    return row(WHAT, name, spent, note=note)


def gaussian_score(mean: Tensor, variance: Tensor, y: Tensor, noise: float) -> float:
    """
    The log predictive density of rows under Gaussians.

    :param Tensor mean: shape ``(N,)``.
    :param Tensor variance: of the mean, shape ``(N,)``.
    :param Tensor y: shape ``(N,)``.
    :param float noise: deviation of a row.
    :returns: mean over rows, in nats.
    """
    scale = (variance + noise**2).sqrt()
    return float(torch.distributions.Normal(mean, scale).log_prob(y).mean())


def _by_laplace(
    name: str, weights: str, target: Target, test: Any, settings: Settings, seed: int
) -> Row:
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    x, y = target.args
    with fixed_seed(seed):
        begin = time.process_time()
        net = _mode(x, y, settings["map_steps"])
        found: Any = Laplace(
            net,
            "regression",
            subset_of_weights=weights,
            hessian_structure="full",
            sigma_noise=_NOISE,
            prior_precision=1.0,
        )
        found.fit(DataLoader(TensorDataset(x, y[:, None]), batch_size=len(x)))
        spent = 1e3 * (time.process_time() - begin)
        mean, variance = found(test[0])
    score = gaussian_score(mean[:, 0].detach(), variance[:, 0, 0].detach(), test[1], _NOISE)
    note = f"{settings['map_steps']} steps to the mode: {_said(score)}"
    return row(WHAT, name, spent, note=note)


def _mode(x: Tensor, y: Tensor, num_steps: int) -> nn.Module:
    """The network at a mode of the same posterior."""
    net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    adam = torch.optim.Adam(net.parameters(), lr=_MAP_RATE)
    for _ in range(num_steps):
        adam.zero_grad()
        error = (net(x)[:, 0] - y).square().sum() / _NOISE**2
        loss = 0.5 * (error + sum(weight.square().sum() for weight in net.parameters()))
        loss.backward()
        adam.step()
    return net


def _said(score: float) -> str:
    return f"{score:.3f} nats a new row"
