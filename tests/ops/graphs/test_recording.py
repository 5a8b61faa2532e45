"""Recorded functions: the same bits, or none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pyro_implicit.ops.graphs.recording import lighten, record, trace_operations


def test_constants_are_evaluated_once_and_nothing_is_lost():
    data = torch.randn(7)

    def function(u):
        scale = data.square().sum().sqrt() + 1
        shifted = (u.view(3, 2) * 1 - data[:2] - torch.zeros(2)) / torch.ones(())
        shifted = shifted**1 + torch.ones_like(u) * torch.zeros_like(u) - u.new_zeros(3, 2)
        return (shifted / scale).sum(-1), torch.tanh(shifted)

    recorded = record(function, torch.randn(3, 2))
    assert recorded is not None
    for _ in range(3):
        u = torch.randn(3, 2)
        for found, expected in zip(recorded(u), function(u), strict=True):
            assert torch.equal(found, expected)


def test_memory_is_reused_only_where_nobody_looks_any_more():
    data = torch.randn(4, 3)
    copy = data.clone()

    def function(u):
        a = torch.tanh(u * 2)  # a is looked at again below, and so is a view of b
        b = (a + data).exp()
        first = b[:, :1]
        c = torch.sigmoid(-b) * 3 + a
        return (c + first).sum(-1), data - torch.relu(c) + c.neg()

    recorded = record(function, torch.randn(4, 3))
    assert recorded is not None
    for _ in range(3):
        u = torch.randn(4, 3)
        before = u.clone()
        for found, expected in zip(recorded(u), function(u), strict=True):
            assert torch.equal(found, expected)
        assert torch.equal(u, before) and torch.equal(data, copy)


def test_nan_is_the_same_as_nan():
    def function(u):
        return u.log().sum(-1), u.log()

    assert record(function, torch.tensor([[-1.0, 1.0]])) is not None


def test_what_does_not_repeat_is_not_recorded():
    counter = iter(range(100))

    def function(u):
        return u.sum(-1) + next(counter), u * 1.5

    assert record(function, torch.ones(2, 2)) is None


def test_random_numbers_stay_random():
    def function(u):
        return u.sum(-1), torch.rand(2, 2)

    assert record(function, torch.ones(2, 2)) is None


def test_what_cannot_be_traced_is_not_recorded():
    def function(u):
        return u.sum(-1) * float(u.sum()), u

    assert record(function, torch.ones(2, 2)) is None


@pytest.mark.parametrize("size", [1, 5])
def test_a_graph_that_is_lightened_reads_what_it_holds_anew(size: int) -> None:
    """One is not taken for a constant where the tensor that is one now may change; draws stay."""
    held = torch.ones(size)

    def function(x: Tensor) -> Tensor:
        return (x * held + 0.0).view(size).expand(size) * torch.randn(size) * 1.0

    graph = trace_operations(function, torch.zeros(size))
    before = len(graph.graph.nodes)
    lighten(graph, torch.zeros(size))
    assert len(graph.graph.nodes) < before
    for value in (1.0, 3.0):
        held.fill_(value)
        x = torch.randn(size)
        torch.manual_seed(0)
        expected = function(x)
        torch.manual_seed(0)
        assert torch.equal(graph(x), expected)


def test_a_graph_that_writes_into_tensors_stays() -> None:
    held = torch.zeros(3)
    graph = trace_operations(lambda x: held.add_(x) * 1.0, torch.ones(3))
    held.zero_()
    lighten(graph, torch.ones(3))
    held.zero_()
    assert torch.equal(graph(torch.ones(3)), torch.ones(3))
    assert torch.equal(held, torch.ones(3))


def test_a_function_with_shapes_of_its_values_has_no_graph() -> None:
    def function(u: Tensor) -> tuple[Tensor, Tensor]:
        chosen = u[u > 0]
        return chosen.sum()[None], u * 2.0

    assert record(function, torch.tensor([[0.5, -0.5, 2.0]])) is None
