"""The table, the ArviZ file and the figure of the main job."""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from pyro_implicit.exceptions import MissingExtraError

from .data import Split
from .fit import Fit
from .score import Score

EXPORT_DRAWS = 1000
POSTERIOR_FILE, FIGURE_FILE = "posterior.nc", "predictive.png"


def require_extras() -> None:
    """
    Looks, before any work is done, for what the outputs need at the end.

    :raises MissingExtraError: if one of these packages is not installed.
    """
    for package in ("matplotlib", "h5netcdf", "h5py"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(
                f"the outputs need {package}, which is not installed: "
                'pip install "pyro-implicit[tutorials]"'
            )


def format_table(split: Split, seed: int, fits: list[Fit], scores: list[Score]) -> str:
    """The scores as lines of text; all but the last column repeat with the seed."""
    lines = [
        f"{split.name}: {len(split.x_train)} training rows, {len(split.x_test)} test rows, "
        f"{split.x_train.shape[-1]} features, seed {seed}",
        f"{'method':<20}{'test RMSE':>12}{'test log-lik':>14}{'(std. error)':>14}"
        f"{'90% coverage':>14}{'seconds':>10}",
    ]
    lines += [
        f"{fit.method:<20}{score.rmse:>12.4g}{score.log_likelihood:>14.3f}"
        f"{score.standard_error:>14.3f}{score.coverage:>14.2f}{fit.seconds:>10.1f}"
        for fit, score in zip(fits, scores, strict=True)
    ]
    lines.append("The implicit guide starts from the mean-field fit; its seconds include that one.")
    return "\n".join(lines)


def write_outputs(
    folder: Path, inference_data: Any, split: Split, fits: list[Fit], scores: list[Score]
) -> list[Path]:
    """
    Writes both files under other names first, so that a failure leaves none half-written.

    :returns: the paths of the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / POSTERIOR_FILE, folder / FIGURE_FILE]
    parts = [path.with_name(f".{path.name}.part") for path in paths]
    try:
        inference_data.to_netcdf(str(parts[0]))
        _draw(split, fits, scores, parts[1])
        for part, path in zip(parts, paths, strict=True):
            os.replace(part, path)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)
    return paths


def export(model: Any, fit: Fit, split: Split) -> Any:
    """The implicit fit for ArviZ, on the standardised training rows."""
    from pyro_implicit.diagnostics.to_arviz import to_arviz

    with warnings.catch_warnings():
        # What ArviZ 0.23 announces about its successor does not concern who runs this.
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing", FutureWarning)
        inference_data = to_arviz(
            model,
            fit.guide,
            split.x_train,
            split.y_train,
            num_samples=EXPORT_DRAWS,
            objective=fit.objective,
        )
    inference_data.attrs.update(
        data=split.name, target_mean=split.y_mean, target_scale=split.y_scale
    )
    return inference_data


def _draw(split: Split, fits: list[Fit], scores: list[Score], path: Path) -> None:
    """Predicted against observed test targets with 90% bands, one panel for each method."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    observed = split.y_test.numpy()
    span = np.array([observed.min(), observed.max()])
    figure = Figure(figsize=(4.2 * len(fits), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(fits), sharex=True, sharey=True, squeeze=False)[0]
    for panel, fit, score in zip(panels, fits, scores, strict=True):
        bars = np.stack([score.mean - score.lower, score.upper - score.mean])
        panel.errorbar(observed, score.mean, bars, fmt="o", ms=3, lw=0.8, alpha=0.7)
        panel.plot(span, span, color="black", lw=0.8)
        panel.set(title=fit.method, xlabel="observed")
    panels[0].set_ylabel("predicted, with 90% band")
    figure.suptitle(split.name)
    figure.savefig(path, format="png", dpi=120)
