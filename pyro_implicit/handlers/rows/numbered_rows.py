"""Plates whose rows are numbered from outside, to see what follows their numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from torch.utils import _pytree

from pyro_implicit._random import RandomStream
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.rows.own_subsample import sizes_of_arguments

__all__ = ["NumberedRows", "TakesDataByNumbers", "are_same", "takes_data_by_numbers"]


_FIRST, _LAST, _MIDDLE = 0.0, 1.0, 0.5


class NumberedRows(Messenger):
    """
    Takes rows of some plates in a row, the first or others, where their numbers are not passed.

    :param plates: their names.
    :param float place: from the first ones at 0 to the last at 1.
    """

    def __init__(self, plates: Collection[str], place: float) -> None:
        super().__init__()
        self.plates, self.place = plates, place

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.plates and site_is_subsample(msg) and msg["value"] is None:
            fn = msg["fn"]
            begin = int(self.place * (fn.size - fn.subsample_size))
            msg["value"] = begin + torch.arange(fn.subsample_size)
            msg["done"] = True


def takes_data_by_numbers(
    model: Any, plates: Collection[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """
    Tells whether what a model observes, in some plates, is chosen by the numbers of these.

    :param model: a Pyro model.
    :param plates: names of its plates.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :returns: whether the first, the last or those in the middle have other observations, or other
        densities of observations that are none of the arguments, as factors and constants are.
    """
    held = _tensors_of((args, kwargs))
    found = []
    for place in (_FIRST, _LAST, _MIDDLE):
        with RandomStream(0), NumberedRows(plates, place):
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        around = [
            one
            for one in trace.nodes.values()
            if one["type"] == "sample" and one["is_observed"]
            if any(frame.name in plates for frame in one["cond_indep_stack"])
        ]
        found.append([_seen_of(one, held) for one in around])
        if not are_same(found[0], found[-1]):
            return True
    return False


def _seen_of(site: Any, held: set[int]) -> Any:
    """What is observed, unless it is an argument; its density, then."""
    value = site["value"]
    if isinstance(value, Tensor) and value.numel():
        if value.untyped_storage().data_ptr() in held:
            return value
        density = site["fn"].log_prob(value)
        return torch.cat([value.flatten().double(), density.flatten().double()]).nan_to_num()
    return site["fn"].log_prob(value).nan_to_num()


def _tensors_of(values: Any) -> set[int]:
    """Where in memory the tensors of nested arguments are."""
    leaves, _ = _pytree.tree_flatten(values)
    return {one.untyped_storage().data_ptr() for one in leaves if isinstance(one, Tensor)}


class TakesDataByNumbers:
    """
    :func:`takes_data_by_numbers` of one plate, remembered for arguments of the same sizes.

    :param model: a Pyro model, or None where it is not known, which tells nothing.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param dict known: what was seen before, which is added to.
    """

    def __init__(
        self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], known: dict[Any, bool]
    ) -> None:
        self.model, self.args, self.kwargs, self.known = model, args, kwargs, known

    def __call__(self, plate: str) -> bool:
        """
        Looks, unless it has.

        :param str plate: its name.
        :returns: whether the model takes its data by the numbers of this plate.
        """
        if self.model is None:
            return False
        key = (plate, *sorted(sizes_of_arguments(self.args, self.kwargs)))
        if key not in self.known:
            try:
                with unseen_run(), torch.no_grad():
                    found = takes_data_by_numbers(self.model, [plate], self.args, self.kwargs)
            except Exception:  # what else there is to say of it, the step will
                return False
            self.known[key] = found
        return self.known[key]


def are_same(some: list[Any], others: list[Any]) -> bool:
    """
    Compares values of the same sites.

    :param some: values of one run.
    :param others: of another, in the same order.
    :returns: whether all tensors among them are equal.
    """
    pairs = zip(some, others, strict=True)
    return all(not isinstance(a, Tensor) or torch.equal(a, b) for a, b in pairs)
