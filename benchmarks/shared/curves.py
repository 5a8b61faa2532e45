"""Curves drawn from several posteriors beside each other."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

__all__ = ["draw_curves"]


def draw_curves(
    path: Path,
    x: Tensor,
    y: Tensor,
    grid: Tensor,
    panels: dict[str, Tensor],
    *,
    columns: int = 4,
    limits: tuple[float, float] = (-4.0, 4.0),
) -> None:
    """
    One panel per method: data (circles), single draws (thin), their mean (dashed); legible in
    grey.

    :param path: the PNG file.
    :param x: inputs of the data ``(N, 1)``.
    :param y: their targets.
    :param grid: inputs of the draws ``(K, 1)``.
    :param panels: draws ``(S, K)`` by method.
    :param int columns: panels beside each other.
    :param limits: of the vertical axis.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3 * columns, 2.4 * rows), sharex=True, sharey=True, squeeze=False
    )
    for ax, (name, draws) in zip(axes.flat, panels.items(), strict=False):
        ax.plot(grid, draws.T, color="0.65", lw=0.5)
        ax.plot(grid, draws.mean(0), "--", color="black", lw=1.2)
        ax.plot(x, y, "o", ms=2.5, mfc="white", mec="C0", mew=0.7)
        ax.set(ylim=limits)
        ax.set_title(name, fontsize=8)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    figure.tight_layout()
    figure.savefig(path, dpi=70)
    plt.close(figure)
