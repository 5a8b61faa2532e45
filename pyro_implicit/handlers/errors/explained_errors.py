"""Errors of torch and Pyro that a model's data have caused, told in words of the data."""

from __future__ import annotations

import dis
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer.autoguide import AutoGuideList
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.data import Dataset

from pyro_implicit.exceptions import (
    ArgumentError,
    ImplicitError,
    ShapeError,
    SiteError,
)
from pyro_implicit.handlers.errors.named_arguments import named_arguments, tensors_among
from pyro_implicit.handlers.errors.shape_errors import SHAPE_EXPLAINERS, other_columns
from pyro_implicit.handlers.errors.type_errors import (
    MAX_RAW_CHARACTERS,
    TYPE_EXPLAINERS,
    first_line,
)
from pyro_implicit.handlers.errors.value_errors import VALUE_EXPLAINERS
from pyro_implicit.handlers.observations.other_shape import sites_of_other_shape

__all__ = ["RAW_ERRORS", "explained", "explained_errors", "without_shapes"]

#: what torch, Pyro and models raise on data that they do not expect
RAW_ERRORS = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)

_MESSAGE_OF_UNEQUAL_COUNTS = "Inhomogeneous total count"
_PATTERN_OF_SAME_NAMES = re.compile(r"Multiple (?:sample|param) sites named '(.*?)'")
_PATTERN_OF_MISSING_ARGUMENTS = re.compile(r"missing \d+ required positional arguments?: ")
#: Those of Python, of all that is installed, and of this package.
_LIBRARY_FOLDERS = (
    *(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "purelib", "platlib")),
    *(str(Path(file).parent) + os.sep for file in (pyro.__file__, torch.__file__)),
    str(Path(__file__).parents[1]) + os.sep,
)
#: A call passes through these, and through no line of the user's, on its way to the model.
_PACKAGES_BEFORE_THE_MODEL = {"pyro", "pyro_implicit", "torch", "contextlib", "functools"}
_PATTERN_OF_LIST_ENTRIES = (
    "converted to an index|expected Tensor as element|'(?:float|int)' object has no attr"
)
_PATTERN_OF_EXTRA_ARGUMENTS = re.compile(
    r"takes .*\d+ positional arguments? but \d+ .*(?:was|were) given"
)
_PATTERN_OF_DISAGREEMENT = re.compile(
    r"Model and guide (event_dims|shapes) disagree at site '(.*?)': (.*) vs (.*)"
)
_PATTERN_OF_UNKNOWN_ARGUMENTS = re.compile(r"got an unexpected keyword argument '(.*?)'")


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
        that a model takes for tensors, for more or fewer arguments than it takes, for observations
        that a distribution does not have, and for a model that writes into tensors whose former
        values its gradient needs.
    :raises NonFiniteError: if data are not finite, and a distribution's parameters are not valid.
    :raises ShapeError: if a plate has another size than the data, a layer takes another number of
        columns, sizes do not agree and an argument has other ones than the guide was built with, or
        a site of the model has another shape than the value that it was given.
    """
    try:
        yield
    except RAW_ERRORS as error:
        clear = explained(error, args, kwargs) or other_columns(error, args, guide)
        if clear is None:
            without_shapes(error)
            raise
        raise clear from error


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
    if isinstance(error, ImplicitError) or _is_raised_by_user(error):
        return None
    if isinstance(error, (AttributeError, KeyError, TypeError)):
        return _other_arguments(error) or _no_tensors(error, args, kwargs)
    tensors = tensors_among(args, kwargs)
    made = (explain(error, tensors) for explain in _EXPLAINERS)
    known = next((clear for clear in made if clear is not None), None)
    return known or _no_tensors(error, args, kwargs) or _other_shape(error)


def _is_raised_by_user(error: Exception) -> bool:
    """Whether a ``raise`` of the model's own made it, and says what it means."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    code = last.tb_frame.f_code
    is_raise = code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return is_raise and not code.co_filename.startswith(_LIBRARY_FOLDERS)


def _other_arguments(error: Exception) -> ArgumentError | None:
    """The model was called with other arguments than it takes; by Pyro or us, not within it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    roots = [str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames]
    by_us = roots[-1:] in (["pyro"], ["pyro_implicit"]) and _PACKAGES_BEFORE_THE_MODEL >= set(roots)
    if by_us and _PATTERN_OF_MISSING_ARGUMENTS.search(str(error)):
        return ArgumentError(
            f"{error}. Hand over all that the model takes; observations that it is to predict need "
            "a default, as in def model(x, y=None)."
        )
    if by_us and (unknown := _PATTERN_OF_UNKNOWN_ARGUMENTS.search(str(error))):
        return ArgumentError(
            f"{error}. Model and guide are both given all arguments: hand over what both take, by "
            "their names. (Dictionaries in batches are keyword arguments: for a model of one "
            f"dictionary write batches that hold tuples of it, [(batch,), ...], not {unknown[1]}=.)"
        )
    if by_us and _PATTERN_OF_EXTRA_ARGUMENTS.search(str(error)):
        return ArgumentError(
            f"{error}. Hand over what the model takes, in its order; options of this call are "
            "given by name."
        )
    return None


def _no_tensors(
    error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> ArgumentError | None:
    """An argument is an array, a table, a list, a number or a text: models rarely expect it."""
    named = named_arguments(args, kwargs)
    others = {
        name: value
        for name, value in named.items()
        if _is_array(value, str(error))
        or (isinstance(value, str) and _is_beside_tensor(value, str(error)))
        or ((_is_number(value) or isinstance(value, str)) and _is_told_of(value, str(error)))
        or (isinstance(value, (list, tuple)) and repr(type(value).__name__) in str(error))
    }
    if not others:
        return _packed(error, args)
    kinds = ", ".join(f"{name} is a {type(value).__name__}" for name, value in others.items())
    return ArgumentError(
        f"{kinds}, and the model says: {str(error).strip()[:MAX_RAW_CHARACTERS]}. Models compute "
        "with tensors: write torch.as_tensor(x, dtype=torch.float32), and torch.as_tensor(y) for "
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


def _other_dims(error: Exception, _: dict[str, Tensor]) -> ShapeError | None:
    """Pyro compares the distributions of model and guide."""
    found = _PATTERN_OF_DISAGREEMENT.search(str(error))
    if found is None:
        return None
    what, name, ours, theirs = found.groups()
    plural = "event dimensions" if what == "event_dims" else "the shape"
    return ShapeError(
        f"latent {name!r} has {plural} {ours} in the model and {theirs} in the guide: the guide is "
        "of another model, or of other data. Make a guide of this one, and write .to_event() in "
        "both."
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


def _same_names(error: Exception, _: dict[str, Tensor]) -> ImplicitError | None:
    found = _PATTERN_OF_SAME_NAMES.search(str(error))
    if found is None:
        return None
    frames = traceback.walk_tb(error.__traceback__)
    if any(isinstance(frame.f_locals.get("self"), AutoGuideList) for frame, _ in frames):
        return SiteError(
            f"guides of the AutoGuideList draw several sites named {found[1]!r}. Give each latents "
            f"of its own: guide.append(...Guide(poutine.block(model, hide=[{found[1]!r}]))) for "
            f"one, and poutine.block(model, expose=[{found[1]!r}]) for the other. (If the model "
            "itself has this name twice, each of its sites needs a name of its own.)"
        )
    return SiteError(
        f"the model has several sites named {found[1]!r}. Each needs a name of its own: "
        f'pyro.sample(f"{found[1]}_{{i}}", ...) in a loop, or a plate of them; BayesianModule(..., '
        'name="net") puts its name in front, and is called once in a run.'
    )


def _not_drawn(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    if _MESSAGE_OF_UNEQUAL_COUNTS not in str(error):
        return None
    return SiteError(
        "a Multinomial or DirichletMultinomial of the model has rows of different counts, which "
        "cannot be drawn together. Scores need no draws of it: evaluate, log_predictive_density, "
        "to_arviz(..., groups=('posterior', 'log_likelihood')). To predict, pass one total_count "
        "for all rows."
    )


def _no_sample(error: Exception, _: dict[str, Tensor]) -> ImplicitError | None:
    """A distribution of a user's own has a density, and is to be drawn from."""
    if type(error) is not NotImplementedError or str(error):
        return None
    kind, name = "", ""
    for frame, _line in traceback.walk_tb(error.__traceback__):
        message, owner = frame.f_locals.get("msg"), frame.f_locals.get("self")
        if isinstance(message, dict) and message.get("type") == "sample":
            name = message["name"]
        if frame.f_code.co_name in ("sample", "rsample") and isinstance(owner, Distribution):
            kind = type(owner).__name__
    if not kind:
        return None
    return SiteError(
        f"site {name!r} cannot be drawn: its distribution {kind} has no sample(). Give it one, "
        "def sample(self, sample_shape=torch.Size()). Without, evaluate, log_predictive_density "
        "and to_arviz work, which need its density, and posterior_draws(guide, num_samples) for "
        "the latents."
    )


#: They are asked in this order, and the first clear error is raised.
_EXPLAINERS: tuple[Callable[[Exception, dict[str, Tensor]], ImplicitError | None], ...] = (
    *TYPE_EXPLAINERS,
    _same_names,
    _other_dims,
    _written_in_place,
    *SHAPE_EXPLAINERS,
    _not_drawn,
    _no_sample,
    *VALUE_EXPLAINERS,
)


def _is_array(value: Any, said: str) -> bool:
    """Numbers in anything but a tensor: a list that is spoken of, an array, a column, a table."""
    if isinstance(value, (list, tuple)):
        kind = rf"\b({type(value).__name__}|str|sequence)\b|{_PATTERN_OF_LIST_ENTRIES}"
        if value and isinstance(value[0], (list, tuple)):  # which torch takes for indices
            kind += "|too many indices"
        return (
            re.search(kind, said) is not None
            and bool(value)
            and isinstance(value[0], (int, float, str, list, tuple))
        )
    return hasattr(value, "__array__") and not isinstance(value, Tensor)


def _is_told_of(value: Any, said: str) -> bool:
    """Whether a message says that something of this type lacks what a tensor has."""
    kind = re.escape(repr(type(value).__name__))
    return re.search(rf"{kind} object (has no attr|is not)|of type {kind} has no", said) is not None


def _is_beside_tensor(value: Any, said: str) -> bool:
    """Whether a message says that something of this type was to be reckoned with a tensor."""
    return repr(type(value).__name__) in said and "'Tensor'" in said


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
