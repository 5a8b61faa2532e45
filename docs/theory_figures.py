"""
The figures of `theory/`: a fold, quadrature rules, semi-implicit bounds, contrasts.

python docs/theory_figures.py [NAME ...]    some seconds on one core; writes docs/figures/
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

import matplotlib
import matplotlib.pyplot as plt
import torch
from bad_fits import save
from torch import Tensor

from pyro_implicit.ops.density_ratio import kl_divergence
from pyro_implicit.ops.lanczos import draw_probes, lanczos_quadrature
from pyro_implicit.ops.linearisation import FunctionLinearisation
from pyro_implicit.ops.logdet import half_log_det
from pyro_implicit.ops.moments import standardise
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian
from pyro_implicit.ops.semi_implicit import (
    gauss_newton_proposal,
    gaussian_log_density,
    log_densities,
)

#: apart in grey, and for every kind of colour vision (Okabe and Ito); each has a dash of its own
DARK, MIDDLE, LIGHT = "#000000", "#0072B2", "#E69F00"
NORMAL_ENTROPY = 0.5 * (1 + math.log(2 * math.pi))


def normal(x: Tensor, mean: float = 0.0, scale: float = 1.0) -> Tensor:
    """The density of a Gaussian."""
    return torch.distributions.Normal(mean, scale).log_prob(x).exp()


def fold() -> None:
    """What the linearised entropy knows of |z|, and how much it claims on the way there."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3))
    z = torch.linspace(-2.5, 2.5, 501)
    left.plot(z, z.abs(), color=DARK)
    left.plot([-1, 1], [1, 1], "o", color=MIDDLE)
    left.hlines(1.0, -2.5, 1.0, color=MIDDLE, ls=":")
    left.vlines([-1, 1], 0.0, 1.0, color=MIDDLE, ls=":")
    left.set(title="two noises, one draw", xlabel="z", ylabel="|z|")
    left.set(xlim=(-2.5, 2.5), ylim=(0, 2.5))

    theta = torch.linspace(0.0, 3.0, 301)
    middle.plot(theta, 2 * normal(theta), color=DARK, label="of the draws")
    middle.plot(theta, normal(theta), "--", color=MIDDLE, label="by one noise")
    middle.set(title="densities", xlabel="|z|", xlim=(0, 3), ylim=(0, 0.9))
    middle.legend()

    slopes = torch.cat([torch.linspace(-1.0, -0.01, 40), torch.linspace(0.01, 1.0, 40)])
    excess = [excess_of(float(slope)) for slope in slopes]
    print(f"excess at slopes -1, -0.5, 0.5: {excess[0]:.4f} {excess_of(-0.5):.4f} {excess[-1]:.4f}")
    right.plot(slopes, excess, color=DARK)
    right.axhline(math.log(2), color=MIDDLE, ls="--")
    right.text(1.0, math.log(2) - 0.02, "log 2", va="top", ha="right")
    right.set(title="nats claimed too many", xlabel="slope left of 0", ylim=(-0.03, 0.78))
    save(figure, "theory_fold")


def excess_of(slope: float) -> float:
    """Linearised less true entropy of z for z > 0 and ``slope * z`` for z < 0, by integration."""
    grid = torch.linspace(-8.0, 8.0, 160_001, dtype=torch.float64)
    density = normal(grid) * (grid > 0)
    density = density + normal(grid / slope) / abs(slope) * (grid / slope < 0)
    true = -torch.trapezoid(torch.special.xlogy(density, density), grid)
    return NORMAL_ENTROPY + 0.5 * math.log(abs(slope)) - float(true)


def network(sizes: tuple[int, ...], gain: float) -> Callable[[Tensor], Tensor]:
    """A random perceptron beside the identity."""
    weights = [
        gain * torch.randn(b, a, dtype=torch.float64) / a**0.5
        for a, b in zip(sizes, sizes[1:], strict=False)
    ]

    def forward(z: Tensor) -> Tensor:
        out = z
        for weight in weights[:-1]:
            out = torch.tanh(out @ weight.mT)
        return out @ weights[-1].mT + (z if sizes[0] == sizes[-1] else 0.0)

    return forward


def lanczos() -> None:
    """Both rules by steps, over as many orthogonal probes as dimensions: without their spread."""
    torch.manual_seed(0)
    generator, scale = network((50, 80, 300), 1.0), 0.01
    z = torch.randn(50, dtype=torch.float64)
    jacobian = ScaledJacobian(FunctionLinearisation(generator, z), scale)
    matrix = torch.func.jacrev(generator)(z)
    singular = torch.linalg.svdvals(matrix)
    true = float(half_log_det(matrix, scale)) - 300 * math.log(scale)
    probes = draw_probes("orthogonal", 50, jacobian)
    steps = range(1, 16)
    gauss, radau, spread = [], [], []
    for k in steps:
        found = lanczos_quadrature(jacobian, probes, k)
        gauss.append(float(0.5 * found.gauss.mean()) - true)
        radau.append(float(0.5 * found.radau.mean()) - true)
        spread.append(float(0.5 * found.gauss.std()))
    print(f"half log det {true:.1f}, singular values {singular[-1]:.3g} to {singular[0]:.3g}")
    for k in (1, 5, 10, 15):
        told = gauss[k - 1], radau[k - 1], spread[k - 1]
        print(k, "gauss {:+.3f} radau {:+.3f} one probe +-{:.2f}".format(*told))
    figure, ax = plt.subplots(figsize=(6, 3.4))
    deviation = torch.tensor(spread)
    ax.fill_between(steps, -deviation, deviation, color="0.88", label="deviation of one probe")
    ax.plot(steps, gauss, "o-", color=DARK, ms=4, label="Gauss")
    ax.plot(steps, radau, "s--", color=MIDDLE, ms=4, label="Gauss-Radau")
    ax.axhline(0.0, color="0.4", lw=0.8)
    ax.set_yscale("symlog", linthresh=0.1)
    ax.set(xlabel="Lanczos steps", ylabel="less the exact value (nats)", xticks=[1, 5, 10, 15])
    ax.set_ylim(-300.0, 3000.0)
    ax.legend(loc="upper right")
    save(figure, "theory_lanczos")


def semi_implicit() -> None:
    """Both bounds of an entropy by inner draws, in few and in many dimensions of noise."""
    torch.manual_seed(0)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4))
    counts = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    for ax, dim in zip(axes, (2, 10), strict=True):
        generator = network((dim, 30, dim), 1.5)
        proposals = {"prior": ("o-", DARK), "gauss-newton": ("s--", MIDDLE)}
        for proposal, (style, colour) in proposals.items():
            weights, own = inner_weights(generator, dim, 0.3, max(counts), proposal)
            lower, upper = [], []
            for k in counts:
                others = weights[:k].logsumexp(0)
                lower.append(-float((torch.logaddexp(others, own) - math.log(k + 1)).mean()))
                upper.append(-float((others - math.log(k)).mean()))
            print(f"{dim} noises, {proposal}, K = 10, 100, 1000:")
            print("    lower", *(f"{lower[i]:.2f}" for i in (3, 6, 9)))
            print("    upper", *(f"{upper[i]:.2f}" for i in (3, 6, 9)))
            open_marker = {"color": colour, "ms": 4, "mfc": "white"}
            ax.plot(counts, upper, style, **open_marker, label=f"upper, {proposal}")
            ax.plot(counts, lower, style, color=colour, ms=4, label=f"lower, {proposal}")
        ax.set(title=f"{dim} noises", xlabel="inner draws K", xscale="log")
    axes[0].set(ylabel="entropy in nats", ylim=(0.0, 8.0))
    axes[0].legend()
    axes[1].set_ylim(0.0, 40.0)
    save(figure, "theory_semi_implicit")


def inner_weights(
    generator: Callable[[Tensor], Tensor], dim: int, scale: float, count: int, proposal: str
) -> tuple[Tensor, Tensor]:
    """Log-weights of new noises, ``(K, n)``, and of those that made the ``n`` draws."""
    torch.manual_seed(1)
    z = torch.randn(500, dim, dtype=torch.float64)
    draws = generator(z) + scale * torch.randn_like(z)
    own = gaussian_log_density(draws, generator(z), scale)
    if proposal == "prior":
        return log_densities(draws, generator(torch.randn(count, dim).double()), scale).mT, own
    jacobian = torch.func.vmap(torch.func.jacrev(generator))
    around = gauss_newton_proposal(draws, generator, jacobian, dim, scale)

    def ratio(z: Tensor) -> Tensor:
        return gaussian_log_density(z, torch.zeros_like(z), 1.0) - around.log_density(z)

    new = around.sample(count)
    return gaussian_log_density(draws, generator(new), scale) + ratio(new), own + ratio(z)


def mixture_entry(shape: tuple[int, ...]) -> Tensor:
    """Entries with a density that is skew, narrow and beside the prior's centre."""
    narrow = torch.rand(shape) < 0.7
    return torch.where(narrow, 0.2 * torch.randn(shape), 0.8 + 0.4 * torch.randn(shape))


def contrast() -> None:
    """Divergences from a prior as ratios tell them, against the truth, by dimensions."""
    grid = torch.linspace(-6.0, 6.0, 60_001, dtype=torch.float64)
    density = 0.7 * normal(grid, 0.0, 0.2) + 0.3 * normal(grid, 0.8, 0.4)
    one = float(torch.trapezoid(density * (density / normal(grid)).log(), grid))
    dims = [1, 2, 5, 10, 20, 50, 100, 200]
    found: dict[str, list[float]] = {"published": [], "prior": [], "adaptive": []}
    torch.manual_seed(0)
    for dim in dims:
        runs = [contrasts(dim) for _ in range(10)]
        for name in found:
            found[name].append(sum(run[name] for run in runs) / len(runs))
    print("true", *(f"{one * dim:.2f}" for dim in dims))
    for name, values in found.items():
        print(name, *(f"{value:.2f}" for value in values))
    figure, ax = plt.subplots(figsize=(6, 3.6))
    ax.plot(dims, [one * dim for dim in dims], color="0.6", lw=4, label="true")
    moments = gaussian_divergence(grid, density)
    print("Gaussian of the same moments", *(f"{moments * dim:.2f}" for dim in dims))
    gaussian = [moments * dim for dim in dims]
    ax.plot(dims, gaussian, color="0.3", lw=1, label="the Gaussian of its moments")
    ax.plot(dims, found["adaptive"], "o-", color=DARK, ms=4, label="adaptive contrast")
    ax.plot(dims, found["prior"], "s--", color=MIDDLE, ms=4, label="the prior, q/p")
    ax.plot(dims, found["published"], "^:", color=LIGHT, ms=5, label="the prior, p/q as published")
    ax.set(xscale="log", yscale="log", xlabel="dimensions", ylabel="divergence (nats)")
    ax.legend()
    save(figure, "theory_contrast")


def gaussian_divergence(grid: Tensor, density: Tensor) -> float:
    """From a standard normal, of the Gaussian with the moments of a density of one entry."""
    mean = float(torch.trapezoid(density * grid, grid))
    variance = float(torch.trapezoid(density * grid**2, grid)) - mean**2
    return 0.5 * (variance + mean**2 - 1 - math.log(variance))


def contrasts(dim: int, count: int = 200) -> dict[str, float]:
    """Three estimates from new draws: settings are the defaults of the objective."""
    q, p = mixture_entry((count, dim)), torch.randn(count, dim)
    published = {"orientation": "p/q", "bases": "p", "ridge": 1e-3, "bandwidth": 1.0}
    u, entropy = standardise(q, "diagonal")
    rest, _ = kl_divergence(
        u, torch.randn_like(u), ridge=3e-3, bandwidth=(0.1, 0.3, 1.0), num_bases=200
    )
    log_prior = torch.distributions.Normal(0.0, 1.0).log_prob(q).sum(-1).mean()
    return {
        "published": float(kl_divergence(q, p, **published)[0]),
        "prior": float(kl_divergence(q, p, ridge=1e-2, bandwidth=0.3)[0]),
        "adaptive": float(rest - entropy - log_prior),
    }


ALL = {one.__name__: one for one in (fold, lanczos, semi_implicit, contrast)}

if __name__ == "__main__":
    matplotlib.use("Agg")
    for name in sys.argv[1:] or ALL:
        begun = time.process_time()
        ALL[name]()
        print("==", name, f"{time.process_time() - begun:.1f} s")
