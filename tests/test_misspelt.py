"""Options that neither ``fit`` nor the model has are named."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyro_implicit import HyperNetworkGuide, evaluate, fit, log_predictive_density, predict
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit.exceptions import ArgumentError


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


@pytest.mark.parametrize(
    ("function", "name", "said"),
    [
        (evaluate, "num_sample", "num_samples"),
        (evaluate, "num_draws", "num_samples"),
        (evaluate, "epochs", None),
        (log_predictive_density, "sede", "seed"),
        (predict, "batchsize", "batch_size"),
        (predict, "zzz", None),
    ],
)
def test_what_scores_and_predicts_names_them_too(function: Any, name: str, said: Any) -> None:
    x = torch.ones(3)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, x)
    hint = f"Did you mean {said}=" if said else f"{function.__name__} has "
    with pytest.raises(ArgumentError, match=f"{name}= is an option of {function.__name__}.*{hint}"):
        function(model, guide, x, x, **({"num_samples": 2} | {name: 1}))


def test_predictions_of_a_seed() -> None:
    x = torch.ones(3)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, x)
    before = torch.random.get_rng_state()
    first, same, other = (
        predict(model, guide, x, num_samples=4, seed=seed)["y"] for seed in (1, 1, 2)
    )
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(ArgumentError, match="seed"):
        predict(model, guide, x, num_samples=4, seed=-1)
