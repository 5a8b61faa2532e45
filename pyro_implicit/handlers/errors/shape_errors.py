"""Errors of torch and Pyro by sizes that do not agree, in words of the data."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

from pyro_implicit.exceptions import ImplicitError, ShapeError
from pyro_implicit.handlers.errors.type_errors import first_line
from pyro_implicit.handlers.known_call import known_call_of

__all__ = ["SHAPE_EXPLAINERS", "other_columns"]

_PATTERN_OF_SIZE_ERRORS = re.compile(
    r"size of tensor a \(\d+\) must match|[Bb]roadcast a dimension of length|not broadcastable"
)
_PATTERN_OF_PRODUCT_ERRORS = re.compile(
    r"shapes cannot be multiplied|size mismatch, got input|to have \d+ channels, but got"
    r"|size does not match weight size"
    r"|input\.size\(-1\) must be equal to input_size|inconsistent tensor size, expected tensor"
)
_PATTERN_OF_INDEX_ERRORS = re.compile(
    r"too many indices for tensor|Dimension out of range|out of bounds for dimension"
)
_PATTERN_OF_SUBSAMPLE_ERRORS = re.compile(
    r"subsample_size does not match len\(subsample\), (\d+) vs (\d+)"
)
_PATTERN_OF_PLATE_ERRORS = re.compile(
    r"Shape mismatch inside plate\((.*?)\) at site (.*?) dim (-\d+), (\d+) vs (\d+)"
)


def other_columns(error: Exception, args: tuple[Any, ...], guide: Any) -> ShapeError | None:
    """
    Sizes do not agree, and an argument has other ones than it had, beside that of its rows.

    :param error: what torch raised.
    :param args: positional arguments of the model.
    :param guide: a guide that may know the shapes of arguments that it was built with.
    :returns: the clear error, or None for any other error.
    """
    known = known_call_of(guide)
    seen: tuple[tuple[int, ...] | None, ...] = () if known is None else known.shapes
    if isinstance(error, ImplicitError) or _PATTERN_OF_SIZE_ERRORS.search(str(error)) is None:
        return None
    for index, (old, one) in enumerate(zip(seen, args, strict=False)):
        new = tuple(one.shape) if isinstance(one, Tensor) else None
        if old is not None and new is not None and old[1:] != new[1:]:
            return ShapeError(
                f"argument {index} has shape {new}, and had {old} when the guide was built; hand "
                "over the columns that the guide was fitted with. PyTorch says: "
                f"{first_line(error)}."
            )
    return None


def _unequal_rows(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    unequal = len({len(one) for one in tensors.values() if one.dim()}) > 1
    if not (
        unequal and _PATTERN_OF_SIZE_ERRORS.search(str(error))
    ) or _PATTERN_OF_PLATE_ERRORS.search(str(error)):
        return None
    return ShapeError(
        f"the arguments have other numbers of rows: {_shapes(tensors)}, and torch says: "
        f"{first_line(error)}. Give as many observations as rows of the inputs."
    )


def _columns(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    if not (
        tensors
        and isinstance(error, RuntimeError)
        and _PATTERN_OF_PRODUCT_ERRORS.search(first_line(error))
    ):
        return None
    return ShapeError(
        f"the model's numbers do not fit the data: {_shapes(tensors)}, and torch says: "
        f"{first_line(error)}. Give the inputs the columns that the network was made for "
        "(x[:, None] for one column), and the arguments in the order of the model's own."
    )


def _other_order(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    """A column comes before a table of as many rows, and sizes or indices do not agree."""
    if not (
        _PATTERN_OF_SIZE_ERRORS.search(str(error)) or _PATTERN_OF_INDEX_ERRORS.search(str(error))
    ) or _PATTERN_OF_PLATE_ERRORS.search(str(error)):
        return None
    shapes = [tuple(one.shape) for one in tensors.values()]
    is_column_first = bool(shapes) and len(shapes[0]) == 1
    if not (is_column_first and any(len(s) > 1 and s[:1] == shapes[0] for s in shapes[1:])):
        return None
    return ShapeError(
        f"{_shapes(tensors)}, and torch says: {first_line(error)}. Hand the arguments over in the "
        "order of the model's own: fit(model, guide, x, y) for def model(x, y=None)."
    )


def _rows_shown(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    sizes = _PATTERN_OF_SUBSAMPLE_ERRORS.search(first_line(error))
    if sizes is None:
        return None
    here, there = map(int, sizes.groups())
    return ShapeError(
        f"a plate of {there} rows is asked to show {here}. The first number of a plate is that "
        "of all data, at least as many as are handed over: "
        "pyro.plate('data', N, subsample_size=len(x))."
    )


def _plate_size(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    found = _PATTERN_OF_PLATE_ERRORS.search(str(error))
    if found is None:
        return None
    plate, site, dim, size, other = found.groups()
    return ShapeError(
        f"plate {plate} has {size} rows and site {site!r} in it has {other} (in dimension {dim}). "
        "Make the plate of the data: pyro.plate('data', len(x)); for minibatches of N rows in all "
        "pyro.plate('data', N, subsample_size=len(x)). Or look for a forgotten f.squeeze(-1)."
    )


#: Functions from an error and the tensors among a model's arguments to a clear error, or None.
SHAPE_EXPLAINERS: tuple[Callable[[Exception, dict[str, Tensor]], ImplicitError | None], ...] = (
    _unequal_rows,
    _columns,
    _other_order,
    _rows_shown,
    _plate_size,
)


def _shapes(tensors: dict[str, Tensor]) -> str:
    return ", ".join(f"{name} has shape {tuple(a.shape)}" for name, a in tensors.items())
