"""Operations without a second derivative are named, wherever the error comes up."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from pyro.optim import Adam
from torch import Tensor, nn

from pyro_implicit import (
    HyperNetworkGuide,
    LanczosELBO,
    LinearisedELBO,
    SingularValueELBO,
)
from pyro_implicit.exceptions import LayerError
from pyro_implicit.generators import ModuleGenerator
from pyro_implicit.ops.second_derivatives import second_derivatives


def _model() -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(6), 1).to_event(1))
    pyro.sample("y", dist.Normal(w.sum(), 1), obs=torch.tensor(1.0))


class _Attention(nn.Module):
    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.plain = plain

    def forward(self, z: Tensor) -> Tensor:
        x = z.reshape(-1, 3, 4)
        if not self.plain:
            return self.attention(x, x, x, need_weights=False)[0].flatten(1)[:, :6]
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return self.attention(x, x, x, need_weights=False)[0].flatten(1)[:, :6]


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("objective", [LinearisedELBO, LanczosELBO, SingularValueELBO])
@pytest.mark.parametrize(
    ("module", "instead"),
    [
        (_Attention(plain=False), "SDPBackend.MATH"),
        (nn.Sequential(nn.Linear(12, 6), nn.Hardsigmoid()), "nn.Sigmoid"),
    ],
)
def test_a_generator_without_them_is_refused(
    objective: type, module: nn.Module, instead: str
) -> None:
    guide = HyperNetworkGuide(_model, generator=ModuleGenerator(module, [12], 6))
    svi = SVI(_model, guide, Adam({"lr": 0.01}), objective(num_particles=2))
    with pytest.raises(LayerError, match=f"no second derivative of .*{instead}"):
        svi.step()


@pytest.mark.filterwarnings("ignore:implicit site")
@pytest.mark.parametrize("objective", [LinearisedELBO, LanczosELBO, SingularValueELBO])
def test_what_the_error_says_to_write_works(objective: type) -> None:
    guide = HyperNetworkGuide(_model, generator=ModuleGenerator(_Attention(plain=True), [12], 6))
    svi = SVI(_model, guide, Adam({"lr": 0.01}), objective(num_particles=2))
    assert torch.isfinite(torch.tensor(svi.step()))


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="^another$"), second_derivatives():
        raise RuntimeError("another")
    with pytest.raises(LayerError, match="'some_new'.*Use another operation"), second_derivatives():
        raise RuntimeError("derivative for aten::some_new_backward is not implemented")
