"""The tables of the panel: a line for each model and method, and in short by kind of data."""

from __future__ import annotations

import math
import statistics
from typing import Any

from benchmarks.common import format_table

__all__ = ["by_data", "table"]

Row = dict[str, Any]

#: kind of data, a page with an example of it, models of the panel that are of the kind
KINDS = (
    ("a few rows", "start.md#a-model-without-a-network", ("eight schools",)),
    ("hundreds of rows", "howto/likelihoods.md#classes", ("logistic",)),
    ("groups, a panel", "tutorials/11_hierarchical_and_counts.ipynb", ("varying intercepts",)),
    (
        "counts along time",
        "tutorials/11_hierarchical_and_counts.ipynb",
        ("change point", "Gaussian process"),
    ),
    ("sequences", "tutorials/03_any_network.ipynb", ("GRU",)),
    ("a curve", "tutorials/01_quickstart.ipynb", ("README network",)),
    ("a table", "tutorials/12_regression_and_chains.ipynb", ("concrete", "energy")),
    ("latents of each row", "howto/minibatches.md#latents-of-each-row", ("local latents",)),
    ("images", "tutorials/04_images.ipynb", ("digits CNN", "LeNet")),
)


def table(rows: list[Row]) -> str:
    """A line for each model and method: means over seeds."""
    header = ["model", "method", "fits", "score", "margin", "steps", "CPU s", "CPU ratio"]
    header += ["to its bound", "told"]
    lines = []
    for model, method in dict.fromkeys((r["model"], r["method"]) for r in rows):
        group = [r for r in rows if (r["model"], r["method"]) == (model, method)]
        fits = [r for r in group if "score" in r]
        base = [r for r in rows if (r["model"], r["method"]) == (model, "AutoNormal")]
        lines.append([model, method, f"{len(fits)} of {len(group)}", *_cells(fits, base)])
    return format_table(header, lines)


def _cells(fits: list[Row], base: list[Row]) -> list[Any]:
    if not fits:
        return [None] * 7
    usual = statistics.fmean(r["cpu_seconds"] for r in base) if base else math.nan
    seconds = statistics.fmean(r["cpu_seconds"] for r in fits)
    warned = sum(bool(r.get("warnings")) for r in fits)
    return [
        f"{statistics.fmean(r['score'] for r in fits):.3f}",
        _margin(fits),
        f"{statistics.fmean(r['steps'] for r in fits):.0f}",
        f"{seconds:.1f}",
        f"{seconds / usual:.1f}",
        _to_bound(fits, base),
        f"{warned} of {len(fits)}",
    ]


def _to_bound(fits: list[Row], base: list[Row]) -> str | None:
    """
    CPU time until the loss is as low as AutoNormal's at its end, in times of AutoNormal's whole.

    The mean over seeds whose course is known; None if there are none.
    """
    ends = {r["seed"]: r for r in base if "loss" in r}
    known = [r for r in fits if "start_seconds" in r and r["seed"] in ends]
    if not known:
        return None
    ratios, late = [], 0
    for row in known:
        course, end = row["course"], ends[row["seed"]]
        parts = [i + 1 for i, loss in enumerate(course) if loss <= end["loss"]]
        late += not parts
        steps = row["cpu_seconds"] - row["start_seconds"]
        part = parts[0] / len(course) if parts else 1.0
        ratios.append((row["start_seconds"] + part * steps) / end["cpu_seconds"])
    return f"never in {late} of {len(known)}" if late else f"{statistics.fmean(ratios):.1f}"


def _margin(fits: list[Row]) -> str | None:
    """Mean over seeds; the error has a part from held-out data and one from seeds."""
    margins = [r["margin"] for r in fits if "margin" in r]
    if not margins:
        return None
    rows = statistics.fmean((r["margin_error"] or 0.0) ** 2 for r in fits)
    if len(margins) == 1 and fits[0]["margin_error"] is None:
        return f"{margins[0]:+.3f}"
    seeds = statistics.variance(margins) / len(margins) if len(margins) > 1 else 0.0
    return f"{statistics.fmean(margins):+.3f} ± {math.sqrt(rows + seeds):.3f}"


def by_data(rows: list[Row]) -> str:
    """What the default guide and AutoNormal take and bring, for each kind of data."""
    header = ["data", "model", "default: CPU s", "AutoNormal: CPU s", "ahead of AutoNormal by"]
    lines = []
    for kind, page, models in KINDS:
        for model in models:
            fits, base = (
                [r for r in rows if (r["model"], r["method"]) == (model, method) and "score" in r]
                for method in ("implicit", "AutoNormal")
            )
            if fits and base:
                seconds = (statistics.fmean(r["cpu_seconds"] for r in one) for one in (fits, base))
                cells = [f"{one:.0f}" for one in seconds]
                lines.append([f"[{kind}]({page})", model, *cells, _margin(fits)])
    return format_table(header, lines)
