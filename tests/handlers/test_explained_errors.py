"""Raw errors that data have caused, in words of the data; others stay as they are."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import BayesianModule, HyperNetworkGuide, fit
from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.handlers.explained_errors import explained, explained_errors

X = torch.ones(4, 2)


@pytest.mark.parametrize(
    "layer, x",
    [
        (nn.Linear(2, 1), X.double()),
        (nn.Linear(2, 1), X.long()),
        (nn.Linear(2, 1).double(), X),
        (nn.Conv1d(4, 1, 1), X.double()),
        (nn.Bilinear(2, 2, 1), X.double()),
    ],
)
def test_numbers_of_different_types(layer: nn.Module, x: Tensor) -> None:
    inputs = (x, x) if isinstance(layer, nn.Bilinear) else (x,)
    with pytest.raises(ArgumentError, match=f"argument 0 is of type {x.dtype}.*x.float") as caught:
        with explained_errors(inputs, {}):
            layer(*inputs)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_what_data_have_not_caused_stays_as_it_is() -> None:
    for error in (RuntimeError("out of memory"), ValueError("no"), ArgumentError("clear")):
        assert explained(error, (X,), {}) is None
        with pytest.raises(type(error)) as caught, explained_errors((X,), {"y": X}):
            raise error
        assert caught.value is error
    # no argument that could have another type
    assert explained(RuntimeError("mat1 and mat2 must have the same dtype"), (3,), {}) is None


@pytest.mark.parametrize("validates", [True, False])
def test_guides_and_fit_tell(validates: bool) -> None:
    net = BayesianModule(nn.Linear(2, 1), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Any = None) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("rows", 4):
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    y = torch.zeros(4)
    with pyro.validation_enabled(validates):
        with pytest.raises(ArgumentError, match="'?x'? is of type torch.float64|argument 0 is of"):
            HyperNetworkGuide(model).setup(X.double(), y)
        with pytest.raises(ArgumentError, match="numbers of different types"):
            fit(model, HyperNetworkGuide(model), X.double(), y, progress=False)
        more = torch.ones(5, 2)
        message = "plate 'rows' has 4 rows and site 'y' in it has 5"
        for y in (torch.zeros(5), torch.zeros(4)):
            with pytest.raises(ShapeError, match=message):
                fit(model, HyperNetworkGuide(model), more, y, progress=False)
        with pytest.raises(ShapeError, match=message):
            HyperNetworkGuide(model).setup(more, torch.zeros(5))
