"""A recorded graph that writes results over operands which nobody needs any more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["reuse_memory"]

_aten = torch.ops.aten
_COMMUTATIVE_VARIANTS = {_aten.add.Tensor: _aten.add_.Tensor, _aten.mul.Tensor: _aten.mul_.Tensor}
_IN_PLACE_VARIANTS: dict[Any, Any] = {
    **_COMMUTATIVE_VARIANTS,
    _aten.sub.Tensor: _aten.sub_.Tensor,
    _aten.div.Tensor: _aten.div_.Tensor,
    _aten.tanh.default: _aten.tanh_.default,
    _aten.relu.default: _aten.relu_.default,
    _aten.sigmoid.default: _aten.sigmoid_.default,
    _aten.exp.default: _aten.exp_.default,
    _aten.neg.default: _aten.neg_.default,
}
#: operations that write into an argument ``grad_input`` instead
_OUT_VARIANTS = {_aten.tanh_backward.default: _aten.tanh_backward.grad_input}


def reuse_memory(graph: fx.GraphModule, values: dict[str, Any]) -> None:
    """
    Makes element-wise operations work in place where their operand is used for the last time.

    Large tensors that are allocated anew for each operation cost as much as the arithmetic.

    :param graph: of operations that change nothing in place.
    :param dict values: what each of its nodes is at an example, all at the same time.
    """
    nodes = list(graph.graph.nodes)
    last_use: dict[int, int] = {}
    for place, node in enumerate(nodes):
        for operand in node.all_input_nodes:
            last_use[_storage(values.get(operand.name))] = place
    kept = {_storage(values.get(n.name)) for n in nodes if n.op in ("placeholder", "get_attr")}
    for place, node in enumerate(nodes):
        has_variant = node.target in _IN_PLACE_VARIANTS or node.target in _OUT_VARIANTS
        if node.op != "call_function" or not has_variant:
            continue
        for position in (0, 1) if node.target in _COMMUTATIVE_VARIANTS else (0,):
            if _may_overwrite(node, position, values, last_use, place, kept):
                _write_over(node, position)
                break


def _storage(value: Any) -> int:
    """Where a tensor keeps its numbers; 0 for anything that cannot be told."""
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else 0


def _may_overwrite(
    node: fx.Node,
    position: int,
    values: dict[str, Any],
    last_use: dict[int, int],
    place: int,
    kept: set[int],
) -> bool:
    operand = node.args[position]
    if not isinstance(operand, fx.Node) or any(key != "alpha" for key in node.kwargs):
        return False
    if position and node.kwargs:
        return False
    old, new = values.get(operand.name), values.get(node.name)
    if not isinstance(old, Tensor) or not isinstance(new, Tensor):
        return False
    where = _storage(old)
    others = [one for one in node.all_input_nodes if one is not operand]
    alike = old.shape == new.shape and old.dtype == new.dtype and old.stride() == new.stride()
    alone = all(_storage(values.get(one.name)) != where for one in others)
    free = where not in kept and where != 0 and last_use[where] == place
    once = sum(one is operand for one in node.args) == 1
    return alike and alone and free and once and old.is_contiguous()


def _write_over(node: fx.Node, position: int) -> None:
    if node.target in _OUT_VARIANTS:
        node.kwargs = {"grad_input": node.args[0]}
        node.target = _OUT_VARIANTS[node.target]
        return
    node.target = _IN_PLACE_VARIANTS[node.target]
    if position:
        node.args = (node.args[1], node.args[0], *node.args[2:])
