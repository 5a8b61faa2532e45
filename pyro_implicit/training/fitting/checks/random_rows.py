"""Guides with parameters of each row whose plates number the rows of a batch at random."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from pyro import poutine, validation_enabled
from pyro.infer.autoguide import AutoCallable, AutoGuide, AutoGuideList
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pyro_implicit._params import unconstrained
from pyro_implicit._random import RandomStream
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.members import members_of
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.rows.numbered_rows import (
    NumberedRows,
    are_same,
    takes_data_by_numbers,
)
from pyro_implicit.handlers.rows.own_subsample import refuse_random_rows, sizes_of_arguments
from pyro_implicit.objectives.particles.particle import sample_nodes

__all__ = ["check_random_rows"]

_NOISE = 0.01  # on parameters, relative to 1 and their size


def check_random_rows(model: Any, guide: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """
    Refuses a guide whose latents of rows follow row numbers that nobody has passed.

    Such a guide, as ``AutoNormal`` with latents in a plate of a minibatch, would train the latents
    of other rows than those whose data are passed. What a guide makes of the data themselves does
    not depend on these numbers, and a model may take its data by them. Guides of this package look
    by themselves.

    :param model: its model.
    :param guide: a guide that is built.
    :param args: positional arguments of both.
    :param kwargs: keyword arguments of both.
    :raises SiteError: naming the plate.
    """
    if members := members_of(guide):
        for member in members:
            check_random_rows(model, member, args, kwargs)
        return
    if isinstance(guide, ImplicitGuide):
        return
    sizes = sizes_of_arguments(args, kwargs)
    try:
        with unseen_run(), torch.no_grad():
            with _PassedNumbers() as numbers:
                trace = poutine.trace(guide).get_trace(*args, **kwargs)
            nodes = sample_nodes(trace)
            drawn = {name: node for name, node in nodes.items() if name not in numbers.plates}
            wrong = [
                plate
                for plate in _plates_of_batches(drawn, sizes)
                if _is_automatic(guide, [plate]) or _follows(guide, trace, [plate], args, kwargs)
                if not takes_data_by_numbers(model, [plate], args, kwargs)
            ]
            if not wrong:
                return
    except Exception:  # what else there is to say of it, the step will
        return
    refuse_random_rows(nodes[wrong[0]])


def _is_automatic(guide: Any, plates: Collection[str]) -> bool:
    """Whether latents in some plates are parameters, or draws that all batches share."""
    if isinstance(guide, AutoGuideList):
        return any(_is_automatic(part, plates) for part in guide)
    if not isinstance(guide, AutoGuide) or isinstance(guide, (AutoCallable, ImplicitGuide)):
        return False
    trace: Any = guide.prototype_trace
    latents = [] if trace is None else [trace.nodes[name] for name in trace.stochastic_nodes]
    return any(frame.name in plates for one in latents for frame in one["cond_indep_stack"])


def _plates_of_batches(nodes: Mapping[str, Any], sizes: Collection[int]) -> list[str]:
    """Plates around latents that show as many rows as the arguments have, numbered at random."""
    latents = [one for one in nodes.values() if not (one["is_observed"] or site_is_subsample(one))]
    around = {frame.name for one in latents for frame in one["cond_indep_stack"]}
    drawn = {name: nodes[name]["fn"] for name in around & nodes.keys()}
    return sorted(
        name
        for name, fn in drawn.items()
        if fn.subsample_size in sizes and fn.size not in sizes and fn.subsample_size < fn.size
    )


def _follows(
    guide: Any, trace: Any, plates: Collection[str], args: Any, kwargs: Mapping[str, Any]
) -> bool:
    """
    Whether other row numbers make other latents of the same data.

    Parameters are moved apart for the while, as those of all rows may begin at one value. A guide
    that makes other latents at each call, whatever the numbers, tells nothing.
    """

    def latents(last: bool) -> list[Any]:
        with RandomStream(0), NumberedRows(plates, float(last)):
            nodes = sample_nodes(poutine.trace(guide).get_trace(*args, **kwargs))
        return [one["value"] for one in nodes.values() if not site_is_subsample(one)]

    with _moved_apart(guide, trace), validation_enabled(False):  # a scale may become negative
        first, again, other = latents(False), latents(False), latents(True)
    return are_same(first, again) and not are_same(first, other)


@contextmanager
def _moved_apart(guide: Any, trace: Any) -> Iterator[None]:
    """Adds noise to all parameters of a guide, and takes it back."""
    parameters: list[Tensor] = list(guide.parameters()) if isinstance(guide, nn.Module) else []
    nodes = [node for node in trace.nodes.values() if node["type"] == "param"]
    parameters += [unconstrained(node["value"]) for node in nodes if "value" in node]
    distinct = {id(one): one for one in parameters if one.is_floating_point()}.values()
    kept = [one.detach().clone() for one in distinct]
    try:
        with RandomStream(0):
            for one in distinct:
                one.data.add_(_NOISE * (1 + one.detach().abs()) * torch.randn_like(one))
        yield
    finally:
        for one, value in zip(distinct, kept, strict=True):
            one.data.copy_(value)


class _PassedNumbers(Messenger):
    """Notes the plates whose row numbers are passed; those of others are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.plates: set[str] = set()

    def _pyro_sample(self, msg: Any) -> None:
        if site_is_subsample(msg) and msg["value"] is not None:
            self.plates.add(msg["name"])
