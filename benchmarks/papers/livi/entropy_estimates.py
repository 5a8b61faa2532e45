"""
Estimates of a guide's entropy along its training, as in appendix F.5 of LIVI.

A small Bayesian network (1 -> 6 -> 1, 19 weights) on a noisy sine is fitted by the linearised
objective. At times the entropy is estimated by the linearised one (Eq. 15), its Lanczos estimates,
its bound by the smallest singular value (Eq. 18) and by importance sampling, from both sides: the
proposal is the linearised posterior of the noise.

"VAE": the same guide as the decoder of a variational autoencoder of Hamiltonian draws of the same
posterior, as in the paper, whose encoder is another proposal (Eq. F.2).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from tqdm import tqdm

from benchmarks.common import fixed_seed, format_table, mean_and_error, parse, parser, positive
from benchmarks.papers.livi._entropy_vae import Autoencoder, hamiltonian_draws, trained
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO, entropy_report

NAMES = {
    "upper": "upper",
    "lower": "lower",
    "encoder": "by the encoder",
    "linearised": "linearised",
    "lanczos_upper": "Lanczos, upper",
    "lanczos_lower": "Lanczos, lower",
    "singular_value_bound": "smallest singular value",
}
#: those of :func:`entropy_report`
ESTIMATES = tuple(name for name in NAMES if name != "encoder")
ROWS = 40
Data = tuple[torch.Tensor, torch.Tensor]
SETTINGS: dict[str, Any] = {
    "num_particles": 8,
    "lr": 3e-3,
    "scale": 0.05,
    "init_scale": 0.3,
    "num_samples": 100,
    "num_inner": 200,
    "num_starts": 8,
    "chains": 8,
    "chain_steps": 60_000,  # gradients of each
    "chain_warmup": 10_000,
    "max_leapfrog": 200,
    "encoder_dims": 40,
    "encoder_samples": 2000,
    "batch_size": 256,
}
_STYLES = {
    "linearised": ("linearised, Eq. 15", "C0o"),
    "lanczos_upper": ("Lanczos, upper", "C1+"),
    "lanczos_lower": ("Lanczos, lower", "C2x"),
    "singular_value_bound": ("smallest singular value, Eq. 18", "C3s-."),
}
GUIDES: dict[str, dict[str, Any]] = {
    "10 noises": {"noise_dim": 10},
    "19 noises": {"noise_dim": 19},
    "VAE, 10 noises": {"noise_dim": 10},
    "VAE, 19 noises": {"noise_dim": 19},
}


def make_model() -> Any:
    layers = torch.nn.Sequential(torch.nn.Linear(1, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    net = BayesianModule(layers, prior=dist.Normal(0.0, 1.0))

    def model(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        mean = pyro.deterministic("f", net(x).squeeze(-1))
        with pyro.plate("data", ROWS):
            pyro.sample("y", dist.Normal(mean, 0.1), obs=y)

    return model


def run(name: str, seed: int, num_steps: int, num_checks: int, quiet: bool) -> list[dict[str, Any]]:
    """The estimates at the start and after each part of the training."""
    steps = tqdm(range(num_steps + 1), desc=f"{name}, seed {seed}", disable=quiet)
    every = max(1, num_steps // num_checks)
    with fixed_seed(seed):
        x = torch.linspace(-1.0, 1.0, ROWS)[:, None]
        y = torch.sin(4 * x[:, 0]) + 0.1 * torch.randn(ROWS)
        model = make_model()
        scales = {key: SETTINGS[key] for key in ("scale", "init_scale")}
        options = scales | {"hidden_dims": (40,)} | GUIDES[name]
        guide = HyperNetworkGuide(model, init_from=None, **options).setup(x, y)
        fit = _as_decoder if name.startswith("VAE") else _as_guide
        return [
            {"guide": name, "seed": seed, "step": step, **_estimates(guide), **more()}
            for step, more in fit(model, guide, (x, y), steps)
            if step % every == 0
        ]


Steps = Iterator[tuple[int, Callable[[], dict[str, float]]]]


def _as_guide(model: Any, guide: Any, data: Data, steps: Iterable[int]) -> Steps:
    """Each step of the linearised objective, before it is made."""
    objective = LinearisedELBO(
        SETTINGS["num_particles"], vectorize_particles=True, max_plate_nesting=1
    )
    loss = objective(model, guide)
    loss(*data)
    optimizer = torch.optim.Adam(loss.parameters(), lr=SETTINGS["lr"])
    for step in steps:
        yield step, dict
        optimizer.zero_grad()
        loss(*data).backward()
        optimizer.step()


def _as_decoder(model: Any, guide: Any, data: Data, steps: Iterable[int]) -> Steps:
    """Each step of an autoencoder, before it is made, and what is to be told of it."""
    chains, r_hat = hamiltonian_draws(model, *data, SETTINGS)
    auto = Autoencoder(guide, SETTINGS["encoder_dims"])
    theta = auto.flat(chains.draws)
    for step, bound in trained(auto, theta, SETTINGS["batch_size"], SETTINGS["lr"], steps):
        yield (
            step,
            lambda bound=bound: {  # type: ignore[misc]
                "encoder": auto.entropy(SETTINGS["num_samples"], SETTINGS["encoder_samples"]),
                "bound": bound,
                "draws": len(theta),
                "r_hat": r_hat,
            },
        )


def _estimates(guide: HyperNetworkGuide) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # folds are in the numbers
        report = entropy_report(
            guide,
            **{key: SETTINGS[key] for key in ("num_samples", "num_inner", "num_starts")},
        )
    values = {estimate: getattr(report, estimate) for estimate in ESTIMATES}
    return values | {"standard_error": report.standard_error, "rank": report.effective_rank}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """
    One panel for each guide, the first seed; estimates differ in mark or line, so that it can be
    read in grey. The encoder's is out of sight.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["guide"] for row in rows))
    lines = -(-len(names) // 2)
    figure, panels = pyplot.subplots(
        lines, 2, figsize=(10, 3.6 * lines), squeeze=False, sharey="row", sharex=True
    )
    for ax, name in zip(panels.flat, names, strict=False):
        own = [row for row in rows if row["guide"] == name]
        own = [row for row in own if row["seed"] == own[0]["seed"]]
        steps = [row["step"] for row in own]
        low, high = ([row[key] for row in own] for key in ("lower", "upper"))
        ax.fill_between(steps, low, high, color="black", alpha=0.3)
        ax.plot(steps, high, color="black", lw=2, label="importance-sampled (both sides)")
        for key, (label, style) in _STYLES.items():
            ax.plot(steps, [row[key] for row in own], style, mfc="none", label=label)
        ax.set(title=name, xlabel="step")
        ax.legend(fontsize=7)
    for ax in panels.flat[len(names) :]:
        ax.set_axis_off()
    for ax in panels[:, 0]:
        ax.set_ylabel("entropy (nats)")
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def table(rows: list[dict[str, Any]]) -> str:
    """The estimates at the beginning, halfway and at the end, over seeds."""
    keys = [key for key in NAMES if any(key in row for row in rows)]
    lines = []
    for name in dict.fromkeys(row["guide"] for row in rows):
        own = [row for row in rows if row["guide"] == name]
        steps = list(dict.fromkeys(row["step"] for row in own))
        for step in dict.fromkeys((steps[0], steps[len(steps) // 2], steps[-1])):
            now = [row for row in own if row["step"] == step]
            cells = [_cell([row[key] for row in now if key in row]) for key in keys]
            lines.append([name, step, *cells])
    return format_table(["guide", "step", *(NAMES[key] for key in keys)], lines)


def _cell(values: list[float]) -> str | None:
    return mean_and_error(values, ".1f") if values else None


def distances(rows: list[dict[str, Any]]) -> str:
    """How far each estimate is from what lies between the two sides of the truth."""
    lines = []
    for name in dict.fromkeys(row["guide"] for row in rows):
        own = [row for row in rows if row["guide"] == name]
        open_by = max(row["upper"] - row["lower"] for row in own)
        for key in list(NAMES)[2:]:
            if key not in own[0]:
                continue
            found = [_outside(row, key) for row in own]
            within = [
                abs(d) <= 2 * row["standard_error"] for d, row in zip(found, own, strict=True)
            ]
            mean, share = sum(found) / len(found), f"{sum(within)}/{len(within)}"
            cells = [f"{value:.2f}" for value in (mean, min(found), max(found))]
            lines.append([name, NAMES[key], *cells, share, f"{open_by:.1f}"])
    header = ["guide", "estimate", "mean", "lowest", "highest", "within 2 errors", "sides apart"]
    return format_table(header, lines)


def _outside(row: dict[str, Any], key: str) -> float:
    """By how much an estimate is above (or, negative, below) both sides of the truth."""
    low, high = sorted((row["lower"], row["upper"]))
    return max(row[key] - high, 0.0) + min(row[key] - low, 0.0)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(__doc__ or "", seeds=range(3), figure="draw the first seed")
    options.add_argument("--guides", nargs="+", choices=list(GUIDES), default=list(GUIDES))
    options.add_argument("--steps", type=positive, default=3000, help="(default: 3000)")
    options.add_argument("--checks", type=positive, default=10, help="(default: 10)")
    arguments = parse(options, argv)
    rows: list[dict[str, Any]] = []
    for name in arguments.guides:
        for seed in arguments.seeds:
            rows += run(name, seed, arguments.steps, arguments.checks, arguments.quiet)
            write_record("entropy_estimates", arguments, SETTINGS | {"rows": ROWS}, rows)
    if arguments.figure is not None:
        draw(rows, arguments.figure)
    print(table(rows))
    return rows


if __name__ == "__main__":
    main()
