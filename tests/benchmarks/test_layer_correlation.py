"""Correlations across layers: the scores of draws that are known, and the figure."""

from __future__ import annotations

from pathlib import Path

import pyro
import pyro.poutine as poutine
import pytest
import torch

from benchmarks.papers.livi import layer_correlation
from benchmarks.papers.livi._correlation_figure import draw_correlations
from benchmarks.papers.livi._correlation_fits import data, layers, model


def _draws(share: float, num_draws: int = 40_000) -> torch.Tensor:
    """Ten weights, of which each of four after the units has this share of one before them."""
    before, own = torch.randn(num_draws, 6), torch.randn(num_draws, 4)
    after = share * before[:, :4] + (1 - share**2) ** 0.5 * own
    return torch.cat([before, after], -1)


def test_scores_of_the_same_posterior() -> None:
    torch.manual_seed(0)
    found = layer_correlation._scores(_draws(0.8), _draws(0.8))
    assert found["across"] < 0.02 and found["within"] < 0.02 and found["mean"] < 0.02
    assert found["share"] == pytest.approx(1.0, abs=0.02)
    assert found["sd"] == pytest.approx(1.0, abs=0.02)
    assert found["size"] == pytest.approx(0.8 / 6**0.5, abs=0.01)


def test_independent_draws_have_no_share_and_the_whole_error() -> None:
    torch.manual_seed(0)
    found = layer_correlation._scores(2 * _draws(0.0) + 1, _draws(0.8))
    assert found["share"] == pytest.approx(0.0, abs=0.02)
    assert found["across"] == pytest.approx(found["size"], abs=0.02)
    assert found["sd"] == pytest.approx(2.0, rel=0.02)
    assert found["mean"] == pytest.approx(1.0, abs=0.03)


def test_no_other_place_or_sign_of_a_unit_is_as_good() -> None:
    pyro.set_rng_seed(0)
    x, y = data()
    trace = poutine.trace(model).get_trace(x, y)
    first = {name: trace.nodes[name]["value"] for name in ("w", "b", "v", "c")}
    order = torch.tensor([1, 0, 2])
    second = {name: v[order] if v.dim() else v for name, v in first.items()}
    values = []
    for one in (first, second):
        trace = poutine.trace(poutine.condition(model, data=one)).get_trace(x, y)
        trace.compute_log_prob()
        values.append([trace.nodes[name]["log_prob_sum"].item() for name in ("y", "b")])
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-4)  # the same function
    assert values[0][1] != pytest.approx(values[1][1], rel=1e-2)
    assert bool((first["w"] > 0).all())


def test_layers_of_draws() -> None:
    draws = {"w": torch.zeros(5, 3), "b": torch.ones(5, 3), "v": torch.ones(5, 3)}
    before, after = layers({**draws, "c": torch.full((5,), 2.0)})
    assert before.shape == (5, 6) and after.shape == (5, 4)
    assert after[0].tolist() == [1, 1, 1, 2] and before[0].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.long
def test_tables_and_figure(tmp_path: Path) -> None:
    numbers = {key: 0.5 for key in ("across", "within", "share", "size", "mean", "sd")}
    rows = [
        {"method": method, "seed": seed, **numbers, "r_hat": 1.01, "cpu_seconds": 2.0}
        for seed in (0, 1)
        for method in ("HMC", "mean-field", "autoregressive")
    ]
    assert len(layer_correlation.table(rows).splitlines()) == 5
    assert layer_correlation.differences(rows).count("+0.000 ± 0.000") == 4
    assert layer_correlation.references(rows).count("1.010") == 2
    matrix = torch.full((10, 10), -0.5).fill_diagonal_(1.0).tolist()
    draw_correlations(tmp_path / "one.png", {"HMC": matrix, "mean-field": matrix}, 3)
    assert (tmp_path / "one.png").stat().st_size > 1000
