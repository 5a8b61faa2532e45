"""Scores of photographs against how badly they are spoilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.papers.livi._cifar_data import LEVELS, SPOILT
from benchmarks.papers.livi._score_lines import draw_lines

__all__ = ["draw_levels"]

_LABELS = {"accuracy": "accuracy", "nll": "negative log-likelihood", "ece": "calibration error"}


def draw_levels(path: Path, rows: list[dict[str, Any]], names: dict[str, str]) -> None:
    """
    A row of panels for each score and a column for each way of spoiling, means over seeds.

    :param Path path: the PNG file.
    :param rows: of the benchmark.
    :param names: of methods, as they are shown.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = (4 * len(SPOILT), 3.2 * len(_LABELS))
    figure, panels = pyplot.subplots(
        len(_LABELS), len(SPOILT), figsize=size, sharex=True, sharey="row"
    )
    for line, (score, label) in zip(panels, _LABELS.items(), strict=True):
        line[0].set_ylabel(label)
        for ax, kind in zip(line, SPOILT, strict=True):
            keys = [f"{score} 0", *(f"{score} {kind} {level}" for level in LEVELS)]
            draw_lines(ax, (0, *LEVELS), keys, rows, names)
    for ax, kind in zip(panels[0], SPOILT, strict=True):
        ax.set_title(kind)
    for ax in panels[-1]:
        ax.set(xlabel="level", xticks=(0, *LEVELS))
    panels[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=75)
    pyplot.close(figure)
