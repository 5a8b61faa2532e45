"""Minibatches, modes, what the marginal moments force, and the table of differences."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import pytest
import torch

from benchmarks.common import fixed_seed
from benchmarks.papers.kivi import kivi_uci
from benchmarks.papers.kivi._kivi_uci import (
    BATCH_SIZE,
    NUM_HIDDEN,
    WHOLE,
    batches,
    build_model,
    fit_control,
    fit_modes,
    marginal_kl,
    num_hidden,
)
from benchmarks.shared import uci
from benchmarks.shared.uci import Split, score


def _split(rows: int, held: int = 4) -> Split:
    y = torch.arange(float(rows))
    return Split(torch.randn(rows, 3), y, torch.randn(held, 3), torch.randn(held), 2.0)


def test_forced_kl_of_the_prior_is_none() -> None:
    torch.manual_seed(0)
    shapes = {"first": (NUM_HIDDEN, 4), "second": (1, NUM_HIDDEN + 1)}
    draws = {name: torch.randn(20_000, *shape) for name, shape in shapes.items()}
    assert marginal_kl(draws) == pytest.approx(0.0, abs=0.05)
    narrow = {name: 0.1 * value for name, value in draws.items()}
    each = 0.5 * (0.01 - 1 - math.log(0.01))
    assert marginal_kl(narrow) == pytest.approx(251 * each, rel=0.01)


def test_small_sets_are_whole_and_large_ones_seen_once_a_turn() -> None:
    small = _split(WHOLE)
    assert all(len(y) == WHOLE for _, y in islice(batches(small), 3))
    large = _split(WHOLE + 100)
    turn = (WHOLE + 100) // BATCH_SIZE
    parts = list(islice(batches(large), 2 * turn))
    assert all(x.shape == (BATCH_SIZE, 3) and y.shape == (BATCH_SIZE,) for x, y in parts)
    for begin in (0, turn):
        seen = torch.cat([y for _, y in parts[begin : begin + turn]])
        assert len(seen.unique()) == len(seen) == turn * BATCH_SIZE


def test_controls_are_draws_of_all_sites() -> None:
    split = _split(60)
    model = build_model(3, 60, hidden=5)
    for method, number in (("MC dropout", 0.4), ("SWAG", 1e-5)):
        with fixed_seed(0):
            draws = fit_control(model, split, method, number, num_steps=60, quiet=True, hidden=5)
            found = score(model, draws, split)
        assert math.isfinite(found["log_likelihood"])
        assert torch.allclose(draws["sigma"] ** -2, draws["precision"])
        second = draws["second"]
        is_kept = (second[..., :-1] != 0).double().mean()
        assert float(is_kept) == pytest.approx(0.6 if method == "MC dropout" else 1.0, abs=0.05)
        assert bool((second[..., -1] != 0).all())  # the bias is no unit
        assert second.shape == (500, 1, 6) and draws["first"].shape == (500, 5, 4)


def test_modes_of_an_ensemble_differ_and_are_drawn_equally_often() -> None:
    split = _split(20)
    model = build_model(3, 20, hidden=5)
    with fixed_seed(0):
        draws = fit_modes(model, split, 5, num_steps=3, quiet=True, hidden=5)
        scores = score(model, draws, split)
    assert draws["first"].shape == (500, 5, 4) and draws["second"].shape == (500, 1, 6)
    modes, counts = draws["first"].unique(dim=0, return_counts=True)
    assert len(modes) == 5 and (counts == 100).all()
    torch.testing.assert_close(draws["sigma"], draws["precision"] ** -0.5)
    assert all(math.isfinite(value) for value in scores.values())


def test_protein_has_the_wider_network_of_the_paper() -> None:
    assert {name: num_hidden(name) for name in ("boston", "protein")} == {
        "boston": 50,
        "protein": 100,
    }


@pytest.mark.long
def test_score_by_parts_is_that_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    split = _split(60, held=50)
    model = build_model(3, 60, hidden=5)
    with fixed_seed(0):
        draws = fit_modes(model, split, 5, num_steps=3, quiet=True, hidden=5)
        whole = score(model, draws, split)
        monkeypatch.setattr(uci, "_ROWS", 7)
        parts = score(model, draws, split)
    assert parts["rmse"] == pytest.approx(whole["rmse"], rel=1e-5)
    assert parts["log_likelihood"] == pytest.approx(whole["log_likelihood"], rel=1e-5)
    assert parts["coverage"] == pytest.approx(whole["coverage"], abs=0.05)  # its noise is drawn


def test_differences_are_of_the_same_split() -> None:
    def row(method: str, split: int, rmse: float, log_likelihood: float) -> dict[str, Any]:
        same = {"set": "toy", "method": method, "split": split, "seed": 0}
        return same | {"rmse": rmse, "log_likelihood": log_likelihood}

    rows = [
        row("published", 0, 2.0, -2.0),
        row("published", 1, 3.0, -3.0),
        row("adaptive", 0, 1.0, -1.5),
        row("adaptive", 1, 2.0, -3.5),
        row("adaptive", 2, 90.0, -90.0),  # has no counterpart
        row("no KL", 1, 2.9, -3.25),
    ]
    lines = [line.split("|") for line in kivi_uci.differences(rows).splitlines()[2:]]
    assert [[cell.strip() for cell in line[1:-1]] for line in lines] == [
        ["toy", "adaptive", "published", "-1.000 ± 0.000", "+0.000 ± 0.500", "1 of 2"],
        ["toy", "adaptive", "no KL", "-0.900", "-0.250", "0 of 1"],
        ["toy", "published", "no KL", "+0.100", "+0.250", "1 of 1"],
    ]


def test_digits_follow_the_size() -> None:
    digits = [kivi_uci._decimals([value]) for value in (0.0751, 0.513, 2.66, 1465.0, 0.0)]
    assert digits == [4, 3, 2, 0, 2]
