"""How a distribution takes the shape, dtype and device of a parameter tensor."""

# Shape legend: P shape of a parameter tensor with n dims; a batch shape stands left of it.
from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin
from pyro.poutine.runtime import get_plates
from torch import Tensor
from torch.distributions import Distribution, Transform
from torch.distributions.constraints import Constraint

from pyro_implicit.exceptions import ShapeError

__all__ = ["fit_to_parameter", "map_tensors", "moved"]

T = TypeVar("T")


def fit_to_parameter(
    name: str, prior: TorchDistributionMixin, value: Tensor, *, constant: bool = False
) -> TorchDistributionMixin:
    """
    The prior with the shape, dtype and device of the parameter ``value``.

    :param str name: the parameter's name, for messages.
    :param prior: a distribution of event shape ``P``, taken as it is, or of event shape ``()`` and
        a batch shape that broadcasts to ``P`` or ``(..., *P)``.
    :param torch.Tensor value: the parameter, shape ``P``.
    :param bool constant: whether batch dims left of ``P`` are refused (they are not where
        hierarchical priors meet vectorised plates).
    :returns: a distribution of event shape ``P``.
    :raises ShapeError: for all other shapes, and where a batch shape may mean plates or ``P``.
    """
    shape, ndim = value.shape, value.dim()
    prior = moved(prior, value)
    batch, event = prior.batch_shape, prior.event_shape
    lead = batch[: max(len(batch) - ndim, 0)]
    if event == shape and not (constant and batch):
        return prior
    if len(event) == 0 and not (constant and lead) and _expands(batch, shape):
        _refuse_ambiguity(name, batch, shape)
        expanded: TorchDistributionMixin = prior.expand(lead + shape).to_event(ndim)
        return expanded
    raise ShapeError(
        f"the prior of parameter '{name}' has batch_shape {tuple(batch)} and event_shape "
        f"{tuple(event)}, but the parameter has shape {tuple(shape)}. Expected either no event "
        f"dims and a batch shape that broadcasts to {tuple(shape)}, or exactly event_shape "
        f"{tuple(shape)}{' and no batch dims' if constant else ''}. Did you forget "
        f"`.to_event({ndim})` or, for a scale with batch dims of its own (a sample under a "
        f"vectorised plate), `scale{_index(ndim)}`?"
    )


def _expands(batch: torch.Size, shape: torch.Size) -> bool:
    """Whether the last dims of ``batch`` broadcast to ``shape``, which stays as it is."""
    return all(b in (1, s) for b, s in zip(reversed(batch), reversed(shape), strict=False))


def _refuse_ambiguity(name: str, batch: torch.Size, shape: torch.Size) -> None:
    """
    Raises when a batch shape may come from enclosing plates and yet broadcasts to the parameter.

    A scale drawn under 8 vectorised particles has shape [8, 1], which also fits a weight of shape
    [8, 5]: every row would silently get the scale of another particle.
    """
    wide = [dim for dim in range(-min(len(batch), len(shape)), 0) if batch[dim] > 1]
    if not wide:
        return
    plates = {plate.dim: plate.size for plate in get_plates() if plate.vectorized}
    if all(plates.get(dim) == batch[dim] for dim in wide):
        raise ShapeError(
            f"the prior of parameter '{name}' has batch_shape {tuple(batch)}: that is the shape of "
            f"the enclosing plates, but it also broadcasts to the parameter's shape "
            f"{tuple(shape)}. Index a sample that is batched by plates as "
            f"`scale{_index(len(shape))}`; for a prior that varies over the parameter's own "
            f"entries write `.expand(tensor.shape).to_event({len(shape)})`."
        )


def _index(ndim: int) -> str:
    return f"[{', '.join(['...', *['None'] * ndim])}]"


def moved(prior: T, like: Tensor) -> T:
    """
    Moves all tensors of a distribution to the device and the dtype of ``like``.

    Only floating ones change their dtype.

    :param prior: any distribution; itself when nothing has to change.
    :param torch.Tensor like: a tensor of the wanted dtype and device.
    """

    def move(tensor: Tensor) -> Tensor:
        casts = tensor.is_floating_point() and like.is_floating_point()
        return tensor.to(device=like.device, dtype=like.dtype if casts else tensor.dtype)

    return map_tensors(prior, move)


def map_tensors(value: T, function: Callable[[Tensor], Tensor]) -> T:
    """
    Applies ``function`` to every tensor within a distribution.

    Nested distributions, transforms, constraints, modules, lists, tuples and dicts are walked
    through. When no tensor changes the result is ``value`` itself, else it is rebuilt. (Not by
    ``copy``: an inverse transform loses what it inverts; and transforms and inverses form cycles.)
    """
    tensors: dict[int, tuple[Tensor, Tensor]] = {}
    _collect(value, function, tensors, {})
    if all(old is new for old, new in tensors.values()):
        return value
    rebuilt: T = _rebuilt(value, {key: new for key, (_, new) in tensors.items()})
    return rebuilt


_TYPES_TO_LOOK_INTO = (Distribution, Transform, Constraint, torch.nn.Module)


def _collect(
    value: Any,
    function: Callable[[Tensor], Tensor],
    tensors: dict[int, tuple[Tensor, Tensor]],
    seen: dict[int, Any],
) -> None:
    """Fills ``tensors`` with each tensor in ``value`` and its image, by identity."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, Tensor):
        tensors[id(value)] = value, function(value)
    elif isinstance(value, dict):
        for item in value.values():
            _collect(item, function, tensors, seen)
    elif type(value) in (list, tuple):
        for item in value:
            _collect(item, function, tensors, seen)
    elif isinstance(value, _TYPES_TO_LOOK_INTO):
        _collect(value.__dict__, function, tensors, seen)


def _rebuilt(value: Any, memo: dict[int, Any]) -> Any:
    """Copies ``value`` with other tensors; ``memo`` holds by identity what is copied already."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, dict):
        memo[id(value)] = items = value.copy()  # of the same class
        items.update({key: _rebuilt(item, memo) for key, item in value.items()})
        return items
    if type(value) in (list, tuple):
        return type(value)(_rebuilt(item, memo) for item in value)
    if isinstance(value, _TYPES_TO_LOOK_INTO):
        memo[id(value)] = new = object.__new__(type(value))
        for key, item in value.__dict__.items():
            # Without Pyro's patch a transform keeps its inverse by weak reference: the old one's.
            new.__dict__[key] = None if isinstance(item, weakref.ref) else _rebuilt(item, memo)
        return new
    return value
