"""Whether a guide's saved state is one, fits the guide, and has the tensors that it speaks of."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from pyro_implicit._checks import shown
from pyro_implicit._plain import check_like, first_difference
from pyro_implicit.exceptions import StateError
from pyro_implicit.generators.packed import with_packed
from pyro_implicit.guides.first_call import FIRST_CALL_KEY
from pyro_implicit.guides.parts import divide

__all__ = [
    "STATE_VERSION",
    "check_fits",
    "check_guide_class",
    "check_justified",
    "check_same",
    "check_sizes",
    "check_structure",
    "check_version",
]

#: of the format of a guide's ``get_extra_state``
STATE_VERSION = 2
_EXAMPLE_SITE = {"name": "", "shape": [], "event_dim": 0, "support": {}, "frames": []}
_EXAMPLE_FRAME = ["", -1, 1, 1]
#: options of a generator that only its start depends on, so that another guide's may differ
_START_ONLY_OPTIONS = ("init_scale", "budget")
#: by how much a number among the options may exceed the number of entries of all tensors
_MAX_OPTION_BEYOND_NUMEL = 10_000


def check_version(state: Any, guide: str) -> None:
    """
    Checks that an extra state is one that this version can read.

    :param state: what is to be an extra state.
    :param str guide: class of the guide that is to load it.
    :raises StateError: if it is none that this version can read.
    """
    if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
        found = state.get("version") if isinstance(state, dict) else type(state).__name__
        raise StateError(
            f"not a state of {guide} that this version can read: found version {found!r}, expected "
            f"{STATE_VERSION}."
        )


def check_guide_class(state: dict[str, Any], guide: str) -> None:
    """
    Checks that an extra state was saved by a guide of the same class.

    :param dict state: extra state of a guide that was built.
    :param str guide: class of the guide that is to load it.
    :raises StateError: if it was saved by another.
    """
    if state["guide"] != guide:
        raise StateError(f"the state was saved by a {state['guide']}; this guide is a {guide}.")


def check_structure(state: dict[str, Any]) -> None:
    """
    Checks that an extra state describes a whole guide.

    :param dict state: extra state of a guide that was built.
    :raises StateError: unless it describes sites, their parts and a sampler for each.
    """
    check_like(state, {"guide": "", "parts": [], "sites": [], "samplers": []}, "the guide's state")
    for i, site in enumerate(state["sites"]):
        where = f"sites[{i}]"
        check_like(site, _EXAMPLE_SITE, where)
        _check_counts([*site["shape"], site["event_dim"]], where)
        if None in site.values() or site["event_dim"] > len(site["shape"]):
            raise StateError(f"{where} of the state contradicts itself: {shown(site)}.")
        for frame in site["frames"]:
            check_like(frame, _EXAMPLE_FRAME, f"{where}['frames']")
            if len(frame) != len(_EXAMPLE_FRAME) or type(frame[1]) is not int or frame[1] >= 0:
                raise StateError(f"{where} of the state has the plate {shown(frame)}.")
            _check_counts(frame[2:], where)
    for part in state["parts"]:
        check_like(part, ["", 1], "parts")
        _check_counts(part[1:], "parts")
    sizes = [size for _, size in state["parts"]]
    if sum(sizes) != len(state["sites"]) or len(sizes) != len(state["samplers"]):
        raise StateError(
            f"the state has {len(state['sites'])} sites, {len(state['samplers'])} samplers and "
            f"parts of {sizes} sites."
        )
    for i, sampler in enumerate(state["samplers"]):
        check_like(sampler, {"output_dim": 1, "dtype": ""}, f"samplers[{i}]")
        _check_counts([sampler["output_dim"]], f"samplers[{i}]")


def _check_counts(values: list[Any], where: str) -> None:
    bad = [value for value in values if type(value) is not int or value < 0]
    if bad:
        raise StateError(f"{where} of the state has {shown(bad[0])}; expected an integer >= 0.")


def check_sizes(sites: list[Any], parts: list[tuple[str, int]], samplers: list[Any]) -> None:
    """
    Checks that saved samplers have the sizes of their sites.

    :param sites: as decoded.
    :param parts: name and number of sites of each part.
    :param samplers: descriptions of theirs.
    :raises StateError: if a sampler has not one output for each unconstrained entry of its sites.
    """
    groups = divide(sites, [size for _, size in parts])
    for i, (group, sampler) in enumerate(zip(groups, samplers, strict=True)):
        numel = sum(site.numel for site in group)
        if numel != sampler["output_dim"]:
            raise StateError(
                f"samplers[{i}] of the state has {sampler['output_dim']} outputs for sites of "
                f"{numel} entries."
            )
        for site in group:
            value = site.transform()(torch.zeros(site.unconstrained_shape))
            if value.shape != site.shape or not value.isfinite().all():
                raise StateError(f"the support of site {site.name!r} of the state is none: {site}.")


def check_same(found: dict[str, Any], own: dict[str, Any]) -> None:
    """
    Checks that two extra states describe the same guide.

    :param dict found: a saved extra state.
    :param dict own: that of the guide which is to load it.
    :raises StateError: naming what differs: its class, its sites, or something else.
    """
    guide = own["guide"]
    check_guide_class(found, guide)
    names, mine = ([site["name"] for site in state["sites"]] for state in (found, own))
    if names != mine:
        raise StateError(f"the state has sites {names}; this guide has {mine}.")
    notes = first_difference(_function(found), _function(own), but=(FIRST_CALL_KEY,))
    if notes:
        raise StateError(
            f"the state is of another {guide}: {notes}. Make the guide with the same arguments, or "
            "load the state before it is built."
        )


def _function(state: dict[str, Any]) -> dict[str, Any]:
    """What the draws depend on, given the tensors: not their dtype, nor where they started."""
    state = copy.deepcopy(state)
    for sampler in state["samplers"]:
        del sampler["dtype"]
        if sampler.get("learn_scale"):
            sampler["scale"] = "learned"
        for options in (sampler, sampler.get("generator")):
            for name in _START_ONLY_OPTIONS:
                (options or {}).pop(name, None)
    for site in state["sites"]:
        # a conditional guide serves any number of rows; others have it in the shape
        site["frames"] = [frame[:2] for frame in site["frames"]]
    return state


def check_justified(guide: Any, state: dict[str, Any], tensors: dict[str, Any]) -> None:
    """
    Makes sure that the tensors are there which a state describes, before memory is taken for them.

    :param guide: the guide, not built.
    :param dict state: its extra state, checked by :func:`check_structure`.
    :param dict tensors: its tensors, by name.
    :raises StateError: if they are others.
    """
    for i, sampler in enumerate(state["samplers"]):
        begin = f"_samplers.{i}."
        mine = {k.removeprefix(begin): v for k, v in tensors.items() if k.startswith(begin)}
        most = sum(value.numel() for value in mine.values()) + _MAX_OPTION_BEYOND_NUMEL
        _check_numbers(sampler, most, f"samplers[{i}]")
        dim = sampler["output_dim"]
        loc = mine.get("preconditioner.loc", mine.get("loc"))
        if loc is None or loc.shape != (dim,):
            raise StateError(f"samplers[{i}] of the state has {dim} outputs, and no such tensors.")
        factor = mine.get("preconditioner.factor")
        if sampler.get("preconditioner") == "full" and (factor is None or factor.dim() != 2):
            raise StateError(f"samplers[{i}] of the state has a full factor, and no such tensor.")
        if sampler.get("generator", True) is None:
            continue  # one of the user's, whose tensors nobody knows beforehand
        with torch.device("meta"):
            trial: nn.Module = guide._sampler_from_state(sampler)
        check_fits(mine, trial, f"samplers[{i}]")


def _check_numbers(value: Any, most: int, where: str) -> None:
    if isinstance(value, dict):
        for name, entry in value.items():
            _check_numbers(entry, most, f"{where}[{name!r}]")
    elif isinstance(value, (list, tuple)):
        for entry in value:
            _check_numbers(entry, most, where)
    elif isinstance(value, (int, float)) and not abs(value) <= most:
        raise StateError(f"{where} of the state is {value}, beyond all that its tensors hold.")


def check_fits(
    tensors: dict[str, Any], module: nn.Module, where: str, partly: bool = False
) -> None:
    """
    Checks that saved tensors fit a module.

    :param dict tensors: by name.
    :param module: that they are for.
    :param str where: name of it, for the message.
    :param bool partly: whether some may be absent.
    :raises StateError: if names, shapes or kinds of numbers differ.
    """
    tensors = with_packed(module, tensors)
    expected = {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor)}
    absent, foreign = sorted(expected.keys() - tensors), sorted(tensors.keys() - expected)
    if (absent or foreign) and not partly:
        raise StateError(
            f"the tensors of {where} do not fit its description: {absent or 'none'} absent, "
            f"{foreign or 'none'} too many."
        )
    for name in expected.keys() & tensors.keys():
        ours, theirs = (
            (tuple(value.shape), value.is_floating_point())
            for value in (expected[name], tensors[name])
        )
        if ours != theirs:
            raise StateError(
                f"{name} of {where} is {shown(tensors[name])} in the state; expected "
                f"{shown(expected[name])}."
            )
