"""The score of draws: the derivative of the density that is found by inversion."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor

from pyro_implicit import ImplicitDistribution
from pyro_implicit.generators import (
    AutoregressiveGenerator,
    ConditionalAutoregressiveGenerator,
    MLPGenerator,
)
from pyro_implicit.generators.base import Generator
from tests.generators.test_residual import jolted


def by_inversion(generator: Generator, x: Tensor) -> Tensor:
    """The derivative of the log-density at values, by autograd."""
    at = x.detach().requires_grad_()
    density = ImplicitDistribution(generator).log_prob(at).sum()
    return torch.autograd.grad(density, at)[0]


def check(generator: Any, z: Tensor) -> None:
    lin = generator.linearise(z)
    found, expected = lin.score(-z), by_inversion(generator, lin.value)
    assert found.shape == z.shape and not found.requires_grad
    most = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4 * (1 + most))


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 2),
    st.sampled_from(["diagonal", "triangular"]),
    st.sampled_from([(), (3,), (2, 2)]),
    st.integers(0, 2**31),
)
def test_it_is_that_of_the_density(
    m: int, num_blocks: int, num_steps: int, mixing: str, batch: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    options: Any = {"hidden_dim": 5, "num_blocks": num_blocks, "num_steps": num_steps}
    generator = jolted(AutoregressiveGenerator(m, mixing=mixing, **options), 0.3)
    check(generator, torch.randn(*batch, m, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_the_path_has_the_gradient_of_the_determinant_in_the_mean(seed: int) -> None:
    """By Gauss-Hermite sums: without the path of fixed draws, whose mean is nothing."""
    points, parts = (torch.from_numpy(one) for one in hermegauss(64))
    z = torch.cartesian_prod(points, points)
    weights = torch.outer(parts, parts).flatten() / parts.sum().square()
    torch.manual_seed(seed)
    generator = jolted(AutoregressiveGenerator(2, hidden_dim=5, num_blocks=2), 0.2)
    lin: Any = generator.linearise(z)
    along = -(weights * (lin.score(-z) * lin.value).sum(-1)).sum()
    direct = (weights * lin.log_abs_det).sum()
    found, expected = (
        torch.autograd.grad(one, generator.weights, retain_graph=True)[0] for one in (along, direct)
    )
    assert float(expected.abs().max()) > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("batch", [(4,), (3, 4)])
def test_each_row_has_that_of_its_own_map(batch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    made = ConditionalAutoregressiveGenerator(3, context_dim=2, hidden_dim=5)
    context = torch.randn(4, 2, dtype=torch.float64)
    check(jolted(made, 0.3).at_context(context), torch.randn(*batch, 3, dtype=torch.float64))


def test_it_is_not_known_where_no_step_is_taken() -> None:
    generator, z = AutoregressiveGenerator(2), torch.randn(3, 2)
    with torch.no_grad():
        assert generator.linearise(z).score(-z) is None
    seen: list[Any] = []

    def loss(at: Tensor) -> Tensor:
        seen.append(generator.linearise(at).score(-at))
        return generator(at).sum()

    torch.func.grad(loss)(z)
    assert seen == [None]


def test_no_noises_have_none() -> None:
    z = torch.zeros(0, 3)
    assert AutoregressiveGenerator(3).linearise(z).score(-z).shape == (0, 3)  # type: ignore[union-attr]


def test_no_other_generator_has_one() -> None:
    assert MLPGenerator(2, 2, (3,)).linearise(torch.randn(3, 2)).score(torch.randn(3, 2)) is None
