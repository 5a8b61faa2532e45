"""Options that neither ``fit`` nor the model has are named."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.training.fitting.misspelt import check_misspelt


def model(x: Any, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("numsteps", "num_steps"),
        ("learning_rate", "lr"),
        ("steps", "num_steps"),
        ("sed", "seed"),
        ("epochs", "num_steps"),
        ("validaton", "validation"),
    ],
)
def test_near_misses(name: str, said: str) -> None:
    x = torch.ones(3)
    with pytest.raises(ArgumentError, match=rf"{name}= .* takes x, y\. Did you mean {said}=\?"):
        fit(model, HyperNetworkGuide(model), x, x, **{name: 1})


def test_others() -> None:
    with pytest.raises(ArgumentError, match="fit has objective, num_steps"):
        check_misspelt(fit, model, {"zzz": 1})
    with pytest.raises(ArgumentError, match="takes none"):
        check_misspelt(fit, lambda: None, {"zzz": 1})


@pytest.mark.parametrize(
    "taken", [model, partial(model, x=1), lambda **any: None, nn.Linear(1, 1), max]
)
def test_what_a_model_takes_goes_to_it(taken: Any) -> None:
    check_misspelt(fit, taken, {"y": 1})
