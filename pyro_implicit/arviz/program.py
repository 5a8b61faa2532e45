"""What the sites of a model are, found out by one or two runs, and how to run it again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit._random import RandomStream, own_numbers
from pyro_implicit.arviz.row_cuts import is_local, on_all_rows, refuse_coupled, refuse_local
from pyro_implicit.arviz.rows import Batch, RowBatches
from pyro_implicit.arviz.site import Site, Slot
from pyro_implicit.exceptions import ArgumentError, SiteError
from pyro_implicit.handlers.enumeration.choice_for_all import (
    is_choice_for_all,
    plates_of,
    plates_of_size,
)
from pyro_implicit.handlers.enumeration.discrete_latents import is_to_be_enumerated
from pyro_implicit.handlers.held.held_sites import HeldSites
from pyro_implicit.handlers.held.held_warnings import drawn_unheard
from pyro_implicit.handlers.looks.upstream import upstream_sites
from pyro_implicit.handlers.observations.observed_shape import check_is_tensor, check_observation
from pyro_implicit.handlers.pointwise import (
    is_auxiliary,
    is_delta,
    is_factor_of_rows,
    is_latent_of_model,
    latent_sites,
    pointwise_log_prob,
    reduced_dims,
    run_model,
)
from pyro_implicit.handlers.rows.latent_rows import Cuts, at_rows
from pyro_implicit.handlers.rows.own_subsample import OwnSubsample, sizes_of_arguments
from pyro_implicit.handlers.rows.row_coupling import (
    Observed,
    all_batches,
    can_be_looked_at,
    distribution_of,
    numbers_of_a_row,
    rows_to_look_at,
)
from pyro_implicit.handlers.rows.row_order import BY_PLACE
from pyro_implicit.handlers.rows.row_slices import number_of_rows
from pyro_implicit.inference.posterior_draws import draws_of
from pyro_implicit.inference.row_numbers import numbered_if_drawn

__all__ = ["Program"]

_MAX_ROWS_TO_COUNT_ON = 32  # the numbers that a run of the model makes of each row


@dataclass
class _Run:
    """What a run of a model shows: its sites, their distributions, rows that were drawn, data."""

    sites: dict[str, Site] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    subsamples: dict[str, Tensor] = field(default_factory=dict)
    observed: list[Tensor] = field(default_factory=list)


class Program:
    """
    A model with the arguments of one call.

    The sites are told apart by a run with all latents fixed to one draw of the guide. With row
    batches a second run, on one row less, shows which dimensions follow the rows.

    :param callable model: a Pyro model.
    :param callable guide: a guide for it.
    :param RowBatches batches: the arguments.
    """

    def __init__(
        self, model: Callable[..., Any], guide: Callable[..., Any], batches: RowBatches
    ) -> None:
        self.model = model
        self.batches = batches
        guide_sites = latent_sites(guide, batches.args, batches.kwargs)
        if batches.batch_size is not None:
            refuse_local(guide_sites, batches.num_rows)
        #: one draw of the guide, and the minibatch indices of the model's own choice
        self.draw: dict[str, Tensor] = {n: site["value"] for n, site in guide_sites.items()}
        self._order = numbered_if_drawn(guide)
        self._cuts: Cuts = {}
        self.subsamples: dict[str, Tensor] = {}
        #: names of densities of rows that are no sites of data
        self.factors: set[str] = set()
        #: the likelihood with discrete latents summed out, once it was asked for
        self.summed: Any = None
        #: what was observed, and on which rows, when the sites were found out
        self.observed: list[Tensor] = []
        #: observed sites whose values follow the draws
        self.moving_data: set[str] = set()
        #: discrete latents of all data, which no draw of the guide fixes
        self.choices_for_all: dict[str, None] = {}
        #: the others, with their plates, and the plates of each site of data
        self.choices: dict[str, frozenset[str]] = {}
        self.predicted: set[frozenset[str]] = set()
        #: plates of data that may have the rows of the arguments
        self.row_plates: set[str] = set()
        #: sites that poutine.condition holds, which are no data, and what is to be told of it
        self.held: set[str] = set()
        self.warning_of_held: list[str] = []
        #: distributions of the latents that the guide draws
        self.priors: dict[str, Any] = {}
        #: sites that are drawn before values that are held and depend on them
        self.unheard: list[str] = []
        self.first_rows = slice(0, batches.batch_size)
        with own_numbers():
            if callable(getattr(guide, "sample", None)) and self._order != BY_PLACE:
                one = draws_of(guide, 1, *batches.args, **batches.kwargs)
                self.draw = {name: value[0] for name, value in one.items()}  # as others will be
            self.sites = self._inspect(self.draw)
            self.draw = self.at_rows(self.draw)

    def at_rows(self, draws: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """
        Cuts latents of rows to those that the model shows.

        :param dict draws: of the guide by site, with any dimensions in front.
        :returns: draws at these rows.
        """
        return at_rows(draws, self._cuts)

    @property
    def shows_predictions(self) -> bool:
        """
        Whether a run on the data shows the distributions that new data have.

        It does with one observed site, whose distribution cannot look at what is observed there,
        and no other site to draw.
        """
        return len(self.of_kind("observed")) == 1 and not self.of_kind("free")

    def of_kind(self, *kinds: str) -> dict[str, Site]:
        """
        Selects the sites of some kinds.

        :param kinds: some of latent, deterministic, observed, free.
        :returns: the sites of these kinds, in the order of the model.
        """
        return {name: site for name, site in self.sites.items() if site.kind in kinds}

    def run(
        self,
        batch: Batch,
        values: Mapping[str, Tensor],
        visit: Callable[[Any], None],
        *,
        predictive: bool = False,
    ) -> None:
        """
        Runs the model on a batch; minibatch indices that the model chose itself stay as they were.

        :param Batch batch: the rows.
        :param dict values: values of latent sites.
        :param callable visit: called with each site.
        :param bool predictive: draw the observed sites instead of taking their values.
        """
        unobserve = self.of_kind("observed") if predictive else ()
        fixed = {**self.subsamples, **values}
        with self.held_on(batch):
            run_model(
                self.model,
                batch.args,
                batch.kwargs,
                visit,
                values=fixed,
                unobserve=tuple(unobserve),
            )

    def held_on(self, batch: Batch, drawn: Collection[str] = ()) -> HeldSites:
        """
        What a handler takes from ``poutine.condition`` in runs on some rows.

        :param Batch batch: the rows.
        :param drawn: names of the latents of the guide.
        :returns: the handler, which notes what it has met.
        """
        total = 0 if self.batches.batch_size is None else self.batches.num_rows
        return HeldSites(drawn, batch.rows.start or 0, total)

    def _inspect(self, draw: dict[str, Tensor]) -> dict[str, Site]:
        """
        The sites, with the shapes that they have on all rows.

        :raises ArgumentError: if the model runs on all rows, and not on some of them alone.
        """
        if self.batches.batch_size is None:
            sites, self.subsamples, _ = self._sites_on(self.batches.calls[0], draw)
            return sites
        try:
            return self._inspect_batch(draw, self.batches.batch_size)
        except ArgumentError:
            raise
        except Exception as error:
            if not self._takes_all_rows(draw):
                raise
            raise ArgumentError(
                "batch_size was given, but the model does not run on some of its "
                f"{self.batches.num_rows} rows alone ({type(error).__name__}: "
                f"{' '.join(str(error).split())}). Every argument, and no tensor within another "
                "object, is cut in its first dimension where that has the size of the rows. Leave "
                "batch_size out"
            ) from error

    def _takes_all_rows(self, draw: dict[str, Tensor]) -> bool:
        """Whether the model runs on all of them at once."""
        try:
            self._sites_on(self.batches.cut(0, self.batches.num_rows), draw)
        except Exception:  # the first error is the user's own
            return False
        return True

    def _inspect_batch(self, draw: dict[str, Tensor], size: int) -> dict[str, Site]:
        """The sites by runs on batches."""
        sites, _, functions = self._sites_on(self.batches.cut(0, size), draw)
        other_size = size - 1 if size > 1 else 2
        others, _, other_functions = self._sites_on(self.batches.cut(0, other_size), draw)
        rows = self.batches.num_rows
        result = {
            name: on_all_rows(site, others.get(name), rows, size) for name, site in sites.items()
        }
        if size > 1:
            refuse_coupled(result, other_functions, functions)
        else:
            refuse_coupled(result, functions, other_functions)
        self._refuse_coupled_parts(result, functions, draw)
        return result

    def _refuse_coupled_parts(
        self, sites: dict[str, Site], functions: dict[str, Any], draw: dict[str, Tensor]
    ) -> None:
        """What some rows tell all others shows in the half that they are not in."""
        size = self.batches.batch_size or 0
        if size < 4:  # halves of one row have no spread
            return
        for start, stop in ((0, size // 2), (size // 2, size)):
            _, _, part = self._sites_on(self.batches.cut(start, stop), draw)
            refuse_coupled(sites, part, functions, start)
        rows, calls = self.batches.num_rows, self.batches
        if can_be_looked_at((*calls.args, *calls.kwargs.values())):  # rows far apart
            few = min(size, _MAX_ROWS_TO_COUNT_ON)
            by_row = numbers_of_a_row(lambda k: self._sites_on(calls.cut(0, k), draw), few)
            most = rows_to_look_at(by_row, size, rows)
            _, _, whole = self._sites_on(calls.cut(0, most), draw)
            for start, stop in all_batches(most, size):
                _, _, part = self._sites_on(calls.cut(start, stop), draw)
                refuse_coupled(sites, part, whole, start)

    def _own_subsample(self, batch: Batch) -> OwnSubsample:
        sizes = sizes_of_arguments(self.batches.args, self.batches.kwargs)
        if self.batches.batch_size is None:
            return OwnSubsample(sizes)
        here = batch.rows.stop - batch.rows.start
        return OwnSubsample(sizes, here, self.batches.num_rows)

    def _sites_on(
        self, batch: Batch, draw: dict[str, Tensor]
    ) -> tuple[dict[str, Site], dict[str, Tensor], dict[str, Any]]:
        """The sites of one run, the minibatch indices drawn in it, and the distributions."""
        run = _Run()
        visit = partial(self._visit, draw, batch, run)
        model = self._own_subsample(batch)(self.model)
        order = self._order
        with self.held_on(batch, draw) as held:
            self._cuts = run_model(model, batch.args, batch.kwargs, visit, values=draw, order=order)
        others = [
            name
            for name, site in run.sites.items()
            if site.kind == "observed" or (site.kind == "free" and not site.is_listed)
        ]
        data = held.data(others)
        self.held = held.sites.keys() - data

        def parents() -> Any:
            with self.held_on(batch, draw):
                return upstream_sites(model, batch.args, batch.kwargs, draw)

        self.warning_of_held = held.warnings(data, parents)
        self.unheard = self._unheard(run.sites, parents)
        sites = {name: site for name, site in run.sites.items() if name not in self.held}
        if self._cuts and self.batches.batch_size is not None:
            raise is_local(next(iter(self._cuts)), self.batches.num_rows)
        self.observed = self.observed or run.observed
        return sites, run.subsamples, run.functions

    def _visit(self, draw: dict[str, Tensor], batch: Batch, run: _Run, site: Any) -> None:
        """Takes down a site of a run."""
        if site_is_subsample(site):
            run.subsamples[site["name"]] = site["value"]
            return
        if is_factor_of_rows(site):
            self.factors.add(site["name"])
            return
        is_marked = is_auxiliary(site) and site["name"] not in draw
        if is_marked and not is_latent_of_model(site):
            return
        run.sites[site["name"]] = described = _describe(site, draw)
        if described.kind == "latent":
            self.priors[described.name] = site["fn"]
        else:
            run.functions[described.name] = distribution_of(site)
        if described.kind == "free" and is_choice_for_all(site):
            self.choices_for_all[described.name] = None
        if described.kind == "free" and described.is_listed:
            self.choices[described.name] = plates_of(site)
        elif described.kind in ("observed", "free"):
            self.predicted.add(plates_of(site))
            rows = number_of_rows(batch.args, batch.kwargs)
            self.row_plates |= plates_of_size(site, rows) if rows else set()
        if described.kind == "observed":
            run.observed.append(site["value"])
            run.functions[f"{described.name}, as observed"] = Observed(site["value"])

    def _unheard(self, sites: dict[str, Site], parents: Callable[[], Any]) -> list[str]:
        """Sites that are drawn before values which are held and depend on them."""
        before: set[str] = set()
        is_followed = False
        for name, site in sites.items():
            is_followed |= bool(before) and name in self.held
            if site.kind in ("free", "observed") and name not in self.held:
                before.add(name)
        return drawn_unheard(before, self.held, parents()) if is_followed else []


def _describe(site: Any, draw: dict[str, Tensor]) -> Site:
    """A site of a run in our own words."""
    name = site["name"]
    if name in draw:
        kind = "latent"
    elif not site["is_observed"]:
        kind = "free"
    else:
        kind = "deterministic" if is_delta(site) else "observed"
    if kind == "observed":
        check_is_tensor(site)
        check_observation(site)
    value = _value_slot(site, kind)
    log_prob = _log_prob_slot(site, value) if kind == "observed" else None
    drawable, drawn = True, None
    if kind == "latent":
        drawable, _ = _trial_draw(site["fn"])
    elif kind == "observed":
        drawable, drawn = _trial_draw(site["fn"], is_observed=True)
    is_listed = kind == "free" and _is_listed(site)
    return Site(name, kind, value, log_prob, drawable, is_listed, drawn)


def _is_listed(site: Any) -> bool:
    """Whether a latent is marked for enumeration, and can be."""
    try:
        return is_to_be_enumerated(site)
    except SiteError:
        return False


def _value_slot(site: Any, kind: str) -> Slot:
    """Shape and plates of the value."""
    value, event_dim = site["value"], site["fn"].event_dim
    shape = tuple(value.shape)
    if kind == "observed":  # data may be smaller than what the plates say
        event_shape = shape[len(shape) - event_dim :]
        shape = tuple(torch.broadcast_shapes(shape, site["fn"].batch_shape + event_shape))
    if kind == "deterministic" and event_dim == len(shape):
        event_dim = 0  # pyro.deterministic calls every dimension an event dimension
    plates: list[str | None] = [None] * len(shape)
    for frame in site["cond_indep_stack"]:
        if frame.vectorized:
            position = len(shape) - event_dim + frame.dim
            if position >= 0 and shape[position] == frame.size:
                plates[position] = frame.name
    return Slot(shape, value.dtype, tuple(plates))


def _log_prob_slot(site: Any, value: Slot) -> Slot:
    """Shape and plates of the pointwise log-probability of an observed site."""
    log_prob = pointwise_log_prob(site, wide=True)
    batch_dim = len(site["fn"].batch_shape)
    kept = [batch_dim + d for d in range(-batch_dim, 0) if d not in reduced_dims(site)]
    plates = tuple(value.plates[position] for position in kept)
    return Slot(tuple(log_prob.shape), torch.float64, plates, None, value, tuple(kept))


def _trial_draw(fn: Any, is_observed: bool = False) -> tuple[bool, torch.dtype | None]:
    """
    Whether a distribution can be sampled, and the dtype of its draws, if that is known.

    One of a density alone cannot. Whatever else goes wrong, and what torch and Pyro say of data
    that cannot be drawn together, is said where it is drawn.
    """
    try:
        with RandomStream(0):
            drawn = fn.sample()
    except NotImplementedError as error:
        return is_observed and bool(str(error)), None
    except Exception:
        return True, None
    return True, drawn.dtype if isinstance(drawn, Tensor) else None
