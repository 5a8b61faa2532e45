"""Arguments of types that a model does not compute with, told in words of the arguments."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pyro_implicit import HyperNetworkGuide, evaluate, fit, predict
from pyro_implicit.exceptions import ArgumentError, SiteError

X, Y = torch.linspace(-1, 1, 8), torch.linspace(0, 1, 8)
SHORT: dict[str, Any] = {"num_steps": 2, "progress": False, "seed": 0}


def line(x: Any, y: Any = None) -> Any:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


@pytest.mark.parametrize(
    ("x", "y", "text"),
    [
        (X.to(torch.complex64), Y, "argument 0 is of complex numbers.*view_as_real"),
        (X, Y.to(torch.complex64), "site 'y' observes complex numbers.*view_as_real"),
        (X.to_sparse(), Y, "argument 0 is sparse.*to_dense"),
        (["a", "b"], Y[:2], "argument 0 is a list, .*Models compute with tensors"),
    ],
)
def test_complex_sparse_and_words(x: Any, y: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        fit(line, HyperNetworkGuide(line, init_from=None), x, y, **SHORT)


@pytest.mark.long
def test_a_product_of_sparse_matrices_is_fitted() -> None:
    matrix = torch.eye(8).to_sparse()

    def model(x: Tensor, y: Tensor | None = None) -> Any:
        w = pyro.sample("w", dist.Normal(torch.zeros(8), 1.0).to_event(1))
        with pyro.plate("data", 8):
            return pyro.sample("y", dist.Normal(torch.sparse.mm(x, w[:, None])[:, 0], 1.0), obs=y)

    guide = HyperNetworkGuide(model, init_from=None)
    fit(model, guide, matrix, Y, **SHORT)
    assert predict(model, guide, matrix, num_samples=3)["y"].shape == (3, 8)


def test_a_loader_is_no_argument_of_predictions() -> None:
    guide = HyperNetworkGuide(line, init_from=None)
    guide(X, Y)
    loader = DataLoader(TensorDataset(X, Y), 4)
    for call in (evaluate, predict):
        with pytest.raises(ArgumentError, match="argument 0 of the model is a DataLoader"):
            call(line, guide, loader, num_samples=3)
    data = [torch.cat(part) for part in zip(*loader, strict=True)]
    assert evaluate(line, guide, *data, num_samples=3, batch_size=4).num_samples == 3


@pytest.mark.long
def test_limits_that_move_and_what_to_write() -> None:
    def moving(y: Tensor) -> None:
        limit = pyro.sample("limit", dist.Pareto(0.1, 2.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Uniform(0.0, limit), obs=y)

    def above(y: Tensor) -> None:
        more = pyro.sample("above", dist.Exponential(1.0))
        limit = pyro.deterministic("limit", y.max() + more)
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Uniform(0.0, limit), obs=y)

    y = 100 * Y
    with pytest.raises(ArgumentError, match=r"support of Uniform.*y\.max\(\) \+ pyro\.sample"):
        fit(moving, HyperNetworkGuide(moving, init_from=None), y, **SHORT)
    fit(above, HyperNetworkGuide(above, init_from=None), y, **SHORT)


@pytest.mark.long
def test_a_vector_of_discrete_latents_and_what_to_write() -> None:
    def in_one(y: Tensor) -> None:
        k = pyro.sample("k", dist.Bernoulli(torch.full((3,), 0.5)).to_event(1))
        pyro.sample("y", dist.Normal(k.sum(-1), 1.0), obs=y[0])

    def apart(y: Tensor) -> None:
        p = pyro.sample("p", dist.Beta(2.0, 2.0))
        how = {"enumerate": "parallel"}
        k = [pyro.sample(f"k_{i}", dist.Bernoulli(p), infer=how) for i in range(3)]
        pyro.sample("y", dist.Normal(k[0] + k[1] + k[2], 1.0), obs=y[0])

    def in_a_plate(y: Tensor) -> None:
        p = pyro.sample("p", dist.Beta(2.0, 2.0))
        with pyro.plate("parts", 3):
            k = pyro.sample("k", dist.Bernoulli(p), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(k, 1.0), obs=y[:3])

    with pytest.raises(SiteError, match=r"vector of Bernoulli in one event.*f'k_\{i\}'"):
        HyperNetworkGuide(in_one)(Y)
    for model in (apart, in_a_plate):
        fit(model, HyperNetworkGuide(model, init_from=None), Y, **SHORT)
