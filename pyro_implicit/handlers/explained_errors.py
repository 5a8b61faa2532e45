"""Errors of torch and Pyro that a model's data have caused, told in words of the data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, ImplicitError, NonFiniteError, ShapeError

__all__ = ["entries_not_finite", "explained", "explained_errors"]

_TYPES = re.compile(
    r"must have the same dtype|to have the same dtype|scalar type \w+ but found \w+"
    r"|Input type \(.*\) and (bias|weight) type"
)
_PRODUCT = re.compile(
    r"shapes cannot be multiplied|size mismatch, got input|to have \d+ channels, but got"
    r"|size does not match weight size"
    r"|input\.size\(-1\) must be equal to input_size"
)
_LABELS = re.compile(r"result type Float can't be cast to the desired output type")
_PLATE = re.compile(
    r"Shape mismatch inside plate\((.*?)\) at site (.*?) dim (-\d+), (\d+) vs (\d+)"
)


@contextmanager
def explained_errors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """
    Raises a clear error in place of a raw one that the arguments of a model have caused.

    :param args: positional arguments of the model that is run within.
    :param kwargs: its keyword arguments.
    :raises ArgumentError: if torch refuses to join numbers of different types.
    :raises NonFiniteError: if data are not finite, and a distribution's parameters are not valid.
    :raises ShapeError: if a plate has another size than the data, or a layer takes another number
        of columns.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        clear = explained(error, args, kwargs)
        if clear is None:
            raise
        raise clear from error


def explained(
    error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ImplicitError | None:
    """
    A raw error in words of the arguments.

    :param error: what torch or Pyro raised.
    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: the clear error, or None for any other error.
    """
    if isinstance(error, ImplicitError):
        return None
    tensors = _tensors(args, kwargs)
    text = next(iter(str(error).splitlines()), "")
    if tensors and isinstance(error, RuntimeError) and _TYPES.search(text):
        types = ", ".join(f"{name} is of type {a.dtype}" for name, a in tensors.items())
        return ArgumentError(
            f"the model joins numbers of different types: {types}, and torch says: {text}. Give "
            "data and network one type: x.float() for a network of torch.float32 (the default), "
            "network.double() for data of torch.float64."
        )
    if tensors and isinstance(error, RuntimeError) and _LABELS.search(text):
        return ArgumentError(
            "the likelihood computes with observations that are whole numbers, as dist.Bernoulli "
            f"does, and torch says: {text}. Write obs=y.float()."
        )
    if tensors and isinstance(error, RuntimeError) and _PRODUCT.search(text):
        shapes = ", ".join(f"{name} has shape {tuple(a.shape)}" for name, a in tensors.items())
        return ShapeError(
            f"the model's numbers do not fit the data: {shapes}, and torch says: {text}. Give the "
            "inputs the columns that the network was made for (x[:, None] for one column), and the "
            "arguments in the order of the model's own."
        )
    missing = entries_not_finite(args, kwargs) if isinstance(error, ValueError) else None
    if missing is not None and text.startswith("Expected parameter"):
        return NonFiniteError(f"{missing}; what the model makes of it: {text[:160]}")
    found = _PLATE.search(str(error))
    if found is None:
        return None
    plate, site, dim, size, other = found.groups()
    return ShapeError(
        f"plate {plate} has {size} rows and site {site!r} in it has {other} (in dimension {dim}). "
        "Make the plate of the data: pyro.plate('data', len(x)); for minibatches of N rows in all "
        "pyro.plate('data', N, subsample_size=len(x)). Or look for a forgotten f.squeeze(-1)."
    )


def entries_not_finite(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """
    The first argument that has a NaN or an infinity, and where.

    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: what to say; None if all are finite.
    """
    for name, tensor in _tensors(args, kwargs).items():
        bad = ~tensor.isfinite()
        if bool(bad.any()):
            first = tuple(bad.nonzero()[0].tolist())
            return (
                f"{name} has {int(bad.sum())} entries that are not finite, the first at {first}. "
                "Leave these rows out, fill them in, or (observations) mask them"
            )
    return None


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors = {f"argument {i}": a for i, a in enumerate(args) if isinstance(a, Tensor)}
    return tensors | {name: a for name, a in kwargs.items() if isinstance(a, Tensor)}
