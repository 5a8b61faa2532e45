"""Scores of digits against the angle they are turned by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.papers.livi._mnist_data import ANGLES
from benchmarks.papers.livi._score_lines import draw_lines

__all__ = ["draw_angles"]

_LABELS = {"nll": "negative log-likelihood", "ece": "calibration error"}


def draw_angles(path: Path, rows: list[dict[str, Any]], names: dict[str, str]) -> None:
    """
    Two panels, means over seeds; methods differ in line and mark, so that it can be read in grey.

    :param Path path: the PNG file.
    :param rows: of the benchmark.
    :param names: of methods, as they are shown.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.4))
    for ax, (score, label) in zip(panels, _LABELS.items(), strict=True):
        draw_lines(ax, ANGLES, [f"{score} {angle}" for angle in ANGLES], rows, names)
        ax.set(xlabel="degrees", ylabel=label, xticks=ANGLES[::2])
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
