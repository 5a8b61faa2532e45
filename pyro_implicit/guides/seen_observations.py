"""Observations that a guide's latents are made from, and that are then scored by these latents."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from pyro.infer.autoguide import AutoCallable, AutoGuide
from torch import Tensor, nn
from torch.utils import _pytree

from pyro_implicit._few import few_of
from pyro_implicit._random import RandomStream
from pyro_implicit.guides.members import members_of
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.pointwise import is_auxiliary, is_delta, latent_sites, run_model
from pyro_implicit.handlers.rows.row_coupling import can_be_looked_at
from pyro_implicit.ops.graphs.same_bits import same_bits

__all__ = ["BEGIN_OF_WARNING", "warning_of_seen_observations"]

BEGIN_OF_WARNING = "the guide makes its latents from what"


@torch.no_grad()
def warning_of_seen_observations(
    model: Any, guide: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str | None:
    """
    Tells whether what a guide draws changes with what the model observes.

    Of a conditional guide its context is compared, of others the draws of one seed: an encoder
    written by hand reads the observations wherever it likes.

    :param model: a Pyro model.
    :param guide: any guide, or a list or an ensemble of some.
    :param tuple args: positional arguments of both.
    :param dict kwargs: keyword arguments of both.
    :returns: what a user should know; None where nothing of the kind was found, or the data are too
        many to be looked at.
    """
    if members := members_of(guide):
        said = (warning_of_seen_observations(model, one, args, kwargs) for one in members)
        return next(filter(None, said), None)
    readers = _readers(guide)
    may_read = bool(readers) or _may_read(guide)
    if not may_read or not can_be_looked_at([*args, *kwargs.values()]):
        return None
    try:
        with unseen_run():
            now = _made(guide, readers, args, kwargs)
            leaves, shape = _pytree.tree_flatten((args, dict(kwargs)))

            def reads(seen: list[Any]) -> bool:
                """Whether others would be made, if the entries that are marked had other values."""
                others = (_with_other(leaves, seen, change) for change in (_flipped, _moved))
                calls = (_pytree.tree_unflatten(other, shape) for other in others)
                return any(_differs(now, guide, readers, call) for call in calls)

            if not reads([True] * len(leaves)):
                return None  # and no run of the model
            names, seen = _observed_entries(model, args, kwargs, leaves)
            if not names or not reads(seen):
                return None
            if not _same(now, _made(guide, readers, args, kwargs)):  # which no seed fixes
                return None
    except Exception:  # what is wrong with a call is told by the call itself
        return None
    return (
        f"{BEGIN_OF_WARNING} [{few_of(list(map(repr, names)))}] observes, which is then scored by "
        "them: this tells how well data are reconstructed that were seen, and predicts nothing; it "
        "may be above the evidence. For the evidence of new rows write -IWAE(100).loss(model, "
        "guide, ...), of pyro_implicit.objectives, and divide it by the size of the plate; "
        "for predictions a context of the inputs alone."
    )


def _may_read(guide: Any) -> bool:
    """Whether draws may be made from the arguments: those of automatic guides never are."""
    if isinstance(guide, types.FunctionType):  # also one of this package, in its examples
        return True
    parts = list(guide.modules()) if isinstance(guide, nn.Module) else [guide]
    guides = [part for part in parts if part is guide or isinstance(part, AutoGuide)]
    packages = {type(part).__module__.split(".")[0] for part in guides}
    by_hand = any(isinstance(part, AutoCallable) for part in guides)
    return by_hand or not packages <= {"pyro", "pyro_implicit"}


def _made(
    guide: Any, readers: list[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Tensor]:
    """What is made from the arguments: contexts, or the draws of one seed."""
    if readers:
        return [one.read_context(*args, **kwargs) for one in readers]
    with RandomStream(0):
        return [site["value"] for site in latent_sites(guide, args, dict(kwargs)).values()]


def _same(now: list[Tensor], then: list[Tensor]) -> bool:
    return all(map(same_bits, now, then))


def _readers(guide: Any) -> list[Any]:
    parts = guide.modules() if isinstance(guide, nn.Module) else [guide]
    return [part for part in parts if hasattr(part, "read_context")]


def _differs(now: list[Tensor], guide: Any, readers: list[Any], call: Any) -> bool:
    try:
        return not _same(now, _made(guide, readers, *call))
    except Exception:  # numbers of rows that are no such any more, say: another change may do
        return False


def _observed_entries(
    model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], leaves: list[Any]
) -> tuple[list[str], list[Any]]:
    """Sites that observe an argument, and for each argument what is observed of it, or whether."""
    observed: dict[str, Tensor] = {}

    def visit(site: Any) -> None:
        is_data = site["type"] == "sample" and site["is_observed"]
        if is_data and isinstance(site["value"], Tensor):
            if not (is_auxiliary(site) or is_delta(site)):
                observed[site["name"]] = site["value"]

    run_model(model, args, dict(kwargs), visit)
    names: list[str] = []
    seen: list[Any] = [False] * len(leaves)
    for name, value in observed.items():
        shared = [(i, _shared_entries(value, leaf)) for i, leaf in enumerate(leaves)]
        places = [i for i, entries in shared if entries is not None]
        for i, entries in shared:
            if entries is not None and seen[i] is not True:
                seen[i] = entries if seen[i] is False else seen[i] | entries
        if value.numel() > 1 and not places:  # one number may be that of another by chance
            places = [i for i, leaf in enumerate(leaves) if _is_equal(value, leaf)]
            for i in places:
                seen[i] = True
        names += [name] if places else []
    return names, seen


def _shared_entries(value: Tensor, argument: Any) -> Tensor | None:
    """The entries of an argument that a value has in its memory: a column, a row, all; or None."""
    if not isinstance(argument, Tensor) or not argument.dim() or argument.device != value.device:
        return None
    if not value.numel() or not argument.numel():
        return None
    if any(one.layout is not torch.strided for one in (value, argument)):
        return None
    begin = min(value.data_ptr(), argument.data_ptr())
    ends = [one.data_ptr() + _span(one) * one.element_size() for one in (value, argument)]
    if ends[0] <= argument.data_ptr() or ends[1] <= value.data_ptr():
        return None
    if value.dtype != argument.dtype:
        return torch.ones_like(argument, dtype=torch.bool)
    size = (max(ends) - begin) // value.element_size()
    places = torch.arange(size, device=value.device)
    read = torch.zeros(size, dtype=torch.bool, device=value.device)
    read[_in_memory_of(value, places, begin).flatten()] = True
    shared = _in_memory_of(argument, read, begin).clone()
    return shared if bool(shared.any()) else None


def _span(tensor: Tensor) -> int:
    """How many entries of memory a tensor reaches over."""
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def _in_memory_of(tensor: Tensor, flat: Tensor, begin: int) -> Tensor:
    """What a tensor would be if memory from an address on were ``flat``."""
    offset = (tensor.data_ptr() - begin) // tensor.element_size()
    return flat.as_strided(tensor.shape, tensor.stride(), offset)


def _with_other(
    leaves: list[Any], seen: list[Any], change: Callable[[Tensor], Tensor]
) -> list[Any]:
    """Arguments with other values where something is observed."""
    others = []
    for leaf, marked in zip(leaves, seen, strict=True):
        is_changed = marked is not False and isinstance(leaf, Tensor) and leaf.dim() > 0
        is_changed = is_changed and leaf.numel() > 0
        other = change(leaf) if is_changed else leaf
        others.append(torch.where(marked, other, leaf) if isinstance(marked, Tensor) else other)
    return others


def _flipped(leaf: Tensor) -> Tensor:
    """The same rows in the opposite order, of which an average knows nothing."""
    return leaf.flip(0)


def _moved(leaf: Tensor) -> Tensor:
    """Other numbers, and of classes or counts, of whatever type, one of them throughout."""
    if leaf.is_complex() or (leaf.is_floating_point() and not bool((leaf == leaf.round()).all())):
        return 1.25 * leaf + 0.1
    if leaf.dtype == torch.bool:
        return (~leaf.all()).expand_as(leaf)
    least = leaf.min()
    return (least + 1 if bool((leaf == least).all()) else least).expand_as(leaf)


def _is_equal(value: Tensor, argument: Any) -> bool:
    """Whether a value is that of an argument, in whatever memory."""
    if not isinstance(argument, Tensor) or not argument.dim():
        return False
    same_size = argument.numel() == value.numel()
    return same_size and torch.equal(argument.reshape(-1).to(value.dtype), value.reshape(-1))
