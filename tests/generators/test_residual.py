"""Residual blocks: value, derivative and determinant against automatic differentiation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, DensityError
from pyro_implicit.generators import ResidualGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.packed import named_tensors

SMOOTH = ["elu", "gelu", "identity", "silu", "sin", "softplus", "tanh"]


@torch.no_grad()
def jolt(tensors: Iterable[Tensor], size: float = 0.3) -> None:
    for tensor in tensors:
        spread = size / (tensor.shape[-1] ** 0.5 if tensor.dim() > 1 else 1)
        tensor.add_(spread * torch.randn_like(tensor))


def jolted(generator: Any, size: float = 0.3) -> Any:
    """The generator away from where it began, in float64."""
    with torch.no_grad():
        jolt(named_tensors(generator).values(), size)
    return generator.double()


def brute_jacobian(generator: Generator, z: Tensor) -> Tensor:
    return torch.func.vmap(torch.func.jacrev(generator.forward))(z)


@pytest.mark.long
@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 4),
    st.sampled_from(["diagonal", "low-rank", "full"]),
    st.sampled_from(SMOOTH),
    st.sampled_from([0.0, 0.2, "vector"]),
    st.integers(0, 2**31),
)
def test_blocks_are_the_brute_force_ones(
    m: int, h: int, blocks: int, mixing: str, activation: str, scale: Any, seed: int
) -> None:
    torch.manual_seed(seed)
    generator = jolted(
        ResidualGenerator(m, h, num_blocks=blocks, mixing=mixing, activation=activation)
    )
    z = torch.randn(2, m, dtype=torch.float64)
    jacobian = brute_jacobian(generator, z)
    noise = torch.linspace(0.1, 0.4, m, dtype=torch.float64) if scale == "vector" else scale
    sigma = torch.as_tensor(noise, dtype=torch.float64).expand(m)
    covariance = jacobian @ jacobian.mT + torch.diag(sigma**2)
    torch.testing.assert_close(generator.jacobian(z), jacobian)
    expected = (
        torch.linalg.slogdet(jacobian).logabsdet
        if scale == 0.0
        else 0.5 * torch.linalg.slogdet(covariance).logabsdet
    )
    torch.testing.assert_close(generator.half_log_det(z, noise), expected, rtol=1e-6, atol=1e-8)
    at = generator.linearise(z)
    torch.testing.assert_close(at.value, generator(z))
    torch.testing.assert_close(at.jacobian(), jacobian)
    u = torch.randn(3, 2, m, dtype=torch.float64)
    torch.testing.assert_close(at.vjp(u), torch.einsum("bij,pbi->pbj", jacobian, u))


def test_mixing_by_size() -> None:
    def kind(size: int, blocks: int) -> str:
        return type(ResidualGenerator(size, 2, num_blocks=blocks).maps[0]).__name__

    assert kind(4, 1) == "DiagonalMap"
    assert kind(256, 2) == "FullMap"
    assert kind(257, 2) == "LowRankMap"


@pytest.mark.parametrize("blocks", [1, 4])
def test_the_start_has_the_scale_that_was_asked_for(blocks: int) -> None:
    torch.manual_seed(0)
    generator = ResidualGenerator(20, 10, num_blocks=blocks, init_scale=0.3)
    spread = generator(torch.randn(4000, 20)).std(0)
    torch.testing.assert_close(spread, torch.full((20,), 0.3), rtol=0.15, atol=0)


def test_it_is_made_anew_from_its_config() -> None:
    generator = ResidualGenerator(3, 4, num_blocks=2, activation="tanh", mixing="low-rank")
    config = generator.config()
    again = ResidualGenerator(**{k: v for k, v in config.items() if k != "type"})
    again.load_state_dict(generator.state_dict())
    z = torch.randn(5, 3)
    assert torch.equal(generator(z), again(z)) and again.config() == config


def test_it_promises_no_inverse() -> None:
    generator = ResidualGenerator(3, 4)
    assert not generator.is_bijective
    with pytest.raises(DensityError, match="ResidualGenerator is not certain to be invertible"):
        generator.inverse(torch.zeros(3))


@pytest.mark.parametrize(
    "options", [{"num_blocks": 0}, {"num_blocks": 1.5}, {"mixing": "dense"}, {"hidden_dim": 0}]
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        ResidualGenerator(3, **options)
