"""One evaluation of a model for predictions: latents from draws, noise by row, no trace."""

# Shape legend: S draws evaluated together, N rows of this batch.
from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_factor, site_is_subsample
from torch import Tensor

from pyro_implicit._random import mixed_seed, seed_torch
from pyro_implicit.handlers.enumeration.choice_for_all import (
    choice_for_all,
    is_choice_for_all,
    plates_of,
    plates_of_size,
)
from pyro_implicit.handlers.held.held_rows import held_at_rows
from pyro_implicit.handlers.held.held_sites import is_held
from pyro_implicit.handlers.observations.observed_shape import check_duration
from pyro_implicit.handlers.observations.other_shape import check_batch, check_event
from pyro_implicit.handlers.pointwise import is_delta
from pyro_implicit.handlers.rows.joint_rows import is_joint_of_rows
from pyro_implicit.handlers.rows.latent_rows import ShownRows, other_rows
from pyro_implicit.handlers.rows.own_subsample import refuse_own_subsample
from pyro_implicit.handlers.rows.row_coupling import Observed, RowsTogether, distribution_of
from pyro_implicit.handlers.rows.row_slices import NotSliceable, take_rows
from pyro_implicit.inference.noise_by_block import RowBlocks, drawn_by_blocks
from pyro_implicit.inference.run_plan import ROWS_PER_SEED, RunPlan

__all__ = ["PREDICTIVE_PLATE", "PredictiveRun"]

PREDICTIVE_PLATE = "_num_predictive_samples"


class PredictiveRun(Messenger):
    """
    Sets latents to draws, draws noise by row, and keeps the values that are asked for.

    :param RunPlan plan: what to predict.
    :param int start: first row.
    :param int stop: one past the last row.
    :param int first: first draw.
    :param int last: one past the last draw; ``first + 1`` unless vectorised.
    :param bool vectorised: whether the draws are a plate around the model.
    :param dict given: values of noise that another run drew on more rows.
    :param int given_rows: how many these were.
    :param dict spare: noise of other draws, for sites that nothing which is asked for depends on;
        what this run has to draw for such sites is added.
    """

    def __init__(
        self,
        plan: RunPlan,
        start: int,
        stop: int,
        first: int,
        last: int,
        *,
        vectorised: bool,
        given: dict[str, Tensor] | None = None,
        given_rows: int = ROWS_PER_SEED,
        spare: dict[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.plan, self.start, self.stop = plan, start, stop
        self.first, self.last, self.vectorised = first, last, vectorised
        self.values: dict[str, Tensor] = {}
        self.shapes: dict[str, torch.Size] = {}
        self.deepest = 0
        self._shown = ShownRows()
        #: the distributions of a small run that is only looked at, and the noise drawn in it
        self.looked_at = False
        self.functions: dict[str, Any] = {}
        self.noise: dict[str, Tensor] = {}
        #: whether that noise is what any other run would draw of these rows
        self.is_by_row = True
        self.given, self.given_rows, self.spare = given or {}, given_rows, spare
        #: of the noise at hand: several draws of one site, in front of its shape
        self.sample_shape = torch.Size()

    def forget_look(self) -> None:
        """Lets go of distributions and noise, which may take more memory than the values."""
        self.functions, self.noise = {}, {}

    def __enter__(self) -> Any:
        seed_torch(self.plan.own_seed(self.first, self.here))
        return super().__enter__()

    @property
    def here(self) -> int:
        """Number of rows."""
        return self.stop - self.start

    def _pyro_sample(self, msg: Any) -> None:
        name = msg["name"]
        if site_is_subsample(msg):
            self._choose_rows(msg)
        elif name in self.plan.draws:
            if is_held(msg):
                self.plan.held.overruled.add(name)
            self.plan.meet(msg)
            msg["value"], msg["done"] = self._latent(msg), True
        elif self._is_held(msg):
            msg["value"], msg["done"] = self._held(msg), True
        elif site_is_factor(msg):
            self.plan.factors.add(name)
        elif not msg["infer"].get("_deterministic"):
            if is_choice_for_all(msg, PREDICTIVE_PLATE):
                raise choice_for_all(msg["name"])
            self._note(msg)
            msg["is_observed"] = False
            msg["value"], msg["done"] = self._noisy_or_spare(msg), True

    def _note(self, msg: Any) -> None:
        """What kind of site it is that the model draws."""
        plates = plates_of(msg) - {PREDICTIVE_PLATE}
        if is_delta(msg):
            return
        if msg["infer"].get("enumerate") and not msg["is_observed"]:
            self.plan.choices[msg["name"]] = plates
            return
        self._note_plates(msg, plates)
        if not msg["infer"].get("enumerate"):
            self.plan.free[msg["name"]] = msg["is_observed"]

    def _note_plates(self, msg: Any, plates: frozenset[str]) -> None:
        """Where a site that is predicted, or scored, has its rows."""
        self.plan.predicted.add(plates)
        self.plan.row_plates |= plates_of_size(msg, self.here) if self.plan.rows else set()
        if is_joint_of_rows(msg, self.here):
            self.plan.joint_rows.add(msg["name"])

    def _is_held(self, msg: Any) -> bool:
        """Whether the site stays where ``poutine.condition`` has put it."""
        if msg["name"] in self.plan.held.data or not is_held(msg):
            return False
        self.plan.held.note(msg["name"], msg["value"], plates_of(msg) - {PREDICTIVE_PLATE})
        self.plan.held.before |= self.shapes.keys() & self.plan.free.keys()
        return True

    def _held(self, msg: Any) -> Any:
        """The value that is held, at the rows that the plates show."""
        value = torch.as_tensor(msg["value"])
        self._refuse_cut_event(msg["fn"], value)
        value, unclear = held_at_rows(msg, value, self._shown, self.start, self.plan.rows)
        if unclear and not self.looked_at:  # which may be at rows in another order
            self.plan.held.unclear.add(msg["name"])
        return value

    @property
    def has_others(self) -> bool:
        """Whether the model has sites to draw that nobody holds."""
        return bool(self.plan.free)

    def _noisy_or_spare(self, msg: Any) -> Tensor:
        """A draw of the site, which may be that of another run once all asked sites are there."""
        name, spare, sites = msg["name"], self.spare, self.plan.sites
        if spare is None or sites is None or not sites <= self.values.keys():
            return self._noisy(msg)
        if name not in spare or spare[name].shape != msg["fn"].shape():
            spare[name] = self._noisy(msg)
        return spare[name]

    def _choose_rows(self, msg: Any) -> None:
        """
        Makes a plate that would draw its rows at random show those of this batch.

        It shows them if it has them all, or counts them if it has fewer than the batch (the plate
        of a smaller training set).

        :raises SiteError: if it would show others.
        """
        fn, here = msg["fn"], self.here
        full_size = self.plan.rows if fn.size == here else fn.size
        refuse_own_subsample(msg, self.plan.sizes | {here}, full_size)
        if msg["value"] is None and fn.subsample_size == here and fn.size == self.plan.rows:
            msg["value"] = torch.arange(self.start, self.stop, device=fn.device)
        self._shown.before(msg)

    def _latent(self, msg: Any) -> Tensor:
        held, event_dim = self.plan.draws[msg["name"]], msg["fn"].event_dim
        self._refuse_cut_event(msg["fn"], held)
        check_event(msg, held[0])
        first = self.first - self.plan.offset
        if not self.vectorised:
            value = held[first]
        else:
            value = held[first : self.last - self.plan.offset]
            missing = self.plan.layout.nesting + event_dim - (value.dim() - 1)
            value = value.reshape(value.shape[:1] + (1,) * missing + value.shape[1:])
        for frame in msg["cond_indep_stack"]:
            if frame.vectorized and frame.name != PREDICTIVE_PLATE:
                value = self._shown_rows(msg["name"], value, frame, frame.dim - event_dim)
        check_batch(msg, value)
        return value

    def _shown_rows(self, name: str, value: Tensor, frame: Any, dim: int) -> Tensor:
        """
        What a latent has at the rows that a plate shows.

        They are found by their numbers, as ``data[rows]`` has (``pyro.subsample`` overlooks another
        order of all rows), or by their place.

        :raises ShapeError: if it has other rows, or nobody has said which of its rows these are.
        """
        size = value.shape[dim] if -value.dim() <= dim else 1
        of_batch = size == self.plan.rows != frame.size == self.here
        rows = self._shown.rows.get(frame.name)
        by_number = size == frame.full_size and self.plan.order.is_numbered(name, frame.name, rows)
        if size == frame.full_size and (by_number or not of_batch):
            if by_number or size != frame.size:
                return self._shown.cut(name, value, frame, dim)
        elif of_batch:
            return value.narrow(dim, self.start, self.here)
        if size not in (1, frame.size):
            raise other_rows(name, frame.name, size, frame.size)
        return value

    def _refuse_cut_event(self, fn: Any, held: Tensor) -> None:
        """A latent that is one event of all rows has no value on some of them."""
        event = held.shape[held.dim() - fn.event_dim :]
        pairs = zip(event, fn.event_shape, strict=False)
        if any(size == self.plan.rows != other == self.here for size, other in pairs):
            raise RowsTogether

    def _noisy(self, msg: Any) -> Tensor:
        """A draw of the site in which each unit of rows has its own state of the generator."""
        fn, row_dim = msg["fn"], self.plan.layout.row_dims.get(msg["name"])
        if callable(getattr(fn, "condition", None)):
            self.plan.processes.add(msg["name"])
        if msg["name"] in self.given:
            return self._rows_of(self.given[msg["name"]], fn.shape())
        drawn = None if row_dim is None else drawn_by_blocks(fn, row_dim, self._blocks())
        if drawn is not None:
            return drawn
        if row_dim is None or self.plan.whole:
            return self._drawn(fn, 0)
        while isinstance(fn, dist.MaskedDistribution) or (
            row_dim >= -fn.event_dim and isinstance(fn, torch.distributions.Independent)
        ):
            fn = fn.base_dist  # rows were made event dimensions by .to_event
        if self.here <= ROWS_PER_SEED or row_dim >= -fn.event_dim:
            return self._drawn(fn, self.start // ROWS_PER_SEED)
        try:
            return self._by_units(fn, row_dim)
        except NotSliceable:
            if not self.looked_at:
                raise
            self.is_by_row = False
            return self._drawn(fn, 0)

    def _by_units(self, fn: Any, row_dim: int) -> Tensor:
        """A draw of the site at hand, unit by unit."""
        parts = []
        for offset in range(0, self.here, ROWS_PER_SEED):
            end = min(offset + ROWS_PER_SEED, self.here)
            rows = take_rows(fn, row_dim + fn.event_dim, offset, end)
            parts.append(self._drawn(rows, (self.start + offset) // ROWS_PER_SEED))
        return torch.cat(parts, row_dim)

    def _blocks(self) -> RowBlocks:
        """The blocks of rows that share a state of the generator, of the site at hand."""
        site = len(self.shapes)

        def seed(row: int) -> int:
            return mixed_seed(self.plan.seed, self.first, row // ROWS_PER_SEED, site)

        return RowBlocks(self.start, self.stop, self.plan.rows, seed, self.sample_shape)

    def _rows_of(self, value: Tensor, shape: torch.Size) -> Tensor:
        """What a run on some of the rows has of a value."""
        for dim in range(-min(value.dim(), len(shape)), 0):
            if value.shape[dim] - shape[dim] == self.given_rows - self.here > 0:
                value = value.narrow(dim, self.start, shape[dim])
        return value

    def _drawn(self, fn: Any, unit: int) -> Tensor:
        """A draw of the site at hand in a unit of rows."""
        check_duration(fn)
        seed_torch(mixed_seed(self.plan.seed, self.first, unit, len(self.shapes)))
        drawn: Tensor = fn(self.sample_shape) if self.sample_shape else fn()  # as pyro.sample
        return drawn

    def _pyro_post_sample(self, msg: Any) -> None:
        dims = [-frame.dim for frame in msg["cond_indep_stack"] if frame.vectorized]
        self.deepest = max([self.deepest, *dims])
        name, value = msg["name"], msg["value"]
        if site_is_subsample(msg):
            self._shown.after(msg)
        if site_is_subsample(msg) or site_is_factor(msg):
            return
        stays = self.plan.held.stays(name)
        self.shapes[name] = value.shape
        if self.looked_at and name not in self.plan.draws and not stays:
            self.functions[name] = distribution_of(msg)
            if msg["is_observed"] and isinstance(value, Tensor):
                self.functions[f"{name}, as observed"] = Observed(value)
            if not msg["infer"].get("_deterministic"):
                self.noise[name] = value
        if self.plan.sites is not None:
            keep = name in self.plan.sites
        else:
            special = stays or bool(msg["infer"].get("_deterministic"))
            keep = name not in self.plan.draws and not special
        if keep:
            self.values[name] = self._in_front(name, value) if self.vectorised else value[None]

    def _in_front(self, name: str, value: Tensor) -> Tensor:
        """A vectorised value as ``(S, *shape of one draw)``."""
        count, shape = self.last - self.first, self.plan.layout.shapes[name]
        if value.dim() <= len(shape):  # does not depend on the draws
            return value.expand(count, *value.shape)
        inner = value.shape[value.dim() - len(shape) :]  # without plates that are not around it
        return value.expand(count, *value.shape[1:]).reshape(count, *inner)
