"""Whether shapes within a recorded graph follow from numbers that it is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["shapes_of_values"]

_INDEX = torch.ops.aten.index.Tensor
_MASKS = (torch.bool, torch.uint8)


def shapes_of_values(graph: fx.GraphModule) -> bool:
    """
    Tells whether an operation gives as many numbers as the values of the arguments say.

    ``x[w > 0]`` has another size for another ``w``, and what a program computes from that size is
    a plain number in its recording: that of the example.

    :param graph: as :func:`~pyro_implicit.ops.recording.trace_operations` gives it.
    :returns: whether there is one, among what depends on the arguments.
    """
    varying: set[fx.Node] = set()
    for node in graph.graph.nodes:
        if node.op != "placeholder" and not varying.intersection(node.all_input_nodes):
            continue
        varying.add(node)
        if node.op == "call_function" and _follows_values(node, varying):
            return True
    return False


def _follows_values(node: fx.Node, varying: set[fx.Node]) -> bool:
    if torch.Tag.dynamic_output_shape not in getattr(node.target, "tags", ()):
        return False
    if node.target is not _INDEX:
        return True
    indices: Any = node.args[1]
    return any(_dtype(one) in _MASKS for one in indices if one in varying)


def _dtype(node: fx.Node) -> torch.dtype | None:
    """The type of a node's numbers; that of masks where it is not known."""
    value = node.meta.get("val")
    return value.dtype if isinstance(value, Tensor) else torch.bool
