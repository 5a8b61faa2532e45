"""Errors of torch and Pyro that a model's data have caused, told in words of the data."""

from __future__ import annotations

import re
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from pyro_implicit.exceptions import (
    ArgumentError,
    ImplicitError,
    NonFiniteError,
    ShapeError,
    SiteError,
)
from pyro_implicit.handlers.other_shape import sites_of_other_shape
from pyro_implicit.handlers.type_errors import LONGEST, TYPE_KINDS, first_line

__all__ = [
    "RAW",
    "entries_not_finite",
    "explained",
    "explained_errors",
    "is_outside_support",
    "refuses_nan",
    "refuses_parameter",
    "without_shapes",
]

#: what models raise on data that they do not expect
RAW = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)

_ROWS = re.compile(
    r"size of tensor a \(\d+\) must match|[Bb]roadcast a dimension of length|not broadcastable"
)
_PRODUCT = re.compile(
    r"shapes cannot be multiplied|size mismatch, got input|to have \d+ channels, but got"
    r"|size does not match weight size"
    r"|input\.size\(-1\) must be equal to input_size|inconsistent tensor size, expected tensor"
)
_INDICES = re.compile(
    r"too many indices for tensor|Dimension out of range|out of bounds for dimension"
)
_MOVING = ("Uniform", "Pareto", "TruncatedNormal", "AffineBeta")
_LONGEST_SUPPORT = 200  # characters in a message
_INDEX = re.compile(r"index (-?\d+) is out of bounds for dimension -?\d+ with size (\d+)")
_COUNTS = "Inhomogeneous total count"
_NO_INDEX = "tensors used as indices must be"
_SUPPORT = re.compile(r"to be within the support \((.*?)\) of the distribution (\w+)", re.DOTALL)
_CLASSES = re.compile(r"IntegerInterval\(lower_bound=0, upper_bound=(\d+)\)")
_CLASH = re.compile(r"Multiple (?:sample|param) sites named '(.*?)'")
_SITE = re.compile(r"log_prob at site '(.*?)'")
_SUBSAMPLE = re.compile(r"subsample_size does not match len\(subsample\), (\d+) vs (\d+)")
_ARGUMENT = re.compile(r"missing \d+ required positional arguments?: ")
_PLATE = re.compile(
    r"Shape mismatch inside plate\((.*?)\) at site (.*?) dim (-\d+), (\d+) vs (\d+)"
)


@contextmanager
def explained_errors(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], guide: Any = None
) -> Iterator[None]:
    """
    Raises a clear error in place of a raw one that the arguments of a model have caused.

    :param args: positional arguments of the model that is run within.
    :param kwargs: its keyword arguments.
    :param guide: a guide that may know the shapes of arguments that it was built with.
    :raises ArgumentError: if torch refuses to join numbers of different types, for arrays and lists
        that a model takes for tensors, for observations that a distribution does not have, and for
        a model that writes into tensors whose former values its gradient needs.
    :raises NonFiniteError: if data are not finite, and a distribution's parameters are not valid.
    :raises ShapeError: if a plate has another size than the data, a layer takes another number of
        columns, sizes do not agree and an argument has other ones than the guide was built with, or
        a site of the model has another shape than the value that it was given.
    """
    try:
        yield
    except RAW as error:
        clear = explained(error, args, kwargs) or _other_columns(error, args, guide)
        if clear is None:
            without_shapes(error)
            raise
        raise clear from error


def is_outside_support(error: Exception) -> bool:
    """
    Whether a distribution with checks does not take a value.

    :param error: what torch raised.
    :returns: whether it is that.
    """
    return isinstance(error, ValueError) and _SUPPORT.search(str(error)) is not None


def without_shapes(error: Exception) -> None:
    """
    Takes the table of shapes that Pyro adds to a message off an error of ours, which needs none.

    :param error: any error; another one is left as it is.
    """
    text, table, _ = str(error).partition("\nTrace Shapes:")
    if table and isinstance(error, ImplicitError):
        error.args = (text.rstrip(),)


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
    if isinstance(error, (AttributeError, KeyError, TypeError)):
        return _missing(error) or _no_tensors(error, args, kwargs)
    tensors = _tensors(args, kwargs)
    made = (kind(error, tensors) for kind in _KINDS)
    known = next((clear for clear in made if clear is not None), None)
    return known or _no_tensors(error, args, kwargs) or _other_shape(error)


def _other_columns(error: Exception, args: tuple[Any, ...], guide: Any) -> ShapeError | None:
    """Sizes do not agree, and an argument has other ones than it had, beside that of its rows."""
    seen: tuple[tuple[int, ...] | None, ...] = getattr(guide, "_argument_shapes", ())
    if isinstance(error, ImplicitError) or _ROWS.search(str(error)) is None:
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


def entries_not_finite(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """
    The first argument that has a NaN or an infinity, and where.

    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: what to say; None if all are finite.
    """
    return _entries_not_finite(_tensors(args, kwargs))


def refuses_parameter(error: Exception) -> bool:
    """
    Whether a distribution with checks does not take a parameter.

    :param error: what torch raised.
    :returns: whether it is that, and not an error of ours.
    """
    raw = isinstance(error, ValueError) and not isinstance(error, ImplicitError)
    return raw and str(error).startswith("Expected parameter")


def refuses_nan(error: Exception) -> bool:
    """
    Whether a distribution with checks has met a parameter that is NaN.

    :param error: what torch raised.
    :returns: whether it is that.
    """
    return refuses_parameter(error) and "nan" in str(error)


def _missing(error: Exception) -> ArgumentError | None:
    """The model was called with fewer arguments than it needs; by Pyro or us, not within it."""
    last = deque(traceback.walk_tb(error.__traceback__), maxlen=1)
    by_us = bool(last) and str(last[0][0].f_globals.get("__name__")).startswith("pyro")
    if not by_us or _ARGUMENT.search(str(error)) is None:
        return None
    return ArgumentError(
        f"{error}. Hand over all that the model takes; observations that it is to predict need a "
        "default, as in def model(x, y=None)."
    )


def _no_tensors(
    error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ArgumentError | None:
    """An argument is an array, a table, a list or a number, which models rarely expect."""
    named = _named(args, kwargs)
    others = {
        name: value
        for name, value in named.items()
        if _is_array(value)
        or (_is_number(value) and "object has no attribute" in str(error))
        or (isinstance(value, (list, tuple)) and repr(type(value).__name__) in str(error))
    }
    if not others:
        return _packed(error, args)
    kinds = ", ".join(f"{name} is a {type(value).__name__}" for name, value in others.items())
    return ArgumentError(
        f"{kinds}, and the model says: {str(error).strip()[:LONGEST]}. Models compute with "
        "tensors: write torch.as_tensor(x, dtype=torch.float32), and torch.as_tensor(y) for "
        "labels; *data for a tuple of them."
    )


def _packed(error: Exception, args: tuple[Any, ...]) -> ArgumentError | None:
    """All data are one object, which a model of several arguments takes for the first."""
    if len(args) != 1 or not isinstance(error, (AttributeError, IndexError, TypeError)):
        return None
    data, kind = args[0], type(args[0]).__name__
    inner = list(data.values()) if isinstance(data, Mapping) else data
    how = ""
    if isinstance(data, Dataset):
        how = (
            "Write *dataset.tensors for all of a TensorDataset, or batches=DataLoader(dataset, 64)"
        )
    elif isinstance(inner, (list, tuple)) and all(isinstance(one, Tensor) for one in inner):
        stars = "**data" if isinstance(data, Mapping) else "*data"
        how = f"Write {stars}, so that each is an argument of its own" if len(inner) > 1 else ""
        kind += f" of {len(inner)} tensors"
    if not how:
        return None
    return ArgumentError(f"argument 0 is a {kind}, and the model says: {first_line(error)}. {how}.")


def _other_shape(error: Exception) -> ShapeError | None:
    """A guide's draw, or a chain's, is not one of the model's site."""
    found = sites_of_other_shape(str(error))
    if not found:
        return None
    name, expected, shape = found[0]
    return ShapeError(
        f"site {name!r} has shape {expected} in the model and was given a value of shape {shape}, "
        f"and torch says: {first_line(error)}. If it is a latent, the guide or the draws are of "
        "another model: make a guide of this one. If it is observed, look for a forgotten "
        ".squeeze(-1) or .to_event(1)."
    )


def _written_in_place(error: Exception, _: dict[str, Tensor]) -> ImplicitError | None:
    """A series that is filled step by step, of which each step needs the one before."""
    if "gradient computation has been modified by an inplace operation" not in str(error):
        return None
    return ArgumentError(
        "the model writes into a tensor whose former values its gradient needs, as in "
        "mean[t] = phi * mean[t - 1], and torch says: "
        f"{first_line(error)}. Collect the values in a list, values.append(phi * values[-1]), and "
        "join them: mean = torch.stack(values, -1)."
    )


def _unequal_rows(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    unequal = len({len(one) for one in tensors.values() if one.dim()}) > 1
    if not (unequal and _ROWS.search(str(error))) or _PLATE.search(str(error)):
        return None
    return ShapeError(
        f"the arguments have other numbers of rows: {_shapes(tensors)}, and torch says: "
        f"{first_line(error)}. Give as many observations as rows of the inputs."
    )


def _columns(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    if not (tensors and isinstance(error, RuntimeError) and _PRODUCT.search(first_line(error))):
        return None
    return ShapeError(
        f"the model's numbers do not fit the data: {_shapes(tensors)}, and torch says: "
        f"{first_line(error)}. Give the inputs the columns that the network was made for "
        "(x[:, None] for one column), and the arguments in the order of the model's own."
    )


def _other_order(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    """A column comes before a table of as many rows, and sizes or indices do not agree."""
    if not (_ROWS.search(str(error)) or _INDICES.search(str(error))) or _PLATE.search(str(error)):
        return None
    shapes = [tuple(one.shape) for one in tensors.values()]
    is_column_first = bool(shapes) and len(shapes[0]) == 1
    if not (is_column_first and any(len(s) > 1 and s[:1] == shapes[0] for s in shapes[1:])):
        return None
    return ShapeError(
        f"{_shapes(tensors)}, and torch says: {first_line(error)}. Hand the arguments over in the "
        "order of the model's own: fit(model, guide, x, y) for def model(x, y=None)."
    )


def _same_names(error: Exception, _: dict[str, Tensor]) -> ImplicitError | None:
    found = _CLASH.search(str(error))
    if found is None:
        return None
    return SiteError(
        f"the model has several sites named {found[1]!r}. Each needs a name of its own: "
        f'pyro.sample(f"{found[1]}_{{i}}", ...) in a loop, or a plate of them; BayesianModule(..., '
        'name="net") puts its name in front, and is called once in a run.'
    )


def _not_finite(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    text = first_line(error)
    refused = refuses_parameter(error) or _SUPPORT.search(str(error))
    if not (refused and isinstance(error, ValueError)):
        return None
    found = _entries_not_finite(tensors)
    return None if found is None else NonFiniteError(f"{found}; what the model makes of it: {text}")


def _rows_shown(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    sizes = _SUBSAMPLE.search(first_line(error))
    if sizes is None:
        return None
    here, there = map(int, sizes.groups())
    return ShapeError(
        f"a plate of {there} rows is asked to show {here}. The first number of a plate is that "
        "of all data, at least as many as are handed over: "
        "pyro.plate('data', N, subsample_size=len(x))."
    )


def _plate_size(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    found = _PLATE.search(str(error))
    if found is None:
        return None
    plate, site, dim, size, other = found.groups()
    return ShapeError(
        f"plate {plate} has {size} rows and site {site!r} in it has {other} (in dimension {dim}). "
        "Make the plate of the data: pyro.plate('data', len(x)); for minibatches of N rows in all "
        "pyro.plate('data', N, subsample_size=len(x)). Or look for a forgotten f.squeeze(-1)."
    )


def _outside_support(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    found = _SUPPORT.search(str(error)) if isinstance(error, ValueError) else None
    if found is None or not tensors:
        return None
    support, kind = found.groups()
    site = _SITE.search(str(error))
    where = "a value" if site is None else f"site {site[1]!r}"
    ranges = ", ".join(
        f"{name} has values from {tensor.min():.4g} to {tensor.max():.4g}"
        for name, tensor in tensors.items()
        if tensor.numel() and tensor.layout is torch.strided and not tensor.is_complex()
    )
    classes = _CLASSES.search(support)
    if classes is not None:
        remedy = (
            f"The {int(classes[1]) + 1} classes count from 0: write y - 1 for labels from 1, and "
            "give the network an output for each class."
        )
    elif kind in _MOVING:
        remedy = (
            "Where latents are the limits of a support, some of their values have no density at "
            "all, and nothing leads away from them: write limits that all data keep, as in "
            "pyro.deterministic('limit', y.max() + pyro.sample('above', dist.Exponential(1.0)))."
        )
    else:
        remedy = "Look for arguments in another order, and for units or codes of the data."
    said = " ".join(support.split())
    if len(said) > _LONGEST_SUPPORT:  # bounds that have a number for each row
        said = f"{said[:_LONGEST_SUPPORT]} ..."
    return ArgumentError(f"{where} is outside of the support of {kind}, {said}; {ranges}. {remedy}")


def _not_drawn(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    if _COUNTS not in str(error):
        return None
    return SiteError(
        "a Multinomial or DirichletMultinomial of the model has rows of different counts, which "
        "cannot be drawn together. Scores need no draws of it: evaluate, log_predictive_density, "
        "to_arviz(..., groups=('posterior', 'log_likelihood')). To predict, pass one total_count "
        "for all rows."
    )


def _indices(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    """Of arguments that a model takes for the numbers of groups, or of other entries."""
    if not isinstance(error, IndexError):
        return None
    if _NO_INDEX in str(error):
        whole = [
            f"{name} has the type {tensor.dtype} and whole numbers"
            for name, tensor in tensors.items()
            if tensor.is_floating_point() and bool((tensor == tensor.round()).all())
        ]
        if not whole:
            return None
        return ArgumentError(
            f"the model takes a tensor for indices that is of no type for them; {', '.join(whole)}."
            " Write .long() for numbers of groups."
        )
    found = _INDEX.search(str(error))
    if found is None:
        return None
    index, size = int(found[1]), int(found[2])
    ranges = [
        f"{name} has values from {tensor.min()} to {tensor.max()}"
        for name, tensor in tensors.items()
        if not (tensor.is_floating_point() or tensor.is_complex()) and bool((tensor == index).any())
    ]
    if not ranges:
        return None
    return ArgumentError(
        f"the model looks for entry {index} of something that has {size}, counted from 0; "
        f"{', '.join(ranges)}. Make it as long as there are groups, pyro.plate('groups', K), and "
        "write g - 1 for numbers that begin with 1."
    )


#: in the order in which they are asked
_KINDS: tuple[Callable[[Exception, dict[str, Tensor]], ImplicitError | None], ...] = (
    *TYPE_KINDS,
    _same_names,
    _written_in_place,
    _unequal_rows,
    _columns,
    _other_order,
    _indices,
    _not_drawn,
    _not_finite,
    _rows_shown,
    _plate_size,
    _outside_support,
)


def _shapes(tensors: dict[str, Tensor]) -> str:
    return ", ".join(f"{name} has shape {tuple(a.shape)}" for name, a in tensors.items())


def _is_array(value: Any) -> bool:
    """Numbers in anything but a tensor: a list, an array, a column or a table."""
    if isinstance(value, (list, tuple)):
        return bool(value) and isinstance(value[0], (int, float, str, list, tuple))
    return hasattr(value, "__array__") and not isinstance(value, Tensor)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _entries_not_finite(tensors: dict[str, Tensor]) -> str | None:
    for name, tensor in tensors.items():
        if bool(tensor.sum().isfinite()):  # so are all of them
            continue
        bad = ~tensor.isfinite()
        if bool(bad.any()):
            first = tuple(bad.nonzero()[0].tolist())
            return (
                f"{name} has {int(bad.sum())} entries that are not finite, the first at {first}. "
                "Leave these rows out, fill them in, or (observations) mask them"
            )
    return None


def _named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {f"argument {i}": value for i, value in enumerate(args)} | dict(kwargs)


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
    named = _named(args, kwargs)
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}
