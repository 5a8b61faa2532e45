"""The table, the figure and the ArviZ file of the main job."""

from __future__ import annotations

import importlib.util
import io
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pyro_implicit.exceptions import MissingExtraError

from .data import Split
from .fit import METHOD_NAMES, Fit, most_draws
from .score import Score, verdicts

MAX_EXPORTED_ROWS = 5000  # of the training rows; more would take gigabytes
MAX_ROWS_IN_FIGURE = 2000  # of the test rows; more could not be told apart
SCORES_FILE, FIGURE_FILE, POSTERIOR_FILE = "scores.txt", "predictive.png", "posterior.nc"
REPORT_FILES = (SCORES_FILE, FIGURE_FILE, POSTERIOR_FILE)


def require_extras(classes: bool = False) -> None:
    """
    Looks, before any work is done, for what the outputs need at the end.

    :param bool classes: whether classes are predicted.
    :raises MissingExtraError: if one of these packages is not installed.
    """
    for package in ("matplotlib", "h5netcdf", "h5py", *(["torchmetrics"] if classes else [])):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(
                f"the outputs need {package}, which is not installed: "
                'pip install "pyro-implicit[main]"'
            )


def format_table(split: Split, seed: int, fits: list[Fit], scores: list[Score]) -> str:
    """The scores as lines of text; all but the last column repeat with the seed."""
    titles = list(scores[0].values)
    lines = [
        f"{split.name}: {len(split.x_train)} training rows, {len(split.x_test)} test rows, "
        f"{split.x_train.shape[-1]} features, seed {seed}",
        f"predicted: {split.target_name}"
        + (f", one of {', '.join(split.classes)}" if split.classes else ""),
        f"{'method':<20}{''.join(f'{title:>14}' for title in titles)}{'seconds':>10}",
    ]
    for fit, score in zip(fits, scores, strict=True):
        cells = [_cell(title, score.values[title]) for title in titles]
        lines.append(f"{fit.method:<20}{''.join(f'{c:>14}' for c in cells)}{fit.seconds:>10.1f}")
    lines += verdicts(fits, scores)
    if any(fit.method == METHOD_NAMES["implicit"] for fit in fits):
        lines.append("The implicit guide starts from a mean-field fit; its seconds include that.")
    lines += [f"Note: {note}." for note in notes(split, fits)]
    return "\n".join(lines)


def _cell(title: str, value: float) -> str:
    if math.isnan(value):
        return "n/a"
    if title == "90% coverage":
        return f"{value:.2f}"
    return f"{value:.4g}" if title in ("test RMSE", "CRPS") else f"{value:.3f}"


def notes(split: Split, fits: Sequence[Fit] = ()) -> list[str]:
    """What was taken for granted of the data, and what was left out of the outputs."""
    found = [*split.notes, *(line for fit in fits for line in fit.notes)]
    if len(split.x_test) == 1:
        found.append("one test row has no standard error, and scores that say little")
    if len(split.x_train) > MAX_EXPORTED_ROWS:
        found.append(
            f"{POSTERIOR_FILE} has {MAX_EXPORTED_ROWS} of the {len(split.x_train)} training rows, "
            "drawn at random; its parameters are those of all rows"
        )
    return found


def export_bytes(split: Split, num_samples: int) -> int:
    """About what :func:`export` takes, before it is compressed: five numbers a row, and weights."""
    weights = 50 * (split.x_train.shape[-1] + 1 + (len(split.classes) or 1)) + 2
    return num_samples * (24 * min(len(split.x_train), MAX_EXPORTED_ROWS) + 8 * weights)


def export(model: Any, fit: Fit, split: Split, num_samples: int) -> Any:
    """
    A fit for ArviZ, on at most ``MAX_EXPORTED_ROWS`` of the training rows.

    Data and predictions are in the units of the table; the parameters are those of the network,
    whose inputs and outputs are standardised.
    """
    from pyro_implicit.arviz.to_arviz import to_arviz

    with warnings.catch_warnings():
        # What ArviZ 0.23 announces about its successor does not concern who runs this.
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing", FutureWarning)
        # As few draws as --num-samples asks for, from 16 chains.
        warnings.filterwarnings("ignore", r"More chains \(\d+\) than draws", UserWarning)
        data = to_arviz(
            model,
            fit.guide,
            split.x_train[:MAX_EXPORTED_ROWS],  # a random part: the split is in random order
            split.y_train[:MAX_EXPORTED_ROWS],
            num_samples=most_draws(fit.guide, num_samples),
            objective=fit.objective,
            dims={"x": ["data", "feature"]},
            coords={"feature": list(split.feature_names)},
        )
    _use_units(data, split)
    data.attrs.update(
        data=split.name,
        target=split.target_name,
        target_mean=split.y_mean,
        target_scale=split.y_scale,
        classes=", ".join(split.classes),
        training_rows=len(split.x_train),
        exported_rows=min(len(split.x_train), MAX_EXPORTED_ROWS),
        notes="; ".join(notes(split, [fit])),
    )
    return data


def _use_units(data: Any, split: Split) -> None:
    """Puts what was standardised back into the units of the table."""
    group = data["constant_data"]
    group["x"] = group["x"].astype(np.float64) * split.x_scale + split.x_mean
    if split.classes:
        return
    names = {"posterior": "mean", "prior": "mean", "observed_data": "y"}
    names |= {"posterior_predictive": "y", "prior_predictive": "y"}
    present = data.children if hasattr(data, "children") else data.groups()
    for where in names.keys() & set(present):
        group, name = data[where], names[where]
        group[name] = group[name].astype(np.float64) * split.y_scale + split.y_mean
    group = data["log_likelihood"]
    group["y"] = group["y"] - math.log(split.y_scale)


def saved(fit: Fit, split: Split) -> bytes:
    """
    The guide's state, and what its model and the table's units need, for ``load_state``.

    :returns: a file of ``torch.save``, with tensors and plain values alone.
    """
    content = io.BytesIO()
    state = {
        "guide": fit.guide.state_dict(),
        "method": fit.method,
        "feature_names": list(split.feature_names),
        "target": split.target_name,
        "classes": list(split.classes),
        "training_rows": len(split.x_train),
        "x_mean": torch.as_tensor(split.x_mean),
        "x_scale": torch.as_tensor(split.x_scale),
        "y_mean": split.y_mean,
        "y_scale": split.y_scale,
    }
    torch.save(state, content)
    return content.getvalue()


def draw(split: Split, fits: list[Fit], scores: list[Score]) -> bytes:
    """
    Predicted against observed test targets with 90% bands, one panel for each method.

    :returns: the figure as PNG.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if split.classes:
        return _draw_classes(split, fits, scores)
    shown = slice(MAX_ROWS_IN_FIGURE)  # a random part: the split is in random order
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
    few = f" ({MAX_ROWS_IN_FIGURE} of {len(split.y_test)} test rows)"
    return _as_png(figure, split, few if len(split.y_test) > MAX_ROWS_IN_FIGURE else "")


def _draw_classes(split: Split, fits: list[Fit], scores: list[Score]) -> bytes:
    """How probable the true classes were, one panel for each method."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(fits), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(fits), sharex=True, sharey=True, squeeze=False)[0]
    for panel, fit, score in zip(panels, fits, scores, strict=True):
        density = score.report["y"].rows["log_density"].exp().numpy()
        panel.hist(density, bins=np.linspace(0.0, 1.0, 21))
        panel.set(title=fit.method, xlabel="probability of the true class")
    panels[0].set_ylabel("test rows")
    return _as_png(figure, split, "")


def _as_png(figure: Any, split: Split, few: str) -> bytes:
    name = split.name if len(split.name) <= 60 else split.name[:57] + "..."
    figure.suptitle(name + few, parse_math=False)  # a name may have dollar signs
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
