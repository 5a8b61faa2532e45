"""The short mean-field fit against a closed form, and out of domains that end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import SiteError
from pyro_implicit.guides.initialization import mean_field
from pyro_implicit.guides.initialization.ascent import ascend
from pyro_implicit.guides.initialization.mean_field import (
    MeanField,
    fit_mean_field,
    fit_mean_field_near,
)


def _gaussian(precision: Tensor, loc: Tensor) -> dist.MultivariateNormal:
    return dist.MultivariateNormal(loc, precision_matrix=precision)


@pytest.mark.long
def test_of_a_correlated_gaussian_it_is_the_conditional_deviations() -> None:
    root = torch.randn(4, 4, dtype=torch.float64)
    precision = root @ root.mT + torch.diag(torch.tensor([1.0, 4.0, 9.0, 100.0]).double())
    truth = _gaussian(precision, torch.linspace(-1, 1, 4).double())
    start = torch.zeros(4).double()
    fit = fit_mean_field(truth.log_prob, start, torch.full_like(start, 0.01), 2000)
    assert fit.is_level
    expected = precision.diagonal().rsqrt()
    assert torch.allclose(fit.scale, expected, rtol=0.15)
    assert ((fit.loc - truth.loc) / expected).abs().max() < 0.3


def test_several_draws_a_step_come_nearer() -> None:
    torch.manual_seed(0)
    root = torch.randn(4, 4, dtype=torch.float64)
    precision = root @ root.mT + torch.eye(4, dtype=torch.float64)
    truth = _gaussian(precision, torch.linspace(-1, 1, 4).double())
    start = torch.zeros(4).double()
    fit = fit_mean_field(truth.log_prob, start, start + 0.1, 600, start + 1, num_samples=16)
    expected = precision.diagonal().rsqrt()
    assert torch.allclose(fit.scale, expected, rtol=0.05)
    assert ((fit.loc - truth.loc) / expected).abs().max() < 0.1


@pytest.mark.long
@pytest.mark.parametrize("size", [1.0, 1e3, 1e5])
@pytest.mark.parametrize("count", [2, 100])
def test_latents_of_any_size_are_found(size: float, count: int) -> None:
    """Steps are as long as the deviations of the moment, where these are above 1."""
    torch.manual_seed(0)
    loc, scale = torch.zeros(count), torch.ones(count)
    loc[::2], scale[::2] = 3 * size, size
    truth = dist.Normal(loc, scale).to_event(1)
    fit = fit_mean_field_near(truth.log_prob, [torch.zeros(count)])
    assert ((fit.loc - loc) / scale).abs().max() < 0.5
    assert (fit.scale / scale).log().abs().max() < 0.5


@pytest.mark.long
@pytest.mark.parametrize("start", ["mean-field", "hessian", "ggn"])
def test_prices_in_dollars(start: str) -> None:
    """The mean and the deviation of data, under wide priors: had begun 30 deviations away."""
    torch.manual_seed(0)
    prices = 2000 + 100 * torch.randn(100)

    def model() -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 5e3))
        scale = pyro.sample("scale", dist.HalfNormal(5e3))
        with pyro.plate("data", len(prices)):
            pyro.sample("y", dist.Normal(mean, scale), obs=prices)

    draws = HyperNetworkGuide(model, init_from=start).setup().sample(1000)
    error = float(prices.std()) / 10
    assert abs(float(draws["mean"].mean() - prices.mean())) < 0.5 * error
    assert float(draws["mean"].std()) == pytest.approx(error, rel=0.35)
    assert float(draws["scale"].mean()) == pytest.approx(float(prices.std()), rel=0.05)


@pytest.mark.long
def test_a_start_that_is_still_on_its_way_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrow posterior a million deviations from where latents begin."""
    monkeypatch.setattr(mean_field, "_MAX_STEPS", 300)  # by the own limit so too, in ten seconds
    torch.manual_seed(0)
    data = 50_000 + 0.5 * torch.randn(100)

    def model() -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1e5))
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        with pyro.plate("data", len(data)):
            pyro.sample("y", dist.Normal(mean, scale), obs=data)

    guide = HyperNetworkGuide(model, init_from="mean-field")
    with pytest.warns(UserWarning, match="limit of its steps while its bound still rose"):
        guide.setup()


@pytest.mark.long
@pytest.mark.parametrize("far", [0.0, 300.0])
def test_whether_a_fit_at_its_limit_was_level_is_judged_by_what_more_steps_bring(
    far: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One draw of a density is too noisy to tell, where its optimum is narrow beside latents."""
    monkeypatch.setattr(mean_field, "_MAX_STEPS", 200)  # too few for a look at whether it is level
    monkeypatch.setattr(mean_field, "_UPHILL_STEPS", 1)
    torch.manual_seed(0)

    def density(u: Tensor) -> Tensor:
        return -0.5 * u.square().sum()

    fit = fit_mean_field_near(density, [torch.full((2,), far)])
    if far:
        assert not fit.is_level
    monkeypatch.setattr(mean_field, "_MAX_STEPS", 2000)
    again = mean_field._further(density, MeanField(fit.loc, torch.ones(2), False), 400, 9.0)
    assert again.is_level == (not far)


def test_a_fit_that_is_cut_short_says_so() -> None:
    fit = fit_mean_field(lambda u: -u.square().sum(), torch.full((2,), 9.0), torch.ones(2), 50)
    assert not fit.is_level and fit.loc.max() < 9.0


@pytest.mark.long
def test_steps_out_of_the_domain_are_taken_back() -> None:
    def density(u: Tensor) -> Tensor:
        return torch.where((u > 0).all(), (u.log() - u).sum(), torch.nan)

    fit = fit_mean_field(density, torch.full((2,), 0.05), torch.full((2,), 0.1), 600)
    assert (fit.loc > 0).all() and fit.scale.isfinite().all()
    never = fit_mean_field(lambda u: u.sum() * torch.nan, torch.ones(2), torch.ones(2), 350)
    assert torch.equal(never.loc, torch.ones(2))


@pytest.mark.long
def test_it_finds_its_way_through_a_domain_with_holes() -> None:
    loc = torch.tensor([1.0, -0.5])

    def density(u: Tensor) -> Tensor:
        room = 9 - u.square().sum()  # not finite beyond a radius of 3
        return -50 * (u - loc).square().sum() if room > 0 else u.sum() * torch.nan

    start = torch.tensor([2.0, 2.2])
    fit = fit_mean_field_near(density, [start])
    assert torch.allclose(fit.loc, loc, atol=0.1) and (fit.scale < 0.3).all()
    assert start.tolist() == pytest.approx([2.0, 2.2]) and not start.requires_grad
    never = fit_mean_field_near(lambda u: u.sum() * torch.nan, [loc])
    assert torch.equal(never.loc, loc)


@pytest.mark.long
def test_of_several_points_it_begins_at_the_highest() -> None:
    def density(u: Tensor) -> Tensor:  # two peaks that no step joins
        return torch.logaddexp(-50 * (u + 5).square(), -50 * (u - 5).square() + 3).sum()

    for points in ([-5.0, 5.0], [5.0, -5.0]):
        fit = fit_mean_field_near(density, [torch.full((1,), point) for point in points])
        assert torch.allclose(fit.loc, torch.tensor([5.0]), atol=0.1)
        assert torch.allclose(fit.scale, torch.tensor([0.1]), rtol=0.25)


def test_uphill_keeps_the_best_point() -> None:
    point, value = ascend(lambda u: -(u - 0.05).square().sum(), torch.zeros(2), 30)
    assert value > -1e-4 and torch.allclose(point, torch.full((2,), 0.05), atol=0.02)
    point, value = ascend(lambda u: u.sum() * torch.nan, torch.ones(2), 3)
    assert value == -math.inf and torch.equal(point, torch.ones(2))
    root = ascend(lambda u: -u.abs().sqrt().sum(), torch.zeros(2), 3)  # no gradient at the top
    assert root[1] == 0.0


@pytest.mark.long
def test_by_name_it_preconditions_the_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mean_field, "_MAX_STEPS", 900)
    scale = torch.tensor([0.02, 0.5, 3.0])

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.tensor([0.5, 0.0, 1.0]), scale).to_event(1))

    guide = HyperNetworkGuide(model, init_from="mean-field").setup()
    factor = guide.samplers[0].preconditioner.factor
    assert torch.allclose(factor, scale, rtol=0.2)
    assert guide.start_report is None


def test_by_name_it_refuses_a_density_that_is_random() -> None:
    def model() -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("noise", torch.randn(()))

    with pytest.raises(SiteError, match="two evaluations of the model"):
        HyperNetworkGuide(model, init_from="mean-field").setup()


@dataclass
class Began:
    """A fit that is judged no further."""

    now: Tensor
    is_level: bool = True


@pytest.mark.parametrize("is_network", [False, True])
def test_a_network_is_fitted_at_a_tenth_of_the_rates(
    is_network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slope each step of Adam has the length of its rate."""
    for name in ("_UPHILL_STEPS", "_NETWORK_UPHILL_STEPS"):
        monkeypatch.setattr(mean_field, name, 1)  # one look, at where it begins
    for name in ("_MAX_STEPS", "_MAX_NETWORK_STEPS"):
        monkeypatch.setattr(mean_field, name, 3)
    monkeypatch.setattr(mean_field, "_FINAL_RATE_FACTOR", 1.0)
    monkeypatch.setattr(mean_field._Fit, "result", lambda fit, is_level: Began(fit.now))
    fit: Any = fit_mean_field_near(lambda u: (2 * u).sum(), [torch.zeros(4)], is_network=is_network)
    now = fit.now
    expected = 3 * 0.04 * (0.1 if is_network else 1.0)
    torch.testing.assert_close(now[0], torch.full((4,), expected), rtol=1e-4, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("is_network", [False, True])
def test_a_network_is_fitted_by_fewer_steps(
    is_network: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are long enough, at a tenth of the rates, for any deviation that a prior has."""
    taken: list[int] = []
    monkeypatch.setattr(mean_field, "_UPHILL_STEPS", 1)
    monkeypatch.setattr(mean_field, "_NETWORK_UPHILL_STEPS", 1)
    monkeypatch.setattr(mean_field, "_is_level", lambda values, _: taken.append(len(values)))
    fit_mean_field_near(lambda u: -0.5 * u.square().sum(), [torch.zeros(2)], is_network=is_network)
    assert max(taken) < (2000 if is_network else 5000)
    assert max(taken) > (1200 if is_network else 3000)


@pytest.mark.long
@pytest.mark.parametrize("size", [1e-4, 1e-2])
def test_latents_much_smaller_than_their_units_are_found(size: float) -> None:
    """The bound of one draw is loud there for long: no gain of a window is seen."""
    torch.manual_seed(0)
    scale = size * torch.tensor([1.0, 3.0])

    def density(u: Tensor) -> Tensor:
        return -0.5 * ((u - 0.3) / scale).square().sum()

    fit = fit_mean_field_near(density, [torch.tensor([1.0, -1.0])])
    torch.testing.assert_close(fit.scale, scale, rtol=0.35, atol=0)
    assert bool(((fit.loc - 0.3).abs() < 0.5 * scale).all())


@pytest.mark.long
@pytest.mark.parametrize("start", ["hessian", "full-rank"])
def test_starts_from_a_fit_that_is_still_on_its_way_begin_at_a_mode(start: str) -> None:
    """Prices by square feet, in dollars: intercept and slope are far away, and dependent."""
    torch.manual_seed(0)
    feet = torch.rand(60) * 2000 + 1000
    x = torch.stack([torch.ones(60), feet], 1)
    price = 50_000 + 150 * feet + 20_000 * torch.randn(60)
    prior = torch.tensor([1e5, 1e3])

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), prior).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal((x * w).sum(-1), 20_000.0), obs=y)

    wide = x.double()
    precision = wide.mT @ wide / 20_000.0**2 + torch.diag(prior.double() ** -2)
    covariance = torch.linalg.inv(precision)
    mean = covariance @ (wide.mT @ price.double()) / 20_000.0**2
    pyro.set_rng_seed(1)
    draws = HyperNetworkGuide(model, init_from=start).setup(x, price).sample(4000)["w"].double()
    deviation = covariance.diagonal().sqrt()
    assert bool(((draws.mean(0) - mean).abs() < 0.3 * deviation).all())
    torch.testing.assert_close(draws.std(0), deviation, rtol=0.15, atol=0)
