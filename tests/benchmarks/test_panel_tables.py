"""The short tables of the page on what to choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.common import format_table
from benchmarks.cost import speed
from benchmarks.posterior import panel
from benchmarks.posterior._examination_cases import EXAMINATION
from benchmarks.posterior._panel_cases import CASES
from benchmarks.posterior._panel_tables import KINDS
from tests.docs.pages import DOCS

HEADER = ["data", "model", "default: CPU s", "AutoNormal: CPU s", "ahead of AutoNormal by"]


def fit(method: str, seconds: float, margin: float, model: str = "eight schools") -> dict[str, Any]:
    told = {"score": -1.0, "margin": margin, "margin_error": 0.5, "cpu_seconds": seconds}
    return {"model": model, "seed": 0, "method": method, "note": None, **told}


def test_kinds_of_data_are_of_models_and_pages_that_are_there() -> None:
    for _, page, models in KINDS:
        assert set(models) <= set(CASES)
        source = DOCS.parent if page.endswith(".ipynb") else DOCS
        assert (source / page.partition("#")[0]).exists()


def test_models_are_shown_where_both_fits_are_there() -> None:
    rows = [fit("AutoNormal", 4.0, 0.0), fit("implicit", 12.0, 0.25), fit("implicit", 8.0, 0.25)]
    rows += [fit("implicit", 1.0, 0.0, "logistic"), fit("NUTS", 1.0, 0.0), fit("x", 1.0, 0.0, "y")]
    rows.append({"model": "LeNet", "seed": 0, "method": "implicit", "note": "no fit"})
    page = f"[{KINDS[0][0]}]({KINDS[0][1]})"
    expected = [page, "eight schools", "10", "4", "+0.250 ± 0.500"]
    assert panel.by_data(rows) == format_table(HEADER, [expected])
    assert panel.by_data([]) == format_table(HEADER, [])


@pytest.mark.parametrize("known", [True, False])
def test_steps_are_shown_beside_what_they_are_compared_with(known: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"what": "step, a", "method": "AutoNormal", "cpu_ms": 2.0},
        {
            "what": "step, a",
            "method": "implicit, recorded, along the path",
            "cpu_ms": 5.0 if known else None,
        },
        {"what": "step, b", "method": "LanczosELBO(5)", "cpu_ms": 5.0},
    ]
    expected = ["step, a", "implicit, recorded, along the path", "AutoNormal", "5", "2.5"]
    header = ["what", "method", "beside", "CPU ms", "ratio"]
    assert speed.steps_in_short(rows) == format_table(header, [expected] if known else [])


@pytest.mark.parametrize(
    ("course", "expected"),
    [([9.0, 7.0, 5.0, 4.0], "1.5"), ([9.0, 8.0, 7.0, 6.0], "never in 1 of 1"), (None, None)],
)
def test_time_to_the_bound_of_mean_field(course: list[float] | None, expected: str | None) -> None:
    base = fit("AutoNormal", 4.0, 0.0) | {"loss": 5.0, "steps": 10, "warnings": []}
    row = fit("implicit", 8.0, 0.25) | {"steps": 10, "warnings": []}
    if course is not None:
        row |= {"start_seconds": 0.0, "course": course}
    line = panel.table([base, row]).splitlines()[-1]
    assert line.split("|")[-3].strip() == (expected or "")
    if course is not None:  # the start is there from the beginning
        late = panel.table([base, row | {"start_seconds": 8.0}]).splitlines()[-1]
        assert late.split("|")[-3].strip() == ("2.0" if expected == "1.5" else expected)


@pytest.mark.parametrize(
    ("name", "expected"), [("pupils and questions", (272, 2000)), ("counts in groups", (18, 80))]
)
def test_rows_of_plates_are_no_latents(
    name: str, expected: tuple[int, int], tmp_path: Path
) -> None:
    """Else Pyro's guides would have fewer draws a step than ours, or not be fitted."""
    assert panel._sizes(EXAMINATION[name](tmp_path, 0)) == expected
