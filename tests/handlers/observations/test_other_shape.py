"""A guide of another model is refused by the shapes of its latents, wherever it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from torch import Tensor

from pyro_implicit import (
    HyperNetworkGuide,
    LinearisedELBO,
    evaluate,
    fit,
    log_predictive_density,
    predict,
    to_arviz,
)
from pyro_implicit.diagnostics import khat
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.handlers.observations.other_shape import sites_of_other_shape

X, Y = torch.randn(6, 4), torch.randn(6)


def _regression(size: int) -> Callable[..., None]:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(size), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            mean = (x[:, :size] * w).sum(-1)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    return model


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "evaluate": lambda m, g: evaluate(m, g, X, Y, num_samples=5),
    "predict": lambda m, g: predict(m, g, X, num_samples=5),
    "log_predictive_density": lambda m, g: log_predictive_density(m, g, X, Y, num_samples=5),
    "to_arviz": lambda m, g: to_arviz(m, g, X, Y, num_samples=5),
    "khat": lambda m, g: khat(m, g, X, Y),
    "fit": lambda m, g: fit(m, g, X, Y, num_steps=3, progress=False),
    "objective": lambda m, g: LinearisedELBO().loss(m, g, X, Y),
    "vectorised": lambda m, g: LinearisedELBO(3, vectorize_particles=True).loss(m, g, X, Y),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("size", [1, 3])  # one number can be broadcast, which no error tells
def test_another_number_of_weights(name: str, size: int) -> None:
    guide = HyperNetworkGuide(_regression(4 if size == 3 else 1), init_from=None).setup(X, Y)
    model = _regression(3)
    with pytest.raises(ShapeError, match=r"'w' has shape \(3,\) in the model.*of another model"):
        CALLS[name](model, guide)


@pytest.mark.long
def test_the_same_number_is_taken() -> None:
    guide = HyperNetworkGuide(_regression(3), init_from=None).setup(X, Y)
    for call in CALLS.values():
        call(_regression(3), guide)


def _told(given: dict[str, Tensor]) -> list[Any]:
    """What is read from an error of a model with these values."""

    def model() -> None:
        pyro.sample("mu", dist.Normal(0.0, 1.0))
        with pyro.plate("some rows", 3):
            pyro.sample("a name", dist.Normal(torch.zeros(3, 2), 1.0).to_event(1))
            pyro.sample("level", dist.Normal(0.0, 1.0))
        raise RuntimeError("no\nreason")

    with pytest.raises(RuntimeError) as caught:
        poutine.trace(poutine.condition(model, data=given)).get_trace()
    return sites_of_other_shape(str(caught.value))


def test_sites_are_read_from_pyros_table() -> None:
    assert _told({}) == []
    assert _told({"a name": torch.zeros(7, 1, 3, 2), "level": torch.zeros(7, 1, 1)}) == []
    assert _told({"a name": torch.zeros(3, 4)}) == [("a name", (3, 2), (3, 4))]
    assert _told({"level": torch.zeros(5, 4)}) == [("level", (3,), (5, 4))]
    assert _told({"mu": torch.zeros(2)}) == []
    assert sites_of_other_shape("") == sites_of_other_shape("a dist | 3") == []


def test_an_observation_of_another_shape_is_read_too() -> None:
    def model(y: Tensor) -> None:
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(torch.zeros(3), 1.0).to_event(1), obs=y)
        raise RuntimeError("stop")

    guide = HyperNetworkGuide(_regression(3), init_from=None).setup(X, Y)
    assert guide.latent_dim == 3
    with pytest.raises(RuntimeError) as caught:
        poutine.trace(model).get_trace(torch.zeros(2))
    assert sites_of_other_shape(str(caught.value)) == [("y", (3,), (2,))]


def test_predictive_of_pyro_keeps_its_own_words() -> None:
    guide = HyperNetworkGuide(_regression(4), init_from=None).setup(X, Y)
    with pytest.raises(RuntimeError, match="must match"):
        Predictive(_regression(3), guide=guide, num_samples=2)(X)


COLUMNS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def _of_one(x: Tensor, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x.sum(-1) * w, 1.0), obs=y)


def _of_all(x: Tensor, y: Any = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(x.shape[-1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x * w).sum(-1), 1.0), obs=y)


def _in_a_plate(x: Tensor, y: Any = None) -> None:
    with pyro.plate("columns", len(x)):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x[:, 0] * w, 1.0), obs=y)


@pytest.mark.parametrize("own", [_of_all, _in_a_plate])
@pytest.mark.parametrize("num_samples", [3, 4, 6])
def test_a_latent_of_several_numbers_is_none_of_one_and_none_the_other(
    own: Any, num_samples: int
) -> None:
    """Also where there are as many draws, or as many rows, as it has."""
    y = torch.zeros(6)
    for fitted, model in ((own, _of_one), (_of_one, _of_all)):
        guide = HyperNetworkGuide(fitted, init_from=None).setup(COLUMNS, y)
        for call in (evaluate, log_predictive_density, to_arviz):
            with pytest.raises(ShapeError, match="of another model"):
                call(model, guide, COLUMNS, y, num_samples=num_samples)
        for parallel in (False, True):
            with pytest.raises(ShapeError, match="of another model"):
                predict(model, guide, COLUMNS, num_samples=num_samples, parallel=parallel)
