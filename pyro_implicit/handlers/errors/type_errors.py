"""Errors of torch by tensors of another type than a model computes with, in words of the data."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, ImplicitError

__all__ = ["MAX_RAW_CHARACTERS", "TYPE_EXPLAINERS", "first_line", "joins_types"]

MAX_RAW_CHARACTERS = 160  # of a raw message, that a clear one quotes

_PATTERN_OF_DTYPE_ERRORS = re.compile(
    r"must have the same dtype|to have the same dtype|scalar type \w+ but found \w+"
    r"|Input type \(.*\) and (bias|weight) type"
)
_PATTERN_OF_INTEGER_ERRORS = re.compile(
    r"result type Float can't be cast to the desired output type"
)
_PATTERN_OF_BOOL_ERRORS = re.compile(r"with a bool tensor|Subtraction, the `-` operator")
_PATTERN_OF_COMPLEX_ERRORS = re.compile(
    r"only for real scalar outputs but got torch.complex|for '?[Cc]omplex|Complex(Float|Double)"
)
_PATTERN_OF_SPARSE_ERRORS = re.compile(
    r"Sparse(Csr)?(CPU|CUDA)|[Ss]parse (tensors?|layout)|layout Sparse"
)


def first_line(error: Exception) -> str:
    """
    The first line of a message.

    :param error: any error.
    :returns: the line, without its full stop.
    """
    return next(iter(str(error).splitlines()), "")[:MAX_RAW_CHARACTERS].rstrip(". ")


def joins_types(error: Exception) -> bool:
    """
    Whether torch refused numbers of two types in one operation.

    :param error: any error.
    :returns: whether it did.
    """
    return (
        isinstance(error, RuntimeError)
        and _PATTERN_OF_DTYPE_ERRORS.search(first_line(error)) is not None
    )


def _types(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    if not (tensors and joins_types(error)):
        return None
    types = ", ".join(f"{name} is of type {a.dtype}" for name, a in tensors.items())
    return ArgumentError(
        f"the model joins numbers of different types: {types}, and torch says: "
        f"{first_line(error)}. Give data and network one type: x.float() for a network of "
        "torch.float32 (the default), x.double() for one of torch.float64 (or network.float())."
    )


def _whole_numbers(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    if not (
        tensors
        and isinstance(error, RuntimeError)
        and _PATTERN_OF_INTEGER_ERRORS.search(first_line(error))
    ):
        return None
    return ArgumentError(
        "the likelihood computes with observations that are whole numbers, as dist.Bernoulli "
        f"does, and torch says: {first_line(error)}. Write obs=y.float()."
    )


def _truth_values(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    if not (tensors and _PATTERN_OF_BOOL_ERRORS.search(first_line(error))):
        return None
    return ArgumentError(
        "the likelihood computes with observations that are true or false, and torch says: "
        f"{first_line(error)}. Write obs=y.float()."
    )


def _complex_numbers(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    named = [name for name, tensor in tensors.items() if tensor.is_complex()]
    if not named or _PATTERN_OF_COMPLEX_ERRORS.search(str(error)) is None:
        return None
    return ArgumentError(
        f"{', '.join(named)} is of complex numbers, and so is the log-density that the model makes "
        f"of them: {first_line(error)}. Write their parts as real numbers, "
        "torch.view_as_real(x), and the observations as two numbers each, with .to_event(1)."
    )


def _sparse_tensors(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    named = [name for name, tensor in tensors.items() if tensor.layout is not torch.strided]
    if not named or _PATTERN_OF_SPARSE_ERRORS.search(str(error)) is None:
        return None
    return ArgumentError(
        f"{', '.join(named)} is sparse, and the model does with it what torch has for dense "
        f"tensors alone: {first_line(error)}. Multiply by torch.sparse.mm(x, w), or hand over "
        "x.to_dense()."
    )


#: Functions from an error and the tensors among a model's arguments to a clear error, or None.
TYPE_EXPLAINERS: tuple[Callable[[Exception, dict[str, Tensor]], ImplicitError | None], ...] = (
    _types,
    _whole_numbers,
    _truth_values,
    _complex_numbers,
    _sparse_tensors,
)
