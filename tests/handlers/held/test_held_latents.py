"""Diagnostics of a guide by a model that holds what the guide draws."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.diagnostics import khat, stein_discrepancy
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.held.held_latents import refuse_held_latents

Y = torch.tensor([1.0, 2.0, -0.5])


def model(y: Tensor | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(mu + b, 1.0), obs=y)


@pytest.mark.parametrize("call", [khat, stein_discrepancy])
def test_a_model_that_holds_a_latent_of_the_guide_is_refused(call: Any) -> None:
    guide = HyperNetworkGuide(model, init_from=None).setup(Y)
    held: Any = poutine.condition(model, data={"b": torch.tensor(30.0)})
    with pytest.raises(SiteError, match=rf"draws 'b', which the model observes .* {call.__name__}"):
        call(held, guide, Y, num_samples=100)
    alone = HyperNetworkGuide(held, init_from=None).setup(Y)
    call(held, alone, Y, num_samples=100)
    other: Any = poutine.condition(model, data={"y": Y + 1.0})
    call(other, guide, num_samples=100)


def test_what_a_model_computes_is_not_held() -> None:
    def doubled(y: Tensor) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        pyro.deterministic("twice", 2.0 * mu)
        with pyro.plate("data", 3):
            pyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    refuse_held_latents("khat", doubled, ["mu", "twice"], (Y,), {})
