"""Priors over functions: shapes, laws, gradients, and what they leave alone."""

from __future__ import annotations

from typing import Any

import pyro
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import ImplicitProcess
from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.processes import NeuralSampler, RandomNetwork


class LastOutput(nn.Module):
    """A recurrent network's output after the last symbol."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(3, 4, batch_first=True)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def layers(outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, outputs))


@pytest.mark.parametrize("outputs, shape", [(1, (7, 4)), (2, (7, 2, 4))])
def test_shapes(outputs: int, shape: tuple[int, ...]) -> None:
    x = torch.randn(4, 3)
    assert RandomNetwork(layers(outputs))(x, 7).shape == shape
    assert NeuralSampler(3, out_features=outputs)(x, 7).shape == shape


def test_a_linear_network_has_the_variance_of_its_weights() -> None:
    pyro.set_rng_seed(0)
    network = RandomNetwork(nn.Linear(3, 1))
    with torch.no_grad():
        for loc in network.loc:
            loc.fill_(0.5)
        x = torch.tensor([[1.0, -2.0, 0.5]])
        values = network(x, 200_000)[:, 0]
    assert values.mean().item() == pytest.approx(0.5 * (1 - 2 + 0.5) + 0.5, abs=0.01)
    assert values.var().item() == pytest.approx((1 + 4 + 0.25 + 1) / 3, rel=0.02)


def test_vmap_and_loop_draw_the_same_functions() -> None:
    x, module = torch.randn(4, 3), layers()
    values = []
    for vectorize in ("vmap", "loop"):
        network = RandomNetwork(module, vectorize=vectorize)
        pyro.set_rng_seed(0)
        values.append(network(x, 6))
    torch.testing.assert_close(*values)


def test_a_recurrent_network_draws_functions_of_sequences() -> None:
    network = RandomNetwork(LastOutput())
    sequences = torch.randn(6, 5, 3)
    process = ImplicitProcess(network, sequences, 4, 0.5, seed=0)
    assert process.log_prob(torch.zeros(6)).isfinite()
    assert process.condition(torch.zeros(6), sequences[:2]).mean.shape == (2,)


@pytest.mark.parametrize("make", [lambda: RandomNetwork(layers()), lambda: NeuralSampler(3)])
def test_every_parameter_gets_a_gradient(make: Any) -> None:
    prior = make()
    process = ImplicitProcess(prior, torch.randn(8, 3), 5, 0.5)
    (-process.log_prob(torch.randn(8))).backward()
    for name, parameter in prior.named_parameters():
        assert parameter.grad is not None and bool(parameter.grad.any()), name


def test_the_module_passed_in_stays_as_it_is() -> None:
    module = layers()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    RandomNetwork(module)(torch.randn(4, 3), 2).sum().backward()
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(isinstance(parameter, nn.Parameter) for parameter in module.parameters())
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name])


def test_functions_are_smooth_in_the_input() -> None:
    sampler = NeuralSampler(1, noise_dim=3)
    values = sampler(torch.tensor([[0.0], [1e-4]]), 50)
    assert (values[:, 0] - values[:, 1]).abs().max() < 1e-3  # all inputs share the noise
    assert values[:, 0].std() > 1e-2


def test_it_follows_dtype() -> None:
    x = torch.randn(4, 3, dtype=torch.float64)
    assert RandomNetwork(layers()).double()(x, 2).dtype == torch.float64
    assert NeuralSampler(3).double()(x, 2).dtype == torch.float64


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="vectorize='fast'"):
        RandomNetwork(layers(), vectorize="fast")
    with pytest.raises(ArgumentError, match="Tanh has no parameters"):
        RandomNetwork(nn.Tanh())
    with pytest.raises(ShapeError, match=r"inputs of shape \(4, 2\); expected \(N, 3\)"):
        NeuralSampler(3)(torch.zeros(4, 2), 2)
    with pytest.raises(ArgumentError, match="activation 'step'"):
        NeuralSampler(3, activation="step")
