"""Signs of a generator's Jacobian by its own route against those of the whole matrix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from pyro_implicit.generators import (
    AutoregressiveGenerator,
    BijectiveGenerator,
    Generator,
    MLPGenerator,
    ModuleGenerator,
    ResidualGenerator,
)
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.generators.rescaled import rescaled

MAKERS: dict[str, Callable[[], Generator]] = {
    "perceptron": lambda: MLPGenerator(3, 3, (8, 8)),
    "module": lambda: ModuleGenerator(
        nn.Sequential(nn.Linear(3, 9), nn.Tanh(), nn.Linear(9, 3)), (3,), 3
    ),
    "residual": lambda: ResidualGenerator(3, 6, num_blocks=3),
    "rescaled": lambda: rescaled(ResidualGenerator(3, 6, num_blocks=2), 0.3),
    "conditioned": lambda: Conditioned(MLPGenerator(5, 3, (8,)), torch.randn(2)),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("scale", [0.0, 1e-6])
def test_up_to_one_sign_in_common(name: str, scale: float) -> None:
    torch.manual_seed(3)
    generator = MAKERS[name]().double().requires_grad_(False)
    for parameter in generator.parameters():
        parameter.add_(0.7 * torch.randn_like(parameter))
    z = torch.randn(200, 3, dtype=torch.float64)
    signs = generator.det_sign(z, scale)
    expected = torch.linalg.slogdet(generator.jacobian(z)).sign
    told = signs != 0
    assert told.sum() > 150
    ratio = (signs * expected)[told]
    assert (ratio == ratio[0]).all()
    assert expected.unique().numel() == 2, "the example should fold"


def test_no_sign_without_as_many_noises_as_outputs() -> None:
    assert MLPGenerator(2, 3, (4,)).det_sign(torch.randn(5, 2)).tolist() == [0] * 5


@pytest.mark.parametrize(
    "generator",
    [MLPGenerator(2, 2), ResidualGenerator(2), BijectiveGenerator(2), AutoregressiveGenerator(2)],
)
@pytest.mark.parametrize("batch", [(0,), (3, 0)])
def test_no_noises_have_no_derivatives(generator: Generator, batch: tuple[int, ...]) -> None:
    z = torch.zeros(*batch, 2)
    assert generator(z).shape == z.shape
    assert generator.jacobian(z).shape == (*z.shape, 2)
    assert generator.det_sign(z).shape == generator.half_log_det(z).shape == batch
    if generator.is_bijective:
        assert generator.inverse(z).shape == z.shape
