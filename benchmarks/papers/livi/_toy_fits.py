"""The curve with a gap, its network, and what is fitted to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from torch import Tensor, nn

from benchmarks.shared.start import begin_at
from pyro_implicit import (
    AdversarialELBO,
    BayesianModule,
    HyperNetworkGuide,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    predict,
    refine,
)
from pyro_implicit.chains import HMC

__all__ = [
    "OBJECTIVES",
    "SETTINGS",
    "Data",
    "chains",
    "curve",
    "data",
    "fit",
    "make_model",
    "make_network",
    "mode",
]

SETTINGS: dict[str, Any] = {
    "noise": 0.15,
    "hidden_dims": (50,),
    "lr": 3e-3,
    "map_steps": 1500,
    "num_particles": 8,
    "num_draws": 500,
    "num_chains": 16,
    "chain_steps": 240_000,  # gradients of each, half for the warm-up
    "max_leapfrog": 1000,
    "r_hat_draws": 4800,
}
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "mean-field": Trace_ELBO,
    "full-rank Gaussian": Trace_ELBO,
    "no KL": partial(LinearisedELBO, kl_weight=0.0),
    "linearised": LinearisedELBO,
    "autoregressive": partial(LinearisedELBO, path_gradient=False),
    "autoregressive, path": LinearisedELBO,
    "lanczos": LanczosELBO,
    "kernel": KernelDensityRatioELBO,
    "kernel, 500 draws": partial(KernelDensityRatioELBO, num_samples=500),
    "kernel, published": partial(KernelDensityRatioELBO, published=True),
    "adversarial": AdversarialELBO,
    "adversarial, 500 draws": partial(AdversarialELBO, num_samples=500),
    "adversarial, prior": partial(AdversarialELBO, contrast="prior"),
    "adversarial, paper": partial(
        AdversarialELBO,
        contrast="prior",
        num_samples=20,
        num_critic_steps=10,
        critic=lambda m: nn.Sequential(nn.Linear(m, 100), nn.ELU(), nn.Linear(100, 1)),
    ),
}
_GAUSSIANS = {"mean-field": AutoNormal, "full-rank Gaussian": AutoMultivariateNormal}
Data = tuple[Tensor, Tensor]
Model = Callable[..., Any]


def curve(x: Tensor) -> Tensor:
    """The noiseless function of ``(N, 1)`` inputs."""
    return 0.5 * x[:, 0] + 0.8 * torch.sin(1.2 * torch.pi * x[:, 0])


def data() -> Data:
    """The training set, from the random state."""
    side = torch.linspace(0.7, 2.0, 35)[:, None]
    x = torch.cat([-side.flip(0), side])
    return x, curve(x) + SETTINGS["noise"] * torch.randn(len(x))


def make_network() -> nn.Sequential:
    """One input, hidden layers of seven and ten units, one output."""
    sizes = ((1, 7), (7, 10), (10, 1))
    return nn.Sequential(*[part for a, b in sizes for part in (nn.Linear(a, b), nn.ELU())][:-1])


def make_model() -> Model:
    """The network as a Pyro model."""
    net = BayesianModule(make_network(), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> None:
        f = pyro.deterministic("f", net(x).squeeze(-1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, SETTINGS["noise"]), obs=y)

    return model


def train(
    model: Model, guide: Any, objective: Any, train_data: Data, steps: Any, lr: float
) -> None:
    """Adam whose rate falls to a twentieth."""
    rate = {"lr": lr, "lrd": 0.05 ** (1 / len(steps))}
    svi = SVI(model, guide, pyro.optim.ClippedAdam(rate), objective)
    for _ in steps:
        svi.step(*train_data)


def mode(model: Model, train_data: Data) -> dict[str, Tensor]:
    """Where all guides begin, by site."""
    start = AutoDelta(model)
    train(model, start, Trace_ELBO(), train_data, range(SETTINGS["map_steps"]), 1e-2)
    return {name: value.detach() for name, value in start.median().items()}


def fit(
    method: str, model: Model, start: dict[str, Tensor], train_data: Data, x: Tensor, steps: Any
) -> tuple[Tensor, Any]:
    """Draws of the network's output at ``x``, shape ``(num_draws, N)``, and the objective."""
    pyro.clear_param_store()
    at = {"init_loc_fn": begin_at(start)}
    if method in _GAUSSIANS:
        guide: Any = _GAUSSIANS[method](model, init_scale=0.05, **at)
    else:
        default = method.startswith("autoregressive")
        layers = {} if default else {"hidden_dims": SETTINGS["hidden_dims"]}
        guide = HyperNetworkGuide(model, init_scale=0.05, init_from=None, **layers, **at)
    fast = {"vectorize_particles": True, "max_plate_nesting": 1}
    objective = OBJECTIVES[method](SETTINGS["num_particles"], **fast)
    train(model, guide, objective, train_data, steps, SETTINGS["lr"])
    predictive = Predictive(
        model, guide=guide, num_samples=SETTINGS["num_draws"], return_sites=["f"]
    )
    with torch.no_grad():
        return predictive(x)["f"].reshape(-1, len(x)), objective


def chains(model: Model, train_data: Data, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """
    Hamiltonian Monte Carlo from modes, in chains that are moved together.

    :returns: draws of the output at ``x``, shape ``(S, N)``, and its r-hat there, ``(N,)``.
    """
    count, steps = SETTINGS["num_chains"], SETTINGS["chain_steps"]
    kernel = HMC(max_leapfrog=SETTINGS["max_leapfrog"])
    options: dict[str, Any] = {"num_chains": count, "kernel": kernel, "seed": seed}
    found = refine(model, count, *train_data, num_steps=steps, progress=False, **options)
    number = SETTINGS["r_hat_draws"]
    f = predict(model, found, x, num_samples=number, sites=["f"])["f"]
    r_hat = found.predictive_r_hat(x, sites=["f"], num_samples=number)["f"]
    return f.reshape(-1, len(x)), r_hat
