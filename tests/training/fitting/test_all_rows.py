"""Batches of a small data set, put together for the start and the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.training.fitting.all_rows import all_rows
from pyro_implicit.training.fitting.arguments import Arguments

ROWS = 60
X = torch.linspace(-1, 1, ROWS * 2).reshape(ROWS, 2)
Y = X.sum(-1)


def model(x: Tensor, y: Tensor | None = None, noise: float = 1.0) -> Any:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", ROWS, subsample_size=len(x)):
        return pyro.sample("y", dist.Normal((x * w).sum(-1), noise), obs=y)


def local(x: Tensor, y: Tensor) -> None:
    with pyro.plate("data", ROWS, subsample_size=len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z, 1.0), obs=y)


def fixed(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", ROWS, subsample_size=20):
        pyro.sample("y", dist.Normal(w * x.reshape(20, 2)[:, 0], 1.0), obs=y)


def scaled(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)), pyro.poutine.scale(scale=3.0):
        pyro.sample("y", dist.Normal(w, 1.0), obs=y)


def undeclared(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w, 1.0), obs=y)


def wide(x: Tensor, y: Tensor) -> None:
    pyro.sample("many", dist.Normal(0.0, 1.0).expand([300]).to_event(1))
    model(x, y)


def tuples(size: int = 20) -> list[Any]:
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, ROWS, size)]


@pytest.mark.parametrize(
    "batches",
    [
        tuples(),
        tuple(tuples(25)),  # the last is shorter
        [{"x": x, "y": y} for x, y in tuples()],
        [(x, y, 0.5) for x, y in tuples()],
        [(X, Y)],
    ],
)
def test_rows_are_put_together_in_their_order(batches: Any) -> None:
    found = all_rows(model, Arguments((), batches, {}))
    assert found is not None
    values = [*found[0], *found[1].values()]
    assert torch.equal(values[0], X) and torch.equal(values[1], Y) and values[2:] in ([], [0.5])


def test_a_loader_gives_all_its_rows() -> None:
    loader = DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True)
    found = all_rows(model, Arguments((), loader, {}))
    assert found is not None
    assert torch.equal(found[0][1].sort().values, Y.sort().values)


@pytest.mark.parametrize(
    ("program", "batches"),
    [
        (model, tuples()[:2]),  # rows are missing
        (model, DataLoader(TensorDataset(X, Y), batch_size=25, drop_last=True)),
        (model, [(x, y, float(i)) for i, (x, y) in enumerate(tuples())]),  # arguments differ
        (model, [(x, y, torch.tensor(1.0)) for x, y in tuples()]),  # one has no rows
        (model, [(x, y[:, None].expand(-1, i + 1)) for i, (x, y) in enumerate(tuples())]),
        (model, [*tuples()[:2], (X[40:], None)]),  # no observations in the last one
        (model, range(3)),  # neither a list nor a loader
        (local, tuples()),
        (fixed, tuples()),  # takes batches of one size
        (scaled, tuples()),  # weights a batch by itself
        (wide, tuples()),
        (undeclared, tuples()),  # each batch counts as all data
    ],
)
def test_what_is_not_small_whole_and_plain_is_left_in_batches(
    program: Callable[..., Any], batches: Any
) -> None:
    arguments = Arguments((), batches, {})
    if isinstance(batches, range):
        arguments._ahead = tuples()[0], {}
    assert all_rows(program, arguments) is None


def test_many_rows_or_numbers_stay_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("_MAX_ROWS", ROWS), ("_MAX_NUMBERS_OF_ARGUMENTS", 3 * ROWS)):
        for few, is_given in ((0, True), (1, False)):
            with monkeypatch.context() as patch:
                patch.setattr(f"pyro_implicit.training.fitting.all_rows.{name}", most - few)
                assert (all_rows(model, Arguments((), tuples(), {})) is not None) == is_given


@pytest.mark.long
def test_the_start_does_not_depend_on_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_implicit.guides.initialization.auto._MEAN_FIELD_STEPS", 50)
    monkeypatch.setattr("pyro_implicit.guides.initialization.auto._MEAN_FIELD_STEPS_LARGE", 50)
    guide, other = (HyperNetworkGuide(model, init_from="auto") for _ in range(2))
    fit(model, guide, batches=tuples(6), num_steps=1, seed=0, progress=False)
    fit(model, other, X, Y, num_steps=1, seed=0, progress=False)
    assert guide.start_report is not None and other.start_report is not None
    assert guide.start_report.taken == other.start_report.taken
    mine, whole = guide.sample(4000)["w"], other.sample(4000)["w"]
    assert (mine.std(0) / whole.std(0) - 1).abs().max() < 0.1
    assert (mine.mean(0) - whole.mean(0)).abs().max() < 0.2 * whole.std()


@pytest.mark.slow
@pytest.mark.parametrize(("size", "seed"), [(100, 0), (100, 1), (20, 0), (20, 1)])
def test_deviations_from_batches_are_those_of_the_posterior(size: int, seed: int) -> None:
    """By the loss of the batches alone, runs ended with a fourth of a deviation."""
    pyro.set_rng_seed(0)
    x = torch.randn(1000, 3)
    y = x @ torch.tensor([1.0, -0.5, 0.0]) + torch.randn(1000)

    def regression(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", 1000, subsample_size=len(x)):
            pyro.sample("y", dist.Normal((x * w).sum(-1), 1.0), obs=y)

    exact = torch.linalg.inv(torch.eye(3) + x.mT @ x)
    guide = HyperNetworkGuide(regression, init_from="auto")
    loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=True)
    result = fit(regression, guide, batches=loader, seed=seed, progress=False)
    assert result.reason == "converged"
    draws = guide.sample(20_000)["w"]
    assert (draws.std(0) / exact.diagonal().sqrt() - 1).abs().max() < 0.15
    assert ((draws.mean(0) - exact @ x.mT @ y) / exact.diagonal().sqrt()).abs().max() < 0.4
