"""A rescaled generator: its size, and everything about its Jacobian by brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators import Generator, MLPGenerator, ModuleGenerator, ResidualGenerator
from pyro_implicit.generators.rescaled import rescaled

INNER: dict[str, Any] = {
    "less noise than outputs": lambda: MLPGenerator(2, 3, (4,)),
    "more noise than outputs": lambda: MLPGenerator(5, 3, (4,)),
    "a low-rank correction": lambda: ResidualGenerator(3, 2),
    "a module": lambda: ModuleGenerator(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), (4,), 3),
}


def _make(name: str) -> Generator:
    torch.manual_seed(0)
    return rescaled(INNER[name]().double(), 0.3)


@pytest.mark.parametrize("name", INNER)
def test_outputs_have_the_deviation_and_no_mean(name: str) -> None:
    generator = _make(name)
    out = generator(torch.randn(20_000, *generator.noise_shape).double()).detach()
    torch.testing.assert_close(out.std(0), torch.full((3,), 0.3).double(), rtol=0.05, atol=0)
    assert out.mean(0).abs().max() < 0.03


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("scale", [0.0, 0.2, torch.tensor([0.1, 0.2, 0.3]).double()])
def test_jacobians_and_determinants_are_those_of_autograd(name: str, scale: float | Tensor) -> None:
    generator = _make(name)
    z = torch.randn(2, *generator.noise_shape).double()
    expected = torch.stack([torch.autograd.functional.jacobian(generator, one) for one in z])
    torch.testing.assert_close(generator.jacobian(z), expected)
    line = generator.linearise(z)
    torch.testing.assert_close(line.jacobian(), expected)
    torch.testing.assert_close(line.value, generator(z))
    u = torch.randn(1, 2, 3).double()
    torch.testing.assert_close(line.vjp(u)[0], torch.einsum("nmd,nm->nd", expected, u[0]))
    if not isinstance(scale, Tensor) and scale == 0 and generator.noise_dim < 3:
        return
    noise = torch.diag(torch.as_tensor(scale).expand(3) ** 2)
    volume = 0.5 * torch.logdet(expected @ expected.mT + noise)
    torch.testing.assert_close(generator.half_log_det(z, scale), volume)


def test_measuring_leaves_no_trace() -> None:
    inner = ModuleGenerator(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), (2,), 3)
    inner.module[1].eval()
    before = torch.get_rng_state(), {k: v.clone() for k, v in inner.state_dict().items()}
    rescaled(inner, 0.1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert all(torch.equal(v, before[1][k]) for k, v in inner.state_dict().items())
    assert inner.training
    assert not inner.module[1].training


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_an_output_that_does_not_vary_is_told(value: float) -> None:
    layer = nn.Linear(2, 3)
    with torch.no_grad():
        layer.weight[1] = value
    with pytest.raises(ArgumentError, match="init_scale=0.1 cannot be had: output 1 of the gener"):
        rescaled(ModuleGenerator(layer, (2,), 3), 0.1)


def test_a_module_that_fails_keeps_its_mode() -> None:
    class Failing(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            raise RuntimeError("no")

    module = Failing()
    with pytest.raises(RuntimeError, match="no"):
        rescaled(ModuleGenerator(module, (4,), 3), 0.3)
    assert module.training
