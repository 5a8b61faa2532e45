"""Rows of a tensor by their numbers, and of a distribution along one of its batch dimensions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_innermost_proxy_mode
from torch.utils.data import DataLoader

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.ops.graphs.operation_tracer import is_tracing

__all__ = [
    "NotSliceable",
    "are_same_numbers",
    "between",
    "changed_dims",
    "is_cut",
    "is_recording",
    "number_of_rows",
    "rows_of",
    "shows_all",
    "take_rows",
]

#: A distribution holds one of each group, and makes the others from it.
_ALTERNATIVE_ARGUMENTS = (
    {"logits", "probs"},
    {"covariance_matrix", "precision_matrix", "scale_tril"},
)


class NotSliceable(Exception):  # noqa: N818 (a signal between two functions, never shown)
    """The distribution cannot be cut by its arguments."""


def number_of_rows(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """
    Counts the rows of a model's arguments.

    :param tuple args: positional arguments of a model.
    :param dict kwargs: its keyword arguments.
    :returns: the first size of the first tensor among them; 0 if there is none.
    :raises ArgumentError: for a ``DataLoader`` among them.
    :raises ShapeError: if that size is 0.
    """
    for index, value in enumerate(args):
        if isinstance(value, DataLoader):
            raise ArgumentError(
                f"argument {index} of the model is a DataLoader; expected tensors of all rows, "
                "data = [torch.cat(part) for part in zip(*loader)], which predict and evaluate go "
                "through by batch_size=."
            )
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.dim()]
    if tensors and not len(tensors[0]):
        raise ShapeError(
            f"the first tensor argument, of shape {tuple(tensors[0].shape)}, has no rows; expected "
            "one at least."
        )
    return len(tensors[0]) if tensors else 0


def changed_dims(fewer: Sequence[int], more: Sequence[int]) -> list[int] | None:
    """
    Finds the dimensions that follow the rows, from two runs on different numbers of them.

    :param fewer: a shape on some rows.
    :param more: the same on more rows.
    :returns: the negative dimensions in which they differ; None if they have not as many.
    """
    if len(fewer) != len(more):
        return None
    return [dim for dim in range(-len(more), 0) if fewer[dim] != more[dim]]


def between(value: Tensor, start: int, stop: int) -> Tensor:
    """
    Cuts an argument of a model to some of its rows.

    :param torch.Tensor value: shape ``(N, ...)``, dense or sparse.
    :param int start: first row.
    :param int stop: one past the last row.
    :returns: shape ``(stop - start, ...)``, of the same layout; a view of dense ones.
    """
    if value.layout is torch.strided:
        return value[start:stop]
    rows = torch.arange(start, min(stop, value.shape[0]), device=value.device)
    some: Tensor = value.to_sparse_coo().index_select(0, rows)
    blocked = value.layout in (torch.sparse_bsr, torch.sparse_bsc)
    cut: Tensor = some.to_sparse(
        layout=value.layout, blocksize=value.values().shape[-2:] if blocked else None
    )
    return cut


def rows_of(value: Tensor, dim: int, rows: Any) -> Tensor:
    """
    Selects the rows of a tensor by their numbers.

    :param torch.Tensor value: of any shape, with an entry for each row of a plate along ``dim``, or
        one for all.
    :param int dim: of the rows.
    :param rows: numbers of those that are wanted; None for all.
    :returns: ``value`` at these, in their order, of the same shape but for ``dim``; itself if they
        are all in order.
    """
    if rows is None or value.shape[dim] == 1:  # the same for all
        return value
    chosen = torch.as_tensor(rows, device=value.device)
    if not is_recording() and shows_all(chosen, value.shape[dim]):
        return value
    return value.index_select(dim, chosen)


def are_same_numbers(one: Any, other: Any) -> bool:
    """
    Tells whether two plates show the same rows in the same order.

    :param one: numbers of rows, shape ``(n,)``.
    :param other: those of another plate, shape ``(k,)``.
    :returns: True, too, for as many of them while operations are recorded, or mapped over draws
        with rows of their own.
    """
    if len(one) != len(other):
        return False
    if is_recording() or _is_mapped(one) or _is_mapped(other):
        return True
    numbers = torch.as_tensor(one)
    return torch.equal(numbers, torch.as_tensor(other, device=numbers.device))


def shows_all(numbers: Any, size: int) -> bool:
    """
    Tells whether numbers of rows are all there are, in order.

    :param numbers: shape ``(n,)``.
    :param int size: of the plate.
    :returns: True, too, for as many of them while operations are recorded or mapped.
    """
    if is_recording() or _is_mapped(numbers):
        return len(numbers) == size
    chosen = torch.as_tensor(numbers)
    return torch.equal(chosen, torch.arange(size, device=chosen.device))


def _is_mapped(numbers: Any) -> bool:
    """Whether each draw has rows of its own, within ``vmap``, which cannot look at numbers."""
    if not isinstance(numbers, Tensor):
        return False
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(numbers))


def is_recording() -> bool:
    """
    Whether operations are recorded as a graph, which cannot look at numbers.

    :returns: True within ``make_fx`` and ``torch.jit.trace``.
    """
    return is_tracing() or get_innermost_proxy_mode() is not None


def take_rows(
    fn: dist.TorchDistribution, dim: int, start: int, stop: int
) -> dist.TorchDistribution:
    """
    Cuts a distribution to some of its rows.

    :param fn: a distribution that its ``arg_constraints`` rebuild, or an ``Independent`` of one.
    :param int dim: negative batch dimension.
    :param int start: first row.
    :param int stop: one past the last row.
    :returns: the distribution of these rows.
    :raises NotSliceable: for any other distribution.
    """
    if isinstance(fn, torch.distributions.Independent):
        count = fn.reinterpreted_batch_ndims
        base = take_rows(fn.base_dist, dim - count, start, stop)
        cut: dist.TorchDistribution = base.to_event(count)
        return cut
    shape = list(fn.batch_shape)
    if -dim > len(shape):
        raise NotSliceable(type(fn).__name__)
    shape[dim] = stop - start
    make: Any = type(fn)
    try:
        arguments = _cut_arguments(fn, dim, start, stop)
        rows: dist.TorchDistribution = make(
            **_settings(fn, arguments), **arguments, validate_args=False
        )
        _check_kept(rows, arguments)
    except Exception as error:  # whatever a distribution does when it is rebuilt from its parts
        raise NotSliceable(type(fn).__name__) from error
    if rows.batch_shape != torch.Size(shape) or rows.event_shape != fn.event_shape:
        raise NotSliceable(type(fn).__name__)
    return rows


def _cut_arguments(
    fn: dist.TorchDistribution, dim: int, start: int, stop: int
) -> dict[str, Tensor]:
    """The tensors that define ``fn``, for these rows."""
    arguments = {}
    for name in _own_arguments(fn):
        value, event_dim = getattr(fn, name), fn.arg_constraints[name].event_dim
        if not isinstance(value, Tensor):
            raise NotSliceable(type(fn).__name__)
        value = value.expand(fn.batch_shape + value.shape[value.dim() - event_dim :])
        arguments[name] = value.narrow(dim - event_dim, start, stop - start)
    return arguments


def _settings(fn: dist.TorchDistribution, arguments: dict[str, Tensor]) -> dict[str, Any]:
    """Plain arguments that are no parameters, such as the number of trials of a multinomial."""
    names = _parameters_of(type(fn)) - arguments.keys()
    held = {name: getattr(fn, name) for name in names if hasattr(fn, name)}
    found = {name: value for name, value in held.items() if _is_setting(value)}
    if not _is_known(type(fn)) and names - found.keys() - fn.arg_constraints.keys():
        raise NotSliceable(type(fn).__name__)  # it may keep these under other names
    return found


def _is_setting(value: Any) -> bool:
    is_number = isinstance(value, Tensor) and not value.dim()
    return is_number or value is None or isinstance(value, (int, float, str))


def _is_known(kind: type) -> bool:
    """Whether a class is no user's: its constructor takes what its attributes are called."""
    return kind.__module__.partition(".")[0] in ("torch", "pyro", "pyro_implicit")


def _check_kept(rows: dist.TorchDistribution, arguments: dict[str, Tensor]) -> None:
    """That a user's constructor has not made anything else of its arguments."""
    if _is_known(type(rows)):
        return
    for name, value in arguments.items():
        kept = getattr(rows, name)
        if kept.shape != value.shape or not torch.equal(kept.nan_to_num(), value.nan_to_num()):
            raise NotSliceable(type(rows).__name__)


@cache
def _parameters_of(kind: type) -> frozenset[str]:
    """Names of a constructor's arguments; looking them up takes longer than a draw."""
    return frozenset(inspect.signature(kind).parameters) - {"validate_args"}


def _own_arguments(fn: dist.TorchDistribution) -> list[str]:
    names = list(fn.arg_constraints)
    for group in _ALTERNATIVE_ARGUMENTS:
        found = [name for name in names if name in group]
        if len(found) > 1:
            held = [name for name in found if name in fn.__dict__] or found
            names = [name for name in names if name not in group or name == held[0]]
    if not names:
        raise NotSliceable(type(fn).__name__)
    return names


def is_cut(site: Any) -> bool:
    """
    Whether a plate around a site shows some of its rows only.

    :param site: a message of a handler, or a node of a trace.
    :returns: whether it does.
    """
    return any(f.full_size not in (None, f.size) for f in site["cond_indep_stack"])
