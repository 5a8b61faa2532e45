"""The support that a transformed distribution has, where the one that it states is wider."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from pyro.distributions import MaskedDistribution, constraints
from pyro.distributions.torch_distribution import ExpandedDistribution
from torch import Tensor
from torch.distributions import ComposeTransform, Independent, Transform, TransformedDistribution

__all__ = ["hidden_vector", "own_support"]

#: a bound, or None where there is none
_Bound = Any
_Limits = tuple[_Bound, _Bound]
_TORCH_SUPPORT = TransformedDistribution.support  # a class with another one states its own support


def own_support(fn: Any) -> constraints.Constraint:
    """
    The support of a distribution.

    ``torch.distributions.TransformedDistribution`` states the codomain of its last transform: the
    whole line of a shifted exponential. Here the bounds of its base go through the transforms, as
    long as these are monotone and act on each entry by itself.

    :param fn: a distribution.
    :returns: what it states, or what is inside of that.
    """
    found = _narrower(fn)
    stated: constraints.Constraint = fn.support if found is None else found
    return stated


def hidden_vector(fn: Any) -> Any:
    """
    Finds what has vectors in part of the space, such as a simplex, and transforms behind it.

    :param fn: a distribution.
    :returns: a transform, or the base of all; None where there is none, or where the last transform
        says enough.
    """
    while isinstance(fn, (MaskedDistribution, ExpandedDistribution, Independent)):
        fn = fn.base_dist
    if not isinstance(fn, TransformedDistribution) or type(fn).support is not _TORCH_SUPPORT:
        return None
    for index, transform in enumerate(reversed(_parts(fn.transforms))):
        if _cuts_vectors(transform.codomain):
            return transform if index else None
        if _cuts_vectors(transform.domain):  # all of which is mapped on all of the codomain
            return None
    is_hidden = bool(fn.transforms) and _cuts_vectors(fn.base_dist.support)
    return fn.base_dist if is_hidden else None


def _cuts_vectors(found: Any) -> bool:
    """Whether values are vectors, and some vectors are no values."""
    if not found.event_dim:
        return False
    while isinstance(found, constraints.independent):
        found = found.base_constraint
    parts = getattr(found, "cseq", None)  # of a stack, or of what is joined
    if parts is not None:
        return any(map(_cuts_vectors, parts))
    return bool(found.event_dim) and found is not constraints.real_vector


def _narrower(fn: Any) -> constraints.Constraint | None:
    if isinstance(fn, (MaskedDistribution, ExpandedDistribution)):
        return _narrower(fn.base_dist)
    if isinstance(fn, Independent):
        inner = _narrower(fn.base_dist)
        dims = fn.reinterpreted_batch_ndims
        return None if inner is None else constraints.independent(inner, dims)
    if not isinstance(fn, TransformedDistribution) or type(fn).support is not _TORCH_SUPPORT:
        return None
    limits, transforms = _limits(own_support(fn.base_dist)), _parts(fn.transforms)
    if not transforms:
        return None
    starts = limits == (None, None) or _are_same(limits, _limits(transforms[0].domain))
    if starts and len(transforms) == 1:
        return None
    for transform in transforms:
        moved = _through(transform, limits)
        if moved is None:
            return None
        limits = moved
    if _are_same(limits, _limits(fn.support)):
        return None
    found, dims = _constraint(*limits), len(fn.event_shape)
    return constraints.independent(found, dims) if found is not None and dims else found


def _parts(transforms: Iterable[Transform]) -> list[Transform]:
    """Those within compositions, one by one."""
    parts: list[Transform] = []
    for one in transforms:
        parts += _parts(one.parts) if isinstance(one, ComposeTransform) else [one]
    return parts


def _through(transform: Transform, limits: _Limits) -> _Limits | None:
    """Limits after a transform; None if it does not move each entry one way."""
    try:
        sign = torch.as_tensor(transform.sign)
        if transform.domain.event_dim or transform.codomain.event_dim:
            return None
        rises, falls = bool((sign > 0).all()), bool((sign < 0).all())
    except (NotImplementedError, RuntimeError):  # no sign, or one of each mapped draw
        return None
    if not (rises or falls):
        return None
    domain, (least, most) = _limits(transform.domain), _limits(transform.codomain)
    (low, high), (first, last) = (limits, domain) if rises else (limits[::-1], domain[::-1])
    return _image(transform, low, first, least), _image(transform, high, last, most)


def _image(transform: Transform, bound: _Bound, edge: _Bound, end: _Bound) -> _Bound:
    """Where a bound goes: to the end of the codomain, if nothing in the domain is beyond it."""
    if bound is None or _are_same((bound, None), (edge, None)):
        return end  # torch computes other numbers there, as of the logarithm of 0
    moved: Tensor = transform(torch.as_tensor(bound, dtype=_dtype(bound)))
    return moved if bool(moved.isfinite().all()) else end


def _dtype(bound: _Bound) -> torch.dtype:
    return bound.dtype if isinstance(bound, Tensor) else torch.get_default_dtype()


def _limits(support: Any) -> _Limits:
    """Bounds of a half-line or an interval; none of anything else."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)


def _are_same(one: _Limits, other: _Limits) -> bool:
    for mine, theirs in zip(one, other, strict=True):
        if (mine is None) != (theirs is None):
            return False
        if mine is not None and not bool((torch.as_tensor(mine) == torch.as_tensor(theirs)).all()):
            return False
    return True


def _constraint(low: _Bound, high: _Bound) -> constraints.Constraint | None:
    if low is None or high is None:
        ends = (constraints.greater_than, low), (constraints.less_than, high)
        return next((kind(end) for kind, end in ends if end is not None), None)
    interval: constraints.Constraint = constraints.interval(low, high)
    return interval
