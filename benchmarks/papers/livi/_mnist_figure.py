"""Scores of digits against the angle they are turned by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.papers.livi._mnist_data import ANGLES

__all__ = ["draw_angles"]

_STYLES = ("-", "--", "-.", ":")
_MARKS = "osv^D*xP+"
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
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for ax, (score, label) in zip(panels, _LABELS.items(), strict=True):
        for place, method in enumerate(methods):
            own = [row for row in rows if row["method"] == method]
            means = [sum(row[f"{score} {angle}"] for row in own) / len(own) for angle in ANGLES]
            ax.plot(
                ANGLES,
                means,
                _STYLES[place % len(_STYLES)],
                marker=_MARKS[place % len(_MARKS)],
                color="black" if method == "lanczos" else f"C{place}",
                ms=5,
                lw=1.2,
                label=names[method],
            )
        ax.set(xlabel="degrees", ylabel=label, xticks=ANGLES[::2])
    panels[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
