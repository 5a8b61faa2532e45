"""Errors by sizes that do not agree, in words of the data."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import (
    HyperNetworkGuide,
    fit,
    predict,
    refine,
)
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.handlers.errors.explained_errors import explained, explained_errors
from tests.handlers.calls_on_data import CALLS, X, calls_of, line


@pytest.mark.parametrize(
    "layer, x",
    [
        (nn.Linear(3, 1), X),
        (nn.Linear(3, 1), X[:, 0]),
        (nn.Conv1d(3, 1, 1), X[None]),
        (nn.Conv2d(3, 1, 1), X[None, None]),
        (nn.GRU(3, 1), X),
        (nn.Bilinear(2, 3, 1), X),
    ],
)
def test_other_numbers_of_columns(layer: nn.Module, x: Tensor) -> None:
    inputs = (x, x) if isinstance(layer, nn.Bilinear) else (x,)
    with pytest.raises(ShapeError, match=r"do not fit the data: argument 0 has shape \(") as caught:
        with explained_errors(inputs, {}):
            layer(*inputs)
    assert isinstance(caught.value.__cause__, RuntimeError)


COLUMN = torch.zeros(4, 1)


@pytest.mark.parametrize("name", CALLS)
def test_a_column_of_observations_is_refused_by_all(name: str) -> None:
    guide = HyperNetworkGuide(line).setup(X, X[:, 0])
    with pytest.raises(ShapeError, match=r"shape \(4, 1\), and its distribution has shape \(4,\)"):
        CALLS[name](guide, X, COLUMN)


FITTED = {
    "refine": lambda g, *data: refine(line, g, *data, num_chains=1, num_steps=20, progress=False),
    "predict": lambda g, *data: predict(line, g, data[0], num_samples=2),
    "fit": lambda g, *data: fit(line, g, *data, num_steps=2, progress=False),
}


@pytest.mark.parametrize("name", ["khat", "arviz", "density", "evaluate", *FITTED])
def test_other_columns_than_the_guide_was_built_with(name: str) -> None:
    """Two latents, and three columns, in a model that multiplies by hand."""
    guide = HyperNetworkGuide(line).setup(X, X[:, 0])
    more = torch.cat([X, X[:, :1]], -1)
    told = (
        r"argument 0 has shape \(4, 3\), and had \(4, 2\) when the guide was built; hand over the"
    )
    with pytest.raises(ShapeError, match=told):
        (CALLS | FITTED)[name](guide, more, X[:, 0])


def test_other_errors_of_sizes_and_other_guides_stay() -> None:
    guide = HyperNetworkGuide(line).setup(X, X[:, 0])
    torn = "size of tensor a (3) must match the size of tensor b (2)"
    for known, args in ((guide, (X[:2], X[:2, 0])), (None, (X,)), (line, (X,))):
        with pytest.raises(RuntimeError, match="must match"), explained_errors(args, {}, known):
            raise RuntimeError(torn)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("by", ["column", "product"])
@pytest.mark.filterwarnings("ignore:the first argument has shape")
def test_inputs_and_observations_in_the_wrong_order(name: str, by: str) -> None:
    def by_column(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        mean = x[:, 0] * w[..., :1] + x[:, 1] * w[..., 1:]
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean.reshape(-1), 1.0), obs=y)

    model = by_column if by == "column" else line
    guide = HyperNetworkGuide(model).setup(X, X[:, 0])
    with pytest.raises(ShapeError, match="in the order of the model's own"):
        calls_of(model)[name](guide, X[:, 0], X)


def test_indices_and_sizes_of_another_cause_stay() -> None:
    for error in (IndexError("too many indices for tensor of dimension 1"), IndexError("pop")):
        for data in ((X, X[:, 0]), (X[:2, 0], X), ()):
            assert explained(error, data, {}) is None


@pytest.mark.parametrize("name", [name for name in CALLS if name != "validation"])
def test_other_numbers_of_rows_are_refused_by_all(name: str) -> None:
    guide = HyperNetworkGuide(line).setup(X, X[:, 0])
    with pytest.raises(ShapeError, match="rows|each row"):
        CALLS[name](guide, X, X[:3, 0])


@pytest.mark.parametrize("name", ["refine", "arviz", "density", "fit", "evaluate"])
def test_no_rows_and_other_types_are_refused_by_all(name: str) -> None:
    guide = HyperNetworkGuide(line).setup(X, X[:, 0])
    with pytest.raises(ShapeError, match="no rows"):
        CALLS[name](guide, X[:0], X[:0, 0])


def test_a_plate_of_fewer_rows_than_it_is_to_show() -> None:
    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 3, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w, 1.0), obs=x[:, 0])

    with pytest.raises(ShapeError, match="plate of 3 rows is asked to show 4"):
        fit(model, HyperNetworkGuide(model), X, num_steps=2, progress=False)
