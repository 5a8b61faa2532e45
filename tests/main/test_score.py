"""Scores against independent formulas, in the target's own units."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pyro_implicit._main import score as score_module
from pyro_implicit._main.data import Split
from pyro_implicit._main.score import score, standard_error


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


def test_one_draw_is_a_normal_density():
    draws, split = make(rows=5000, num_samples=1, y_mean=3.0, y_scale=7.0)
    result = score(linear_model, draws, split)
    mean = 3.0 + 7.0 * (split.x_test @ draws["w"][0]).numpy()
    density = stats.norm(mean, 7.0 * draws["sigma"].item())
    observed = split.y_test.numpy()
    logs = density.logpdf(observed)
    np.testing.assert_allclose(result.log_likelihood, logs.mean(), rtol=1e-5)
    np.testing.assert_allclose(result.standard_error, stats.sem(logs), rtol=1e-5)
    np.testing.assert_allclose(result.rmse, np.sqrt(((mean - observed) ** 2).mean()), rtol=1e-5)
    np.testing.assert_allclose(result.mean, mean, rtol=1e-4, atol=1e-4)


def test_many_draws_are_a_mixture():
    draws, split = make(rows=6, num_samples=400)
    result = score(linear_model, draws, split)
    means = (split.x_test @ draws["w"].T).numpy()  # [M, S]
    densities = stats.norm(means, draws["sigma"].numpy()).pdf(split.y_test.numpy()[:, None])
    np.testing.assert_allclose(result.log_likelihood, np.log(densities.mean(1)).mean(), rtol=1e-5)
    np.testing.assert_allclose(result.mean, means.mean(1), rtol=1e-4, atol=1e-5)
    below = stats.norm(means, draws["sigma"].numpy()).cdf(result.lower[:, None]).mean(1)
    above = stats.norm(means, draws["sigma"].numpy()).sf(result.upper[:, None]).mean(1)
    np.testing.assert_allclose(np.stack([below, above]), 0.05, atol=0.02)


def test_coverage_of_the_truth():
    draws, split = make(rows=4000, num_samples=1)
    draws = {name: value.expand(100, *value.shape[1:]) for name, value in draws.items()}
    assert score(linear_model, draws, split).coverage == pytest.approx(0.9, abs=0.02)


@given(scale=st.floats(1e-3, 1e3), shift=st.floats(-1e3, 1e3))
def test_units_of_the_target(scale, shift):
    pyro.set_rng_seed(0)
    draws, split = make(rows=8, num_samples=20)
    other = Split(
        "t", split.x_train, split.y_train, split.x_test, shift + scale * split.y_test, shift, scale
    )
    pyro.set_rng_seed(1)
    plain = score(linear_model, draws, split)
    pyro.set_rng_seed(1)
    scaled = score(linear_model, draws, other)
    assert scaled.rmse == pytest.approx(scale * plain.rmse, rel=1e-5)
    assert scaled.log_likelihood == pytest.approx(plain.log_likelihood - np.log(scale), abs=1e-5)
    assert scaled.coverage == plain.coverage


@pytest.mark.parametrize("at_a_time", [1, 7, 40])
def test_rows_at_a_time_change_nothing(monkeypatch, at_a_time):
    draws, split = make(rows=40, num_samples=30, y_mean=2.0, y_scale=3.0)
    whole = score(linear_model, draws, split)
    monkeypatch.setattr(score_module, "MEANS", 2 * at_a_time * 30)
    monkeypatch.setattr(score_module, "OUTCOMES", at_a_time * 30 * score_module.NOISE_DRAWS)
    parts = score(linear_model, draws, split)
    for name in ("rmse", "log_likelihood", "standard_error"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-6)
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-5, atol=1e-5)
    for name in ("lower", "upper"):  # of random outcomes
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), atol=3.0)


def test_outcomes_at_a_time_are_bounded(monkeypatch):
    sizes, randn = [], torch.randn

    def watched(*shape, **options):
        sizes.append(int(np.prod(shape)))
        return randn(*shape, **options)

    draws, split = make(rows=6000, num_samples=100)
    monkeypatch.setattr(torch, "randn", watched)
    score(linear_model, draws, split)
    assert max(sizes) <= score_module.OUTCOMES < sum(sizes)


def test_one_row_has_no_standard_error():
    draws, split = make(rows=1, num_samples=5)
    result = score(linear_model, draws, split)
    assert np.isnan(result.standard_error) and np.isfinite(result.log_likelihood)
    assert standard_error(np.array([1.0, 3.0])) == pytest.approx(1.0)


@pytest.mark.parametrize("unit", [1e-300, 1e-200, 1e200, 1e300])
def test_units_beyond_the_squares_of_doubles(unit):
    pyro.set_rng_seed(0)
    draws, split = make(rows=8, num_samples=20)
    other = Split("t", split.x_train, split.y_train, split.x_test, unit * split.y_test, 0.0, unit)
    plain, scaled = score(linear_model, draws, split), score(linear_model, draws, other)
    assert scaled.rmse == pytest.approx(unit * plain.rmse, rel=1e-6)
    assert scaled.log_likelihood == pytest.approx(plain.log_likelihood - np.log(unit), rel=1e-6)
