"""Scores of digits against the angle they are turned by, and entropies of other images."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from benchmarks.papers.livi._mnist_data import ANGLES, OTHERS
from benchmarks.papers.livi._score_lines import draw_lines
from benchmarks.shared.image_scores import PERCENT

__all__ = ["draw_angles"]

NUM_CLASSES = 10
_LABELS = {"nll": "negative log-likelihood", "ece": "calibration error"}


def draw_angles(path: Path, rows: list[dict[str, Any]], names: dict[str, str]) -> None:
    """
    Means over seeds; methods differ in line and mark, so that it can be read in grey.

    Two panels of scores, and one for each set of other images if the rows have their entropies.

    :param Path path: the PNG file.
    :param rows: of the benchmark.
    :param names: of methods, as they are shown.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    others = [kind for kind in OTHERS if f"entropy 0% {kind}" in rows[0]]
    figure = pyplot.figure(figsize=(11, 8.6 if others else 4.4))
    grid = figure.add_gridspec(2 if others else 1, 6)
    panels = [figure.add_subplot(grid[0, place]) for place in (slice(0, 3), slice(3, 6))]
    for number, kind in enumerate(others):
        _draw_entropies(figure.add_subplot(grid[1, 2 * number : 2 * number + 2]), rows, names, kind)
    for ax, (score, label) in zip(panels, _LABELS.items(), strict=True):
        draw_lines(ax, ANGLES, [f"{score} {angle}" for angle in ANGLES], rows, names)
        ax.set(xlabel="degrees", ylabel=label, xticks=ANGLES[::2])
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def _draw_entropies(ax: Any, rows: list[dict[str, Any]], names: dict[str, str], kind: str) -> None:
    """The share of other images below each entropy; dotted, that of a prediction of no class."""
    keys = [f"entropy {percent}% {kind}" for percent in PERCENT]
    draw_lines(ax, [percent / 100 for percent in PERCENT], keys, rows, names, across=True)
    most = math.log(NUM_CLASSES)
    ax.plot([0, most, most], [0, 0, 1], ":", color="0.5", lw=1)  # one probability for all classes
    ax.set(xlabel=f"entropy of the prediction, nats ({kind})", ylabel="share of images below")
