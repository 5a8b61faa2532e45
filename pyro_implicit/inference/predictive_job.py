"""A model at draws of a guide, some rows at a time, whatever the batches the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_implicit.exceptions import ShapeError, SiteError
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.handlers.row_coupling import (
    RowsTogether,
    can_be_looked_at,
    check_rows_fit,
    coupled_sites,
    draws_of_little,
    numbers_of_a_row,
    rows_of_little,
    rows_to_look_at,
    same_first_draw,
    some_batches,
)
from pyro_implicit.inference.from_prior import forgotten_latents
from pyro_implicit.inference.moments import Draws, Moments
from pyro_implicit.inference.predictive_run import (
    PREDICTIVE_PLATE,
    UNIT,
    Layout,
    PredictiveRun,
    RunPlan,
)
from pyro_implicit.inference.recorded_draws import RecordedDraws, saves_time
from pyro_implicit.ops.largest_tensor import LargestTensor

__all__ = ["PredictiveJob"]

_CHUNK = 64  # draws evaluated at once if parallel, at most
#: rows that a site is looked at with, of the first UNIT. No row is in both, so that what one row
#: tells all others (the largest) is missing in one of them; nor do both start and end with a group
#: of rows of any size but 1 (pairs, windows).
_PARTS = ((0, 13), (14, UNIT))


class PredictiveJob:
    """
    One evaluation of a model at draws of a guide, such as a call of :func:`predict`.

    :param model: the model.
    :param guide: the guide if it is conditional; the draws of any other are in the plan.
    :param tuple args: arguments of both.
    :param dict kwargs: keyword arguments of both.
    :param RunPlan plan: what all evaluations share.
    :param int num_samples: number of draws.
    """

    run_kind: Callable[..., Any] = PredictiveRun  # what evaluates the model once

    def __init__(
        self,
        model: Callable[..., Any],
        guide: ConditionalGuide | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plan: RunPlan,
        num_samples: int,
    ) -> None:
        self.model, self.guide, self.args, self.kwargs = model, guide, args, kwargs
        self.plan, self.num_samples = plan, num_samples
        self.parallel = self.moments = False
        #: numbers that a run of the model makes of a row; NaN if nobody knows
        self.by_row = math.nan
        #: the first draw on the first rows, if it was run to see what a cut would change
        self._known: PredictiveRun | None = None
        self._size = 1  # draws at a time
        self._runs_differ = False  # by more than the draw, as far as can be seen

    def find_layout(self, batch_size: int | None) -> None:
        """
        Learns each site's row dimension and, if parallel, the shapes of a single draw.

        :param int batch_size: rows at a time; a model that fails on some of its rows alone gets all
            of them, and that is told if it was to be cut. (One with a plate of a fixed size raises
            its error then.)
        """
        rows = self.plan.rows
        if rows <= UNIT:
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
        self._join_coupled_rows(more, parts)

    def _probe_parts(self, more: PredictiveRun) -> list[PredictiveRun]:
        """Runs of parts of the first rows, in which what they make of a row is counted."""
        found: list[PredictiveRun] = []
        made = {}
        try:
            for part in _PARTS:
                with LargestTensor() as counted:
                    found.append(self._probe(more, *part))
                made[part[1] - part[0]] = counted.total
        except Exception:  # what a model does under the count, or does on some rows
            return [self._probe(more, *part) for part in _PARTS]
        (few, least), (many, most) = sorted(made.items())
        self.by_row = (most - least) / (many - few)
        return found

    def check_guide_is_for_the_model(self) -> None:
        """
        Refuses the guide of another model, of which nothing would be used.

        :raises SiteError: if the model samples none of its latents.
        """
        latents = set(self.plan.draws)
        if latents and not self.plan.met:
            raise SiteError(
                f"the guide draws {sorted(latents)}, none of which the model samples: predictions "
                "would come from its prior. Pass the model that the guide was fitted to, with the "
                "same names (BayesianModule(..., name=...) gives them a prefix)."
            )

    def forgotten_latents(self, guide: Callable[..., Any]) -> list[str]:
        """
        Latents that came from their prior, once the model was run.

        :param guide: any guide.
        :returns: their names.
        """
        args, kwargs = self._cut(0, min(self.plan.rows, UNIT))
        if self.guide is not None:
            self._draw_rows(args, kwargs, 0, min(self.plan.rows, UNIT), 0, 1)
        return forgotten_latents(self.model, guide, args, kwargs, self.plan)

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
            check_rows_fit(parts[0].functions, more.functions, coupled, self.plan.rows / UNIT)

    def rows_at_a_time(self, batch_size: int, *, exactly: bool = False) -> int:
        """
        Looks at what a cut would change.

        The first rows may be alike, or too few to show what they owe to others (a mean of sorted
        rows, a lag). Of up to four million numbers some batches are held to a run on all rows, or
        on the first of them where all would take much memory.

        :param int batch_size: rows at a time.
        :param bool exactly: whether there may not be more.
        :returns: the same, or more where these take little memory, or the number of all rows where
            they belong together.
        """
        rows, values = self.plan.rows, (*self.args, *self.kwargs.values())
        self._known = None
        if self.plan.whole or self.plan.uncut is not None:
            return max(rows, 1)
        if not exactly:
            batch_size = max(batch_size, self.rows_of_little())
        if batch_size >= rows:
            return max(rows, 1)
        if can_be_looked_at(values) and self._changes(batch_size):
            self.plan.whole, self._known = True, None
            return rows
        return batch_size

    def rows_of_little(self) -> int:
        """As many rows as take little memory, whatever the batches that they are to come in."""
        return rows_of_little(self.by_row, UNIT)

    def _changes(self, size: int) -> bool:
        """Whether the distributions of rows are others when the rows of other batches are there."""
        own, self.run_kind = self.run_kind, self.kind_to_look_with()
        try:
            most = rows_to_look_at(self._by_row(), size, self.plan.rows)
            more = self._probe(stop=most)
            parts = [self._probe(more, *batch) for batch in some_batches(most, size)]
        except Exception as error:  # whatever a model does: the run itself will tell
            return isinstance(error, RowsTogether)
        finally:
            self.run_kind = own
        self._known = more if more.is_by_row else None
        dims = self.plan.layout.row_dims
        return any(coupled_sites(p.functions, more.functions, dims, p.start) for p in parts)

    def _by_row(self) -> float:
        """What a run makes of a row, counted anew where parts of the first rows did not tell."""
        if math.isnan(self.by_row):
            return numbers_of_a_row(lambda stop: self._probe(stop=stop), UNIT)
        return self.by_row

    def kind_to_look_with(self) -> Callable[..., Any]:
        """What evaluates the model once, where only its distributions are wanted."""
        return self.run_kind

    def _lay_out_all(self) -> None:
        """The layout from one draw of all rows."""
        run = self.run_kind(self.plan, 0, self.plan.rows, 0, 1, vectorised=False)
        self._draw_rows(self.args, self.kwargs, 0, self.plan.rows, 0, 1)
        with run:
            self.model(*self.args, **self.kwargs)
        self.plan.layout = Layout(run.shapes, {}, run.deepest)

    def _probe(
        self, more: PredictiveRun | None = None, start: int = 0, stop: int = UNIT
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
        run: PredictiveRun = self.run_kind(self.plan, start, stop, 0, 1, vectorised=False, **given)
        run.looked_at = True
        with run:
            self.model(*args, **kwargs)
        self.plan.draws = latents
        return run

    def run(self, batch_size: int | None, *, exactly: bool = False) -> dict[str, Tensor]:
        """
        Evaluates all draws of all rows.

        :param int batch_size: rows at a time.
        :param bool exactly: whether there may not be more.
        :returns: draws or moments by site.
        """
        rows = max(self.plan.rows, 1)
        step = -(-(batch_size or rows) // UNIT) * UNIT
        step = self.rows_at_a_time(step, exactly=exactly)
        self._size = self._draws_at_a_time()
        self.parallel = self.parallel and self._size > 1
        pieces: dict[str, list[Tensor]] = {}
        for start in range(0, rows, step):
            found = self._batch(start, min(start + step, self.plan.rows))
            for name, value in found.items():
                pieces.setdefault(name, []).append(value)
        return {name: self._join(name, parts) for name, parts in pieces.items()}

    def _join(self, name: str, parts: list[Tensor]) -> Tensor:
        dim = self.plan.layout.row_dims.get(name)
        return parts[0] if dim is None or len(parts) == 1 else torch.cat(parts, dim)

    def _batch(self, start: int, stop: int) -> dict[str, Tensor]:
        """All draws of one batch of rows, or their moments."""
        args, kwargs = self._cut(start, stop)
        chunks: dict[str, Draws | Moments] = {}
        spare: dict[str, Tensor] = {}
        recorded: RecordedDraws | None = None
        for first in range(0, self.num_samples, self._size):
            last = min(first + self._size, self.num_samples)
            if first == 1 and self._is_recorded():
                recorded = RecordedDraws(self.model, args, kwargs, self.plan, start, stop)
                self._runs_differ = not recorded.is_recorded
            values = self._known_values(start, stop) if last == 1 else None
            if recorded is not None:
                values = recorded.values(first)
            if values is None:
                self._draw_rows(args, kwargs, start, stop, first, last)
                if self.parallel and start == first == 0 and last > 1:
                    self._check_draws_apart(args, kwargs, stop)
                run = self._evaluated(args, kwargs, start, stop, first, last, spare=spare)
                self._check_found(run)
                values = run.values
            for name, value in values.items():
                chunks.setdefault(name, Moments() if self.moments else Draws()).add(value)
        if recorded is not None and recorded.is_recorded and not recorded.is_true(last - 1):
            self._runs_differ = True  # what a model counts, or reads of a file
            return self._batch(start, stop)
        return {name: parts.result() for name, parts in chunks.items()}

    def _is_recorded(self) -> bool:
        """Whether one run is recorded for all draws of a batch, if it can be."""
        if self.parallel or self.guide is not None or self._runs_differ:
            return False
        return saves_time(self.num_samples)

    def _draws_at_a_time(self) -> int:
        """
        If parallel, as many as save time; whatever the batches, since they share their noise.

        What starts operations is dear beside small ones, and beside any on another device.
        """
        if not self.parallel:
            return 1
        values = (*self.args, *self.kwargs.values())
        if any(isinstance(one, Tensor) and one.device.type != "cpu" for one in values):
            return _CHUNK
        return int(max(1, min(_CHUNK, draws_of_little(self.by_row, self.plan.rows))))

    def _known_values(self, start: int, stop: int) -> dict[str, Tensor] | None:
        """What the first draw has on some rows, if that was found out before."""
        known, dims = self._known, self.plan.layout.row_dims
        if known is None or stop > known.stop:
            return None
        if any(known.values[n].shape[dims[n]] != known.stop for n in known.values.keys() & dims):
            return None  # another number of entries for each row
        self._check_found(known)
        return {
            name: value.narrow(dims[name], start, stop - start) if name in dims else value
            for name, value in known.values.items()
        }

    def _evaluated(
        self,
        args: Any,
        kwargs: Any,
        start: int,
        stop: int,
        first: int,
        last: int,
        *,
        looked_at: bool = False,
        **given: Any,
    ) -> PredictiveRun:
        run: PredictiveRun = self.run_kind(
            self.plan, start, stop, first, last, vectorised=self.parallel, **given
        )
        run.looked_at = looked_at
        with run:
            if self.parallel:
                dim = -self.plan.layout.nesting - 1
                with pyro.plate(PREDICTIVE_PLATE, last - first, dim=dim):
                    self.model(*args, **kwargs)
            else:
                self.model(*args, **kwargs)
        return run

    def _check_draws_apart(self, args: Any, kwargs: Any, stop: int) -> None:
        """
        Refuses a model in which another second draw changes what is predicted by the first.

        Both runs have the noise of the first: what a sampler draws in two stages shifts with the
        parameters of other draws.
        """
        draws, offset = self.plan.draws, self.plan.offset
        runs: list[PredictiveRun] = []
        for second in (1, 0):
            pair = {name: torch.stack([value[0], value[second]]) for name, value in draws.items()}
            self.plan.draws, self.plan.offset = pair, 0
            given = {"given": runs[0].noise, "given_rows": stop} if runs else {}
            try:
                runs.append(self._evaluated(args, kwargs, 0, stop, 0, 2, looked_at=True, **given))
            finally:
                self.plan.draws, self.plan.offset = draws, offset
        for name in runs[0].functions.keys() & runs[1].functions.keys():
            if not self._is_same_first(name, *runs):
                raise SiteError(
                    f"with parallel=True what one draw predicts at site {name!r} depends on the "
                    "other draws. Count dimensions from the right and name them, w[..., 0] and "
                    "(w * x).sum(-1), not w[0] and w.sum(), or leave parallel out."
                )

    def _is_same_first(self, name: str, one: PredictiveRun, other: PredictiveRun) -> bool:
        """Whether the first draw has the same value, or distribution, in both runs."""
        if name in one.noise:
            nesting = self.plan.layout.nesting
            return same_first_draw(one.functions[name], other.functions[name], nesting)
        if name not in one.values:
            return True
        a, b = one.values[name][0], other.values[name][0]
        return torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True)

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
        units = range(0, stop - start, UNIT)
        parts = [
            self.guide.sample_at(
                last - first,
                context[offset : offset + UNIT],
                seeds=(self.plan.seeded(first, -1), self.plan.seeded(first, start + offset)),
            )
            for offset in units
        ]
        self.plan.offset = first
        self.plan.draws = {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}

    def _cut(self, start: int, stop: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        rows = self.plan.rows

        def cut(value: Any) -> Any:
            if rows and isinstance(value, Tensor) and value.dim() and len(value) == rows:
                return value[start:stop]
            return value

        return tuple(map(cut, self.args)), {k: cut(v) for k, v in self.kwargs.items()}

    def _check_found(self, run: PredictiveRun) -> None:
        missing = sorted((self.plan.sites or frozenset()) - run.values.keys())
        if missing:
            raise SiteError(
                f"sites {missing} are not in the model; it has {sorted(run.shapes)}. Sites "
                "computed from others are kept with pyro.deterministic(name, value)."
            )
