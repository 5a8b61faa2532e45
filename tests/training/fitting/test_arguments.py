"""The arguments of each step: whole data, or batches of several kinds again and again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.training.fitting.arguments import Arguments

EMPTY = torch.zeros(0, 2)


def test_whole_data_come_each_time() -> None:
    arguments = Arguments((1, 2), None, {"k": 3})
    assert [arguments.next() for _ in range(2)] == [((1, 2), {"k": 3})] * 2
    assert arguments.peek() == ((1, 2), {"k": 3})


def test_batches_come_again_and_again() -> None:
    t = torch.ones(2)
    arguments = Arguments((), [(1, 2), [3], t, {"y": 4}], {"k": 5})
    assert arguments.peek() == ((1, 2), {"k": 5})
    told = [arguments.next() for _ in range(5)]
    assert told[0] == told[4] == ((1, 2), {"k": 5})
    assert told[1] == ((3,), {"k": 5})
    assert told[2] == ((t,), {"k": 5})
    assert told[3] == ((), {"k": 5, "y": 4})


def test_a_loader_is_shuffled_anew() -> None:
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, shuffle=True)
    arguments = Arguments((), loader, {})
    epochs = [torch.cat([arguments.next()[0][0] for _ in range(2)]) for _ in range(2)]
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(8))] * 2
    assert not epochs[0].equal(epochs[1])


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        (3, "batches=3; expected something that can be gone through"),
        ("xy", "batches='xy'"),
        (torch.ones(3), "batches=a tensor of shape"),
        (np.ones(3), "batches="),
        ({"x": 1}, "batches="),
        (list, "batches=<class 'list'>"),
        (iter([(1,)]), "which can be gone through once only"),
        ([], r"batches=\[\] is empty"),
        ([1], "an item of batches is 1; expected the arguments of the model"),
    ],
)
def test_other_batches_are_refused(batches: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Arguments((), batches, {}).next()


def test_both_are_too_much() -> None:
    with pytest.raises(ArgumentError, match="there are 2 arguments for the model, and batches too"):
        Arguments((1, 2), [(1, 2)], {})


def test_all_rows_are_counted_where_that_costs_nothing() -> None:
    x = torch.zeros(10, 2)
    data = TensorDataset(x, x)
    assert Arguments((x,), None, {}).num_rows == Arguments((), None, {"x": x}).num_rows == 10
    assert Arguments((), [(x[:3], x[:3]), (x[3:], x[3:])], {}).num_rows == 10
    assert Arguments((), DataLoader(data, batch_size=3), {}).num_rows == 10
    subset = DataLoader(data, batch_size=3, sampler=SubsetRandomSampler([1, 2]))
    assert Arguments((), subset, {}).num_rows == 2
    assert Arguments((), DataLoader(data, batch_size=None), {}).num_rows == 0
    assert Arguments((), (), {}).num_rows == 0


def test_a_tuple_of_tensors_is_one_batch_perhaps() -> None:
    x = torch.zeros(3)
    with pytest.raises(ArgumentError, match=r"tuple of 2 tensors.*batches=\[\(x, y\)\]"):
        Arguments((), (x, x), {})
    assert Arguments((), [x, x], {}).num_batches == 2


@pytest.mark.parametrize("batch", [(EMPTY, EMPTY), EMPTY, {"x": EMPTY}])
def test_a_batch_without_rows_is_refused(batch: Any) -> None:
    with pytest.raises(ShapeError, match="has no rows; expected one at least"):
        Arguments((), [], {}).call(batch)


def test_sizes_are_known_of_batches_that_hold_tensors_alone() -> None:
    t = torch.ones(2)
    assert Arguments((), [(t,), (torch.ones(3),)], {}).batch_sizes == [2, 3]
    for batches in ([({"y": t},), ({"y": t},)], [(0,), (1,)], [(slice(0, 2),), (t,)]):
        assert Arguments((), batches, {}).batch_sizes == []
