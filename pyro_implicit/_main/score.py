"""What a fit predicts for the test rows, and how good that is, in the target's units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_implicit.inference.evaluate import evaluate
from pyro_implicit.inference.evaluation.report import EvaluationReport

from .data import Split
from .fit import METHOD_NAMES, Fit, most_draws

COVERAGE_PERCENT = 90


@dataclass(frozen=True)
class Score:
    """
    Test scores of one method.

    ``values`` are those of the table by the title of their column; ``mean``, ``lower`` and
    ``upper`` the prediction of each test row with its 90% band, ``(M,)``, None for classes.
    """

    report: EvaluationReport
    values: dict[str, float]
    mean: Any = None
    lower: Any = None
    upper: Any = None


def score(
    model: Callable[..., Tensor], guide: Any, split: Split, num_samples: int, seed: int
) -> Score:
    """
    Scores a fit on the test rows, by :func:`~pyro_implicit.evaluate`.

    The log-likelihood has the Jacobian of the standardisation: it belongs to the target in its own
    units.

    :param model: the model of :func:`~pyro_implicit._main.model.build_model`.
    :param guide: its guide.
    :param Split split: the data; its test part is used.
    :param int num_samples: draws of the guide.
    :param int seed: of all draws.
    """
    y = split.y_test.long()
    if not split.classes:
        y = ((split.y_test - split.y_mean) / split.y_scale).to(split.y_train.dtype)
    draws = most_draws(guide, num_samples)
    report = evaluate(model, guide, split.x_test, y, num_samples=draws, seed=seed)
    found = report["y"].scores
    density = {
        "test log-lik": found["log_density"].value - math.log(split.y_scale),
        "(std. error)": found["log_density"].standard_error,
    }
    if split.classes:
        first = {"accuracy": found["accuracy"].value}
        return Score(report, first | density | {"ECE": found["ece"].value})
    rows = report["y"].rows
    shown = {"test RMSE": split.y_scale * found["rmse"].value} | density
    shown["90% coverage"] = found[f"coverage_{COVERAGE_PERCENT}"].value
    shown["CRPS"] = split.y_scale * found["crps"].value
    return Score(
        report,
        shown,
        *(_in_units(rows[name], split) for name in ("mean", "lower_90", "upper_90")),
    )


def _in_units(values: torch.Tensor, split: Split) -> np.ndarray:
    return split.y_mean + split.y_scale * values.numpy()


def verdicts(fits: list[Fit], scores: list[Score]) -> list[str]:
    """
    A line each: whether the implicit guide, and chains, predict better than mean-field, row by row.

    :param fits: all of them.
    :param scores: theirs.
    :returns: the lines; none of what is not there.
    """
    found = {fit.method: one.report for fit, one in zip(fits, scores, strict=True)}
    base = METHOD_NAMES["mean-field"]
    names = {"implicit guide": "implicit", "chains": "refine"}
    printed = {short: METHOD_NAMES[key] for short, key in names.items()}
    others = {short: name for short, name in printed.items() if name in found}
    if base not in found:
        return []
    noted = {fit.method for fit in fits if fit.notes}
    return [
        _verdict(short, *found[name].difference(found[base]), bool(noted & {name, base}))
        for short, name in others.items()
    ]


def _verdict(name: str, value: float, error: float, noted: bool) -> str:
    what = f"{name.removesuffix(' guide')} less mean-field"
    size = f"{value:+.4f} nats a row, standard error {error:.4f}"
    if noted:
        size += "; see the notes on the fits"
    if math.isnan(error):
        return f"Verdict: none from one test row ({what}: {value:+.4f} nats)."
    if abs(value) <= 2 * error:
        return f"Verdict: no difference that the test rows show ({what}: {size})."
    verb = "predict" if name == "chains" and value > 0 else "predicts"
    better = name if value > 0 else "mean-field fit"
    return f"Verdict: the {better} {verb} better ({what}: {size})."
