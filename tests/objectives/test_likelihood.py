"""The per-datum log-mean-exp against the same by hand, and what counts as one datum."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO

pytestmark = pytest.mark.usefixtures("double")
ROWS, COUNT = 5, 4
Parts = Callable[..., dict[str, float]]


@pytest.fixture
def log_mean(parts: Parts, mixed: SimpleNamespace) -> Callable[..., float]:
    """The per-datum term of a model with latents ``w`` of shape (3,), at given draws."""

    def value(model: Any, w: Tensor, vectorised: bool, nesting: int = 1, *args: Any) -> float:
        guide = HyperNetworkGuide(model, scale=0.1).setup(*args).double()
        name = next(n for n in poutine.trace(guide).get_trace(*args).nodes if n.endswith("_latent"))
        given = mixed.given({name: w}, nesting if vectorised else None)
        objective = LinearisedELBO(
            len(w),
            vectorize_particles=vectorised,
            max_plate_nesting=nesting,
            likelihood="per_datum",
        )
        terms = parts(objective, model, given(guide), *args)
        assert list(terms) == ["log_predictive", "log_prior", "entropy"]
        return terms["log_predictive"]

    return value


def _lme(draws: Tensor) -> Tensor:
    return torch.logsumexp(draws, 0) - math.log(len(draws))


def _weights() -> Tensor:
    return pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))


@pytest.mark.parametrize("vectorised", [False, True])
def test_two_sites_in_one_plate_are_one_datum(
    vectorised: bool, mixed: SimpleNamespace, log_mean: Callable[..., float]
) -> None:
    def model() -> None:
        mean = (_weights() * mixed.x).sum(-1)
        with pyro.plate("data", ROWS):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=mixed.y)
            pyro.sample("v", dist.StudentT(4.0, mean, 1.0), obs=mixed.y + 1)

    w = torch.randn(COUNT, 3)
    mean = w @ mixed.x.mT
    both = dist.Normal(mean, 0.5).log_prob(mixed.y)
    both = both + dist.StudentT(4.0, mean, 1.0).log_prob(mixed.y + 1)
    assert log_mean(model, w, vectorised) == pytest.approx(_lme(both).sum().item(), rel=1e-12)


@pytest.mark.parametrize("vectorised", [False, True])
def test_each_site_has_its_own_mask(
    vectorised: bool, mixed: SimpleNamespace, log_mean: Callable[..., float]
) -> None:
    other = torch.tensor([False, True, False, True, True])

    def model() -> None:
        mean = (_weights() * mixed.x).sum(-1)
        with pyro.plate("data", ROWS):
            with poutine.mask(mask=mixed.mask):
                pyro.sample("y", dist.Normal(mean, 0.5), obs=mixed.y)
            pyro.sample("v", dist.Normal(mean, 2.0).mask(other), obs=mixed.y)
            with poutine.mask(mask=other):
                pyro.sample("u", dist.Normal(mean, 3.0), obs=mixed.y)
            with poutine.mask(mask=False):
                pyro.sample("hidden", dist.Normal(mean, 1.0), obs=mixed.y)

    w = torch.randn(COUNT, 3)
    mean = w @ mixed.x.mT
    both = dist.Normal(mean, 0.5).log_prob(mixed.y) * mixed.mask
    both = both + dist.Normal(mean, 2.0).log_prob(mixed.y) * other
    both = both + dist.Normal(mean, 3.0).log_prob(mixed.y) * other
    assert log_mean(model, w, vectorised) == pytest.approx(_lme(both).sum().item(), rel=1e-12)


@pytest.mark.parametrize("vectorised", [False, True])
def test_a_scale_of_its_own_makes_a_datum_of_its_own(
    vectorised: bool, mixed: SimpleNamespace, log_mean: Callable[..., float]
) -> None:
    def model() -> None:
        mean = (_weights() * mixed.x).sum(-1)
        with pyro.plate("data", ROWS):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=mixed.y)
            with poutine.scale(scale=0.1):
                pyro.sample("v", dist.Normal(mean, 2.0), obs=mixed.y)

    w = torch.randn(COUNT, 3)
    mean = w @ mixed.x.mT
    expected = _lme(dist.Normal(mean, 0.5).log_prob(mixed.y)).sum()
    expected = expected + 0.1 * _lme(dist.Normal(mean, 2.0).log_prob(mixed.y)).sum()
    assert log_mean(model, w, vectorised) == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("scale", [torch.tensor(0.3), torch.linspace(0.1, 2.0, ROWS)])
def test_a_tensor_as_scale_leaves_a_datum_whole(
    scale: Tensor, vectorised: bool, mixed: SimpleNamespace, log_mean: Callable[..., float]
) -> None:
    def model() -> None:
        mean = (_weights() * mixed.x).sum(-1)
        with pyro.plate("data", ROWS), poutine.scale(scale=scale):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=mixed.y)
            pyro.sample("v", dist.Normal(mean, 2.0), obs=mixed.y)

    w = torch.randn(COUNT, 3)
    mean = w @ mixed.x.mT
    both = sum(dist.Normal(mean, s).log_prob(mixed.y) for s in (0.5, 2.0))
    expected = (scale * _lme(both)).sum()
    assert log_mean(model, w, vectorised) == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("vectorised", [False, True])
def test_a_minibatch_is_scaled_after_the_mean(
    vectorised: bool, mixed: SimpleNamespace, log_mean: Callable[..., float]
) -> None:
    def model(rows: Tensor) -> None:
        w = _weights()
        with pyro.plate("data", ROWS, subsample=rows) as shown:
            mean = (w * mixed.x[shown]).sum(-1)
            pyro.sample("y", dist.Normal(mean, 0.5), obs=mixed.y[shown])

    w, rows = torch.randn(COUNT, 3), torch.tensor([0, 3])
    each = _lme(dist.Normal(w @ mixed.x.mT, 0.5).log_prob(mixed.y))
    found = log_mean(model, w, vectorised, 1, rows)
    assert found == pytest.approx(2.5 * each[rows].sum().item(), rel=1e-12)


@pytest.mark.parametrize("vectorised", [False, True])
def test_nested_plates_have_a_datum_per_cell_and_sites_outside_their_own(
    vectorised: bool, mixed: SimpleNamespace, log_mean: Callable[..., float]
) -> None:
    table = torch.randn(2, ROWS)

    def model() -> None:
        mean = (_weights() * mixed.x).sum(-1)
        pyro.sample("alone", dist.Normal(mean[..., 0], 1.0), obs=torch.tensor(0.3))
        with pyro.plate("outer", 2, dim=-2), pyro.plate("inner", ROWS, dim=-1):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=table)

    def vectorised_model() -> None:  # the particles are two dimensions further left
        mean = (_weights() * mixed.x).sum(-1)
        pyro.sample("alone", dist.Normal(mean[..., :1], 1.0), obs=torch.tensor(0.3))
        with pyro.plate("outer", 2, dim=-2), pyro.plate("inner", ROWS, dim=-1):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=table)

    w = torch.randn(COUNT, 3)
    mean = w @ mixed.x.mT
    expected = _lme(dist.Normal(mean[:, 0], 1.0).log_prob(torch.tensor(0.3)))
    expected = expected + _lme(dist.Normal(mean[:, None], 0.5).log_prob(table)).sum()
    found = log_mean(vectorised_model if vectorised else model, w, vectorised, 2)
    assert found == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("vectorised", [False, True])
def test_turns_of_a_sequential_plate_are_different_data(
    vectorised: bool, mixed: SimpleNamespace, log_mean: Callable[..., float]
) -> None:
    def model() -> None:
        mean = _weights() @ mixed.x.mT
        for i in pyro.plate("data", ROWS):
            pyro.sample(f"y_{i}", dist.Normal(mean[..., i], 0.5), obs=mixed.y[i])

    w = torch.randn(COUNT, 3)
    each = _lme(dist.Normal(w @ mixed.x.mT, 0.5).log_prob(mixed.y))
    found = log_mean(model, w, vectorised, 0)
    assert found == pytest.approx(each.sum().item(), rel=1e-12)


def test_an_event_is_one_datum(mixed: SimpleNamespace, log_mean: Callable[..., float]) -> None:
    def model() -> None:
        mean = (_weights() * mixed.x).sum(-1)
        pyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=mixed.y)

    w = torch.randn(COUNT, 3)
    together = dist.Normal(w @ mixed.x.mT, 0.5).log_prob(mixed.y).sum(-1)
    assert log_mean(model, w, False) == pytest.approx(_lme(together).item(), rel=1e-12)


def test_without_data_the_term_is_zero(log_mean: Callable[..., float]) -> None:
    assert log_mean(lambda: _weights(), torch.randn(COUNT, 3), False) == 0.0


def test_one_particle_gives_the_expected_log_likelihood(mixed: SimpleNamespace) -> None:
    values = []
    for likelihood in ("expected", "per_datum"):
        pyro.set_rng_seed(0)
        values.append(LinearisedELBO(likelihood=likelihood).loss(mixed.model, mixed.guide))
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_the_mean_over_draws_is_at_least_the_expectation(mixed: SimpleNamespace) -> None:
    """Jensen's inequality, on the same draws (no site has a scale, so it holds for each datum)."""
    draws = mixed.draws(6)
    values = [
        LinearisedELBO(6, likelihood=likelihood).terms(
            mixed.model, mixed.given(draws)(mixed.guide)
        )[term]
        for likelihood, term in (("expected", "log_likelihood"), ("per_datum", "log_predictive"))
    ]
    assert values[1] > values[0]
