"""The generator contract, and the adapter that makes a generator of any module."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from stochman import nnj
from torch import Tensor, nn

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.generators import Generator, MLPGenerator, ModuleGenerator, ResidualGenerator
from pyro_implicit.generators.as_generator import as_generator
from pyro_implicit.ops.logdet import half_log_det


class _Cubic(Generator):
    """A generator that fills nothing but ``forward``."""

    def __init__(self) -> None:
        super().__init__((2,), 3)

    def forward(self, z: Tensor) -> Tensor:
        return torch.cat([z + z**3, z.sum(-1, keepdim=True)], -1)


def test_forward_is_all_that_a_generator_needs() -> None:
    generator = _Cubic()
    z = torch.randn(4, 5, 2, dtype=torch.float64)
    jac = torch.zeros(4, 5, 3, 2, dtype=torch.float64)
    jac[..., 0, 0], jac[..., 1, 1], jac[..., 2, :] = (
        1 + 3 * z[..., 0] ** 2,
        1 + 3 * z[..., 1] ** 2,
        1,
    )
    torch.testing.assert_close(generator.jacobian(z), jac)
    torch.testing.assert_close(generator.half_log_det(z, 0.1), half_log_det(jac, 0.1))
    assert generator.config() is None
    assert (generator.noise_dim, generator.output_dim, generator.full_rank) == (2, 3, False)


@pytest.mark.parametrize(("shape", "m"), [((2,), 0), ((0,), 2), ((2, 0), 2), ((2,), -1)])
def test_a_generator_has_noise_and_outputs(shape: tuple[int, ...], m: int) -> None:
    with pytest.raises(
        ArgumentError, match=r"^(noise_shape\[[01]\]|output_dim)=(0|-1); expected an integer >= 1"
    ):
        ModuleGenerator(nn.Linear(2, 2), shape, m)


def test_module_generator_keeps_any_batch() -> None:
    module = nn.Linear(3, 4)
    generator = ModuleGenerator(module, (3,), 4)
    z = torch.randn(2, 1, 5, 3)
    torch.testing.assert_close(generator(z), module(z))
    torch.testing.assert_close(generator(z[0, 0, 0]), module(z[0, 0, 0]))
    assert generator(z[:0]).shape == (0, 1, 5, 4)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(2, 4), nn.SiLU(), nn.Linear(4, 3)),
        nnj.Sequential(nnj.Linear(2, 4), nnj.Tanh(), nnj.Linear(4, 3)),
        nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    ],
    ids=["torch", "stochman", "layer norm"],
)
def test_module_generator_jacobian(module: nn.Module) -> None:
    generator = ModuleGenerator(module, (2,), 3).double()
    z = torch.randn(3, 2, dtype=torch.float64)
    expected = torch.stack(
        [torch.autograd.functional.jacobian(lambda x: module(x[None])[0], row) for row in z]
    )
    torch.testing.assert_close(generator.jacobian(z), expected)
    assert generator.jacobian(z[0]).shape == (3, 2)
    torch.testing.assert_close(generator.half_log_det(z, 0.1), half_log_det(expected, 0.1))


@pytest.mark.parametrize("layers", [nn, nnj], ids=["torch", "stochman"])
def test_module_generator_of_an_image(layers: Any) -> None:
    module = layers.Sequential(layers.Conv2d(1, 1, 2, bias=False), layers.Tanh(), layers.Flatten())
    generator = ModuleGenerator(module, (1, 3, 3), 4).double()
    z = torch.randn(2, 5, 1, 3, 3, dtype=torch.float64)
    jac = generator.jacobian(z)
    assert generator(z).shape == (2, 5, 4)
    assert jac.shape == (2, 5, 4, 9)
    step = 1e-6 * torch.randn_like(z)
    change = (jac @ step.reshape(2, 5, 9, 1))[..., 0]
    torch.testing.assert_close(
        generator(z + step) - generator(z - step), 2 * change, rtol=1e-6, atol=1e-14
    )


def test_module_generator_tells_a_wrong_output() -> None:
    generator = ModuleGenerator(nn.Linear(2, 3), (2,), 4)
    with pytest.raises(ShapeError, match=r"Linear returned shape \(5, 3\).*expected \(5, 4\)"):
        generator(torch.randn(5, 2))


def test_half_log_det_of_a_module_is_left_alone_by_autocast() -> None:
    generator = ModuleGenerator(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)), (4,), 4)
    z = torch.randn(3, 4)
    plain = generator.half_log_det(z, 0.01)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(generator.half_log_det(z, 0.01), plain)


# ---- as_generator


@pytest.mark.parametrize(
    "option",
    [
        lambda: MLPGenerator(2, 3),
        lambda: nn.Linear(2, 3),
        lambda: lambda m: MLPGenerator(2, m),
        lambda: lambda m: nn.Linear(2, m),
        lambda: partial(MLPGenerator, 2),
    ],
    ids=["generator", "module", "makes a generator", "makes a module", "partial"],
)
def test_as_generator_takes_what_a_user_may_pass(option: Callable[[], Any]) -> None:
    generator = as_generator(option(), 3)
    assert isinstance(generator, Generator)
    assert (generator.noise_dim, generator.output_dim) == (2, 3)


def test_a_class_that_wants_more_than_the_outputs_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"generator=MLPGenerator.*lambda m: MLPGenerator"):
        as_generator(MLPGenerator, 3)
    with pytest.raises(TypeError, match="own"):  # an error of the callable itself is its own

        def fails(m: int) -> Any:
            raise TypeError("own")

        as_generator(fails, 3)


def test_as_generator_keeps_a_generator_and_takes_a_class() -> None:
    generator = _Cubic()
    assert as_generator(generator, 3) is generator
    assert isinstance(as_generator(ResidualGenerator, 4), ResidualGenerator)


def test_as_generator_finds_the_noise_dimension_or_is_told() -> None:
    nested = nn.Sequential(nn.Tanh(), nn.Sequential(nn.Linear(5, 2)))
    assert as_generator(nested, 2).noise_dim == 5
    assert as_generator(nn.Tanh(), 4, noise_dim=4).noise_dim == 4
    with pytest.raises(ArgumentError, match="cannot tell the noise dimension of Tanh"):
        as_generator(nn.Tanh(), 4)


@pytest.mark.parametrize(
    "option", [3, "mlp", None, lambda m: m], ids=["3", "mlp", "None", "lambda"]
)
def test_as_generator_refuses_anything_else(option: Any) -> None:
    with pytest.raises(ArgumentError, match=r"generator is a \w+; expected a Generator"):
        as_generator(option, 2)


def test_as_generator_refuses_another_number_of_outputs() -> None:
    with pytest.raises(ShapeError, match=r"output_dim=3, but the guide's latents have 4"):
        as_generator(_Cubic(), 4)
    with pytest.raises(ShapeError, match=r"Linear returned shape \(2, 3\).*expected \(2, 4\)"):
        as_generator(nn.Linear(2, 3), 4)


def test_as_generator_tries_the_module_in_its_own_dtype() -> None:
    assert as_generator(nn.Linear(2, 3).double(), 3).output_dim == 3


@pytest.mark.parametrize("noise", [None, [0.0, 0.0], torch.zeros(1, 2, dtype=torch.long)], ids=str)
def test_noise_is_a_tensor_of_real_numbers(noise) -> None:
    with pytest.raises(ArgumentError, match="^the noise is .*; expected"):
        MLPGenerator(2, 3)(noise)
