"""What a recorded graph can do without: identities, repetitions, constants, chains of views."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

__all__ = [
    "drop_unused",
    "fold_constants",
    "is_functional",
    "merge_repetitions",
    "node_values",
    "skip_identities",
]

_aten = torch.ops.aten
#: operations that return their first argument's numbers as they are
_IDENTITIES = (_aten.alias.default, _aten.detach.default, _aten.lift_fresh_copy.default)
#: operations that look at the shape of their first argument alone
_FUNCTIONS_OF_SHAPE = (
    _aten.new_zeros.default,
    _aten.new_ones.default,
    _aten.new_full.default,
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
)
#: names of operations that return whatever was in memory
_UNINITIALISED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
#: second arguments with which an operation does nothing
_NEUTRAL_ELEMENTS: dict[Any, int] = {
    _aten.mul.Tensor: 1,
    _aten.mul.Scalar: 1,
    _aten.div.Tensor: 1,
    _aten.sub.Tensor: 0,
    _aten.pow.Tensor_Scalar: 1,
}
#: operations that do nothing where the shape stays
_IDENTITIES_IF_SHAPE_STAYS = (
    _aten.view.default,
    _aten.expand.default,
    _aten._unsafe_view.default,
    _aten.slice.Tensor,
)
_VIEW_OPERATIONS = (_aten.view.default, _aten._unsafe_view.default)
#: operations that undo themselves when applied a second time
_INVOLUTIONS = (_aten.t.default, _aten.transpose.int)
_Values = dict[str, Any]


def node_values(graph: fx.GraphModule, *example: Tensor) -> _Values:
    """
    Runs a graph node by node.

    :param graph: any.
    :param torch.Tensor example: its arguments, each of any shape.
    :returns: what each node is, by its name.
    """
    values: _Values = {}

    class Interpreter(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            values[node.name] = super().run_node(node)
            return values[node.name]

    Interpreter(graph).run(*example)
    return values


def is_functional(graph: fx.GraphModule, *, draws: bool) -> bool:
    """
    Tells whether a graph writes into nothing that another node looks at.

    An operation that writes into a new tensor which it alone has is as good as one that makes it.

    :param graph: any.
    :param bool draws: whether random numbers may be drawn.
    :returns: whether nodes may be merged, evaluated before, or left out.
    """
    for node in graph.graph.nodes:
        if not draws and _is_random(node):
            return False
        if _is_mutable(node) and not _writes_into_its_own(node):
            return False
    return True


def drop_unused(graph: fx.GraphModule) -> None:
    """
    Takes out what no result is made of: numbers that nobody looks at, drawn or written.

    :param graph: which then draws fewer random numbers.
    """
    order = {node: place for place, node in enumerate(graph.graph.nodes)}

    def is_needed(node: fx.Node) -> bool:
        if _is_mutable(node):
            return not _is_last_look(node, order)
        return node.is_impure() and not _is_random(node)

    graph.graph.eliminate_dead_code(is_needed)


def _is_last_look(node: fx.Node, order: dict[fx.Node, int]) -> bool:
    """Whether what a node writes into is new, and nobody looks at it afterwards."""
    operand = _new_operand(node)
    if operand is None:
        return False
    others = [one for one in operand.users if one is not node]
    return all(order[one] < order[node] and _is_new(one) for one in others)


def _is_mutable(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _writes_into_its_own(node: fx.Node) -> bool:
    """Whether the first argument is written into, is new, and is looked at by nobody else."""
    operand = _new_operand(node)
    return operand is not None and len(operand.users) == 1


def _new_operand(node: fx.Node) -> fx.Node | None:
    """The first argument of a node that writes into it alone, if another node has made it anew."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    written = [place for place, one in enumerate(arguments) if one.alias_info is not None]
    operand = node.args[0] if node.args else None
    if written != [0] or not isinstance(operand, fx.Node) or operand.op != "call_function":
        return None
    return operand if _is_new(operand) else None


def _is_new(node: fx.Node) -> bool:
    """Whether a node returns memory of its own."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not any(one.alias_info is not None for one in schema.returns)


def _is_random(node: fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _is_fixed(node: fx.Node) -> bool:
    """Whether a node gives the same numbers whenever its arguments are the same."""
    if node.op != "call_function" or _is_mutable(node) or _is_random(node):
        return False
    packet = getattr(node.target, "overloadpacket", None)
    if any(_is_mutable(user) and user.args[0] is node for user in node.users):
        return False
    return packet is None or packet.__name__ not in _UNINITIALISED


# ---- constants


def fold_constants(graph: fx.GraphModule, values: _Values, *, held: bool) -> None:
    """
    Evaluates once what does not depend on the arguments.

    :param graph: functional.
    :param dict values: of its nodes; what is new is added.
    :param bool held: whether tensors that the graph holds will stay as they are, too.
    """
    constants: set[str] = set()
    for node in list(graph.graph.nodes):
        if node.op == "get_attr" and held:
            constants.add(node.name)
        elif _is_fixed(node):
            known = all(inner.name in constants for inner in node.all_input_nodes)
            if known or node.target in _FUNCTIONS_OF_SHAPE:
                constants.add(node.name)
                _replace_by_constant(graph, node, values, constants)
    graph.graph.eliminate_dead_code()


def _replace_by_constant(
    graph: fx.GraphModule, node: fx.Node, values: _Values, constants: set[str]
) -> None:
    value = values[node.name]
    if not isinstance(value, Tensor):
        return
    name = f"_constant_of_{node.name}"
    graph.register_buffer(name, value, persistent=False)
    with graph.graph.inserting_before(node):
        constant = graph.graph.get_attr(name)
    node.replace_all_uses_with(constant)
    values[constant.name] = value
    constants.add(constant.name)


def _is_constant(node: fx.Node) -> bool:
    return node.op == "get_attr" and str(node.target).startswith("_constant_of_")


# ---- repetitions


def merge_repetitions(graph: fx.GraphModule) -> None:
    """
    Evaluates once what is evaluated several times from the same arguments.

    :param graph: functional.
    """
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.graph.nodes):
        if not (node.op == "get_attr" or _is_fixed(node)):
            continue
        key = (node.op, node.target, _frozen(node.args), _frozen(node.kwargs))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
    graph.graph.eliminate_dead_code()


def _frozen(arguments: Any) -> Any:
    """Arguments as something that can be looked up; numbers of different kinds are different."""
    if isinstance(arguments, (list, tuple)):
        return tuple(_frozen(one) for one in arguments)
    if isinstance(arguments, dict):
        return tuple((key, _frozen(value)) for key, value in arguments.items())
    if isinstance(arguments, fx.Node):
        return arguments
    return type(arguments), repr(arguments)


# ---- identities


def skip_identities(graph: fx.GraphModule, values: _Values, *, held: bool) -> None:
    """
    Takes out what changes nothing, and views of views.

    :param graph: functional.
    :param dict values: of its nodes.
    :param bool held: whether tensors that the graph holds will stay as they are.
    """
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        _shorten(node, values)
        if _changes_nothing(node, values, held):
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()


def _shorten(node: fx.Node, values: _Values) -> None:
    """Makes a view of a view one of what is behind both; a view stays one where it was."""
    inner = node.args[0] if node.args else None
    if not isinstance(inner, fx.Node) or inner.op != "call_function":
        return
    behind = inner.args[0] if inner.args else None
    if not isinstance(behind, fx.Node):
        return
    value, before = values[node.name], values[behind.name]
    if node.target in _VIEW_OPERATIONS and inner.target in _VIEW_OPERATIONS:
        node.target, node.args = _aten.view.default, (behind, *node.args[1:])
    elif node.target in _INVOLUTIONS and inner.target is node.target:
        same = isinstance(value, Tensor) and value.shape == before.shape
        if same and value.stride() == before.stride() and inner.args[1:] == node.args[1:]:
            node.target, node.args = _aten.alias.default, (behind,)


def _changes_nothing(node: fx.Node, values: _Values, held: bool) -> bool:
    """Whether a node is its first argument."""
    if not node.args or not isinstance(node.args[0], fx.Node) or node.target is operator.getitem:
        return False
    value, before = values[node.name], values[node.args[0].name]
    if not isinstance(value, Tensor) or not isinstance(before, Tensor):
        return False
    if any(_is_mutable(user) and user.args[0] is node for user in node.users):
        return False
    if node.target in _IDENTITIES:
        return True
    # the order of a sum is that of the memory
    alike = value.shape == before.shape and value.dtype == before.dtype
    alike = alike and value.stride() == before.stride()
    if node.target in _IDENTITIES_IF_SHAPE_STAYS:
        return alike
    return alike and node.target in _NEUTRAL_ELEMENTS and _is_all(node, values, held)


def _is_all(node: fx.Node, values: _Values, held: bool) -> bool:
    """Whether the second argument of an operation is its neutral element, for certain."""
    other = node.args[1]
    if isinstance(other, fx.Node):
        if node.kwargs or not (_is_constant(other) or (held and other.op == "get_attr")):
            return False
        other = values[other.name]
    if isinstance(other, Tensor):
        return bool((other == _NEUTRAL_ELEMENTS[node.target]).all())
    return bool(other == _NEUTRAL_ELEMENTS[node.target])
