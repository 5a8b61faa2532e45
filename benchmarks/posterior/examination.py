"""Does the panel's promise hold on models that nothing was chosen on?"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.posterior._examination_cases import CHOICE, EXAMINATION
from benchmarks.posterior.panel import METHODS, SETTINGS, Row, measure, table

__all__ = ["METHODS", "SETTINGS", "main", "table"]

DESCRIPTION = """\
The panel's measurement on other models: fit(model, guide, *data) with no other argument, beside
Pyro's guides by the same fit; networks of Pyro's guides start at their own values with deviations
of 0.01. The seed is that of the fit, and chooses the split or the rows of a regression by a network
of 50 units.

By default on models that nothing was chosen on. Settings for networks were chosen on Friedman,
diabetes, kin8nm and wine quality, which --models can name.

A score is the log predictive density of a held-out datum; the margin is the score less that of
AutoNormal, with its standard error over held-out data (paired) and seeds."""


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    cases = EXAMINATION | CHOICE
    return measure("examination", DESCRIPTION, cases, list(EXAMINATION), argv)
