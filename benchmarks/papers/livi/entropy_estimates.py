"""
Estimates of a guide's entropy along its training, as in appendix F.5 of LIVI.

A small Bayesian network (1 -> 6 -> 1, 19 weights) on a noisy sine is fitted by the linearised
objective. At times the entropy is estimated by the linearised one (Eq. 15), its Lanczos estimates,
its bound by the smallest singular value (Eq. 18) and by importance sampling, from both sides. There
is no encoder: the proposal is the linearised posterior of the noise.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from tqdm import tqdm

from benchmarks.common import fixed_seed, format_table, mean_and_error, parse, parser, positive
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO, entropy_report

NAMES = {
    "upper": "upper",
    "lower": "lower",
    "linearised": "linearised",
    "lanczos_upper": "Lanczos, upper",
    "lanczos_lower": "Lanczos, lower",
    "singular_value_bound": "smallest singular value",
}
ESTIMATES = tuple(NAMES)
ROWS = 40
SETTINGS: dict[str, Any] = {
    "num_particles": 8,
    "lr": 3e-3,
    "scale": 0.05,
    "init_scale": 0.3,
    "num_samples": 100,
    "num_inner": 200,
    "num_starts": 8,
}
GUIDES: dict[str, dict[str, Any]] = {
    "10 noises": {"noise_dim": 10},
    "19 noises": {"noise_dim": 19},
}


def make_model() -> Any:
    layers = torch.nn.Sequential(torch.nn.Linear(1, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    net = BayesianModule(layers, prior=dist.Normal(0.0, 1.0))

    def model(x: torch.Tensor, y: torch.Tensor | None = None) -> None:
        mean = net(x).squeeze(-1)
        with pyro.plate("data", ROWS):
            pyro.sample("y", dist.Normal(mean, 0.1), obs=y)

    return model


def run(name: str, seed: int, num_steps: int, num_checks: int, quiet: bool) -> list[dict[str, Any]]:
    """The estimates at the start and after each part of the training."""
    with fixed_seed(seed):
        x = torch.linspace(-1.0, 1.0, ROWS)[:, None]
        y = torch.sin(4 * x[:, 0]) + 0.1 * torch.randn(ROWS)
        model = make_model()
        scales = {key: SETTINGS[key] for key in ("scale", "init_scale")}
        options = scales | {"hidden_dims": (40,)} | GUIDES[name]
        guide = HyperNetworkGuide(model, init_from=None, **options).setup(x, y)
        objective = LinearisedELBO(
            SETTINGS["num_particles"], vectorize_particles=True, max_plate_nesting=1
        )
        loss = objective(model, guide)
        loss(x, y)
        optimizer = torch.optim.Adam(loss.parameters(), lr=SETTINGS["lr"])
        found = []
        for step in tqdm(range(num_steps + 1), desc=f"{name}, seed {seed}", disable=quiet):
            if step % max(1, num_steps // num_checks) == 0:
                found.append({"guide": name, "seed": seed, "step": step} | _estimates(guide))
            optimizer.zero_grad()
            loss(x, y).backward()
            optimizer.step()
    return found


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
    """One panel for each guide, the first seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(row["guide"] for row in rows))
    figure, panels = pyplot.subplots(
        1, len(names), figsize=(5 * len(names), 3.6), squeeze=False, sharey=True
    )
    for ax, name in zip(panels[0], names, strict=True):
        own = [row for row in rows if row["guide"] == name]
        own = [row for row in own if row["seed"] == own[0]["seed"]]
        steps = [row["step"] for row in own]
        low, high = ([row[key] for row in own] for key in ("lower", "upper"))
        ax.fill_between(steps, low, high, color="black", alpha=0.3)
        ax.plot(steps, high, color="black", lw=2, label="importance-sampled (both sides)")
        styles = {
            "linearised": ("linearised, Eq. 15", "C0-"),
            "lanczos_upper": ("Lanczos, upper", "C1--"),
            "lanczos_lower": ("Lanczos, lower", "C1:"),
            "singular_value_bound": ("smallest singular value, Eq. 18", "C3-"),
        }
        for key, (label, style) in styles.items():
            ax.plot(steps, [row[key] for row in own], style, label=label)
        ax.set(title=name, xlabel="step")
    panels[0][0].set_ylabel("entropy (nats)")
    panels[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def table(rows: list[dict[str, Any]]) -> str:
    """The estimates at the beginning, halfway and at the end, over seeds."""
    lines = []
    for name in dict.fromkeys(row["guide"] for row in rows):
        own = [row for row in rows if row["guide"] == name]
        steps = list(dict.fromkeys(row["step"] for row in own))
        for step in dict.fromkeys((steps[0], steps[len(steps) // 2], steps[-1])):
            now = [row for row in own if row["step"] == step]
            cells = [mean_and_error([row[key] for row in now], ".1f") for key in ESTIMATES]
            lines.append([name, step, *cells])
    return format_table(["guide", "step", *(NAMES[key] for key in ESTIMATES)], lines)


def distances(rows: list[dict[str, Any]]) -> str:
    """How far each estimate is from what lies between the two sides of the truth."""
    lines = []
    for name in dict.fromkeys(row["guide"] for row in rows):
        own = [row for row in rows if row["guide"] == name]
        open_by = max(row["upper"] - row["lower"] for row in own)
        for key in ESTIMATES[2:]:
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
