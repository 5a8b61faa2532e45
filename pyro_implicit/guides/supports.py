"""Supports as plain values, so that a guide can be saved without pickling anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyro.distributions import constraints
from torch import Tensor

from pyro_implicit.exceptions import StateError

__all__ = ["decode_support", "encode_support", "map_support"]

#: constructor arguments of the constraints that have some, and the attributes that hold them
_PARAMETRIC: dict[str, tuple[str, ...]] = {
    "greater_than": ("lower_bound",),
    "greater_than_eq": ("lower_bound",),
    "half_open_interval": ("lower_bound", "upper_bound"),
    "independent": ("base_constraint", "reinterpreted_batch_ndims"),
    "interval": ("lower_bound", "upper_bound"),
    "less_than": ("upper_bound",),
}


def encode_support(support: constraints.Constraint) -> dict[str, Any]:
    """
    :param support: the support of a continuous sample site.
    :returns: a dict of strings, numbers and tensors; ``{"type": "unknown"}`` for a constraint that
        neither torch nor Pyro defines.
    """
    for name in _singletons():
        if getattr(constraints, name) is support:
            return {"type": name}
    kind = _snake(type(support).__name__)
    if kind in _PARAMETRIC:
        values = [getattr(support, attribute) for attribute in _PARAMETRIC[kind]]
        return {"type": kind, "args": [_encode_value(value) for value in values]}
    for name in _singletons():
        if type(getattr(constraints, name)) is type(support):
            return {"type": name}
    return {"type": "unknown", "repr": repr(support)}


def decode_support(code: dict[str, Any], site: str) -> constraints.Constraint:
    """
    The inverse of :func:`encode_support`.

    :param dict code: what it returned.
    :param str site: name of the site, for the message.
    :raises StateError: if the constraint cannot be made without the model.
    """
    kind = code.get("type", "unknown")
    if kind in _PARAMETRIC:
        values = [decode_support(a, site) if isinstance(a, dict) else a for a in code["args"]]
        return getattr(constraints, kind)(*values)
    if kind in _singletons():
        return getattr(constraints, kind)
    raise StateError(
        f"the support of site {site!r} ({code.get('repr', kind)}) cannot be stored by value. Call "
        "the guide once with the model's arguments before load_state_dict, so that it reads the "
        "support from the model."
    )


def map_support(
    support: constraints.Constraint, change: Callable[[Any], Any]
) -> constraints.Constraint:
    """
    The support with ``change`` applied to each of its bounds.

    :param support: any support.
    :param change: from a bound (a number or a tensor) to another.
    """
    if type(support).__name__ == "MixtureSameFamilyConstraint":
        return map_support(support.base_constraint, change)  # type: ignore[attr-defined]
    kind = _snake(type(support).__name__)
    if kind not in _PARAMETRIC:
        return support
    values = [getattr(support, attribute) for attribute in _PARAMETRIC[kind]]
    if kind == "independent":
        return constraints.independent(map_support(values[0], change), values[1])
    return getattr(constraints, kind)(*map(change, values))


def _singletons() -> list[str]:
    return [
        name
        for name, value in vars(constraints).items()
        if isinstance(value, constraints.Constraint) and not name.startswith("_")
    ]


def _encode_value(value: Any) -> Any:
    if isinstance(value, constraints.Constraint):
        return encode_support(value)
    return value.detach().clone() if isinstance(value, Tensor) else value


def _snake(name: str) -> str:
    parts = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)
    return parts.lstrip("_").removesuffix("_constraint")
