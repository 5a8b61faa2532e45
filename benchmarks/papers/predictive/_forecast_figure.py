"""Forecasts beside what came."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.papers.predictive._forecast_data import Windows

__all__ = ["band", "draw_forecasts"]

#: values that are shown at most, the first of the test part
SHOWN = 60


def band(f: Tensor, noise: float, num: int = 1000) -> Tensor:
    """
    :param f: draws of forecasts ``(S, ...)``.
    :param float noise: scale of the noise.
    :param int num: draws with noise.
    :returns: their 5, 50 and 95% quantiles ``(3, ...)``.
    """
    noisy = f.repeat(-(-num // len(f)), *[1] * (f.dim() - 1))
    noisy = noisy + noise * torch.randn_like(noisy)
    return noisy.quantile(torch.tensor([0.05, 0.5, 0.95]), 0)


def draw_forecasts(path: Path, windows: Windows, bands: dict[str, Tensor], unit: str) -> None:
    """
    A panel for each method, one over the other: what came (points), the median of the forecasts
    (dashed) and their central 90% (grey). One window after the other, each forecast from what came
    before it; legible in grey.

    :param Path path: the PNG file.
    :param windows: of the series.
    :param bands: quantiles of all test windows ``(3, N, ahead)`` by method.
    :param str unit: of the values.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ahead = windows.test[1].shape[1]
    truth = _joined(windows.test[1], ahead) * windows.scale + windows.mean
    steps = range(1, len(truth) + 1)
    figure, panels = pyplot.subplots(
        len(bands), 1, figsize=(9, 2.1 * len(bands)), sharex=True, sharey=True, squeeze=False
    )
    for ax, (method, quantiles) in zip(panels[:, 0], bands.items(), strict=True):
        shown = [_joined(one, ahead) * windows.scale + windows.mean for one in quantiles]
        low, median, high = shown
        ax.fill_between(steps, low, high, color="0.85", lw=0, label="90% of the forecasts")
        for edge in (low, high):
            ax.plot(steps, edge, color="0.5", lw=0.6)
        ax.plot(steps, median, "--", color="tab:blue", lw=1.4, label="their median")
        ax.plot(steps, truth, "o", color="black", ms=2.5, label="what came")
        ax.set_title(method, fontsize=9)
        ax.set_ylabel(unit, fontsize=8)
    panels[0, 0].legend(fontsize=7, ncols=3, loc="upper left")
    panels[-1, 0].set_xlabel("steps of the test part")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _joined(values: Tensor, ahead: int) -> Tensor:
    """Every so many-th window, end to end: the series again."""
    return values[::ahead].flatten()[:SHOWN]
