"""All rows at once of data that come in batches, where they are few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from torch import Tensor
from torch.utils import _pytree
from torch.utils.data import DataLoader

from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.rows.row_slices import is_cut
from pyro_implicit.training.fitting.arguments import Arguments

__all__ = ["Call", "all_rows"]

Call = tuple[tuple[Any, ...], dict[str, Any]]

_MAX_ROWS = 5000
_MAX_NUMBERS_OF_ARGUMENTS = 2**20
_MAX_LATENTS = 256


def all_rows(model: Callable[..., Any], arguments: Arguments) -> Call | None:
    """
    Puts the batches of a small data set together, for what must not depend on one batch.

    That is done for lists, tuples and PyTorch's own ``DataLoader``, if every tensor of a batch has
    its rows as the first dimension, if there are at most 5000 rows, a million numbers and 256
    latents, none of them local to a row, and if the model says of one batch that it is a part of
    the rows, and of all together that they are all: no plate is larger than what it shows.

    :param model: the model.
    :param Arguments arguments: of the steps.
    :returns: positional and keyword arguments with all rows; None where that is not so.
    """
    batches = arguments.batches
    if not isinstance(batches, (list, tuple)) and type(batches) is not DataLoader:
        return None
    if not _is_small(model, arguments):
        return None
    joined = _joined(arguments)
    return joined if joined is not None and _is_whole(model, joined) else None


def _is_small(model: Callable[..., Any], arguments: Arguments) -> bool:
    args, kwargs = arguments.peek()
    num_latents, is_part = 0, arguments.num_batches == 1
    for node in _nodes(model, args, kwargs):
        if node["type"] == "sample" and node["is_observed"]:
            is_part |= is_cut(node)
        if node["type"] != "sample" or node["is_observed"] or poutine.util.site_is_subsample(node):
            continue
        if is_cut(node):
            return False
        num_latents += node["value"].numel()
    return is_part and 0 < num_latents <= _MAX_LATENTS


def _joined(arguments: Arguments) -> Call | None:
    """The batches of one epoch, row after row."""
    shape: Any = None
    columns: list[list[Any]] = []
    num_rows = num_numbers = 0
    for batch in arguments.batches:
        leaves, now = _pytree.tree_flatten(arguments.call(batch))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        lengths = {len(leaf) if leaf.dim() else 0 for leaf in tensors}
        if len(lengths) != 1 or 0 in lengths or (shape is not None and now != shape):
            return None
        shape = now
        columns.append(leaves)
        num_rows += lengths.pop()
        num_numbers += sum(leaf.numel() for leaf in tensors)
        if num_rows > _MAX_ROWS or num_numbers > _MAX_NUMBERS_OF_ARGUMENTS:
            return None
    entries = [_entry(column) for column in zip(*columns, strict=True)]
    if not entries or any(entry is _NOT_JOINABLE for entry in entries):
        return None
    args, kwargs = _pytree.tree_unflatten(entries, shape)
    return args, kwargs


_NOT_JOINABLE = object()  # in place of an argument that batches do not have in common


def _entry(column: tuple[Any, ...]) -> Any:
    """One argument of all batches."""
    first = column[0]
    if not isinstance(first, Tensor):
        return first if all(repr(one) == repr(first) for one in column) else _NOT_JOINABLE
    if not all(isinstance(one, Tensor) for one in column):  # None in some batches
        return _NOT_JOINABLE
    if any(one.shape[1:] != first.shape[1:] or one.dtype != first.dtype for one in column):
        return _NOT_JOINABLE
    return torch.cat(column)


def _is_whole(model: Callable[..., Any], call: Call) -> bool:
    """Whether the model takes these rows, and counts each once."""
    sites = [node for node in _nodes(model, *call) if node["type"] == "sample"]
    weighted = (bool((torch.as_tensor(n["scale"]) != 1).any()) for n in sites if n["is_observed"])
    return bool(sites) and not any(weighted) and not any(is_cut(node) for node in sites)


@torch.no_grad()
def _nodes(model: Callable[..., Any], args: Any, kwargs: Any) -> list[Any]:
    """The sites of a run of the model; none if it fails, as one does that wants some size."""
    try:
        with unseen_run(evaluates=True):
            return list(poutine.trace(model).get_trace(*args, **kwargs).nodes.values())
    except Exception:  # whatever a model raises: the first step will tell
        return []
