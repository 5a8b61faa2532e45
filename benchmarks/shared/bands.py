"""Predictive bands of several methods beside each other."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

__all__ = ["draw_bands"]


def draw_bands(
    path: Path,
    train: tuple[Tensor, Tensor],
    truth: tuple[Tensor, Tensor],
    bands: dict[str, tuple[Tensor, Tensor]],
    *,
    columns: int,
    limit: float,
) -> None:
    """
    One panel per method: data, true curve, mean and two standard deviations. What is what is told
    by points and line styles, so that a print in grey does as well.

    :param path: the PNG file.
    :param train: inputs ``(N, 1)`` and targets.
    :param truth: inputs ``(K, 1)`` and the noiseless values there.
    :param bands: mean and standard deviation at these, by method.
    :param int columns: panels beside each other.
    :param float limit: the vertical axis goes from minus to plus this.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    x, exact = truth
    rows = -(-len(bands) // columns)
    size = (3.5 * columns, 3 * rows)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, sharex=True, sharey=True, squeeze=False
    )
    for ax, (name, (mean, sd)) in zip(axes.flat, bands.items(), strict=False):
        low, high = mean - 2 * sd, mean + 2 * sd
        ax.fill_between(x[:, 0], low, high, color="tab:blue", alpha=0.15, lw=0)
        for edge, label in ((low, "two deviations"), (high, None)):
            ax.plot(x, edge, "--", lw=0.8, color="tab:blue", label=label)
        ax.plot(train[0], train[1], ".", ms=2, color="grey", label="data")
        ax.plot(x, exact, "k:", lw=1.2, label="true curve")
        ax.plot(x, mean, "-", lw=1.5, color="navy", label="mean")
        ax.set(title=name, ylim=(-limit, limit))
    for index in range(len(bands), rows * columns):
        axes.flat[index].axis("off")
        axes.flat[index - columns].tick_params(labelbottom=True)  # the lowest of its column
    axes.flat[0].legend(fontsize=6, loc="upper left", framealpha=0.8)
    figure.tight_layout()
    figure.savefig(path, dpi=75)
    plt.close(figure)
