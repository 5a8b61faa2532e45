"""Errors of torch and Pyro by values that nothing can be made of, in words of the data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, ImplicitError, NonFiniteError
from pyro_implicit.handlers.errors.named_arguments import tensors_among
from pyro_implicit.handlers.errors.type_errors import MAX_RAW_CHARACTERS, first_line

__all__ = [
    "VALUE_EXPLAINERS",
    "entries_not_finite",
    "is_outside_support",
    "refuses_nan",
    "refuses_parameter",
    "warning_of_scale",
]

_FAMILIES_BOUNDED_BY_ARGUMENTS = ("Uniform", "Pareto", "TruncatedNormal", "AffineBeta")
_MAX_CHARACTERS_OF_SUPPORT = 200
_PATTERN_OF_INDEX_BOUNDS = re.compile(
    r"index (-?\d+) is out of bounds for dimension -?\d+ with size (\d+)"
)
_BEGINNING_OF_INFERENCE_ERRORS = "Inference tensors cannot be saved for backward"
_MESSAGE_OF_INDEX_DTYPE = "tensors used as indices must be"
_PATTERN_OF_SUPPORT_ERRORS = re.compile(
    r"to be within the support \((.*?)\) of the distribution (\w+)", re.DOTALL
)
_PATTERN_OF_PARAMETER_ERRORS = re.compile(
    r"Expected parameter (\w+) .*? of distribution (\w+)\(.*?\) to satisfy the constraint (\w+).*?"
    r"but found invalid values: (.*)"
)
_WORDS_FOR_CONSTRAINTS = {
    "GreaterThan": "positive",
    "GreaterThanEq": "at its lower bound or above",
    "Interval": "within its limits",
}
#: of an argument: losses and gradients of larger numbers may overflow
_MAX_ABS_WITHOUT_WARNING = 1e6
_PATTERN_OF_CLASS_SUPPORT = re.compile(r"IntegerInterval\(lower_bound=0, upper_bound=(\d+)\)")
_PATTERN_OF_SITE_NAME = re.compile(r"log_prob at site '(.*?)'")


def is_outside_support(error: Exception) -> bool:
    """
    Whether a distribution with checks does not take a value.

    :param error: what torch raised.
    :returns: whether it is that.
    """
    return (
        isinstance(error, ValueError) and _PATTERN_OF_SUPPORT_ERRORS.search(str(error)) is not None
    )


def warning_of_scale(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """
    The first argument with numbers so large that losses and gradients may overflow.

    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: what to say; None if there is none.
    """
    for name, tensor in tensors_among(args, kwargs).items():
        most = float(tensor.abs().max()) if tensor.numel() and tensor.is_floating_point() else 0.0
        if most > _MAX_ABS_WITHOUT_WARNING:
            return (
                f"{name} has numbers up to {most:.3g}: divide it by its standard deviation, and "
                "multiply predictions by that"
            )
    return None


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
    if not refuses_parameter(error):
        return False
    value = _refused_value(error)
    try:
        return bool(value.isnan().any())
    except (AttributeError, RuntimeError):  # not at hand, or of a map that has ended
        return "nan" in str(error)  # which shows six numbers of a thousand


def _refused_value(error: Exception) -> Any:
    """The parameter that torch looked at when it raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return None if trace is None else trace.tb_frame.f_locals.get("value")


def entries_not_finite(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """
    The first argument that has a NaN or an infinity, and where.

    :param args: positional arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: what to say; None if all are finite.
    """
    return _entries_not_finite(tensors_among(args, kwargs))


def _indices(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    """Of arguments that a model takes for the numbers of groups, or of other entries."""
    if not isinstance(error, IndexError):
        return None
    if _MESSAGE_OF_INDEX_DTYPE in str(error):
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
    found = _PATTERN_OF_INDEX_BOUNDS.search(str(error))
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


def _not_finite(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    text = first_line(error)
    refused = refuses_parameter(error) or _PATTERN_OF_SUPPORT_ERRORS.search(str(error))
    if not (refused and isinstance(error, ValueError)):
        return None
    found = _entries_not_finite(tensors)
    return None if found is None else NonFiniteError(f"{found}; what the model makes of it: {text}")


def _outside_domain(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    """A latent that may have any value is taken for a scale, say."""
    found = _PATTERN_OF_PARAMETER_ERRORS.search(" ".join(str(error).split()))
    if not refuses_parameter(error) or refuses_nan(error) or found is None:
        return None
    parameter, kind, wanted, values = found.groups()
    remedy = "Look at the latents and data that it is made of."
    if wanted in _WORDS_FOR_CONSTRAINTS:
        remedy = (
            "If it is made of a latent, give that a prior which keeps to it (dist.LogNormal, "
            "dist.HalfNormal or dist.Gamma for a scale, dist.Beta for a probability), or map it "
            "there: s.exp(), torch.nn.functional.softplus(s), p.sigmoid(). If it is made of data, "
            "look at these."
        )
    said = (
        values.strip()
        if len(values) <= MAX_RAW_CHARACTERS
        else f"{values.strip()[:MAX_RAW_CHARACTERS]} ..."
    )
    rule = _WORDS_FOR_CONSTRAINTS.get(wanted, wanted)
    return NonFiniteError(
        f"the model gives {kind} a {parameter} that is not {rule}, at these latents and data: "
        f"{said}. {remedy}"
    )


def _outside_support(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    found = _PATTERN_OF_SUPPORT_ERRORS.search(str(error)) if isinstance(error, ValueError) else None
    if found is None or not tensors:
        return None
    support, kind = found.groups()
    site = _PATTERN_OF_SITE_NAME.search(str(error))
    where = "a value" if site is None else f"site {site[1]!r}"
    ranges = ", ".join(
        f"{name} has values from {tensor.min():.4g} to {tensor.max():.4g}"
        for name, tensor in tensors.items()
        if tensor.numel() and tensor.layout is torch.strided and not tensor.is_complex()
    )
    classes = _PATTERN_OF_CLASS_SUPPORT.search(support)
    if classes is not None:
        remedy = (
            f"The {int(classes[1]) + 1} classes count from 0: write y - 1 for labels from 1, and "
            "give the network an output for each class."
        )
    elif kind in _FAMILIES_BOUNDED_BY_ARGUMENTS:
        remedy = (
            "Where latents are the limits of a support, some of their values have no density at "
            "all, and nothing leads away from them: write limits that all data keep, as in "
            "pyro.deterministic('limit', y.max() + pyro.sample('above', dist.Exponential(1.0)))."
        )
    else:
        remedy = (
            "Look for arguments in another order, for units or codes of the data, and for latents "
            "that shift or limit what is observed, which are to keep it inside."
        )
    said = " ".join(support.split())
    if len(said) > _MAX_CHARACTERS_OF_SUPPORT:  # bounds that have a number for each row
        said = f"{said[:_MAX_CHARACTERS_OF_SUPPORT]} ..."
    return ArgumentError(f"{where} is outside of the support of {kind}, {said}; {ranges}. {remedy}")


#: Functions from an error and the tensors among a model's arguments to a clear error, or None.
def _made_without_gradients(error: Exception, tensors: dict[str, Tensor]) -> ImplicitError | None:
    names = [name for name, one in tensors.items() if one.is_inference()]
    if not names or not str(error).startswith(_BEGINNING_OF_INFERENCE_ERRORS):
        return None
    return ArgumentError(
        f"{', '.join(names)} was made within torch.inference_mode(), and no gradient can pass "
        f"operations on it; expected data made outside of it, or a copy, x.clone()."
    )


VALUE_EXPLAINERS: tuple[Callable[[Exception, dict[str, Tensor]], ImplicitError | None], ...] = (
    _made_without_gradients,
    _indices,
    _not_finite,
    _outside_domain,
    _outside_support,
)


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
