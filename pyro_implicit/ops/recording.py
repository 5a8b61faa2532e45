"""A function of fixed shapes as a graph of tensor operations, where that gives the same bits."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_implicit.ops.memory_reuse import reuse_memory

__all__ = ["lighten", "record", "trace_operations"]

Function = Callable[[Tensor], tuple[Tensor, Tensor]]
_aten = torch.ops.aten
#: operations that return their first argument's numbers as they are
_SAME = (_aten.alias.default, _aten.detach.default, _aten.lift_fresh_copy.default)
#: those that look at the shape of their first argument alone
_SHAPE_ALONE = (
    _aten.new_zeros.default,
    _aten.new_ones.default,
    _aten.new_full.default,
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
)
#: those that do nothing with this second argument
_NEUTRAL: dict[Any, int] = {
    _aten.mul.Tensor: 1,
    _aten.mul.Scalar: 1,
    _aten.div.Tensor: 1,
    _aten.sub.Tensor: 0,
    _aten.pow.Tensor_Scalar: 1,
}
#: those that do nothing where the shape stays
_SHAPED = (_aten.view.default, _aten.expand.default, _aten._unsafe_view.default)


class _Shapes(FakeTensorMode):
    """Shapes of values that nobody calculates with: plain tensors without numbers will do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _aten.empty_strided.default:
            dtype = (kwargs or {}).get("dtype")
            return torch.empty_strided(args[0], args[1], device="meta", dtype=dtype)
        return super().__torch_dispatch__(func, types, args, kwargs)


def trace_operations(function: Callable[..., Any], *example: Tensor) -> fx.GraphModule:
    """
    Runs a function and notes its operations on tensors.

    The tracer notes the shape of each value in a fake tensor, and makes a mode of its own for each
    of them, with the whole stack, unless there is one already: that took two thirds of the time.

    :param function: from tensors to tensors, of any structure.
    :param torch.Tensor example: its arguments, each of any shape.
    :returns: the graph, as :func:`make_fx` gives it.
    """
    with tracing(TracingContext(_Shapes())):
        graph: fx.GraphModule = make_fx(function)(*example)
    return graph


def record(function: Function, example: Tensor) -> Function | None:
    """
    Records a function that draws no random numbers.

    What does not depend on the argument is evaluated once. The graph is used only if it gives the
    same bits as the function at other points of the same shape.

    :param function: from ``(C, m)`` to a pair of tensors.
    :param torch.Tensor example: a point, shape ``(C, m)``.
    :returns: the same function, faster; None if it cannot be recorded.
    """
    try:
        graph = trace_operations(lambda u: function(u), example.clone())  # no bound method
        with torch.no_grad():
            _simplify(graph, example)
            recorded = torch.no_grad()(graph)
            for point in (example * 1.0625, example - 0.03125):
                for found, expected in zip(recorded(point), function(point), strict=True):
                    if not _same_bits(found, expected):
                        return None
    except Exception:  # the tracer raises what it likes
        return None
    return recorded


def _same_bits(found: Tensor, expected: Tensor) -> bool:
    equal = (found == expected) | (found.isnan() & expected.isnan())
    return found.dtype == expected.dtype and bool(equal.all())


@torch.no_grad()
def lighten(graph: fx.GraphModule, *example: Tensor) -> None:
    """
    Takes out of a graph what changes nothing, and reuses memory.

    Tensors that the graph holds may be other numbers whenever it runs, and random ones are drawn
    anew: nothing is taken for constant.

    :param graph: as recorded; one that writes into tensors stays so but for dead code.
    :param example: tensors that it can be run with, of the shapes of those it was recorded with.
    """
    graph.graph.eliminate_dead_code()
    if not any(_is_mutable(node) for node in graph.graph.nodes):
        values = _values(graph, *example)
        for node in list(graph.graph.nodes):
            if node.op == "call_function" and _changes_nothing(node, values, live=True):
                node.replace_all_uses_with(node.args[0])
        graph.graph.eliminate_dead_code()
        reuse_memory(graph, _values(graph, *example))
    graph.recompile()


def _simplify(graph: fx.GraphModule, example: Tensor) -> None:
    """Evaluates what is constant, and takes out what changes nothing."""
    if any(_is_mutable(node) or _is_random(node) for node in graph.graph.nodes):
        graph.graph.eliminate_dead_code()
        graph.recompile()
        return
    values = _values(graph, example)
    constants: dict[str, Any] = {}
    for node in list(graph.graph.nodes):
        if node.op == "get_attr":
            constants[node.name] = values[node.name]
        elif node.op == "call_function":
            known = all(inner.name in constants for inner in node.all_input_nodes)
            if known or node.target in _SHAPE_ALONE:
                constants[node.name] = values[node.name]
                _replace_by_constant(graph, node, values, constants)
            elif _changes_nothing(node, values):
                node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    reuse_memory(graph, _values(graph, example))


def _is_mutable(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _values(graph: fx.GraphModule, *example: Tensor) -> dict[str, Any]:
    """What each node of the graph is at the example."""
    values: dict[str, Any] = {}

    class Interpreter(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            values[node.name] = super().run_node(node)
            return values[node.name]

    Interpreter(graph).run(*example)
    return values


def _replace_by_constant(
    graph: fx.GraphModule, node: fx.Node, values: dict[str, Any], constants: dict[str, Any]
) -> None:
    value = values[node.name]
    if not isinstance(value, Tensor):
        return
    name = f"_constant_of_{node.name}"
    graph.register_buffer(name, value, persistent=False)
    with graph.graph.inserting_before(node):
        constant = graph.graph.get_attr(name)
    node.replace_all_uses_with(constant)
    values[constant.name] = constants[constant.name] = value


def _changes_nothing(node: fx.Node, values: dict[str, Any], *, live: bool = False) -> bool:
    """Whether a node is its first argument; if ``live``, whatever tensors the graph holds."""
    if not node.args or not isinstance(node.args[0], fx.Node) or node.target is operator.getitem:
        return False
    value, before = values[node.name], values[node.args[0].name]
    if not isinstance(value, Tensor) or not isinstance(before, Tensor):
        return False
    if node.target in _SAME:
        return True
    alike = value.shape == before.shape and value.dtype == before.dtype
    if node.target in _SHAPED:
        return alike and bool(value.stride() == before.stride())
    return alike and node.target in _NEUTRAL and _is_all(node, values, live)


def _is_all(node: fx.Node, values: dict[str, Any], live: bool) -> bool:
    """Whether the second argument of an operation is its neutral element, for certain."""
    other = node.args[1]
    if isinstance(other, fx.Node):
        if live or other.op != "get_attr" or node.kwargs:
            return False
        other = values[other.name]
    if isinstance(other, Tensor):
        return bool((other == _NEUTRAL[node.target]).all())
    return bool(other == _NEUTRAL[node.target])
