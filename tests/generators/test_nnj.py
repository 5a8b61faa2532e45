"""StochMan's layers as generators: their own derivatives against autograd, and in a guide."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from stochman import nnj
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, LanczosELBO, LinearisedELBO
from pyro_implicit.exceptions import ArgumentError, LayerError
from pyro_implicit.generators import ModuleGenerator, NnjGenerator, as_generator
from pyro_implicit.generators.nnj import pushes_jacobians

NETS = {
    "linear": (lambda: [nnj.Linear(3, 4), nnj.Tanh(), nnj.Linear(4, 5)], (3,)),
    "narrowing": (lambda: [nnj.Linear(6, 4), nnj.Softplus(), nnj.Linear(4, 2)], (6,)),
    "activations": (
        lambda: [nnj.Linear(2, 3), nnj.ELU(0.5), nnj.Sigmoid(), nnj.Linear(3, 3), nnj.ReLU()],
        (2,),
    ),
    "more activations": (
        lambda: [nnj.PosLinear(2, 3), nnj.LeakyReLU(0.1), nnj.Softmax(-1), nnj.Sqrt()],
        (2,),
    ),
    "image": (
        lambda: [nnj.Conv2d(1, 2, 3, bias=False), nnj.Tanh(), nnj.Flatten(), nnj.Linear(18, 4)],
        (1, 5, 5),
    ),
    "transposed": (
        lambda: [
            nnj.Linear(3, 8),
            nnj.Reshape(2, 2, 2),
            nnj.ConvTranspose2d(2, 1, 2),
            nnj.Flatten(),
        ],
        (3,),
    ),
    "upsampled": (
        lambda: [
            nnj.Linear(2, 8),
            nnj.Reshape(2, 2, 2),
            nnj.Upsample(scale_factor=2),
            nnj.Flatten(),
        ],
        (2,),
    ),
}


def _generators(name: str) -> tuple[NnjGenerator, ModuleGenerator]:
    """The same network differentiated by StochMan, and by ``torch.func``."""
    layers, shape = NETS[name]
    net = nnj.Sequential(*layers()).double()
    m = net(torch.zeros(1, *shape, dtype=torch.float64)).shape[-1]
    return NnjGenerator(net, shape, m), ModuleGenerator(net, shape, m)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_derivatives_are_those_of_autograd(name: str, batch: tuple[int, ...]) -> None:
    mine, other = _generators(name)
    z = torch.randn(*batch, *mine.noise_shape, dtype=torch.float64)
    torch.testing.assert_close(mine(z), other(z))
    expected = other.jacobian(z)
    torch.testing.assert_close(mine.jacobian(z), expected)
    torch.testing.assert_close(mine.half_log_det(z, 0.1), other.half_log_det(z, 0.1))
    linear = mine.linearise(z)
    v = torch.randn(2, *batch, mine.noise_dim, dtype=torch.float64)
    u = torch.randn(2, *batch, mine.output_dim, dtype=torch.float64)
    torch.testing.assert_close(linear.value, mine(z))
    torch.testing.assert_close(linear.jvp(v), (expected @ v[..., None])[..., 0])
    torch.testing.assert_close(linear.vjp(u), (expected.mT @ u[..., None])[..., 0])


@pytest.mark.parametrize("name", ["linear", "image"])
def test_gradients_of_the_log_determinant_are_those_of_autograd(name: str) -> None:
    gradients = []
    mine, other = _generators(name)
    z = torch.randn(3, *mine.noise_shape, dtype=torch.float64)
    for generator in (mine, other):
        loss = generator.half_log_det(z, 0.1).sum()
        loss = loss + generator(z).square().sum()  # so that the last bias enters
        gradients.append(torch.autograd.grad(loss, list(generator.parameters())))
    torch.testing.assert_close(*gradients)


def _model(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal((w * x).sum(-1), 0.3), obs=y)


# the two agree by what is tested above and by tests/objectives
@pytest.mark.long
@pytest.mark.parametrize(
    "objective", [LinearisedELBO, pytest.param(LanczosELBO, marks=pytest.mark.slow)]
)
def test_a_guide_of_stochmans_layers_finds_the_posterior(objective: type) -> None:
    x = torch.randn(20, 2)
    y = x @ torch.tensor([1.0, -0.5]) + 0.3 * torch.randn(20)
    net = nnj.Sequential(nnj.Linear(2, 8), nnj.ELU(), nnj.Linear(8, 2))
    guide = HyperNetworkGuide(_model, generator=net, scale=0.01).setup(x, y)
    assert type(guide.samplers[0].generator) is NnjGenerator
    options = {"vectorize_particles": True, "max_plate_nesting": 1}
    loss_of = objective(8, **options)(_model, guide)
    optimiser = torch.optim.Adam(guide.parameters(), lr=0.02)
    for _ in range(200):
        optimiser.zero_grad()
        loss_of(x, y).backward()
        optimiser.step()
    precision = x.T @ x / 0.3**2 + torch.eye(2)
    mean = torch.linalg.solve(precision, x.T @ y / 0.3**2)
    draws = guide.sample(2000)["w"]
    deviation = precision.inverse().diagonal().sqrt()
    assert ((draws.mean(0) - mean).abs() < 0.5 * deviation).all()
    assert ((draws.std(0) / deviation).log().abs() < math.log(1.5)).all()


@pytest.mark.parametrize(
    ("layers", "kind"),
    [
        ([nnj.Linear(2, 4), nnj.Tanh(), nnj.Linear(4, 3)], NnjGenerator),
        ([nnj.Linear(2, 4), nn.SiLU(), nnj.Linear(4, 3)], ModuleGenerator),
        ([nnj.Sequential(nnj.Linear(2, 4), nnj.Tanh()), nnj.Linear(4, 3)], ModuleGenerator),
        (
            [nnj.Linear(2, 48), nnj.Reshape(3, 4, 4), nnj.MaxPool2d(4), nnj.Flatten()],
            ModuleGenerator,
        ),
    ],
    ids=["all of StochMan", "a layer of torch", "nested", "pooled"],
)
def test_a_guide_takes_the_fastest_route_that_works(layers: list[nn.Module], kind: type) -> None:
    generator = as_generator(nnj.Sequential(*layers), 3, 2)
    assert type(generator) is kind
    z = torch.randn(5, 2)
    expected = torch.stack([torch.func.jacrev(lambda x: generator(x))(row) for row in z])
    torch.testing.assert_close(generator.jacobian(z), expected)


def test_only_stochmans_sequential_pushes_jacobians() -> None:
    assert pushes_jacobians(nnj.Sequential(nnj.Linear(2, 2)))
    assert not pushes_jacobians(nn.Sequential(nn.Linear(2, 2)))
    assert not pushes_jacobians(nnj.Linear(2, 2))


def test_what_stochman_cannot_differentiate_is_refused() -> None:
    with pytest.raises(ArgumentError, match="module is a Linear; expected a stochman.nnj.Sequ"):
        NnjGenerator(nn.Linear(2, 2), (2,), 2)
    mixed = nnj.Sequential(nnj.Linear(2, 2), nn.SiLU())
    with pytest.raises(
        LayerError, match="layer '1' of the module, a SiLU, has no forward Jacobian"
    ):
        NnjGenerator(mixed, (2,), 2)
    pooled = nnj.Sequential(nnj.Reshape(1, 4, 4), nnj.MaxPool2d(2), nnj.Flatten())
    with pytest.raises(LayerError, match=r"own Jacobian of this module fails .*ModuleGenerator\("):
        NnjGenerator(pooled, (16,), 4).jacobian(torch.randn(3, 16))
