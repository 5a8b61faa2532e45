"""A function of fixed shapes as a graph of tensor operations, where that gives the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from pyro_implicit.ops.graphs.graph_passes import (
    fold_constants,
    is_functional,
    merge_repetitions,
    node_values,
    skip_identities,
)
from pyro_implicit.ops.graphs.memory_reuse import reuse_memory
from pyro_implicit.ops.graphs.operation_tracer import OperationTracer, without_cast_cache
from pyro_implicit.ops.graphs.quick_calls import call_quickly
from pyro_implicit.ops.graphs.same_bits import same_bits
from pyro_implicit.ops.graphs.separate_outputs import separate_outputs
from pyro_implicit.ops.graphs.shapes_of_values import shapes_of_values

__all__ = ["lighten", "record", "trace_operations"]

Function = Callable[[Tensor], tuple[Tensor, Tensor]]


def trace_operations(function: Callable[..., Any], *example: Tensor) -> fx.GraphModule:
    """
    Runs a function and notes its operations on tensors.

    It is given copies of its arguments, so that a tensor with memory of one of these is known to be
    made of it (``nn.Parameter(x)``), and not by an operation.

    :param function: from tensors to tensors, of any structure.
    :param torch.Tensor example: its arguments, each of any shape.
    :returns: the graph, to be compiled (``recompile()``) before it is run.
    """
    tracer = OperationTracer()
    arguments = [_copied(one) for one in example]
    for one in arguments:
        tracer.argument(one)
    with without_cast_cache(), tracer:
        result = function(*arguments)
    return tracer.finished(result)


def _copied(tensor: Tensor) -> Tensor:
    """The same numbers, laid out alike, in memory that nothing else has."""
    held = tensor.detach()
    if held.layout is torch.strided and held.numel():
        steps = zip(held.shape, held.stride(), strict=True)
        extent = 1 + sum((size - 1) * stride for size, stride in steps)
        whole = held.as_strided((extent,), (1,)).clone()
        return whole.as_strided(held.shape, held.stride()).requires_grad_(tensor.requires_grad)
    return held.clone().requires_grad_(tensor.requires_grad)


def record(function: Function, example: Tensor) -> Function | None:
    """
    Records a function that draws no random numbers.

    What does not depend on the argument is evaluated once. The graph is used only if it gives the
    same bits as the function at other points of the same shape; a function that makes shapes of
    values has none.

    :param function: from ``(C, m)`` to a pair of tensors.
    :param torch.Tensor example: a point, shape ``(C, m)``.
    :returns: the same function, faster; None if it cannot be recorded.
    """
    try:
        graph = trace_operations(lambda u: function(u), example.clone())  # no bound method
        if shapes_of_values(graph):
            return None
        with torch.no_grad():
            graph.graph.eliminate_dead_code()
            if is_functional(graph, draws=False):
                _simplify(graph, example, held=True)
            graph.recompile()
            recorded = torch.no_grad()(graph)
            for point in (example * 1.0625, example - 0.03125):
                for found, expected in zip(recorded(point), function(point), strict=True):
                    if not same_bits(found, expected):
                        return None
    except Exception:  # the tracer raises what it likes
        return None
    return recorded


@torch.no_grad()
def lighten(graph: fx.GraphModule, *example: Tensor, held: bool = False) -> None:
    """
    Takes out of a graph what changes nothing, and calls the rest the short way.

    Tensors that the graph holds may be other numbers whenever it runs, and random ones are drawn
    anew: nothing of that is taken for constant. No result shares memory with another.

    :param graph: as recorded; one that writes into tensors stays so but for dead code. It is not to
        be changed afterwards.
    :param example: tensors that it can be run with, of the shapes of those it was recorded with.
    :param bool held: whether tensors that the graph holds will stay as they are.
    """
    graph.graph.eliminate_dead_code()
    if is_functional(graph, draws=True):
        _simplify(graph, *example, held=held)
    graph.recompile()


def _simplify(graph: fx.GraphModule, *example: Tensor, held: bool) -> None:
    """Of a functional graph; ``held``: whether tensors that it holds will stay as they are."""
    values = node_values(graph, *example)
    fold_constants(graph, values, held=held)
    skip_identities(graph, values, held=held)
    merge_repetitions(graph)
    values = node_values(graph, *example)
    separate_outputs(graph, values)
    reuse_memory(graph, node_values(graph, *example))
    call_quickly(graph, values)
