"""A function of parameters, evaluated for many parameter draws at once: by vmap or in a loop."""

# Shape legend: B batch shape of a draw, P parameter shape, S draws, N rows, M = prod(B) flattened.
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import torch
from pyro.poutine.runtime import get_plates
from torch import Tensor
from torch.utils import _pytree as pytree

from pyro_implicit._warn import warn
from pyro_implicit.exceptions import LayerError, ShapeError

__all__ = [
    "WORDS_OF_PLATE_WARNING",
    "Call",
    "How",
    "common_batch_shape",
    "over_draws",
    "over_rows",
    "warn_inside_data_plate",
]

#: by which the warning of a call that belongs outside of the data plate is known
WORDS_OF_PLATE_WARNING = "a module draws"

How: TypeAlias = Literal["vmap", "loop"]
Values: TypeAlias = dict[str, Tensor]
Call: TypeAlias = Callable[[Values, tuple[Any, ...], dict[str, Any]], Any]


def common_batch_shape(
    values: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]
) -> torch.Size:
    """
    The batch shape B that all draws of parameters share.

    :param dict values: draws by site name, each ``(*B', *P)``.
    :param dict shapes: the parameters' own shapes ``P``.
    :returns: B, to which every B' broadcasts.
    :raises ShapeError: for a draw that does not end in its parameter's shape, and for batch shapes
        that do not broadcast.
    """
    batches = {}
    for name, value in values.items():
        lead = value.dim() - len(shapes[name])
        if lead < 0 or value.shape[lead:] != shapes[name]:
            raise ShapeError(
                f"site '{name}' has a value of shape {tuple(value.shape)}, but the parameter has "
                f"shape {tuple(shapes[name])}. Expected that shape at the end, with the batch dims "
                "of enclosing plates on the left."
            )
        batches[name] = value.shape[:lead]
    if len(distinct := set(batches.values())) == 1:  # nearly always; the general way is slow
        return torch.Size(distinct.pop())  # shapes of other tensors may be plain tuples
    try:
        shape: torch.Size = torch.broadcast_shapes(*distinct)
        return shape
    except RuntimeError as error:
        found = ", ".join(f"'{name}': {tuple(batch)}" for name, batch in batches.items())
        raise ShapeError(
            f"the draws of a module's parameters must broadcast to one batch shape, but have "
            f"{found}. Draw (or condition) them all under the same plates; if one came from a "
            "hierarchical prior, index its scale as `scale[..., None]`, one None for each dim of "
            "the parameter."
        ) from error


def warn_inside_data_plate(
    batch: torch.Size, inputs: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    """
    Warns when parameters that all rows should share seem to be drawn in the plate of the rows.

    :param torch.Size batch: the draws' batch shape.
    :param tuple inputs: args and kwargs of the call.
    """
    args, kwargs = inputs
    tensors = [leaf for leaf in (*args, *kwargs.values()) if isinstance(leaf, Tensor)]
    if not any(tensor.dim() and tensor.shape[0] == batch[-1] > 1 for tensor in tensors):
        return
    names = [plate.name for plate in get_plates() if plate.vectorized and plate.dim == -1]
    if names:
        warn(
            f"inside of plate '{names[0]}' {WORDS_OF_PLATE_WARNING} {batch[-1]} times all of its "
            "parameters, and applies each of them to all rows of the inputs, which are as many. "
            "Call it outside of the data plate if the rows share one network, or build it with "
            "local=True if each row has a network of its own."
        )


def over_draws(
    call: Call,
    values: Values,
    shapes: Mapping[str, torch.Size],
    batch: torch.Size,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    *,
    batch_dims: int,
    how: How,
) -> Any:
    """
    ``call`` at every draw of the parameters, all with the same inputs.

    :param values: draws ``(*B', *P)`` where ``B'`` broadcasts to ``batch``.
    :param torch.Size batch: ``B = (*S, 1, ..., 1)`` of more than one element.
    :param tuple inputs: args and kwargs of the call.
    :param int batch_dims: how many leading dims of an output are plates of the model (rows).
    :returns: what ``call`` returns, each tensor ``(*S, 1, ..., 1, *output)``, where each of the
        trailing ones of B that no dim of the output takes is kept.
    """
    flat, shared = _flattened(values, shapes, batch)
    output = _mapped(lambda draw: call({**shared, **draw}, *inputs), flat, how)
    ones = next(i for i, size in enumerate(reversed(batch)) if size > 1)
    lead = (*batch[: len(batch) - ones], *[1] * max(ones - batch_dims, 0))
    return _over_tensors(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), output)


def over_rows(
    call: Call,
    values: Values,
    shapes: Mapping[str, torch.Size],
    batch: torch.Size,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    *,
    how: How,
) -> Any:
    """
    ``call`` with each row's own parameters, on a batch of that one row.

    :param values: draws ``(*B', *P)`` where ``B'`` broadcasts to ``batch``.
    :param torch.Size batch: ``B = (*S, N)`` or ``(N,)``; ``()`` counts as ``(1,)``.
    :param tuple inputs: args and kwargs; every tensor in them is [N, ...] (or a scalar: shared).
    :returns: what ``call`` returns, each tensor ``(*S, N, *output)`` without the rows of
        ``output``.
    :raises ShapeError: for inputs without N rows, or outputs that are not one row.
    """
    batch = batch or torch.Size([1])
    leaves, spec = pytree.tree_flatten(inputs)
    rows = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim()}
    _check_rows(rows, batch)
    flat, shared = _flattened(values, shapes, batch)
    stacked = {name: flat[name].reshape(-1, batch[-1], *shapes[name]) for name in flat}

    def one_row(pair: tuple[Values, dict[int, Tensor]]) -> Any:
        draw, row = pair
        own = [row[i].unsqueeze(0) if i in row else leaf for i, leaf in enumerate(leaves)]
        args, kwargs = pytree.tree_unflatten(own, spec)
        return _over_tensors(_without_row, call({**shared, **draw}, args, kwargs))

    def all_rows(draw: Values) -> Any:
        return _mapped(one_row, (draw, rows), how)

    lead = batch[:-1]
    if math.prod(lead) == 1:
        return all_rows({name: value[0] for name, value in stacked.items()})
    output = _mapped(all_rows, stacked, how)
    return _over_tensors(lambda leaf: leaf.reshape(*lead, *leaf.shape[1:]), output)


def _check_rows(tensors: Mapping[int, Tensor], batch: torch.Size) -> None:
    sizes = sorted({tensor.shape[0] for tensor in tensors.values()})
    if sizes != [batch[-1]]:
        raise ShapeError(
            f"local=True pairs each draw with a row of the inputs, but the draws have batch shape "
            f"{tuple(batch)} and the tensor arguments have first sizes {sizes}. Call the module "
            "inside the data plate, which must be the innermost one (dim=-1), with inputs of as "
            "many rows as the plate has indices."
        )


def _without_row(output: Tensor) -> Tensor:
    if output.dim() == 0 or output.shape[0] != 1:
        raise ShapeError(
            f"local=True evaluates the module on a batch of one row, but its output has shape "
            f"{tuple(output.shape)}; expected the rows as the first dim: (1, ...)."
        )
    return output.squeeze(0)


def _flattened(
    values: Values, shapes: Mapping[str, torch.Size], batch: torch.Size
) -> tuple[Values, Values]:
    """Splits the draws into those that vary, as ``(M, *P)``, and those that do not, as ``P``."""
    flat, shared = {}, {}
    for name, value in values.items():
        shape = shapes[name]
        if value.numel() == math.prod(shape):
            shared[name] = value.reshape(shape)
        else:
            if value.shape != batch + shape:
                value = value.expand(batch + shape)
            flat[name] = value.flatten(end_dim=len(batch) - 1)
    return flat, shared


def _mapped(function: Callable[[Any], Any], stacked: Any, how: How) -> Any:
    """
    Applies ``function`` to every slice of the tensors in ``stacked`` and stacks what it returns.

    Entries of the output that are no tensors (``None``, flags) are taken from one evaluation.
    """
    seen: list[tuple[list[Any], pytree.TreeSpec]] = []

    def tensors(part: Any) -> list[Tensor]:
        leaves, spec = pytree.tree_flatten(function(part))
        if not seen:
            seen.append(([_entry(leaf) for leaf in leaves], spec))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    if how == "vmap":
        outputs = torch.func.vmap(tensors, randomness="different")(stacked)
    else:
        leaves, spec = pytree.tree_flatten(stacked)
        parts = zip(*(leaf.unbind(0) for leaf in leaves), strict=True)
        each = [tensors(pytree.tree_unflatten(list(part), spec)) for part in parts]
        outputs = [torch.stack(same) for same in zip(*each, strict=True)]
    entries, spec = seen[0]
    merged = iter(outputs)
    return pytree.tree_unflatten([next(merged) if e is Tensor else e for e in entries], spec)


def _entry(leaf: Any) -> Any:
    """What is kept of an entry of an output: the class of a tensor, and all else itself."""
    if isinstance(leaf, Tensor):
        return Tensor
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return leaf
    raise LayerError(
        f"the module returned a {type(leaf).__name__}, which cannot be stacked over several draws "
        "of its parameters. Return tensors, or tuples, lists or dicts of tensors."
    )


def _over_tensors(function: Callable[[Tensor], Tensor], output: Any) -> Any:
    if isinstance(output, Tensor):
        return function(output)
    return pytree.tree_map_only(Tensor, function, output)
