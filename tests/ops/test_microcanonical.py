"""The moves of microcanonical dynamics: against their equation, and for extreme input."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.ops.microcanonical import turn, unit, wobble


def _by_small_steps(u, gradient, duration, num_steps=4000):
    """du/dt = (1 - u u') g / (m - 1) and dK/dt = g . u, by midpoints."""
    size, kinetic, m = duration / num_steps, 0.0, u.shape[-1]
    for _ in range(num_steps):
        half = u + size / 2 * (gradient - u * (u * gradient).sum()) / (m - 1)
        kinetic = kinetic + size * (half * gradient).sum()
        u = u + size * (gradient - half * (half * gradient).sum()) / (m - 1)
    return u, kinetic


@pytest.mark.long
@given(seed=st.integers(0, 50), m=st.integers(2, 5))
def test_a_turn_solves_its_equation(seed, m):
    torch.manual_seed(seed)
    u = unit(torch.randn(1, m, dtype=torch.float64))
    gradient = 3 * torch.randn(1, m, dtype=torch.float64)
    turned, change = turn(u, gradient, torch.full((1, 1), 0.4, dtype=torch.float64))
    expected, kinetic = _by_small_steps(u[0], gradient[0], 0.4, 500)
    torch.testing.assert_close(turned[0], expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(change[0], kinetic, rtol=1e-3, atol=1e-3)


def test_kinetic_energy_is_what_a_turn_does_to_volumes():
    """What makes the energy error of a step the ratio that an accept step would look at."""
    torch.manual_seed(0)
    u = unit(torch.randn(1, 5, dtype=torch.float64))
    gradient = 3 * torch.randn(1, 5, dtype=torch.float64)
    duration = torch.full((1, 1), 0.7, dtype=torch.float64)
    turned, change = turn(u, gradient, duration)
    jacobian = torch.autograd.functional.jacobian(
        lambda v: turn(unit(v), gradient, duration)[0][0], u
    )[:, 0]
    before, after = (_tangents(v[0]) for v in (u, turned))
    volume = torch.linalg.slogdet(after.mT @ jacobian @ before).logabsdet
    torch.testing.assert_close(volume, -change[0])


def _tangents(u):
    """An orthonormal basis of what is orthogonal to a unit vector, as columns."""
    others = torch.eye(len(u), dtype=u.dtype)[:, 1:]
    return torch.linalg.qr(torch.cat([u[:, None], others], 1))[0][:, 1:]


def test_turns_add_up_and_go_back():
    torch.manual_seed(0)
    u = unit(torch.randn(6, 4, dtype=torch.float64))
    gradient = torch.randn(6, 4, dtype=torch.float64)
    size = torch.full((6, 1), 0.3, dtype=torch.float64)
    first, one = turn(u, gradient, size)
    second, other = turn(first, gradient, size)
    both, whole = turn(u, gradient, 2 * size)
    torch.testing.assert_close(second, both)
    torch.testing.assert_close(one + other, whole)
    back, change = turn(-both, gradient, 2 * size)
    torch.testing.assert_close(back, -u)
    torch.testing.assert_close(change, -whole)


def test_enormous_and_vanishing_gradients():
    u = unit(torch.tensor([[1.0, 2.0, -1.0]]))
    for size in (0.0, 1e-30, 1e10, 1e30):
        turned, change = turn(u, torch.tensor([[1.0, 0.5, 0.0]]) * size, torch.ones(1, 1))
        assert turned.isfinite().all() and change.isfinite().all()
        torch.testing.assert_close(turned.norm(), torch.tensor(1.0))
    assert torch.equal(unit(torch.zeros(2, 3)), torch.zeros(2, 3))


@pytest.mark.long
def test_the_direction_is_forgotten_over_the_length():
    torch.manual_seed(0)
    u = unit(torch.randn(20_000, 50))
    start = u
    travelled = torch.full((len(u), 1), 0.05)
    for _ in range(20):  # one length in all
        u = wobble(u, torch.randn_like(u), travelled)
    overlap = float((u * start).sum(-1).mean())
    assert abs(overlap - math.exp(-1.0)) < 0.02
    torch.testing.assert_close(u.norm(dim=-1), torch.ones(len(u)))
