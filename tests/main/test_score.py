"""Scores in the target's own units, and the line that says who predicts better."""

from __future__ import annotations

import math

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pyro_implicit import evaluate
from pyro_implicit._main.data import Split
from pyro_implicit._main.fit import METHOD_NAMES, Chain, Fit
from pyro_implicit._main.score import Score, score, verdicts


def linear_model(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    sigma = pyro.sample("sigma", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        mean = pyro.deterministic("mean", x @ w, event_dim=0)
        return pyro.sample("y", dist.Normal(mean, sigma), obs=y)


def make(rows, num_samples, y_mean=0.0, y_scale=1.0):
    """Draws of the linear model, and a split whose test targets come from the first of them."""
    draws = {"w": torch.randn(num_samples, 2), "sigma": 0.5 + torch.rand(num_samples)}
    x = torch.randn(rows, 2)
    y = (x @ draws["w"][0] + draws["sigma"][0] * torch.randn(rows)).double()
    return draws, Split("t", x[:0], x[:0, 0], x, y_mean + y_scale * y, y_mean, y_scale)


def scored(draws, split):
    return score(linear_model, Chain(draws), split, len(draws["sigma"]), seed=0)


def test_one_draw_is_a_normal_density():
    draws, split = make(rows=100, num_samples=1, y_mean=3.0, y_scale=7.0)
    result = scored(draws, split)
    mean = 3.0 + 7.0 * (split.x_test @ draws["w"][0]).numpy()
    density = stats.norm(mean, 7.0 * draws["sigma"].item())
    observed = split.y_test.numpy()
    logs = density.logpdf(observed)
    values = result.values
    assert values["test log-lik"] == pytest.approx(logs.mean(), rel=1e-5)
    assert values["(std. error)"] == pytest.approx(stats.sem(logs), rel=1e-5)
    assert values["test RMSE"] == pytest.approx(np.sqrt(((mean - observed) ** 2).mean()), rel=1e-5)
    np.testing.assert_allclose(result.mean, mean, rtol=1e-4, atol=1e-4)
    for bound, level in ((result.lower, 0.05), (result.upper, 0.95)):
        np.testing.assert_allclose(density.cdf(bound), level, atol=0.045)


@pytest.mark.long
@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-1e3, 1e3))
@settings(max_examples=10)
def test_units_of_the_target(scale, shift):
    pyro.set_rng_seed(0)
    draws, split = make(rows=8, num_samples=20)
    target = shift + scale * split.y_test
    other = Split("t", split.x_train, split.y_train, split.x_test, target, shift, scale)
    plain, scaled = scored(draws, split).values, scored(draws, other).values
    for name in ("test RMSE", "CRPS"):
        assert scaled[name] == pytest.approx(scale * plain[name], rel=1e-3)
    assert scaled["test log-lik"] == pytest.approx(plain["test log-lik"] - np.log(scale), abs=1e-3)
    assert scaled["90% coverage"] == plain["90% coverage"]


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e200, 1e300])
def test_units_beyond_the_squares_of_doubles(unit):
    draws, split = make(rows=8, num_samples=20)
    other = Split("t", split.x_train, split.y_train, split.x_test, unit * split.y_test, 0.0, unit)
    plain, scaled = scored(draws, split).values, scored(draws, other).values
    assert scaled["test RMSE"] == pytest.approx(unit * plain["test RMSE"], rel=1e-5)
    assert scaled["test log-lik"] == pytest.approx(plain["test log-lik"] - np.log(unit), rel=1e-5)


def test_one_row_has_no_standard_error():
    draws, split = make(rows=1, num_samples=5)
    values = scored(draws, split).values
    assert math.isnan(values["(std. error)"]) and math.isfinite(values["test log-lik"])


def judged(gap, rows=200, notes=(), method="implicit"):
    """The verdict on a method whose mean is nearer to the truth by so much."""
    x = torch.zeros(rows)
    y = torch.randn(rows)

    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w + x, 1.0), obs=y)

    offsets = {method: max(-gap, 0.0), "mean-field": max(gap, 0.0)}
    fits = [Fit(METHOD_NAMES[name], None, 1.0, notes=list(notes)) for name in offsets]
    reports = [
        evaluate(model, Chain({"w": torch.tensor([w])}), x, y, num_samples=1)
        for w in offsets.values()
    ]
    (line,) = verdicts(fits, [Score(report, {}) for report in reports])
    return line


@pytest.mark.long
def test_verdicts():
    assert judged(1.0).startswith("Verdict: the implicit guide predicts better (implicit less mean")
    assert judged(-1.0).startswith("Verdict: the mean-field fit predicts better (implicit less")
    assert judged(0.0).startswith("Verdict: no difference that the test rows show")
    assert judged(1.0, rows=1).startswith("Verdict: none from one test row")
    assert judged(1.0, notes=["the limit came"]).endswith("; see the notes on the fits).")
    assert verdicts([], []) == []
    assert judged(1.0, method="refine").startswith("Verdict: the chains predict better (chains")
    assert judged(-1.0, method="refine").startswith(
        "Verdict: the mean-field fit predicts better (c"
    )
