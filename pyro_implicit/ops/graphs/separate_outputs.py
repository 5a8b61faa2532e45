"""Results of a recorded graph that share no memory with each other or with what it holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

__all__ = ["separate_outputs"]


def separate_outputs(graph: fx.GraphModule, values: dict[str, Any]) -> None:
    """
    Copies results that somebody could not write into without changing others.

    A tensor that is returned twice, a view of another result, a constant or an argument, and one
    with several entries at one place.

    :param graph: functional, that returns a tuple.
    :param dict values: what each of its nodes is at an example, all at the same time.
    """
    nodes = list(graph.graph.nodes)
    held = (values[n.name] for n in nodes if n.op in ("placeholder", "get_attr"))
    taken = {_storage(value) for value in held}
    end = nodes[-1]
    outputs = end.args[0] if isinstance(end.args[0], (tuple, list)) else (end.args[0],)
    form: dict[str, Any] = {"memory_format": torch.contiguous_format}
    found = []
    for node in outputs:
        value = values[node.name] if isinstance(node, fx.Node) else None
        if isinstance(value, Tensor) and (_storage(value) in taken or _overlaps(value)):
            with graph.graph.inserting_before(end):
                node = graph.graph.call_function(torch.ops.aten.clone.default, (node,), form)
                values[node.name] = value.clone(**form)
        elif isinstance(value, Tensor):
            taken.add(_storage(value))
        found.append(node)
    end.args = (type(outputs)(found) if end.args[0] is outputs else found[0],)


def _storage(value: Any) -> int | None:
    return value.untyped_storage().data_ptr() if isinstance(value, Tensor) else None


def _overlaps(value: Tensor) -> bool:
    return any(s == 0 and n > 1 for s, n in zip(value.stride(), value.shape, strict=True))
