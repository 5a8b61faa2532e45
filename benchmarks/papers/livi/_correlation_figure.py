"""Correlations of weights as squares: legible in grey, and by those who see no colours."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, tensor

__all__ = ["draw_correlations"]


def draw_correlations(
    path: Path, shown: dict[str, list[list[float]]], num_units: int, columns: int = 4
) -> None:
    """
    A panel for each method: the area of a square is the size of a correlation; full squares are
    positive, empty ones negative. Lines part the layers.

    :param Path path: the PNG file.
    :param dict shown: matrices of the weights w, b, v and c, in this order.
    :param int num_units: hidden units ``h``, for ``3 h + 1`` weights.
    :param int columns: panels beside each other.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = -(-len(shown) // columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(3.1 * columns, 3.3 * rows), squeeze=False
    )
    names = [f"{k}{i + 1}" for k in "wbv" for i in range(num_units)] + ["c"]
    for ax, (method, matrix) in zip(panels.flat, shown.items(), strict=False):
        _squares(ax, tensor(matrix))
        ax.axhline(2 * num_units - 0.5, color="black", lw=1.2)
        ax.axvline(2 * num_units - 0.5, color="black", lw=1.2)
        ax.set_xticks(range(len(names)), names, fontsize=7)
        ax.set_yticks(range(len(names)), names, fontsize=7)
        ax.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), aspect="equal")
        ax.set_title(method, fontsize=9)
    for ax in panels.flat[len(shown) :]:
        ax.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _squares(ax: object, matrix: Tensor) -> None:
    from matplotlib.patches import Rectangle

    for i, line in enumerate(matrix.tolist()):
        for j, value in enumerate(line):
            if i == j:
                continue
            side = 0.92 * abs(value) ** 0.5
            face = "black" if value > 0 else "white"
            place = (j - side / 2, i - side / 2)
            ax.add_patch(Rectangle(place, side, side, facecolor=face, edgecolor="black", lw=0.8))  # type: ignore[attr-defined]
