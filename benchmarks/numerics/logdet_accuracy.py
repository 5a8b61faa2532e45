"""
How near the log-determinant from products comes to the exact one, for what is spent.

Two generators, each before and after training: a perceptron of 50 noise entries for the 751 weights
of a network on Boston housing (trained with the exact objective), and a matrix-multiplication
network of 576 for the 7510 weights of a classifier of 8 x 8 digits (trained with LanczosELBO).
Half the log-determinant in nats, less the exact value; cosine of the gradient with respect to the
generator's parameters to the exact gradient; everything a mean over draws of the noise.

Equal products: k Lanczos steps and LOBPCG with k - 1 iterations both take 2 k products with the
Jacobian or its transpose, and one more, differentiable, for the gradient.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm import trange

from benchmarks.common import fixed_seed, format_table, load_npz, parse, parser, positive
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.mmnn import MMNN
from pyro_implicit.objectives.lanczos import LanczosELBO
from pyro_implicit.ops.lanczos import (
    GradientPairs,
    draw_probes,
    gradient_surrogate,
    lanczos_quadrature,
)
from pyro_implicit.ops.lobpcg import smallest_eigenpair
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian

SCALE = 0.01
STEPS = (2, 5, 10, 20)
CONVERGED = 400
CHUNK = 64
Pair = tuple[Generator, Generator]


# ---- generators before and after training


def boston(arguments: Any) -> Pair:
    """The perceptron for a 13-50-1 network."""
    data = load_npz(arguments.data_root, "uci/boston.npz")
    x, y = (torch.as_tensor(data[name], dtype=torch.float32) for name in ("X", "y"))
    x, y = ((t - t.mean(0)) / t.std(0) for t in (x, y))
    layers = nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 1))
    net = BayesianModule(layers, prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 0.3), obs=y)

    bare = {"init_from": None, "scale": SCALE}
    guide = HyperNetworkGuide(model, noise_dim=50, init_scale=0.05, **bare).setup(x, y)
    objective = LinearisedELBO(4, vectorize_particles=True)
    return _train(model, guide, objective, lambda: (x, y), arguments)


def digits(arguments: Any) -> Pair:
    """The matrix-multiplication network for a 64-100-10 classifier."""
    data = load_digits()
    x, y = torch.as_tensor(data.data, dtype=torch.float32) / 16, torch.as_tensor(data.target)
    layers = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    net = BayesianModule(layers, prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor) -> None:
        logits = net(x)
        with pyro.plate("data", len(data.target), subsample_size=len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    def batch() -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(x), (256,))
        return x[rows], y[rows]

    generator = MMNN(7510, noise_shape=(24, 24), hidden_shapes=[(64, 64)], init_scale=0.05)
    guide = HyperNetworkGuide(model, generator=generator, scale=SCALE, init_from=None).setup(
        *batch()
    )
    return _train(model, guide, LanczosELBO(2), batch, arguments)


def _train(
    model: Any, guide: Any, objective: Any, batch: Callable[[], Any], arguments: Any
) -> Pair:
    """The guide's generator before and after training."""
    generator = guide.samplers[0].generator
    before = copy.deepcopy(generator)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 2e-3}), objective)
    for _ in trange(arguments.train_steps, desc="training", disable=arguments.quiet):
        svi.step(*batch())
    return before, generator


GENERATORS = {"boston 50 -> 751": boston, "digits 576 -> 7510": digits}


# ---- the exact value and gradient


@dataclass(frozen=True)
class Exact:
    """
    :param float value: half the log-determinant of ``A``.
    :param torch.Tensor gradient: its gradient, flat, float64.
    :param torch.Tensor eigenvalues: of ``A``, increasing.
    :param torch.Tensor inverse: of ``A``, float64.
    :param torch.Tensor logarithm: of ``A``, float64.
    """

    value: float
    gradient: Tensor
    eigenvalues: Tensor
    inverse: Tensor
    logarithm: Tensor


def exact(generator: Generator, z: Tensor) -> Exact:
    """By the matrix itself; its gradient is that of the surrogate with all columns of a root."""
    jacobian = generator.linearise(z).jacobian()[0].detach().double() / SCALE
    gram = jacobian.mT @ jacobian
    values, vectors = torch.linalg.eigh(gram + torch.eye(len(gram)).double())
    root = (vectors / values.sqrt()).mT.to(z.dtype)[:, None]
    gradient = sum(
        _gradient(generator, z, lambda jac, w=part: 0.5 * jac.product(w).square().sum())
        for part in root.split(CHUNK)
    )
    inverse, logarithm = ((vectors * f) @ vectors.mT for f in (1 / values, values.log()))
    return Exact(0.5 * values.log().sum().item(), gradient, values, inverse, logarithm)


def _gradient(generator: Generator, z: Tensor, value: Callable[[ScaledJacobian], Tensor]) -> Tensor:
    """The flat gradient of a function of the Jacobian; biases of the last layer have none."""
    jacobian = ScaledJacobian(generator.linearise(z), SCALE)
    parameters = list(generator.parameters())
    found = torch.autograd.grad(value(jacobian), parameters, allow_unused=True)
    pairs = zip(found, parameters, strict=True)
    return torch.cat([(p * 0 if g is None else g).detach().flatten() for g, p in pairs]).double()


def _cosine(a: Tensor, b: Tensor) -> float:
    return (a @ b / (a.norm() * b.norm())).item()


# ---- the two estimates


def lanczos_row(generator: Generator, z: Tensor, truth: Exact, k: int, probes: int) -> Row:
    """
    Bias of both rules (the probes' own spread removed), root mean square error of one probe, and
    cosines with all probes and with one.
    """
    jacobian = ScaledJacobian(generator.linearise(z), SCALE)
    vectors = torch.cat([draw_probes("orthogonal", 1, jacobian) for _ in range(probes)])
    found = lanczos_quadrature(jacobian, vectors, k)
    wide = vectors[:, 0].double()
    forms = ((wide @ truth.logarithm) * wide).sum(-1, keepdim=True)  # what each probe should give
    each = [
        _gradient(generator, z, lambda jac, p=p: gradient_surrogate(jac, p).sum())
        for p in map(GradientPairs, found.pairs.left.split(1), found.pairs.right.split(1))
    ]
    # the other unbiased form, with the exact inverse
    solved = (vectors.double() @ truth.inverse).to(vectors.dtype)
    other = _gradient(generator, z, lambda jac: _plain_surrogate(jac, solved, vectors))
    return {
        "upper": 0.5 * (found.gauss - forms).mean().item(),
        "lower": 0.5 * (found.radau - forms).mean().item(),
        "error": (0.5 * found.gauss - truth.value).square().mean().sqrt().item(),
        "cosine": _cosine(sum(each), truth.gradient),
        "cosine of one": sum(_cosine(g, truth.gradient) for g in each) / probes,
        "cosine of the plain form": _cosine(other, truth.gradient),
    }


def _plain_surrogate(jacobian: ScaledJacobian, solved: Tensor, vectors: Tensor) -> Tensor:
    return 0.5 * (jacobian.product(solved) * jacobian.product(vectors)).sum()


def lobpcg_row(generator: Generator, z: Tensor, truth: Exact, iterations: int) -> Row:
    """Error and cosine of the bound by the smallest singular value."""
    jacobian = ScaledJacobian(generator.linearise(z), SCALE)
    start = torch.randn(1, jacobian.size)
    pair = smallest_eigenpair(jacobian, start, iterations)

    def bound(jac: ScaledJacobian) -> Tensor:
        square = jac.product(pair.vector[None]).square().sum()
        return 0.5 * jac.size * (1 + square).log()

    value = 0.5 * jacobian.size * math.log(1 + pair.value.item())
    return {
        "lower": value - truth.value,
        "error": abs(value - truth.value),
        "cosine": _cosine(_gradient(generator, z, bound), truth.gradient),
        "residual": pair.residual.item(),
    }


Row = dict[str, float]


def measure(generator: Generator, num_draws: int, probes: int) -> dict[str, Row]:
    """All rows of one generator, means over draws (of errors: root mean squares)."""
    draws: dict[str, list[Row]] = {}
    for _ in range(num_draws):
        z = torch.randn(1, *generator.noise_shape)
        truth = exact(generator, z)
        condition = (truth.eigenvalues[-1] / truth.eigenvalues[0]).item()
        draws.setdefault("exact", []).append({"value": truth.value, "condition": condition})
        for k in STEPS:
            row = lanczos_row(generator, z, truth, k, probes)
            draws.setdefault(f"Lanczos, {k} steps", []).append(row)
        for k in STEPS:
            row = lobpcg_row(generator, z, truth, k - 1)
            draws.setdefault(f"LOBPCG, {k - 1} iteration{'s' * (k > 2)}", []).append(row)
        row = lobpcg_row(generator, z, truth, CONVERGED)
        draws.setdefault("LOBPCG, converged", []).append(row)
    return {name: _mean(rows) for name, rows in draws.items()}


def _mean(rows: list[Row]) -> Row:
    return {
        key: math.sqrt(sum(r[key] ** 2 for r in rows) / len(rows))
        if key == "error"
        else sum(r[key] for r in rows) / len(rows)
        for key in rows[0]
    }


# ---- reports


def over_seeds(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each generator and method: means over seeds (of errors: root mean squares)."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        numbers = {key: row[key] for key in row if key not in ("generator", "method", "seed")}
        found.setdefault((row["generator"], row["method"]), []).append(numbers)
    return [{"generator": g, "method": m} | _mean(own) for (g, m), own in found.items()]


def table(rows: list[dict[str, Any]]) -> str:
    """One line per generator and method, over seeds."""
    header = ["generator", "method", "products", "upper", "lower", "rms error", "cosine"]
    header += ["of one probe", "plain form", "residual"]
    keys = ["upper", "lower", "error", "cosine", "cosine of one"]
    keys += ["cosine of the plain form", "residual"]
    lines = []
    for row in over_seeds(rows):
        if row["method"] != "exact":
            count = None if "converged" in row["method"] else _products(row["method"])
            values = (row.get(key) for key in keys)
            lines.append([row["generator"], row["method"], count, *values])
    return format_table(header, lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """What is to be found: one line per generator and seed."""
    exact = [row for row in rows if row["method"] == "exact"]
    lines = [[row["generator"], row["seed"], row["value"], row["condition"]] for row in exact]
    header = ["generator", "seed", "half log-determinant of A", "condition number"]
    return format_table(header, lines)


def _products(method: str) -> int:
    number = int("".join(c for c in method if c.isdigit()))
    return 2 * (number if method.startswith("Lanczos") else number + 1) + 1


def figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Error against products, one panel per generator."""
    results: dict[str, dict[str, Row]] = {}
    for row in rows:
        results.setdefault(row["generator"], {})[row["method"]] = row
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels, axes = plt.subplots(1, len(results), figsize=(4 * len(results), 3.5), squeeze=False)
    for axis, (generator, own) in zip(axes[0], results.items(), strict=True):
        for kind, key in (("Lanczos", "upper"), ("Lanczos", "error"), ("LOBPCG", "error")):
            found = [m for m in own if m.startswith(kind) and "converged" not in m]
            label = f"{kind}, mean" if key == "upper" else f"{kind}, one run"
            errors = [abs(own[m][key]) for m in found]
            axis.semilogy([_products(m) for m in found], errors, marker="o", label=label)
        axis.axhline(own["LOBPCG, converged"]["error"], ls=":", c="grey", label="converged bound")
        axis.set(title=generator, xlabel="products", ylabel="error [nats]")
    axes[0, 0].legend(fontsize=8)
    panels.tight_layout()
    panels.savefig(path, dpi=150)
    plt.close(panels)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__, seeds=[0], figure="also draw the errors")
    options.add_argument("--generators", nargs="+", choices=GENERATORS, default=list(GENERATORS))
    options.add_argument("--train-steps", type=positive, default=1500, help="(default: 1500)")
    options.add_argument("--draws", type=positive, default=3, help="(default: 3)")
    options.add_argument("--probes", type=positive, default=200, help="(default: 200)")
    arguments = parse(options, argv)
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        for name in arguments.generators:
            with fixed_seed(seed):
                pair = GENERATORS[name](arguments)
                for state, generator in zip(("untrained", "trained"), pair, strict=True):
                    label = {"generator": f"{name}, {state}", "seed": seed}
                    found = measure(generator, arguments.draws, arguments.probes)
                    rows += [label | {"method": method} | row for method, row in found.items()]
    print(summary(rows), end=f"\n\ncosines with {arguments.probes} probes and with one\n")
    print(table(rows))
    if arguments.figure is not None:
        figure(over_seeds(rows), arguments.figure)
    write_record("logdet_accuracy", arguments, {"scale": SCALE}, rows)
    return rows


if __name__ == "__main__":
    main()
