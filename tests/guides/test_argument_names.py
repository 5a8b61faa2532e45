"""Keyword arguments of a model may have the names that a guide's own methods use."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, evaluate, fit, predict, refine


def model(x: Tensor, y: Any = None, *, name: Any, sampler: Any, sites: Any) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w[..., :1] * x + name + sampler + sites, 1.0), obs=y)


@pytest.mark.long
def test_any_name_will_do() -> None:
    x = torch.linspace(0.0, 1.0, 4)
    named: dict[str, Any] = dict.fromkeys(("name", "sampler", "sites"), x)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, x, **named)
    guide(x, x, **named)
    fit(model, guide, x, x, num_steps=2, progress=False, **named)
    evaluate(model, guide, x, x, num_samples=2, **named)
    refine(model, guide, x, x, num_chains=2, num_steps=0, progress=False, **named)
    named.pop("sites")  # which is an option of predict
    found = predict(lambda x, **k: model(x, **k, sites=x), guide, x, num_samples=2, **named)
    assert found["y"].shape == (2, 4)
