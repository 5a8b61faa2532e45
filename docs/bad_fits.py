"""
Bad fits, their checks and their cures: the figures and numbers of `howto/bad_fit.md`.

python docs/bad_fits.py [NAME ...]    some minutes on one core; writes docs/figures/
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit import (
    BayesianModule,
    EnsembleGuide,
    HyperNetworkGuide,
    LinearisedELBO,
    PosteriorPredictiveLoss,
    entropy_report,
    evaluate,
    fit,
    posterior_draws,
    predict,
)

FIGURES = Path(__file__).resolve().parent / "figures"
BAD, GOOD = "#c0392b", "#2471a3"


def curve_model() -> tuple[Callable[..., Any], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A network on a curve with a gap; and held-out data of the same curve."""
    pyro.set_rng_seed(0)
    x = torch.cat([torch.linspace(-2.0, -0.7, 30), torch.linspace(0.7, 2.0, 30)]).unsqueeze(-1)
    y = torch.sin(2.0 * x[:, 0]) + 0.2 * torch.randn(60)
    x_test = torch.linspace(-2.0, 2.0, 200).unsqueeze(-1)
    y_test = torch.sin(2.0 * x_test[:, 0]) + 0.2 * torch.randn(200)
    layers = torch.nn.Sequential(torch.nn.Linear(1, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
    net = BayesianModule(layers, prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        f = pyro.deterministic("f", net(x).squeeze(-1))
        with pyro.plate("data", 60, subsample_size=len(x)):
            return pyro.sample("y", dist.Normal(f, 0.2), obs=y)

    return model, (x, y), (x_test, y_test)


def collapse() -> None:
    """A loss without an entropy leaves one curve; an objective with one has a band."""
    model, data, held_out = curve_model()
    objectives = {
        "PosteriorPredictiveLoss(form='expected')": PosteriorPredictiveLoss(
            8, form="expected", vectorize_particles=True
        ),
        "LinearisedELBO": LinearisedELBO(8, vectorize_particles=True),
    }
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
    for ax, colour, (name, objective) in zip(axes, (BAD, GOOD), objectives.items(), strict=True):
        guide = HyperNetworkGuide(model)
        fit(model, guide, *data, objective=objective, num_steps=2000, seed=0, progress=False)
        report = evaluate(model, guide, *held_out, seed=0)
        f = predict(model, guide, held_out[0], num_samples=30, sites=["f"])["f"]
        print(name, "spread of f", f"{f.std(0).mean():.3f}")
        print(report)
        ax.plot(held_out[0][:, 0], f.T, color=colour, lw=0.5, alpha=0.5)
        ax.plot(data[0][:, 0], data[1], "k.", ms=3)
        ax.set(title=name, xlabel="x", ylim=(-2.5, 2.5))
    axes[0].set_ylabel("thirty draws of f")
    save(figure, "collapse")


def ring(y: Tensor) -> None:
    """Two latents whose distance from the origin is observed."""
    theta = pyro.sample("theta", dist.Normal(torch.zeros(2), 3.0).to_event(1))
    pyro.sample("y", dist.Normal(theta.norm(dim=-1), 0.2), obs=y)


def fold() -> None:
    """A perceptron that may fold, and the default that cannot."""
    y = torch.tensor(2.0)
    guides = {
        "hidden_dims=(40, 40)": HyperNetworkGuide(
            ring, hidden_dims=(40, 40), init_from=None, init_scale=2.0
        ),
        "the default": HyperNetworkGuide(ring),
    }
    figure, axes = plt.subplots(1, 2, figsize=(7, 3.3), sharex=True, sharey=True)
    for ax, colour, (name, guide) in zip(axes, (BAD, GOOD), guides.items(), strict=True):
        objective = LinearisedELBO(32, vectorize_particles=True)
        result = fit(ring, guide, y, objective=objective, num_steps=3000, seed=0, progress=False)
        print(name, "loss", f"{result.loss:.3f}", result.warnings)
        pyro.set_rng_seed(0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            print(entropy_report(guide))
        print(*(one.message for one in told))
        draws = posterior_draws(guide, 1500)["theta"]
        ax.plot(*draws.T, ".", ms=2, color=colour)
        ax.set(title=name, xlabel="theta[0]", aspect="equal")
    axes[0].set_ylabel("theta[1]")
    save(figure, "fold")


def square(y: Tensor) -> None:
    """A latent whose square is observed: its sign is not."""
    theta = pyro.sample("theta", dist.Normal(0.0, 3.0))
    pyro.sample("y", dist.Normal(theta.square(), 0.5), obs=y)


def lost_mode() -> None:
    """One fit has one mode; fits from several starts, together, have both."""
    y = torch.tensor(4.0)
    guides = []
    for seed in range(6):
        pyro.set_rng_seed(seed)
        start = float(torch.randn(()))
        guide = HyperNetworkGuide(square, init_loc_fn=lambda site, s=start: torch.tensor(s))
        result = fit(square, guide, y, seed=seed, num_steps=1500, progress=False)
        guides.append(guide)
        mean = posterior_draws(guide, 1000)["theta"].mean()
        print("mean of fit", seed, f"{mean:.2f}", result.warnings)
    figure, axes = plt.subplots(1, 2, figsize=(7, 3), sharex=True)
    grid = torch.linspace(-3, 3, 400)
    exact = (dist.Normal(0.0, 3.0).log_prob(grid) + dist.Normal(grid**2, 0.5).log_prob(y)).exp()
    exact = exact / torch.trapezoid(exact, grid)
    shown = {"one fit": (guides[0], BAD), "six fits": (EnsembleGuide(guides), GOOD)}
    for ax, (name, (guide, colour)) in zip(axes, shown.items(), strict=True):
        draws = posterior_draws(guide, 6000)["theta"]
        ax.hist(draws.numpy(), 60, range=(-3, 3), density=True, color=colour, alpha=0.7)
        ax.plot(grid, exact, "k", lw=1, label="exact")
        ax.set(title=name, xlabel="theta", yticks=[])
    axes[0].legend()
    save(figure, "lost_mode")


def unconverged() -> None:
    """A fit that was stopped by its limit, and one that ended by itself."""
    model, data, held_out = curve_model()
    figure, axes = plt.subplots(1, 2, figsize=(8, 3))
    for ax, limit in zip(axes, (100, 10_000), strict=True):
        guide = HyperNetworkGuide(model, init_from=None)
        result = fit(model, guide, *data, num_steps=limit, seed=0, progress=False)
        print(limit, result)
        print(evaluate(model, guide, *held_out, seed=0))
        result.plot(ax)
        ax.set_title(f"{result.num_steps} steps: {result.reason}")
    save(figure, "unconverged")


def undeclared_plate() -> None:
    """Minibatches that count as all data: the posterior of a few rows, not of a thousand."""
    pyro.set_rng_seed(0)
    x = torch.randn(1000)
    y = 0.5 * x + torch.randn(1000)
    rows = torch.utils.data.TensorDataset(x, y)

    def declared(x: Tensor, y: Tensor) -> None:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 1000, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    def undeclared(x: Tensor, y: Tensor) -> None:
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    figure, ax = plt.subplots(figsize=(6, 3))
    for name, model, colour in (
        ("undeclared", undeclared, BAD),
        ("declared", declared, GOOD),
    ):
        guide = HyperNetworkGuide(model)
        loader = torch.utils.data.DataLoader(
            rows, batch_size=50, shuffle=True, generator=torch.Generator().manual_seed(0)
        )
        result = fit(model, guide, batches=loader, num_steps=2000, seed=0, progress=False)
        draws = posterior_draws(guide, 4000)["slope"]
        print(name, f"{draws.mean():.3f} +- {draws.std():.3f}", result.warnings)
        ax.hist(draws.numpy(), 60, density=True, color=colour, alpha=0.6, label=name)
    precision = float(1.0 + x.square().sum())
    exact = dist.Normal(float((x * y).sum()) / precision, precision**-0.5)
    grid = torch.linspace(0.0, 1.0, 400)
    print("exact", f"{float(exact.mean):.3f} +- {float(exact.stddev):.3f}")
    ax.plot(grid, exact.log_prob(grid).exp(), "k", lw=1, label="exact")
    ax.set(xlabel="slope", yticks=[])
    ax.legend()
    save(figure, "undeclared_plate")


def save(figure: Any, name: str) -> None:
    """Writes one figure."""
    FIGURES.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(FIGURES / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


ALL = {one.__name__: one for one in (collapse, fold, lost_mode, unconverged, undeclared_plate)}

if __name__ == "__main__":
    matplotlib.use("Agg")
    for name in sys.argv[1:] or ALL:
        print("==", name)
        ALL[name]()
