"""A seed decides all that a call draws, and moves no random numbers outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import (
    HyperNetworkGuide,
    ImplicitProcess,
    entropy_report,
    posterior_draws,
    predict,
    to_arviz,
)
from pyro_implicit.arviz import process_to_arviz
from pyro_implicit.diagnostics import khat, log_density, stein_discrepancy
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.processes import NeuralSampler

X = torch.linspace(-1, 1, 6)
Y = 0.5 * X


def model(x: Any, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


PROCESS = ImplicitProcess(NeuralSampler(1), X[:, None], 20, noise_scale=0.1, seed=0)


def of_process(seed: Any) -> Any:
    data = process_to_arviz(PROCESS, Y, num_samples=3, seed=seed)
    return np.concatenate([data["posterior"]["f"].values, data["prior_predictive"]["y"].values])


def exported(guide: Any, seed: Any) -> Any:
    data = to_arviz(model, guide, X, Y, num_samples=3, seed=seed)
    assert data["posterior"].attrs["seed"] == str(torch.initial_seed() if seed is None else seed)
    arrays = [data["posterior"]["w"].values.ravel(), data["prior"]["w"].values.ravel()]
    return np.concatenate([*arrays, data["posterior_predictive"]["y"].values.ravel()])


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "khat": lambda guide, seed: float(khat(model, guide, X, Y, num_samples=100, seed=seed)),
    "stein_discrepancy": lambda guide, seed: float(
        stein_discrepancy(model, guide, X, Y, num_samples=10, seed=seed)
    ),
    "p-value": lambda guide, seed: (
        stein_discrepancy(
            model, {"w": torch.linspace(-1, 1, 20)}, X, Y, num_samples=20, seed=seed
        ).p_value
    ),
    "entropy_report": lambda guide, seed: (
        entropy_report(guide, num_samples=5, seed=seed).linearised
    ),
    "to_arviz": exported,
    "process_to_arviz": lambda guide, seed: of_process(seed),
    "posterior_draws": lambda guide, seed: posterior_draws(guide, 3, seed=seed)["w"],
    "predict": lambda guide, seed: predict(model, guide, X, num_samples=3, seed=seed)["y"],
}


@pytest.mark.filterwarnings("ignore:the guide folds")  # five draws say so by chance
@pytest.mark.parametrize("name", CALLS)
def test_a_seed_decides_and_moves_nothing(name: str) -> None:
    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    call = CALLS[name]
    pyro.set_rng_seed(7)
    before = torch.get_rng_state()
    first = np.asarray(call(guide, 0))
    assert torch.equal(before, torch.get_rng_state())
    torch.randn(3)
    np.testing.assert_array_equal(np.asarray(call(guide, 0)), first)
    assert not np.array_equal(np.asarray(call(guide, 1)), first)
    pyro.set_rng_seed(0)
    one, other = (np.asarray(call(guide, None)) for _ in range(2))
    assert not np.array_equal(one, other)
    with pytest.raises(ArgumentError, match="seed=-1; expected"):
        call(guide, -1)


def test_a_density_that_is_estimated() -> None:
    guide = HyperNetworkGuide(model, init_from=None, scale=0.3).setup(X, Y)
    theta = posterior_draws(guide, 4, seed=0)
    found = [log_density(guide, theta, num_inner=5, seed=seed).value for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
