"""Plates whose rows are numbered from outside, to see what follows their numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit._random import RandomStream
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.rows.own_subsample import sizes_of_arguments

__all__ = ["NumberedRows", "TakesDataByNumbers", "are_same", "takes_data_by_numbers"]


class NumberedRows(Messenger):
    """
    Takes the first rows of some plates, or the last, where their numbers are not passed.

    :param plates: their names.
    :param bool last: whether the last.
    """

    def __init__(self, plates: Collection[str], last: bool) -> None:
        super().__init__()
        self.plates, self.last = plates, last

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.plates and site_is_subsample(msg) and msg["value"] is None:
            fn = msg["fn"]
            begin = fn.size - fn.subsample_size if self.last else 0
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
    :returns: whether the first and the last rows have other observations.
    """
    found = []
    for last in (False, True):
        with RandomStream(0), NumberedRows(plates, last):
            trace = poutine.trace(model).get_trace(*args, **kwargs)
        around = [
            one["value"]
            for one in trace.nodes.values()
            if one["type"] == "sample" and one["is_observed"]
            if any(frame.name in plates for frame in one["cond_indep_stack"])
        ]
        found.append(around)
    return not are_same(*found)


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
