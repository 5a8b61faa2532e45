"""Calls whose runs of the model see no handlers around them refuse those that would matter."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, refine
from pyro_implicit.diagnostics import khat, stein_discrepancy
from pyro_implicit.exceptions import SiteError

X = torch.randn(5)
CALLS: dict[str, Any] = {
    "refine": lambda *job: refine(*job, num_steps=0, progress=False),
    "khat": khat,
    "stein_discrepancy": stein_discrepancy,
}


def model(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w[..., 0:1].squeeze(-1) * x, 1.0), obs=x)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "around",
    [
        poutine.scale(scale=0.1),
        poutine.scale(scale=torch.ones(())),
        poutine.mask(mask=False),
        poutine.condition(data={"y": X}),
    ],
)
def test_weights_around_a_call_are_refused(call: str, around: Any) -> None:
    guide = HyperNetworkGuide(model, init_from=None).setup(X)
    with around, pytest.raises(SiteError, match=rf"{call} was called within .* {call}\(poutine\."):
        CALLS[call](model, guide, X)


def test_weights_that_change_nothing_are_not() -> None:
    guide = HyperNetworkGuide(model, init_from=None).setup(X)
    with poutine.scale(scale=1.0), poutine.mask(mask=True):
        khat(model, guide, X)


def test_weights_of_the_model_itself_are_not() -> None:
    guide = HyperNetworkGuide(model, init_from=None).setup(X)
    weighed: Any = poutine.scale(model, scale=0.1)
    one, other = (
        float(stein_discrepancy(m, guide, X, num_samples=50, seed=0)) for m in (model, weighed)
    )
    assert one != other
