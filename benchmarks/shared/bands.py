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
    One panel per method: data, true curve, mean and two standard deviations.

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
        ax.plot(train[0], train[1], ".", ms=2, color="grey")
        ax.plot(x, exact, "k:", lw=1)
        ax.plot(x, mean)
        ax.fill_between(x[:, 0], mean - 2 * sd, mean + 2 * sd, alpha=0.3)
        ax.set(title=name, ylim=(-limit, limit))
    figure.tight_layout()
    figure.savefig(path, dpi=75)
    plt.close(figure)
