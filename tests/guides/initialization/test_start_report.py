"""How an automatic start is told."""

from __future__ import annotations

import math

from pyro_implicit.guides.initialization.start_report import StartReport, Trial


def test_scores_that_are_far_below_are_no_numbers_to_read() -> None:
    gaussians = (
        Trial("deviations", -35.25),
        Trial("mode", -1.65502e10),
        Trial("mean field", -40.0, "not level after 300 steps"),
        Trial("full rank", -math.inf, "singular"),
    )
    text = str(StartReport("the default", "deviations", "its bound", (), gaussians))
    assert text.splitlines() == [
        "start: deviations, at the default: its bound",
        "  evidence bound of Gaussians: deviations -35.25, mode far below, mean field -40 (not "
        "level after 300 steps), full rank far below (singular)",
    ]


def test_one_that_failed_by_itself_says_so() -> None:
    assert str(Trial("mode", -math.inf, "no peak")) == "mode -inf (no peak)"
    text = str(StartReport("here", "there", "why", (Trial("mode", -math.inf),)))
    assert text.endswith("mode -inf")
