"""Figures of the comparison of objectives."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from torch import Tensor

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

__all__ = ["draw_curves", "draw_sets"]

NUM_SHOWN = 1000


def draw_sets(path: Path, sets: dict[str, dict[str, Tensor]]) -> None:
    """One row per target, one panel per method, with exact draws in grey."""
    columns = max(len(draws) for draws in sets.values())
    size = (2.2 * columns, 2.4 * len(sets))
    figure, axes = plt.subplots(len(sets), columns, figsize=size, squeeze=False)
    for row, (name, draws) in zip(axes, sets.items(), strict=True):
        exact = draws["exact"].numpy()
        for ax in row[len(draws) :]:
            ax.set_axis_off()
        for ax, (method, values) in zip(row, draws.items(), strict=False):
            points = values[:NUM_SHOWN].numpy()
            if exact.shape[1] == 1:
                bins = {"bins": 40, "range": (-7, 7), "density": True}
                ax.hist(exact[:, 0], color="0.8", **bins)
                ax.hist(values[:, 0].numpy(), histtype="step", **bins)
            else:
                ax.scatter(*exact.T, s=2, color="0.8")
                ax.scatter(*points.T, s=2, alpha=0.5)
                low, high = exact.min(0), exact.max(0)
                ax.set(xlim=(low[0] - 0.5, high[0] + 0.5), ylim=(low[1] - 0.5, high[1] + 0.5))
            ax.set_title(f"{name}: {method}", fontsize=7)
            ax.tick_params(labelsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def draw_curves(path: Path, curves: dict[str, list[float]]) -> None:
    """The estimated KL term by step, symmetric-logarithmic."""
    figure, ax = plt.subplots(figsize=(7, 4))
    for name, curve in curves.items():
        ax.plot(curve, label=name, linewidth=0.7)
    ax.set(xlabel="step", ylabel="estimated KL(q || p)", yscale="symlog")
    ax.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
