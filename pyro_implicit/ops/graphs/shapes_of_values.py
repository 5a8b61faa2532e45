"""Whether shapes within a recorded graph follow from numbers that it is given."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["shapes_of_values"]

_INDEX_OPERATION = torch.ops.aten.index.Tensor
_MASK_DTYPES = (torch.bool, torch.uint8)
#: operations whose results have as many entries as are not zero, which torch does not tell of them
_SPARSE_CONVERSIONS = (
    "_to_sparse",
    "_to_sparse_csr",
    "_to_sparse_csc",
    "_to_sparse_bsr",
    "_to_sparse_bsc",
)


def shapes_of_values(
    graph: fx.GraphModule, *, trained: Iterable[Tensor] = (), arguments: bool = True
) -> bool:
    """
    Tells whether an operation gives as many numbers as values say that are others at each run.

    ``x[w > 0]`` has another size for another ``w``, and what a program computes from that size is
    a plain number in its recording: that of the example.

    :param graph: as :func:`~pyro_implicit.ops.graphs.recording.trace_operations` gives it.
    :param torch.Tensor trained: tensors of any shape that the graph holds and that change.
    :param bool arguments: whether the arguments are others at each run.
    :returns: whether there is one, among what depends on such tensors or on random numbers.
    """
    changing, varying = {id(one) for one in trained}, set[fx.Node]()
    for node in graph.graph.nodes:
        begins = node.op == "placeholder" and arguments or _changes(graph, node, changing)
        if not begins and not varying.intersection(node.all_input_nodes):
            continue
        varying.add(node)
        if node.op == "call_function" and _follows_values(node, varying):
            return True
    return False


def _changes(graph: fx.GraphModule, node: fx.Node, changing: set[int]) -> bool:
    """Whether a node gives other numbers at each run, whatever its operands are."""
    if node.op == "get_attr":
        return id(attrgetter(str(node.target))(graph)) in changing
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _follows_values(node: fx.Node, varying: set[fx.Node]) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    if getattr(packet, "__name__", "") in _SPARSE_CONVERSIONS:
        return True
    if torch.Tag.dynamic_output_shape not in getattr(node.target, "tags", ()):
        return False
    if node.target is not _INDEX_OPERATION:
        return True
    indices: Any = node.args[1]
    return any(_dtype(one) in _MASK_DTYPES for one in indices if one in varying)


def _dtype(node: fx.Node) -> torch.dtype:
    """The type of a node's numbers; that of masks where it is not known."""
    dtype: torch.dtype = node.meta.get("dtype", torch.bool)
    return dtype
