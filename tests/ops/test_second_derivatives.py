"""Operations without a second derivative are named, wherever the error comes up."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from pyro.optim import Adam
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from pyro_implicit import (
    HyperNetworkGuide,
    LanczosELBO,
    LinearisedELBO,
    SingularValueELBO,
)
from pyro_implicit.exceptions import LayerError
from pyro_implicit.generators import MLPGenerator, ModuleGenerator
from pyro_implicit.objectives import KSIVI
from pyro_implicit.ops.second_derivatives import second_derivatives


def _model() -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(6), 1).to_event(1))
    pyro.sample("y", dist.Normal(w.sum(), 1), obs=torch.tensor(1.0))


@pytest.mark.parametrize("objective", [LinearisedELBO, LanczosELBO, SingularValueELBO])
def test_a_generator_without_them_is_refused(objective: type) -> None:
    module = nn.Sequential(nn.Linear(12, 6), nn.Hardsigmoid())
    guide = HyperNetworkGuide(_model, generator=ModuleGenerator(module, [12], 6))
    svi = SVI(_model, guide, Adam({"lr": 0.01}), objective(num_particles=2))
    with pytest.raises(LayerError, match="no second derivative of 'hardsigmoid'.*nn.Sigmoid"):
        svi.step()


@pytest.mark.parametrize("plain", [False, True])
def test_a_model_without_them_is_refused_where_the_loss_is_of_its_score(plain: bool) -> None:
    """And what the error says to write works."""
    attention = nn.MultiheadAttention(2, 1, batch_first=True).requires_grad_(False)

    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(6), 1).to_event(1)).reshape(-1, 3, 2)
        kind = SDPBackend.MATH if plain else SDPBackend.FLASH_ATTENTION
        with sdpa_kernel(kind):
            total = attention(w, w, w, need_weights=False)[0].sum()
        pyro.sample("y", dist.Normal(total, 1), obs=torch.tensor(1.0))

    guide = HyperNetworkGuide(model, generator=MLPGenerator(6, 6))
    svi = SVI(model, guide, Adam({"lr": 0.01}), KSIVI(4))
    with nullcontext() if plain else pytest.raises(LayerError, match="SDPBackend.MATH"):
        assert math.isfinite(svi.step())


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="^another$"), second_derivatives():
        raise RuntimeError("another")
    with pytest.raises(LayerError, match="'some_new'.*Use another operation"), second_derivatives():
        raise RuntimeError("derivative for aten::some_new_backward is not implemented")
