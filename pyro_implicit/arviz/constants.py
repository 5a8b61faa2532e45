"""The tensor arguments of a model that it does not observe."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.arviz.program import Program
from pyro_implicit.arviz.site import Slot

__all__ = ["constant_data", "constant_slots"]


def constant_data(program: Program) -> dict[str, Tensor]:
    """
    Finds the tensors that a model takes and does not observe.

    :param Program program: the model and its arguments.
    :returns: the tensor arguments that are not observed, by their names in the model's signature;
        sparse ones, which would be large, are left out.
    """
    batches = program.batches
    named = _by_name(program.model, batches.args, batches.kwargs)
    tensors = {name: value for name, value in named.items() if _is_dense(value)}
    cut = {name: batches.cut_one(value, program.first_rows) for name, value in tensors.items()}
    observed = _observed_names(cut, program.observed)
    return {name: value for name, value in tensors.items() if name not in observed}


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided


def constant_slots(program: Program, constants: dict[str, Tensor]) -> dict[str, Slot]:
    """
    Describes the tensors that a model takes and does not observe.

    :param Program program: the model.
    :param dict constants: from :func:`constant_data`.
    :returns: their shapes; the first dimension belongs to a plate if just one plate of the observed
        sites (or else of all sites) has its size.
    """
    observed = _plate_sizes(program, "observed")
    everywhere = _plate_sizes(program, "observed", "latent", "deterministic", "free")
    slots = {}
    for name, value in constants.items():
        plates: list[str | None] = [None] * value.dim()
        for sizes in (observed, everywhere) if value.dim() else ():
            fitting = [plate for plate, size in sizes.items() if size == len(value)]
            if fitting:
                plates[0] = fitting[0] if len(fitting) == 1 else None
                break
        slots[name] = Slot(tuple(value.shape), value.dtype, tuple(plates))
    return slots


def _plate_sizes(program: Program, *kinds: str) -> dict[str, int]:
    """Sizes of the plates around the sites of these kinds."""
    slots = [site.value for site in program.of_kind(*kinds).values()]
    return {
        plate: size
        for slot in slots
        for plate, size in zip(slot.plates, slot.shape, strict=True)
        if plate is not None
    }


def _by_name(
    model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by parameter name; ``*items`` become ``items_0``, ``items_1``, ..."""
    function = model.forward if isinstance(model, torch.nn.Module) else model
    try:
        signature = inspect.signature(function)
        bound = signature.bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # a wrapper that hides the signature
        return {**{f"arg_{i}": value for i, value in enumerate(args)}, **kwargs}
    named: dict[str, Any] = {}
    for name, value in bound.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            named.update({f"{name}_{i}": item for i, item in enumerate(value)})
        elif kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        else:
            named[name] = value
    return named


def _observed_names(arguments: dict[str, Tensor], observed: list[Tensor]) -> set[str]:
    """Arguments whose memory a site observes or, for a site that observes a copy, its values."""
    names: set[str] = set()
    for value in observed:
        same = {n for n, a in arguments.items() if _key(a) == _key(value)}
        names |= same or {n for n, a in arguments.items() if _equal(a, value)}
    return names


def _key(value: Tensor) -> tuple[int, int]:
    return value.data_ptr(), value.numel()


def _equal(a: Tensor, b: Tensor) -> bool:
    """The same numbers in the same order, whatever the shape and the precision."""
    if a.numel() != b.numel():
        return False
    a, b = a.detach().flatten().cpu().double(), b.detach().flatten().cpu().double()
    return torch.allclose(a, b, rtol=1e-6, atol=0.0, equal_nan=True)
