"""Autoencoders are told of the guide that reads their rows, and nobody else is."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_implicit import ConditionalHyperNetworkGuide, HyperNetworkGuide, fit

TOLD = "ConditionalHyperNetworkGuide(model) reads them from the row"


def autoencoder(learns: bool = True, own: bool = True, size: int = 20) -> Any:
    decoder = nn.Linear(1, size).requires_grad_(learns)

    def model(x: Tensor) -> None:
        net = pyro.module("decoder", decoder) if learns else decoder
        if not own:
            z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            if own:
                z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
            pyro.sample("x", dist.Normal(net(z), 0.5).to_event(1), obs=x)

    return model


@pytest.mark.parametrize(
    ("kind", "options", "rows", "told"),
    [
        (HyperNetworkGuide, {}, 60, True),
        (HyperNetworkGuide, {}, 12, False),
        (HyperNetworkGuide, {"learns": False}, 60, False),
        (HyperNetworkGuide, {"own": False}, 60, False),
        (HyperNetworkGuide, {"size": 2}, 60, False),
        (ConditionalHyperNetworkGuide, {}, 60, False),
        (AutoNormal, {}, 60, False),
    ],
    ids=[
        "autoencoder",
        "few rows",
        "no decoder",
        "one for all",
        "a few numbers",
        "conditional",
        "Pyro",
    ],
)
def test_who_is_told(kind: Any, options: Any, rows: int, told: bool) -> None:
    pyro.clear_param_store()
    model = autoencoder(**options)
    result = fit(
        model, kind(model), torch.randn(rows, options.get("size", 20)), num_steps=3, progress=False
    )
    assert any(TOLD in text for text in result.warnings) == told
