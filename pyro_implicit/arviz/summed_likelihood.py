"""The log-likelihood of a model whose discrete latents are summed out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.poutine.util import site_is_factor
from torch import Tensor

from pyro_implicit._random import own_numbers
from pyro_implicit.arviz.program import Program
from pyro_implicit.arviz.row_cuts import grown
from pyro_implicit.arviz.rows import Batch
from pyro_implicit.arviz.site import Slot
from pyro_implicit.exceptions import ArgumentError, SiteError
from pyro_implicit.handlers.enumeration.discrete_latents import nesting_of, run_summed_out
from pyro_implicit.handlers.enumeration.observed_in_sum import (
    counted_in_sum,
    data_in_sum,
    refuse_undrawn,
)
from pyro_implicit.handlers.enumeration.sum_out import inseparable
from pyro_implicit.handlers.observations.without_density import refuse_data_without_density
from pyro_implicit.handlers.pointwise import is_auxiliary, is_delta, pointwise_log_prob

__all__ = ["SummedLikelihood", "summed_likelihood", "uncounted_factors"]

_MAX_SITES_IN_NAME = 3  # of a variable: of more the first and the last are named
_ADVICE_ON_GROUPS = (
    ", or leave the log-likelihood out: groups=('posterior', 'posterior_predictive')"
)


class SummedLikelihood:
    r"""
    :math:`\log \sum_z p(y_n, z \mid \theta_s)` for each datum, at draws of a guide.

    Observed sites that share a discrete latent are one variable, with the plates that they share
    with it, named after all of them (after the first and the last of many). All others are as
    they would be without. Masked data count 0; a ``pyro.factor`` within a sum is a part of it.

    :param Program program: the model.
    :raises SiteError: if the latents cannot be summed out, or the prior of one that the guide draws
        depends on them.
    :raises ArgumentError: if row batches do not show in what is left.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        #: names of densities that are weights within a sum, and so count
        self.factors: set[str] = set()
        first = program.batches.calls[0]
        with own_numbers():
            fixed = poutine.condition(program.model, {**program.subsamples, **program.draw})
            self._nesting = nesting_of(fixed, first.args, first.kwargs)
            slots = self._slots()
        own = {name: site.log_prob for name, site in program.sites.items()}
        #: what each variable looks like
        self.slots = {name: _like(own.get(name), slot) for name, slot in slots.items()}

    def _slots(self) -> dict[str, Slot]:
        """The variables, on all rows."""
        batches = self.program.batches
        size, rows = batches.batch_size, batches.num_rows
        if size is None:
            return self._slots_on(batches.calls[0])
        slots = self._slots_on(batches.cut(0, size))
        others = self._slots_on(batches.cut(0, size - 1 if size > 1 else 2))
        slots = {name: grown(name, slot, others[name], rows) for name, slot in slots.items()}
        for name, slot in slots.items():
            if slot.row_dim is None:
                raise ArgumentError(
                    f"batch_size was given, but the rows of {name!r} are one datum: they share a "
                    "discrete latent that is summed out. Leave batch_size out"
                )
        return slots

    def at(self, batch: Batch, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """
        The log-likelihood at one draw, on some rows.

        :param Batch batch: the rows.
        :param dict values: the latents of the guide.
        :returns: by variable, in float64, of the shape of its plates.
        """
        return {name: value for name, value, _ in self._of(batch, values)}

    def _slots_on(self, batch: Batch) -> dict[str, Slot]:
        slots = {}
        for name, value, site in self._of(batch, self.program.draw):
            plates: list[str | None] = [None] * value.dim()
            for frame in site["cond_indep_stack"]:
                if frame.vectorized and value.shape[frame.dim] == frame.size:
                    plates[frame.dim] = frame.name
            if name in slots:
                raise SiteError(
                    f"two variables of the log-likelihood would be called {name!r}: one is named "
                    "after the sites that share a discrete latent; rename a site"
                )
            slots[name] = Slot(tuple(value.shape), torch.float64, tuple(plates))
        return slots

    def _of(self, batch: Batch, values: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Any]]:
        """Name, log-densities and site of each variable."""
        sites: list[Any] = []
        fixed = {**self.program.subsamples, **values}
        model, args, kwargs = self.program.model, batch.args, batch.kwargs
        how: Any = {"values": fixed, "nesting": self._nesting, "wide": True}
        with self.program.held_on(batch):
            run_summed_out(model, args, kwargs, sites.append, **how)
        for site in sites:
            name = site["name"]
            if not site["is_observed"] or name in values or is_delta(site):
                continue
            if name in self.program.held:
                continue
            stands_for = site["infer"].get("marginal_of", ())
            drawn = [name for name in stands_for if name in values]
            if drawn:
                raise inseparable(drawn, site["name"])
            if stands_for:
                data = [node["name"] for node in data_in_sum(site)]
                if not data:
                    continue
                refuse_undrawn(site, values, _ADVICE_ON_GROUPS)
                nodes = site["infer"]["marginal_nodes"]
                self.factors |= {node["name"] for node in nodes if site_is_factor(node)}
                value = pointwise_log_prob(site, wide=True)
                kept = counted_in_sum(site, value.shape)
                yield _name(data), torch.where(kept, value, 0.0), site
            elif not is_auxiliary(site):
                log_prob = pointwise_log_prob(site, wide=True)
                refuse_data_without_density(site, log_prob)
                yield site["name"], log_prob, site


def summed_likelihood(program: Program) -> SummedLikelihood | None:
    """
    The likelihood with discrete latents summed out, where there are some.

    :param Program program: the model.
    """
    if program.summed is None and any(site.is_listed for site in program.sites.values()):
        program.summed = SummedLikelihood(program)
    found: SummedLikelihood | None = program.summed
    return found


def uncounted_factors(program: Program) -> set[str]:
    """
    Densities of rows that the log-likelihood leaves out.

    :param Program program: the model.
    :returns: their names.
    """
    summed = summed_likelihood(program)
    return program.factors - (set() if summed is None else summed.factors)


def _like(own: Slot | None, slot: Slot) -> Slot:
    """With the names that the dimensions of the one observed site have, if they are the same."""
    same = own is not None and (own.shape, own.plates) == (slot.shape, slot.plates)
    return own if same and own is not None else slot


def _name(names: list[str]) -> str:
    """What the variable of some sites is called."""
    return ", ".join(names) if len(names) <= _MAX_SITES_IN_NAME else f"{names[0]} to {names[-1]}"
