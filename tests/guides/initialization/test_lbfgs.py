"""The search for a maximum, on densities that are not finite everywhere."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.guides.initialization.lbfgs import maximise


@pytest.mark.long
@settings(max_examples=20)
@given(seed=st.integers(0, 999), m=st.integers(1, 6))
def test_a_quadratic_is_solved(seed: int, m: int) -> None:
    torch.manual_seed(seed)
    a = torch.randn(m, m).double()
    matrix, centre = a @ a.mT + 0.1 * torch.eye(m), torch.randn(m).double()

    def function(u: Tensor) -> Tensor:
        return -0.5 * (u - centre) @ matrix @ (u - centre)

    start = 3 * torch.randn(m).double()
    found, gain = maximise(function, start)
    torch.testing.assert_close(found, centre, rtol=1e-4, atol=1e-4)
    assert gain == pytest.approx(-float(function(start)), abs=1e-6)


def test_a_curved_valley() -> None:
    def function(u: Tensor) -> Tensor:
        return -((1 - u[0]) ** 2) - 100 * (u[1] - u[0] ** 2) ** 2

    found, _ = maximise(function, torch.tensor([-1.2, 1.0], dtype=torch.float64), 500)
    torch.testing.assert_close(found, torch.ones(2).double(), rtol=0, atol=1e-4)


@pytest.mark.long
@given(seed=st.integers(0, 999), edge=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_it_stays_in_the_domain(seed: int, edge: float) -> None:
    """An optimum that presses against the edge of the domain, where values are not finite."""
    torch.manual_seed(seed)
    tilt = 1e3 * torch.randn(3).double()

    def function(u: Tensor) -> Tensor:
        room = 1 - u.square().sum()
        return tilt @ u + room.log() if room > 0 else u.sum() * edge

    found, gain = maximise(function, torch.zeros(3).double())
    assert found.square().sum() < 1
    assert gain > 0
    assert math.isfinite(gain)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nothing_is_sought_from_where_nothing_is_finite(value: float) -> None:
    found, gain = maximise(lambda u: u.sum() * value, torch.ones(2))
    assert torch.equal(found, torch.ones(2))
    assert gain == 0


def test_a_gradient_that_is_not_finite_counts_as_outside() -> None:
    found, gain = maximise(lambda u: -u.abs().sqrt().sum(), torch.zeros(2))
    assert torch.equal(found, torch.zeros(2))
    assert gain == 0


def test_a_density_without_a_maximum_ends() -> None:
    found, gain = maximise(lambda u: u.exp().sum(), torch.zeros(1), 20)
    assert torch.isfinite(found).all()
    assert gain > 0


@pytest.mark.parametrize("seed", range(5))
def test_a_line_search_ends_where_the_dtype_has_no_point_between(seed: int) -> None:
    """A density in float64 of latents in float32: a staircase, on which a slope says nothing."""
    torch.manual_seed(seed)
    x = torch.randn(6, 2).double()
    y = x.sum(-1) + 0.05 * torch.randn(6).double()
    seen: list[tuple[float, ...]] = []

    def function(u: Tensor) -> Tensor:
        seen.append(tuple(u.tolist()))
        scale = 0.01 + u[2].exp()
        misfit = (y - x @ u[:2].double()).square().sum() / scale.double() ** 2
        return u[2] - 0.5 * misfit - 6 * scale.double().log()

    found, _ = maximise(function, torch.zeros(3))
    (gradient,) = torch.autograd.grad(function(found.requires_grad_()), found)
    assert gradient.abs().max() < 0.1
    assert len(seen) <= 200
    assert len(seen) <= 1.2 * len(set(seen))  # each bisection ends at a point seen before
