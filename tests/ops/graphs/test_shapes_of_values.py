"""Operations whose result has as many numbers as values say are found, and no others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pyro_implicit.ops.graphs.recording import trace_operations
from pyro_implicit.ops.graphs.shapes_of_values import shapes_of_values

X = torch.linspace(-1.0, 1.0, 6)

FOLLOWS: dict[str, Callable[[Tensor], Tensor]] = {
    "a mask": lambda w: X[w > 0],
    "a mask of the argument itself": lambda w: w[w > 0].sum(),
    "masked_select": lambda w: torch.masked_select(X, w > 0),
    "nonzero": lambda w: (w > 0).nonzero(),
    "unique": lambda w: w.round().unique(),
    "a size alone": lambda w: w / max(len(w[w > 0]), 1),
    "a sparse one": lambda w: w * w.relu().to_sparse()._nnz(),
    "numbers of a mask": lambda w: X[(w > 0).nonzero()[:, 0]],
}
STAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "a mask of data": lambda w: w[X > 0],
    "nonzero of data": lambda w: w[(X > 0).nonzero()[:, 0]],
    "numbers of rows": lambda w: X[w.argsort()],
    "both": lambda w: w[torch.tensor([0, 2])] + w[:2],
    "where": lambda w: torch.where(w > 0, X, -X),
}


@pytest.mark.parametrize("name", FOLLOWS)
def test_shapes_that_follow_values(name: str) -> None:
    assert shapes_of_values(trace_operations(lambda w: FOLLOWS[name](w), X + 0.1))


@pytest.mark.parametrize("name", STAYS)
def test_shapes_that_stay(name: str) -> None:
    assert not shapes_of_values(trace_operations(lambda w: STAYS[name](w), X + 0.1))


def test_sizes_that_random_numbers_or_trained_tensors_give() -> None:
    assert shapes_of_values(trace_operations(lambda w: w[torch.randn(6) > 0].sum(), X))
    held = torch.nn.Parameter(X + 0.1)
    graph = trace_operations(lambda w: w[held > 0].sum(), X)
    assert not shapes_of_values(graph)
    assert shapes_of_values(graph, trained=[held])


def test_arguments_that_stay_are_as_good_as_data() -> None:
    graph = trace_operations(lambda w: w[w > 0].sum(), X)
    assert shapes_of_values(graph) and not shapes_of_values(graph, arguments=False)
