"""When the exact determinant is worth its time: by structure, by entries, by products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pyro_implicit.generators import (
    AutoregressiveGenerator,
    Generator,
    MLPGenerator,
    ResidualGenerator,
)
from pyro_implicit.generators.rescaled import Rescaled
from pyro_implicit.objectives import exact_determinant
from pyro_implicit.objectives.exact_determinant import exact_is_cheap


class OfTheBase(Generator):
    """A map whose Jacobian is found by ``torch.func``."""

    def forward(self, z: Tensor) -> Tensor:
        return z.flatten(-len(self.noise_shape))[..., :1].expand(*z.shape[:-2], self.output_dim)


def rescaled(generator: Generator) -> Generator:
    ones = torch.ones(generator.output_dim)
    return Rescaled(generator, ones, 0 * ones)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("generator", "scale", "cheap"),
    [
        (AutoregressiveGenerator(300, 2), 0.0, True),
        (ResidualGenerator(11_000, 2), 0.0, True),
        (ResidualGenerator(11_000, 2), 0.1, False),
        (MLPGenerator(100, 40_000, (2,)), 0.1, True),
        (MLPGenerator(100, 40_001, (2,)), 0.1, False),
        (OfTheBase((10, 10), 500), 0.1, True),
        (OfTheBase((10, 10), 501), 0.1, False),
        (OfTheBase((1, 2), 1_250_000), 0.1, True),
        (OfTheBase((1, 1), 4_000_001), 0.1, False),
    ],
)
def test_limits(generator: Any, scale: float, cheap: bool, wrapped: bool) -> None:
    generator = rescaled(generator) if wrapped else generator
    assert exact_is_cheap(generator, scale) is cheap


def test_output_noise_as_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_determinant, "_MAX_ENTRIES_OF_JACOBIAN", 8)
    generator = AutoregressiveGenerator(3, 2)
    assert exact_is_cheap(generator, 0.0)
    assert not exact_is_cheap(generator, torch.full((3,), 0.1))
