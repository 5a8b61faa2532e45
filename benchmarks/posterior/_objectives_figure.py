"""Figures of the comparison of objectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from torch import Tensor

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

__all__ = ["draw_curves", "draw_sets"]

NUM_SHOWN, COLUMNS = 1000, 5
#: of the curves of the four estimates: told apart in grey as well
STYLES = (("-", "0"), ("--", "0.6"), ("-.", "C0"), (":", "C1"))


def draw_sets(path: Path, sets: dict[str, dict[str, Tensor]]) -> None:
    """Five panels to a line, a new line for each target, with exact draws in grey."""
    lines = {name: -(-len(draws) // COLUMNS) for name, draws in sets.items()}
    size = (2.6 * COLUMNS, 2.4 * sum(lines.values()))
    figure, axes = plt.subplots(sum(lines.values()), COLUMNS, figsize=size, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    first = 0
    for name, draws in sets.items():
        panels = axes[first : first + lines[name]].flat
        first += lines[name]
        for ax, (method, values) in zip(panels, draws.items(), strict=False):
            ax.set_axis_on()
            _panel(ax, draws["exact"].numpy(), values.numpy())
            ax.set_title(f"{name}: {method}", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _panel(ax: Any, exact: Any, values: Any) -> None:
    if exact.shape[1] == 1:
        bins = {"bins": 40, "range": (-7, 7), "density": True}
        ax.hist(exact[:, 0], color="0.8", **bins)
        ax.hist(values[:, 0], histtype="step", **bins)
    else:
        ax.scatter(*exact.T, s=2, color="0.8")
        ax.scatter(*values[:NUM_SHOWN].T, s=2, alpha=0.5)
        low, high = exact.min(0), exact.max(0)
        ax.set(xlim=(low[0] - 0.5, high[0] + 0.5), ylim=(low[1] - 0.5, high[1] + 0.5))
    ax.tick_params(labelsize=6)


def draw_curves(path: Path, curves: dict[tuple[int, str], list[float]]) -> None:
    """The estimated KL term by step, symmetric-logarithmic; a panel for each number of weights."""
    sizes = list(dict.fromkeys(weights for weights, _ in curves))
    names = list(dict.fromkeys(name for _, name in curves))
    figure, axes = plt.subplots(1, len(sizes), figsize=(10, 4), sharey=True, squeeze=False)
    for ax, weights in zip(axes[0], sizes, strict=True):
        for name, (style, colour) in zip(names, STYLES, strict=True):
            ax.plot(curves[weights, name], style, color=colour, label=name, linewidth=1)
        ax.set(title=f"{weights} weights", xlabel="step", yscale="symlog")
    axes[0, 0].set_ylabel("estimated KL(q || p)")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
