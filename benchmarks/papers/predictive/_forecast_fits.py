"""The fits of the forecasts: one network, posteriors over its weights, and its usual peers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch import Tensor, nn

from benchmarks.networks import NBeats
from benchmarks.papers.predictive._forecast_data import Windows
from benchmarks.papers.predictive._predictive import loss
from pyro_implicit import BayesianModule, ConditionalHyperNetworkGuide, HyperNetworkGuide, predict
from pyro_implicit.training import Annealed, EarlyStopping

__all__ = ["METHODS", "SETTINGS", "best_noise", "fit", "log_predictive"]

SETTINGS: dict[str, Any] = {
    "batch_size": {"england": 128, "sun": 32, "own": 128},
    "lr": {"maximum likelihood": 0.01, "mean-field": 3e-3, "other": 1e-3},
    "scale": 0.25,
    "num_draws": 50,
    "num_checks": 10,
    "num_members": 5,
    "dropout": [0.02, 0.05, 0.1, 0.2],
    "scales": [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0],
}
_ENSEMBLE, _DROPOUT = "ensemble of 5", "MC dropout"
METHODS = (
    "maximum likelihood",
    _ENSEMBLE,
    _DROPOUT,
    "mean-field",
    "unconditioned",
    "conditional",
)


def make_model(past: int, ahead: int, num_data: int, scale: Any, local: bool) -> Any:
    """N-BEATS as a Pyro program, and its network."""
    net = BayesianModule(NBeats(past, ahead), prior=dist.Normal(0.0, 1.0), local=local)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        shared = None if local else net(x)
        with pyro.plate("windows", num_data, subsample_size=len(x)):
            f = net(x) if local else shared
            f = pyro.deterministic("f", f, event_dim=1)
            pyro.sample("y", dist.Normal(f, scale()).to_event(1), obs=y)

    return model, net


def make_guide(method: str, model: Any, net: BayesianModule) -> Any:
    """The posterior model of a method."""
    start = {"init_loc_fn": net.init_to_module}
    if method == "maximum likelihood":
        return AutoDelta(model, **start)
    if method == "mean-field":
        return AutoNormal(model, init_scale=0.01, **start)
    settings: dict[str, Any] = {"noise_dim": 4, "hidden_dims": (16,), "activation": "relu"}
    settings |= {"scale": 0.0, "init_scale": 0.02, **start}
    kind = ConditionalHyperNetworkGuide if method == "conditional" else HyperNetworkGuide
    return kind(model, **settings)


@torch.no_grad()
def draws(model: Any, guide: Any, x: Tensor, num_draws: int) -> Tensor:
    """Draws of the forecasts, shape ``(S, N, ahead)``."""
    options = {"num_samples": num_draws, "sites": ["f"], "parallel": True, "batch_size": 32}
    with pyro.validation_enabled(False):
        return predict(model, guide, x, **options)["f"]


def log_predictive(f: Tensor, y: Tensor, scale: float) -> float:
    """Mean over windows of the log of the mean over draws of the density of a window."""
    log_p = dist.Normal(f, scale).log_prob(y).sum(-1)
    return (log_p.logsumexp(0) - math.log(len(f))).mean().item()


def best_noise(f: Tensor, y: Tensor) -> tuple[float, float]:
    """
    :param f: draws of the forecasts of the validation windows.
    :param y: what came.
    :returns: the scale of the noise with the highest log-density, and that density.
    """
    scores = {s: log_predictive(f, y, s) for s in SETTINGS["scales"]}
    best = max(scores, key=scores.__getitem__)
    return best, scores[best]


def fit(
    name: str, method: str, windows: Windows, num_particles: int, epochs: Any
) -> tuple[Tensor, dict[str, Any]]:
    """
    Draws at the test windows; and what validation chose: the scale of the ``noise``, the ``epoch``
    that they are from (the mean of an ensemble's), and the ``rate`` of dropout.
    """
    if method == _ENSEMBLE:
        return _ensemble(name, windows, epochs)
    if method == _DROPOUT:
        return _dropout(name, windows, epochs)
    f, _, found = _posterior(name, method, windows, num_particles, epochs)
    return f, found


def _posterior(
    name: str, method: str, windows: Windows, num_particles: int, epochs: Any
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Draws at the test windows and at the validation windows, and what these chose."""
    x = windows.train[0]
    steps = _num_steps(name, windows, epochs)
    scale = Annealed(1.0, SETTINGS["scale"], max(1, steps // 2))
    past, ahead = x.shape[1], windows.train[1].shape[1]
    model, net = make_model(past, ahead, len(x), scale, method == "conditional")
    guide = make_guide(method, model, net)
    objective: Any = loss("per_datum", num_particles)
    if method in ("maximum likelihood", "mean-field"):
        count = 1 if method == "maximum likelihood" else num_particles
        objective = Trace_ELBO(count, vectorize_particles=count > 1, max_plate_nesting=1)
        model = without_prior(model) if method == "maximum likelihood" else model
    rate = SETTINGS["lr"].get(method, SETTINGS["lr"]["other"])
    optimizer = pyro.optim.ClippedAdam({"lr": rate, "lrd": 0.1 ** (1 / steps)})
    svi = SVI(model, guide, optimizer, objective)
    count = 1 if method == "maximum likelihood" else SETTINGS["num_draws"]

    def step(x: Tensor, y: Tensor) -> None:
        svi.step(x, y)
        scale.step()

    def at(x: Tensor) -> Tensor:
        return draws(model, guide, x, count)

    return _stopped(name, windows, epochs, guide, step, at)


def _stopped(
    name: str,
    windows: Windows,
    epochs: Any,
    trained: nn.Module,
    step: Callable[[Tensor, Tensor], None],
    at: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Steps through the epochs, and the best state by validation windows."""
    x, y = windows.train
    stopping = EarlyStopping(patience=10**6, mode="max")
    every = max(1, len(epochs) // SETTINGS["num_checks"])
    best: Any = None
    for epoch in epochs:
        for rows in torch.randperm(len(x)).split(SETTINGS["batch_size"][name]):
            step(x[rows], y[rows])
        if epoch % every == every - 1:
            f = at(windows.validation[0])
            noise, score = best_noise(f, windows.validation[1])
            stopping.step(score, trained)
            if stopping.best_step == stopping.num_steps - 1:
                best = f, {"noise": noise, "epoch": epoch + 1}
    stopping.restore(trained)
    return at(windows.test[0]), *best


def _ensemble(name: str, windows: Windows, epochs: Any) -> tuple[Tensor, dict[str, Any]]:
    """Networks by maximum likelihood, each stopped by itself; the noise is chosen for all."""
    members = [
        _posterior(name, "maximum likelihood", windows, 1, epochs)
        for _ in range(SETTINGS["num_members"])
    ]
    validation = torch.cat([f for _, f, _ in members])
    noise, _ = best_noise(validation, windows.validation[1])
    epoch = sum(found["epoch"] for *_, found in members) / len(members)
    return torch.cat([f for f, *_ in members]), {"noise": noise, "epoch": epoch}


def _dropout(name: str, windows: Windows, epochs: Any) -> tuple[Tensor, dict[str, Any]]:
    """Units are left out in training and in prediction, at the rate that validation likes best."""
    found = []
    for rate in SETTINGS["dropout"]:
        f, validation, chosen = _with_dropout(name, windows, epochs, rate)
        score = best_noise(validation, windows.validation[1])[1]
        found.append((score, f, chosen | {"rate": rate}))
    return max(found, key=lambda one: one[0])[1:]


def _with_dropout(
    name: str, windows: Windows, epochs: Any, rate: float
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """As by maximum likelihood, with the same steps; the units left out differ by window."""
    x, y = windows.train
    net = NBeats(x.shape[1], y.shape[1])
    for block in net.blocks:  # a unit that is left out before its ReLU is left out after it
        layers: Iterable[nn.Module] = block.layers  # type: ignore[assignment]
        block.layers = nn.ModuleList(nn.Sequential(one, nn.Dropout(rate)) for one in layers)
    steps = _num_steps(name, windows, epochs)
    scale = Annealed(1.0, SETTINGS["scale"], max(1, steps // 2))
    options = {"lr": SETTINGS["lr"]["maximum likelihood"], "lrd": 0.1 ** (1 / steps)}
    optimizer = pyro.optim.clipped_adam.ClippedAdam(net.parameters(), **options)

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        log_p = dist.Normal(net(x), scale()).log_prob(y).sum()
        (-log_p * len(windows.train[0]) / len(x)).backward()
        optimizer.step()
        scale.step()

    @torch.no_grad()
    def at(x: Tensor) -> Tensor:
        return torch.stack([net(x) for _ in range(SETTINGS["num_draws"])])

    return _stopped(name, windows, epochs, net, step, at)


def _num_steps(name: str, windows: Windows, epochs: Any) -> int:
    """Steps of a whole fit."""
    batch: int = SETTINGS["batch_size"][name]
    return len(epochs) * -(-len(windows.train[0]) // batch)


def without_prior(model: Callable[..., Any]) -> Callable[..., Any]:
    """The model without the density of its latents: what maximum likelihood maximises."""

    class NoPrior(pyro.poutine.messenger.Messenger):
        def _pyro_sample(self, msg: Any) -> None:
            if not msg["is_observed"] and not pyro.poutine.util.site_is_subsample(msg):
                msg["mask"] = False

    def bare(*args: Any, **kwargs: Any) -> Any:
        with NoPrior():
            return model(*args, **kwargs)

    return bare
