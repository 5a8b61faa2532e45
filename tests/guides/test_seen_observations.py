"""Latents that are made from the datum that they then score are told where scores are asked for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuideList, AutoNormal
from torch import Tensor, nn

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    EnsembleGuide,
    HyperNetworkGuide,
    evaluate,
    fit,
    log_predictive_density,
)
from pyro_implicit.guides.seen_observations import warning_of_seen_observations

X, Y = torch.randn(8, 2), torch.randn(8)
SEEN = r"made from it|makes its latents from what \['y'\] observes"


def rows(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("data", 8, subsample_size=len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z + x[:, 0], 1.0), obs=y)


def mixed(x: Tensor, y: Tensor | None = None) -> None:
    b = pyro.sample("b", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 8, subsample_size=len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z + b, 1.0), obs=y)


def both(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y[:, None]], -1)


def in_a_list() -> Any:
    guide = AutoGuideList(mixed)
    guide.append(AutoNormal(poutine.block(mixed, expose=["b"])))
    part = poutine.block(mixed, expose=["z"])
    guide.append(ConditionalHyperNetworkGuide(part, context=both))
    return guide


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(both(x, y))


class ByHand(nn.Module):
    """The encoder of many tutorials: a network that reads the data, and a normal distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, y: Tensor) -> None:
        pyro.module("encoder", self.layer)
        loc, scale = self.layer(both(x, y)).unbind(-1)
        with pyro.plate("data", 8, subsample_size=len(x)):
            pyro.sample("z", dist.Normal(loc, scale.exp()))


def by_function(x: Tensor, y: Tensor) -> None:
    slope = pyro.param("slope", torch.tensor(0.5))
    with pyro.plate("data", 8, subsample_size=len(x)):
        pyro.sample("z", dist.Normal(slope * (y - x[:, 0]), 0.7))


def of_inputs(x: Tensor, y: Tensor) -> None:
    with pyro.plate("data", 8, subsample_size=len(x)):
        pyro.sample("z", dist.Normal(x[:, 0], 0.7))


def without_a_number(x: Tensor, y: Tensor) -> None:
    with pyro.plate("data", 8, subsample_size=len(x)):
        pyro.sample("z", dist.Normal(x[:, 0] * math.nan, 0.7, validate_args=False))


def of_no_seed(x: Tensor, y: Tensor) -> None:
    calls.append(1)
    with pyro.plate("data", 8, subsample_size=len(x)):
        pyro.sample("z", dist.Normal(float(len(calls)), 0.7))


calls: list[int] = []


def in_a_list_by_hand() -> Any:
    guide = AutoGuideList(mixed)
    guide.append(AutoNormal(poutine.block(mixed, expose=["b"])))
    guide.append(by_function)
    return guide


CASES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "a function": lambda: (rows, ConditionalHyperNetworkGuide(rows, context=both)),
    "a network": lambda: (rows, ConditionalHyperNetworkGuide(rows, context=Encoder())),
    "in a list": lambda: (mixed, in_a_list()),
    "a module by hand": lambda: (rows, ByHand()),
    "a function by hand": lambda: (rows, by_function),
    "in an ensemble": lambda: (rows, EnsembleGuide([of_inputs, by_function])),
    "in a list by hand": lambda: (mixed, in_a_list_by_hand()),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("score", [evaluate, log_predictive_density])
def test_a_context_with_the_observations_is_told(case: str, score: Any) -> None:
    model, guide = CASES[case]()
    guide(X, Y)
    with pytest.warns(UserWarning, match=SEEN):
        score(model, guide, X, Y, num_samples=2)


def test_an_autoencoder_is_told() -> None:
    def model(x: Tensor) -> None:
        with pyro.plate("data", 8, subsample_size=len(x)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(z, 0.5).to_event(1), obs=x)

    guide = ConditionalHyperNetworkGuide(model).setup(X)
    with pytest.warns(UserWarning, match=SEEN):
        evaluate(model, guide, X, num_samples=2)


@pytest.mark.long
def test_validation_tells_once_in_the_result() -> None:
    guide = ConditionalHyperNetworkGuide(rows, context=both)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fit(rows, guide, X, Y, num_steps=2, validation=(X, Y), progress=False, seed=0)
    assert sum("validation: the guide makes its latents" in text for text in result.warnings) == 1


@pytest.mark.long
@pytest.mark.parametrize("joined", [False, True])
def test_a_context_of_the_inputs_is_not(joined: bool) -> None:
    """Also where inputs and observations are parts of one block of memory."""
    x, y = X, Y
    if joined:
        block = torch.randn(24)
        x, y = block[:16].reshape(8, 2), block[16:]
    guide = ConditionalHyperNetworkGuide(rows).setup(x, y)
    for score in (evaluate, log_predictive_density):
        score(rows, guide, x, y, num_samples=2)
    one = HyperNetworkGuide(rows, init_from=None).setup(x, y)
    automatic = AutoNormal(rows)
    automatic(x, y)
    for other in (one, automatic, of_inputs, of_no_seed):
        evaluate(rows, other, x, y, num_samples=2)
    assert warning_of_seen_observations(rows, without_a_number, (x, y), {}) is None


def test_large_data_and_broken_calls_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = ConditionalHyperNetworkGuide(rows, context=both).setup(X, Y)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        evaluate(rows, guide, X, Y[:3], num_samples=2)
    monkeypatch.setattr("pyro_implicit.handlers.rows.row_coupling._MAX_NUMBERS_OF_ARGUMENTS", 5)
    log_predictive_density(rows, guide, X, Y, num_samples=2)


def test_observations_that_are_sites_of_one_number_each() -> None:
    """Of a series, which a guide by hand reads whole."""
    y = torch.tensor([0.3, -0.4, 1.1, 0.2])

    def series(y: Tensor) -> None:
        level = torch.zeros(())
        for t in range(len(y)):
            level = pyro.sample(f"level_{t}", dist.Normal(level, 1.0))
            pyro.sample(f"y_{t}", dist.Normal(level, 0.5), obs=y[t])

    def reads(y: Tensor) -> None:
        for t in range(len(y)):
            pyro.sample(f"level_{t}", dist.Normal(y[t], 0.5))

    def reads_nothing(y: Tensor) -> None:
        for t in range(len(y)):
            pyro.sample(f"level_{t}", dist.Normal(0.0, 0.5))

    said = warning_of_seen_observations(series, reads, (y,), {})
    assert said is not None and "['y_0', 'y_1', 'y_2' and 1 more]" in said
    assert warning_of_seen_observations(series, reads_nothing, (y,), {}) is None


def _shared(x: Tensor, y: Tensor) -> None:
    s = pyro.sample("s", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(s * x, 1.0), obs=y)


def _counts(x: Tensor, y: Tensor) -> None:
    s = pyro.sample("s", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Categorical(logits=s * x[:, None] * torch.arange(3.0)), obs=y)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["numbers", "classes", "flags", "labels"])
def test_an_average_of_the_observations_is_seen_whatever_its_rounding(seed: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, generator=generator)
    y = {
        "numbers": x + 1.0,
        "classes": torch.randint(3, (8,), generator=generator),
        "flags": x > 0.0,
        "labels": (x > 0.0).float(),
    }[kind]

    def guide(x: Tensor, y: Tensor) -> None:
        pyro.sample(
            "s",
            dist.Normal(
                y.long().double().mean().float() if kind == "labels" else y.double().mean().float(),
                0.1,
            ),
        )

    model = _counts if kind == "classes" else _shared
    if kind == "flags":
        model = lambda x, y: _shared(x, y.float())  # noqa: E731  # a copy, which may be another
    said = warning_of_seen_observations(model, guide, (x, y), {})
    assert said is not None and "['y']" in said


def test_inputs_in_one_table_with_observations_are_no_observations() -> None:
    def model(table: Tensor) -> None:
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        for t in range(len(table)):
            pyro.sample(f"y{t}", dist.Normal(s * table[t, 0], 1.0), obs=table[t, 1])

    def of_inputs(table: Tensor) -> None:
        pyro.sample("s", dist.Normal(table[0, 0], 0.1))

    def of_all(table: Tensor) -> None:
        pyro.sample("s", dist.Normal(table[0].sum(), 0.1))

    table = torch.randn(6, 2)
    assert warning_of_seen_observations(model, of_inputs, (table,), {}) is None
    assert warning_of_seen_observations(model, of_all, (table,), {}) is not None


def test_memory_of_numpys_is_shared_too() -> None:
    array = np.random.default_rng(0).normal(size=(6, 3))

    def model(table: Tensor, y: Tensor) -> None:
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(table)):
            pyro.sample("y", dist.Normal(s * table[:, 0], 1.0), obs=y)

    def of_last(table: Tensor, y: Tensor) -> None:
        pyro.sample("s", dist.Normal(table[:, 2].sum(), 0.1))

    def of_first(table: Tensor, y: Tensor) -> None:
        pyro.sample("s", dist.Normal(table[:, 0].sum(), 0.1))

    job = (torch.from_numpy(array), torch.from_numpy(array[:, 2]))
    assert warning_of_seen_observations(model, of_last, job, {}) is not None
    assert warning_of_seen_observations(model, of_first, job, {}) is None


TABLES: dict[str, Callable[[], Tensor]] = {
    "whole": lambda: torch.randn(6, 3),
    "columns of a larger one": lambda: torch.randn(6, 5)[:, 1:4],
    "every second row": lambda: torch.randn(12, 3)[::2],
    "turned": lambda: torch.randn(3, 6).T,
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_tables_that_are_parts_of_others_are_looked_at(table: Callable[[], Tensor]) -> None:
    def model(table: Tensor) -> None:
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(table)):
            pyro.sample("y", dist.Normal(s * table[:, 0], 1.0), obs=table[:, 2])

    def of_inputs(table: Tensor) -> None:
        pyro.sample("s", dist.Normal(table[:, :2].sum(), 0.1))

    def of_all(table: Tensor) -> None:
        pyro.sample("s", dist.Normal(table.sum(), 0.1))

    whole = table()
    assert warning_of_seen_observations(model, of_inputs, (whole,), {}) is None
    assert warning_of_seen_observations(model, of_all, (whole,), {}) is not None


def test_inputs_and_observations_that_are_two_parts_of_one_table() -> None:
    table = torch.randn(6, 3)

    def model(x: Tensor, y: Tensor) -> None:
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(s * x[:, 0], 1.0), obs=y)

    def of_inputs(x: Tensor, y: Tensor) -> None:
        pyro.sample("s", dist.Normal(x.sum(), 0.1))

    assert warning_of_seen_observations(model, of_inputs, (table[:, :2], table[:, 2]), {}) is None


def test_observations_of_another_type_in_the_same_memory() -> None:
    table = torch.randn(6)

    def model(table: Tensor) -> None:
        s = pyro.sample("s", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(table)):
            pyro.sample("y", dist.Poisson(s.exp()), obs=table.view(torch.int32))

    def of_all(table: Tensor) -> None:
        pyro.sample("s", dist.Normal(table.sum(), 0.1))

    with pyro.validation_enabled(False):
        assert warning_of_seen_observations(model, of_all, (table,), {}) is not None
