"""Columns that several benchmarks have, by key of a row: what they are."""

from __future__ import annotations

__all__ = ["BY_METHOD", "CPU", "ERRORS", "PREDICTIONS", "UCI"]

CPU = {"cpu_seconds": "of the fit"}
BY_METHOD = {"method": "a name of --methods", "seed": "of the fit"}
#: which regression a row is of
UCI = {"set": "of UCI", "split": "canonical", **BY_METHOD}
#: how well a regression predicts
PREDICTIONS = {
    "rmse": "in the target's units",
    "log_likelihood": "of a test row, mean",
    "coverage": "of the central 90% interval",
}
#: how far a posterior is from its reference
ERRORS = {
    "mean_error": "worst parameter, in deviations of the reference",
    "sd_error": "worst parameter, relative",
    "worst": "which these are",
}
