"""The table, the figure and the ArviZ file of the main job."""

from __future__ import annotations

import importlib.util
import io
import math
import warnings
from typing import Any

import numpy as np

from pyro_implicit.exceptions import MissingExtraError

from .data import Split
from .fit import Fit
from .score import Score

EXPORT_DRAWS = 1000
EXPORT_ROWS = 5000  # of the training rows; more would take gigabytes
FIGURE_ROWS = 2000  # of the test rows; more could not be told apart
SCORES_FILE, FIGURE_FILE, POSTERIOR_FILE = "scores.txt", "predictive.png", "posterior.nc"
FILES = (SCORES_FILE, FIGURE_FILE, POSTERIOR_FILE)


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
    for fit, score in zip(fits, scores, strict=True):
        error = score.standard_error
        lines.append(
            f"{fit.method:<20}{score.rmse:>12.4g}{score.log_likelihood:>14.3f}"
            f"{'n/a' if math.isnan(error) else format(error, '.3f'):>14}"
            f"{score.coverage:>14.2f}{fit.seconds:>10.1f}"
        )
    lines.append("The implicit guide starts from the mean-field fit; its seconds include that one.")
    lines += [f"Note: {note}." for note in notes(split)]
    return "\n".join(lines)


def notes(split: Split) -> list[str]:
    """What was taken for granted of the data, and what was left out of the outputs."""
    told = list(split.notes)
    if len(split.x_test) == 1:
        told.append("one test row has no standard error, and scores that say little")
    if len(split.x_train) > EXPORT_ROWS:
        told.append(
            f"{POSTERIOR_FILE} has {EXPORT_ROWS} of the {len(split.x_train)} training rows, drawn "
            "at random; its parameters are those of all rows"
        )
    return told


def export_bytes(split: Split) -> int:
    """About what :func:`export` takes, before it is compressed: five numbers a row, and weights."""
    weights = 50 * (split.x_train.shape[-1] + 2) + 2
    return EXPORT_DRAWS * (24 * min(len(split.x_train), EXPORT_ROWS) + 8 * weights)


def export(model: Any, fit: Fit, split: Split) -> Any:
    """The implicit fit for ArviZ, on at most ``EXPORT_ROWS`` of the standardised training rows."""
    from pyro_implicit.arviz.to_arviz import to_arviz

    with warnings.catch_warnings():
        # What ArviZ 0.23 announces about its successor does not concern who runs this.
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing", FutureWarning)
        inference_data = to_arviz(
            model,
            fit.guide,
            split.x_train[:EXPORT_ROWS],  # a random part: the split is in random order
            split.y_train[:EXPORT_ROWS],
            num_samples=EXPORT_DRAWS,
            objective=fit.objective,
        )
    inference_data.attrs.update(
        data=split.name,
        target_mean=split.y_mean,
        target_scale=split.y_scale,
        training_rows=len(split.x_train),
        exported_rows=min(len(split.x_train), EXPORT_ROWS),
        notes="; ".join(notes(split)),
    )
    return inference_data


def draw(split: Split, fits: list[Fit], scores: list[Score]) -> bytes:
    """
    Predicted against observed test targets with 90% bands, one panel for each method.

    :returns: the figure as PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = slice(FIGURE_ROWS)  # a random part: the split is in random order
    observed, exponent = _scaled(split.y_test.numpy()[shown])
    span = np.array([observed.min(), observed.max()])
    figure = Figure(figsize=(4.2 * len(fits), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(fits), sharex=True, sharey=True, squeeze=False)[0]
    for panel, fit, score in zip(panels, fits, scores, strict=True):
        mean, lower, upper = (
            each[shown] * 10.0**-exponent for each in (score.mean, score.lower, score.upper)
        )
        bars = np.stack([mean - lower, upper - mean]).clip(0.0)
        panel.errorbar(observed, mean, bars, fmt="o", ms=3, lw=0.8, alpha=0.7)
        panel.plot(span, span, color="black", lw=0.8)
        panel.set(title=fit.method, xlabel="observed")
    unit = f", in 1e{exponent:+d}" if exponent else ""
    panels[0].set_ylabel(f"predicted, with 90% band{unit}")
    few = f" ({FIGURE_ROWS} of {len(split.y_test)} test rows)"
    name = split.name if len(split.name) <= 60 else split.name[:57] + "..."
    title = name + (few if len(split.y_test) > FIGURE_ROWS else "")
    figure.suptitle(title, parse_math=False)  # a name may have dollar signs
    content = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def _scaled(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Values that the axes of a figure can show, and the power of ten taken out of them."""
    largest = float(np.abs(values).max())
    exponent = int(math.log10(largest)) if largest > 0.0 else 0
    exponent = 0 if abs(exponent) < 15 else max(-300, min(300, exponent))
    return values * 10.0**-exponent, exponent
