"""Chains keep the law that they begin with, and find one that they do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyro_implicit.ops.hamiltonian import hamiltonian_chain

MEAN = torch.tensor([[1.0, -0.5], [0.0, 2.0]]).double()  # of two rows that are apart
FACTOR = torch.tensor([[0.6, 0.0], [0.5, 0.4]]).double()


def log_density(z: Tensor) -> Tensor:
    white = torch.linalg.solve_triangular(FACTOR, (z - MEAN)[..., None], upper=False)
    return -0.5 * white.square().sum((-2, -1))


@pytest.mark.parametrize("step_size", [0.1, 0.6, 5.0])
def test_draws_stay_draws(step_size: float) -> None:
    start = MEAN + torch.randn(4000, 2, 2).double() @ FACTOR.mT
    states, rate = hamiltonian_chain(log_density, start, step_size, 3, 4)
    assert len(states) == 3 and 0 <= rate <= 1
    assert (rate > 0.9) == (step_size == 0.1)
    for z in states:
        assert z.shape == start.shape and not z.requires_grad
        for row in range(2):
            torch.testing.assert_close(z[:, row].mean(0), MEAN[row], rtol=0, atol=0.06)
            torch.testing.assert_close(z[:, row].T.cov(), FACTOR @ FACTOR.mT, rtol=0, atol=0.06)


@pytest.mark.long
def test_it_finds_the_density_from_afar() -> None:
    states, _ = hamiltonian_chain(log_density, MEAN + 4 + torch.zeros(2000, 2, 2), 0.3, 25, 5)
    torch.testing.assert_close(states[-1].mean(0), MEAN, rtol=0, atol=0.08)
    torch.testing.assert_close(states[-1][:, 0].T.cov(), FACTOR @ FACTOR.mT, rtol=0, atol=0.08)


def test_steps_to_where_there_is_no_density_are_refused() -> None:
    def half(z: Tensor) -> Tensor:
        return torch.where(z > 0, -z, torch.nan)[..., 0]

    start = torch.rand(500, 1).double() + 0.1
    states, rate = hamiltonian_chain(half, start, 0.5, 5)
    assert all((z > 0).all() for z in states) and 0 < rate < 1


def test_each_point_without_dimensions_is_a_chain_of_its_own() -> None:
    start = torch.randn(4000).double()
    states, rate = hamiltonian_chain(lambda z: -0.5 * z.square(), start, 1.5, 3, 2)
    assert 0.3 < rate < 0.99
    assert abs(float(states[-1].var()) - 1) < 0.1
