"""A model at draws of a guide, some rows at a time, whatever the batches the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.handlers.held.held_sites import HeldSites
from pyro_implicit.handlers.held.held_warnings import drawn_unheard
from pyro_implicit.handlers.looks.upstream import upstream_sites
from pyro_implicit.handlers.rows.row_coupling import can_be_looked_at, draws_of_little
from pyro_implicit.inference.draws_apart import DrawsApart
from pyro_implicit.inference.from_prior import forgotten_latents, of_another_model
from pyro_implicit.inference.moments import Draws, Moments
from pyro_implicit.inference.predictive_run import PREDICTIVE_PLATE, PredictiveRun
from pyro_implicit.inference.recorded_draws import RecordedDraws, saves_time
from pyro_implicit.inference.rows_of_a_model import RowsOfAModel
from pyro_implicit.inference.run_plan import ROWS_PER_SEED, RunPlan

__all__ = ["PredictiveJob"]

_MAX_DRAWS_AT_ONCE = 64  # if parallel
_MAX_CHECKED_DRAWS_OF_ALL_ROWS = 16  # in the check of the draws, where that takes all rows


class PredictiveJob(RowsOfAModel):
    """
    One evaluation of a model at draws of a guide, such as a call of :func:`predict`.

    :param model: the model.
    :param guide: the guide if it is conditional; the draws of any other are in the plan.
    :param tuple args: arguments of both.
    :param dict kwargs: keyword arguments of both.
    :param RunPlan plan: what all evaluations share.
    :param int num_samples: number of draws.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        guide: ConditionalGuide | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plan: RunPlan,
        num_samples: int,
    ) -> None:
        super().__init__(model, guide, args, kwargs, plan)
        self.num_samples, self.moments = num_samples, False
        self._size = 1  # draws at a time
        self._runs_differ = False  # by more than the draw, as far as can be seen

    def check_guide_is_for_the_model(self) -> None:
        """
        Refuses the guide of another model, of which nothing would be used.

        :raises SiteError: if the model samples none of its latents.
        """
        latents = set(self.plan.draws)
        if latents and not self.plan.met:
            raise of_another_model(latents)

    def forgotten_latents(self, guide: Callable[..., Any]) -> list[str]:
        """
        Latents that came from their prior, once the model was run.

        :param guide: any guide.
        :returns: their names.
        """
        rows = self.plan.rows if self.plan.whole else min(self.plan.rows, ROWS_PER_SEED)
        args, kwargs = self._cut(0, rows)
        if self.guide is not None:
            self._draw_rows(args, kwargs, 0, rows, 0, 1)
        small = can_be_looked_at([*self.args, *self.kwargs.values()])
        whole = (self.args, self.kwargs) if small else None
        return forgotten_latents(self.model, guide, args, kwargs, self.plan, whole)

    def unheard(self) -> list[str]:
        """
        Sites that were drawn before values which are held and depend on them.

        :returns: their names.
        """
        held, rows = self.plan.held, min(self.plan.rows, ROWS_PER_SEED)
        stays = {name for name in held.sites if held.stays(name)}
        if not held.before or not stays:
            return []
        args, kwargs = self._cut(0, rows)
        if self.guide is not None:
            self._draw_rows(args, kwargs, 0, rows, 0, 1)
        one = {name: value[0] for name, value in self.plan.draws.items()}
        with HeldSites(one, 0, self.plan.rows):
            parents = upstream_sites(self.model, args, kwargs, one)
        return drawn_unheard(held.before, stays, parents)

    def run(self, batch_size: int | None, *, exactly: bool = False) -> dict[str, Tensor]:
        """
        Evaluates all draws of all rows.

        :param int batch_size: rows at a time.
        :param bool exactly: whether there may not be more.
        :returns: draws or moments by site.
        """
        rows = max(self.plan.rows, 1)
        step = -(-(batch_size or rows) // ROWS_PER_SEED) * ROWS_PER_SEED
        step = self.rows_at_a_time(step, exactly=exactly)
        self._size = self._draws_at_a_time()
        self.parallel = self.parallel and min(self._size, self.num_samples) > 1
        pieces: dict[str, list[Tensor]] = {}
        for start in range(0, rows, step):
            found = self._batch(start, min(start + step, self.plan.rows))
            self.plan.held.refuse_unclear(self.plan.held.data)
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
                    self._check_draws_apart(stop)
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
            return _MAX_DRAWS_AT_ONCE
        return int(max(1, min(_MAX_DRAWS_AT_ONCE, draws_of_little(self.by_row, self.plan.rows))))

    def _known_values(self, start: int, stop: int) -> dict[str, Tensor] | None:
        """What the first draw has on some rows, if that was found out before."""
        known, dims = self.known, self.plan.layout.row_dims
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
        together: bool | None = None,
        looked_at: bool = False,
        **given: Any,
    ) -> PredictiveRun:
        """The model at some draws; ``together`` in one pass, or as this job has it."""
        together = self.parallel if together is None else together

        def make() -> PredictiveRun:
            run: PredictiveRun = self.run_kind(
                self.plan, start, stop, first, last, vectorised=together, **given
            )
            run.looked_at = looked_at
            return run

        if not together:
            return self._ran(make, args, kwargs)
        run = make()
        with run, pyro.plate(PREDICTIVE_PLATE, last - first, dim=-self.plan.layout.nesting - 1):
            self.model(*args, **kwargs)
        return run

    def _check_draws_apart(self, stop: int) -> None:
        """
        Refuses a model in which what one of the draws predicts is no matter of that draw alone.

        :param int stop: rows of the first batch; if they can be cut, a few of all rows tell, the
            first and the last among them.
        :raises SiteError: naming the site, or the line.
        """
        plan, draws = self.plan, self.plan.draws
        rows = min(stop, ROWS_PER_SEED) if plan.layout.row_dims and not plan.whole else stop
        if rows < plan.rows and not self._has_latents_of_rows():
            self._order = torch.linspace(0, plan.rows - 1, rows).round().long()
        args, kwargs = self._cut(0, rows)
        self._order = None

        def evaluate(count: int, **given: Any) -> PredictiveRun:
            return self._evaluated(
                args, kwargs, 0, rows, 0, count, together=count > 1, looked_at=True, **given
            )

        if self.guide is not None:
            plan.draws = {name: value[:, :rows] for name, value in draws.items()}
        try:
            most = self._size if rows < stop else min(self._size, _MAX_CHECKED_DRAWS_OF_ALL_ROWS)
            DrawsApart(plan, evaluate, rows, most).check()
        finally:
            plan.draws = draws

    def _check_found(self, run: PredictiveRun) -> None:
        missing = sorted((self.plan.sites or frozenset()) - run.values.keys())
        if missing:
            raise SiteError(
                f"sites {missing} are not in the model; it has {sorted(run.shapes)}. Sites "
                "computed from others are kept with pyro.deterministic(name, value)."
            )
