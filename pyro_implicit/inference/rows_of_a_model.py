"""Which rows of a model can be evaluated apart from others, and how many at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import ShapeError
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.handlers.looks.upstream import upstream_sites
from pyro_implicit.handlers.rows.row_coupling import (
    RowsTogether,
    all_batches,
    can_be_looked_at,
    check_rows_fit,
    coupled_sites,
    numbers_of_a_row,
    rows_of_little,
    rows_to_look_at,
)
from pyro_implicit.handlers.rows.row_slices import between
from pyro_implicit.inference.layout import Layout
from pyro_implicit.inference.predictive_run import PredictiveRun
from pyro_implicit.inference.run_plan import ROWS_PER_SEED, RunPlan
from pyro_implicit.ops.largest_tensor import LargestTensor

__all__ = ["RowsOfAModel"]

#: Rows that a site is looked at with, of the first ROWS_PER_SEED. No row is in both, so that what
#: one row tells all others (the largest) is missing in one of them; nor do both start and end with
#: a group of rows of any size but 1 (pairs, windows).
_RANGES_OF_PROBED_ROWS = ((0, 13), (14, ROWS_PER_SEED))


class RowsOfAModel:
    """
    A model and its arguments, of which some rows are evaluated at a time.

    :param model: the model.
    :param guide: the guide if it is conditional; the draws of any other are in the plan.
    :param tuple args: arguments of both.
    :param dict kwargs: keyword arguments of both.
    :param RunPlan plan: what all evaluations share.
    """

    run_kind: Callable[..., Any] = PredictiveRun  # what evaluates the model once

    def __init__(
        self,
        model: Callable[..., Any],
        guide: ConditionalGuide | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plan: RunPlan,
    ) -> None:
        self.model, self.guide, self.args, self.kwargs = model, guide, args, kwargs
        self.plan, self.parallel = plan, False
        #: numbers that a run of the model makes of a row; NaN if nobody knows
        self.by_row = math.nan
        #: rows in another order, while they are looked at so
        self._order: Tensor | None = None
        #: the first draw on the first rows, if it was run to see what a cut would change
        self.known: PredictiveRun | None = None

    def find_layout(self, batch_size: int | None) -> None:
        """
        Learns each site's row dimension and, if parallel, the shapes of a single draw.

        :param int batch_size: rows at a time; a model that fails on some of its rows alone gets all
            of them, and that is told if it was to be cut. (One with a plate of a fixed size raises
            its error then.)
        """
        rows = self.plan.rows
        if rows <= ROWS_PER_SEED:
            if self.parallel:
                self._lay_out_all()
            return
        try:
            more = self._probe()
            parts = self._probe_parts(more)
        except RowsTogether:
            self.plan.whole = True
            self._lay_out_all()
            return
        except Exception as error:  # a model that only takes all of its rows
            is_cut = batch_size is not None and batch_size < rows
            if is_cut and "plate" in str(error):  # of a fixed size: to be mended, it may be large
                raise
            self._lay_out_all()
            if is_cut:
                self.plan.uncut = " ".join([f"{type(error).__name__}:", *str(error).split()])
            return
        self.plan.layout = Layout.compare(parts[0], more)
        self.plan.whole = bool(self.plan.layout.shifted)
        self._join_coupled_rows(more, parts)
        if self.plan.whole and self.parallel:  # sites of rows may be others than those of the first
            dims = self.plan.layout.row_dims
            self._lay_out_all()
            self.plan.layout = replace(self.plan.layout, row_dims=dims)

    def _probe_parts(self, more: PredictiveRun) -> list[PredictiveRun]:
        """Runs of parts of the first rows, in which what they make of a row is counted."""
        found: list[PredictiveRun] = []
        made = {}
        try:
            for part in _RANGES_OF_PROBED_ROWS:
                with LargestTensor() as counted:
                    found.append(self._probe(more, *part))
                made[part[1] - part[0]] = counted.total
        except Exception:  # what a model does under the count, or does on some rows
            return [self._probe(more, *part) for part in _RANGES_OF_PROBED_ROWS]
        (few, least), (many, most) = sorted(made.items())
        self.by_row = (most - least) / (many - few)
        return found

    def _join_coupled_rows(self, more: PredictiveRun, parts: list[PredictiveRun]) -> None:
        """Rows that belong together are evaluated at once, if they fit into memory."""
        dims = self.plan.layout.row_dims
        coupled = {
            name
            for part in parts
            for name in coupled_sites(part.functions, more.functions, dims, part.start)
        }
        if coupled:
            self.plan.whole = True
            check_rows_fit(
                parts[0].functions, more.functions, coupled, self.plan.rows / ROWS_PER_SEED
            )

    def rows_at_a_time(self, batch_size: int, *, exactly: bool = False) -> int:
        """
        Looks at what a cut would change.

        The first rows may be alike, or too few to show what they owe to others (a mean of sorted
        rows, a lag). Of up to four million numbers each batch is held to a run on all rows, or on
        the first of them where all would take much memory.

        :param int batch_size: rows at a time.
        :param bool exactly: whether there may not be more.
        :returns: the same, or more where these take little memory, or the number of all rows where
            they belong together.
        """
        rows, values = self.plan.rows, (*self.args, *self.kwargs.values())
        self.known = None
        if self.plan.whole or self.plan.uncut is not None:
            return max(rows, 1)
        if not exactly:
            batch_size = max(batch_size, self.rows_of_little())
        if batch_size >= rows:
            return max(rows, 1)
        if can_be_looked_at(values) and self._changes(batch_size):
            self.plan.whole = True
            return rows
        return batch_size

    def rows_of_little(self) -> int:
        """Counts the rows that take little memory, whatever the batches they are to come in."""
        return rows_of_little(self.by_row, ROWS_PER_SEED)

    def _changes(self, size: int) -> bool:
        """Whether the distributions of rows are others when the rows of other batches are there."""
        own, self.run_kind = self.run_kind, self.kind_to_look_with()
        try:
            most = rows_to_look_at(self._by_row(), size, self.plan.rows)
            more = self._probe(stop=most)
            found = self._are_coupled(more, all_batches(most, size))
        except Exception as error:  # whatever a model does: the run itself will tell
            return isinstance(error, RowsTogether)
        finally:
            self.run_kind = own
        if more.is_by_row and not found:
            more.forget_look()
            self.known = more
        return found or (most < self.plan.rows and self._changes_far_away(most, size))

    def _are_coupled(self, more: PredictiveRun, batches: Iterable[tuple[int, int]]) -> bool:
        parts = [self._probe(more, *batch) for batch in batches]
        dims = self.plan.layout.row_dims
        return any(coupled_sites(p.functions, more.functions, dims, p.start) for p in parts)

    def _changes_far_away(self, most: int, size: int) -> bool:
        """The same of rows from everywhere, some of which belong to each other if any do."""
        rows = self.plan.rows
        if self._has_latents_of_rows():
            return False
        own, self.run_kind = self.run_kind, self.kind_to_look_with()
        self._order = _shuffled(rows)[:most]
        try:
            return self._are_coupled(self._probe(stop=most), [(0, size)])
        except Exception:  # what a model does with rows in another order
            return False
        finally:
            self.run_kind, self._order = own, None

    def _has_latents_of_rows(self) -> bool:
        """Whether latents may be those of rows, which stay where they are."""
        if self.guide is not None:
            return True
        return any(self.plan.rows in one.shape[1:] for one in self.plan.draws.values())

    def _by_row(self) -> float:
        """What a run makes of a row, counted anew where parts of the first rows did not tell."""
        if math.isnan(self.by_row):
            return numbers_of_a_row(lambda stop: self._probe(stop=stop), ROWS_PER_SEED)
        return self.by_row

    def kind_to_look_with(self) -> Callable[..., Any]:
        """What evaluates the model once, where only its distributions are wanted."""
        return self.run_kind

    def _lay_out_all(self) -> None:
        """The layout from one draw of all rows."""
        self._draw_rows(self.args, self.kwargs, 0, self.plan.rows, 0, 1)
        run = self._ran(
            lambda: self.run_kind(self.plan, 0, self.plan.rows, 0, 1, vectorised=False),
            self.args,
            self.kwargs,
        )
        self.plan.layout = Layout(run.shapes, {}, run.deepest)

    def _probe(
        self, more: PredictiveRun | None = None, start: int = 0, stop: int = ROWS_PER_SEED
    ) -> PredictiveRun:
        """A run of the first rows; or of some of them, with the noise of the run of all."""
        args, kwargs = self._cut(start, stop)
        latents = self.plan.draws
        if self.guide is not None and more is not None:
            self.plan.draws = {name: value[:, start:stop] for name, value in latents.items()}
        elif more is None:
            self._draw_rows(args, kwargs, start, stop, 0, 1)
            latents = self.plan.draws
        given = {} if more is None else {"given": more.noise, "given_rows": more.stop}

        def make() -> PredictiveRun:
            run: PredictiveRun = self.run_kind(
                self.plan, start, stop, 0, 1, vectorised=False, **given
            )
            run.looked_at = True
            return run

        run = self._ran(make, args, kwargs)
        self.plan.draws = latents
        return run

    def _ran(
        self, make: Callable[[], PredictiveRun], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PredictiveRun:
        """
        A run of the model; another one if it shows that data are among what is held.

        :raises RowsTogether: if some rows cannot show it.
        """
        run = make()
        with run:
            self.model(*args, **kwargs)
        held = self.plan.held
        held.has_others |= run.has_others
        if not held.finds_data(all_rows=run.here >= self.plan.rows):
            return run
        one = {name: value[0] for name, value in self.plan.draws.items()}
        held.look(lambda: upstream_sites(self.model, args, kwargs, one))
        again = make()
        with again:
            self.model(*args, **kwargs)
        return again

    def _draw_rows(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        start: int,
        stop: int,
        first: int,
        last: int,
    ) -> None:
        """The latents of these rows, if the guide is conditional; noise by unit of rows."""
        if self.guide is None:
            return
        context = self.guide.read_context(*args, **kwargs)
        if len(context) != stop - start:
            raise ShapeError(
                f"the context has {len(context)} rows for {stop - start} rows of the arguments; "
                "predict needs one row of context for each."
            )
        units = range(0, stop - start, ROWS_PER_SEED)
        parts = [
            self.guide.sample_at(
                last - first,
                context[offset : offset + ROWS_PER_SEED],
                seeds=(self.plan.seeded(first, -1), self.plan.seeded(first, start + offset)),
            )
            for offset in units
        ]
        self.plan.offset = first
        self.plan.draws = {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}

    def _cut(self, start: int, stop: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rows, order = self.plan.rows, self._order

        def cut(value: Any) -> Any:
            if not (rows and isinstance(value, Tensor) and value.dim() and len(value) == rows):
                return value
            if order is None:
                return between(value, start, stop)
            return value.index_select(0, order[start:stop].to(value.device))

        return tuple(map(cut, self.args)), {k: cut(v) for k, v in self.kwargs.items()}


def _shuffled(rows: int) -> Tensor:
    """The numbers of rows in an order that is the same at each call."""
    return torch.randperm(rows, generator=torch.Generator("cpu").manual_seed(0), device="cpu")
