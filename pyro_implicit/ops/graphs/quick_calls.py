"""A recorded graph whose operations are called the short way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["call_quickly"]

_aten = torch.ops.aten
#: operations that ``torch`` has by the same name, by the overloads whose arguments are in the same
#: order there
_OVERLOADS_IN_TORCH: dict[str, tuple[str, ...]] = {
    "_is_all_true": ("default",),
    "abs": ("default",),
    "add": ("Tensor",),
    "addmm": ("default",),
    "all": ("default",),
    "amax": ("default",),
    "baddbmm": ("default",),
    "bmm": ("default",),
    "cat": ("default",),
    "clamp": ("default", "Tensor"),
    "clone": ("default",),
    "cos": ("default",),
    "cumsum": ("default",),
    "diag_embed": ("default",),
    "diagonal": ("default",),
    "div": ("Tensor", "Scalar"),
    "eq": ("Tensor", "Scalar"),
    "erf": ("default",),
    "exp": ("default",),
    "expm1": ("default",),
    "flip": ("default",),
    "ge": ("Tensor", "Scalar"),
    "gt": ("Tensor", "Scalar"),
    "le": ("Tensor", "Scalar"),
    "lgamma": ("default",),
    "log": ("default",),
    "log1p": ("default",),
    "logical_and": ("default",),
    "logical_not": ("default",),
    "logsumexp": ("default",),
    "lt": ("Tensor", "Scalar"),
    "mean": ("default", "dim"),
    "mm": ("default",),
    "mul": ("Tensor", "Scalar"),
    "mv": ("default",),
    "ne": ("Tensor", "Scalar"),
    "neg": ("default",),
    "permute": ("default",),
    "pow": ("Tensor_Scalar", "Tensor_Tensor"),
    "reciprocal": ("default",),
    "relu": ("default",),
    "rsqrt": ("default",),
    "rsub": ("Scalar", "Tensor"),
    "select": ("int",),
    "sigmoid": ("default",),
    "sign": ("default",),
    "sin": ("default",),
    "sqrt": ("default",),
    "squeeze": ("default", "dim", "dims"),
    "stack": ("default",),
    "sub": ("Tensor",),
    "sum": ("default", "dim_IntList"),
    "t": ("default",),
    "tanh": ("default",),
    "transpose": ("int",),
    "tril": ("default",),
    "triu": ("default",),
    "unsqueeze": ("default",),
    "where": ("self",),
}
#: operations that tensors have as methods of the same name and order
_OVERLOADS_OF_METHODS: dict[str, tuple[str, ...]] = {
    "add_": ("Tensor",),
    "div_": ("Tensor",),
    "exp_": ("default",),
    "expand": ("default",),
    "mul_": ("Tensor",),
    "neg_": ("default",),
    "relu_": ("default",),
    "sigmoid_": ("default",),
    "squeeze_": ("default", "dim"),
    "sub_": ("Tensor",),
    "tanh_": ("default",),
    "view": ("default",),
}
#: operations that make a tensor of a number beside a tensor, at every call
_CONVERTING_NUMBERS = ("add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_")


def call_quickly(graph: fx.GraphModule, values: dict[str, Any]) -> None:
    """
    Calls each operation by Python's own binding, and finds what the graph holds without a search.

    An operation of PyTorch's dispatcher by its name in ``torch.ops`` reads its arguments by their
    schema, which takes longer than the arithmetic of small tensors; the same operation by its name
    in ``torch`` does not. The kernels are the same, and so are the bits.

    :param graph: of operations of ``torch.ops.aten``; not to be changed any more.
    :param dict values: what each of its nodes is at an example.
    """
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        quick = _QUICK_BY_OVERLOAD.get(node.target)
        if quick is None:
            continue
        _hold_number(graph, node, values)
        node.target = quick
    for names in (graph._parameters, graph._buffers):
        for name in list(names):
            held = names.pop(name)
            graph.__dict__[name] = held  # an attribute, where Python looks first


def _hold_number(graph: fx.GraphModule, node: fx.Node, values: dict[str, Any]) -> None:
    """Gives a number that stands beside a tensor as a tensor without dimensions."""
    name = node.target.overloadpacket.__name__  # type: ignore[union-attr]
    if name not in _CONVERTING_NUMBERS or len(node.args) != 2 or node.kwargs:
        return
    operand, number = node.args
    if not isinstance(operand, fx.Node) or type(number) not in (int, float):
        return
    value = values.get(operand.name)
    if not isinstance(value, Tensor) or not _is_plain(value):
        return
    held = f"_number_of_{node.name}"
    graph.register_buffer(held, torch.tensor(number, dtype=value.dtype), persistent=False)
    with graph.graph.inserting_before(node):
        node.args = (operand, graph.graph.get_attr(held))


def _is_plain(value: Tensor) -> bool:
    """Whether a number beside a tensor is rounded to its precision before anything else."""
    return value.dtype in (torch.float32, torch.float64) and value.device.type == "cpu"


def _quick() -> dict[Any, Callable[..., Any]]:
    found: dict[Any, Callable[..., Any]] = {}
    for home, table in ((torch, _OVERLOADS_IN_TORCH), (Tensor, _OVERLOADS_OF_METHODS)):
        for name, overloads in table.items():
            packet = getattr(_aten, name)
            for overload in overloads:
                found[getattr(packet, overload)] = getattr(home, name)
    return found


_QUICK_BY_OVERLOAD = _quick()
