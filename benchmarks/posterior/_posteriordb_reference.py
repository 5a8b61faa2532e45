"""What the reference draws say, how surely, and how far a guide's moments are from it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

__all__ = ["Moments", "compare", "reference_error", "reference_moments"]

#: mean and standard deviation by parameter
Moments = dict[str, tuple[float, float]]


def reference_moments(arrays: dict[str, np.ndarray]) -> Moments:
    """Mean and standard deviation of the reference draws of each parameter."""
    draws = {
        k.removeprefix("draws."): v.astype(float)
        for k, v in arrays.items()
        if k.startswith("draws.")
    }
    return {name: (values.mean(), values.std(ddof=1)) for name, values in draws.items()}


def reference_error(arrays: dict[str, np.ndarray]) -> tuple[float, float]:
    """
    Standard errors of the reference's means (in standard deviations) and standard deviations
    (relative), from the spread between its chains, for the worst parameter.
    """
    worst_mean = worst_sd = 0.0
    for name, values in arrays.items():
        if name.startswith("draws."):
            chains, sd = values.astype(float), values.astype(float).std(ddof=1)
            root = math.sqrt(len(chains))
            worst_mean = max(worst_mean, chains.mean(1).std(ddof=1) / root / sd)
            worst_sd = max(worst_sd, chains.std(1, ddof=1).std(ddof=1) / root / sd)
    return worst_mean, worst_sd


def compare(moments: Moments, reference: Moments) -> dict[str, Any]:
    """
    :returns: the worst errors, the parameters they belong to, and those of every parameter.
    """
    if moments.keys() != reference.keys():
        raise ValueError(f"parameters {sorted(moments)}; the reference has {sorted(reference)}")
    mean = {k: (moments[k][0] - m) / s for k, (m, s) in reference.items()}
    sd = {k: moments[k][1] / s - 1 for k, (_, s) in reference.items()}
    worst = {what: max(e, key=lambda k: abs(e[k])) for what, e in (("mean", mean), ("sd", sd))}
    return {
        "mean_error": abs(mean[worst["mean"]]),
        "sd_error": abs(sd[worst["sd"]]),
        "worst": worst,
        "errors": {k: {"mean": mean[k], "sd": sd[k]} for k in reference},
    }
