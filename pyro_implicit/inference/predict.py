"""Predictions of a fitted guide, in bounded memory, with the same draws for every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_flag, check_guide, check_model, check_names
from pyro_implicit._random import own_numbers
from pyro_implicit.exceptions import ShapeError, SiteError
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.handlers.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.row_coupling import RowsTogether, check_rows_fit, coupled_sites
from pyro_implicit.handlers.rows import NotSliceable, number_of_rows
from pyro_implicit.inference.moments import Draws, Moments
from pyro_implicit.inference.posterior_draws import posterior_draws
from pyro_implicit.inference.predictive_run import (
    PREDICTIVE_PLATE,
    UNIT,
    Layout,
    PredictiveRun,
    RunPlan,
)

__all__ = ["predict"]

_CHUNK = 64  # draws evaluated at once if parallel
#: rows that a site is looked at with, of the first UNIT. No row is in both, so that what one row
#: tells all others (the largest) is missing in one of them; nor do both start and end with a group
#: of rows of any size but 1 (pairs, windows).
_PARTS = ((0, 13), (14, UNIT))


@torch.no_grad()
@evaluation_mode()
def predict(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    *args: Any,
    num_samples: int,
    batch_size: int | None = None,
    sites: Iterable[str] | None = None,
    parallel: bool = False,
    moments: bool = False,
    **kwargs: Any,
) -> dict[str, Tensor]:
    """
    Draws of the observed sites (the posterior predictive) and of any other site asked for.

    The guide is drawn from ``num_samples`` times, once for all rows, so that each draw is one
    coherent function of the inputs. (A conditional guide has draws of its own for each row; they
    are made batch by batch.) Rows are then taken ``batch_size`` at a time; every tensor
    argument whose first size is the number of rows (that of the first tensor argument) is cut.
    Only the sites asked for are kept, no trace is. Observation noise is drawn by row, so that the
    result does not depend on ``batch_size``.

    Which dimension of a site holds the rows is found by running the model on the first 32 of them
    (if there are more), and again on two parts of these. A model that
    only takes all rows at once gets them so. So does one whose rows belong together, whatever
    ``batch_size``: rows drawn as one event (a ``MultivariateNormal`` over rows, a Gaussian process,
    an :class:`~pyro_implicit.ImplicitProcess`), a site for each row (loops over time), or rows that
    come out otherwise without another one (rows standardised within the model).

    Networks are evaluated in evaluation mode, whatever theirs is, and get theirs back: BatchNorm
    uses its running statistics and leaves them alone, dropout is off (a warning names it, unless
    the network was in evaluation mode already). Noise that is to stay, as in Monte Carlo dropout,
    is written ``F.dropout(x, p, training=True)``; rows then depend on each other's, and are
    evaluated all at once.

    :param model: a Pyro model; arguments for observations are left out, or ignored.
    :param guide: a fitted guide, implicit or not.
    :param args: the model's arguments.
    :param int num_samples: number of draws.
    :param int batch_size: rows at a time, rounded up to a multiple of 32; all by default, or where
        rows belong together.
    :param sites: names of the sites to keep, ``pyro.deterministic`` ones included; by default every
        site that is not a latent of the guide nor deterministic.
    :param bool parallel: evaluate many draws in one vectorised pass, as in
        :class:`pyro.infer.Predictive`: faster, and every batch dimension of the model must then be
        declared by a plate.
    :param bool moments: return mean and variance over draws instead of the draws, in memory that
        does not grow with ``num_samples``.
    :param kwargs: the model's keyword arguments.
    :returns: by site, draws of shape ``(num_samples, rows, ...)``; with ``moments`` the mean and
        the variance (unbiased; NaN for one draw), stacked in shape ``(2, rows, ...)``.
    :raises ArgumentError: if ``num_samples`` or ``batch_size`` is below 1.
    :raises OutOfMemoryError: if rows that belong together will not fit into memory at once.
    :raises ShapeError: if there are no rows.
    :raises SiteError: if a site asked for is not in the model, or none of the guide's latents is;
        if with ``parallel`` what one draw predicts depends on other draws.
    """
    check_model(model)
    check_guide(guide)
    num_samples = check_count("num_samples", num_samples)
    batch_size = None if batch_size is None else check_count("batch_size", batch_size)
    sites = None if sites is None else check_names("sites", sites)
    check_flag("parallel", parallel)
    check_flag("moments", moments)
    by_row = guide if isinstance(guide, ConditionalGuide) else None
    draws = {} if by_row else posterior_draws(guide, num_samples, *args, **kwargs)
    rows, kept = number_of_rows(args, kwargs), None if sites is None else frozenset(sites)
    with own_numbers() as seed:
        plan = RunPlan(draws, rows, seed, kept)
        plan.numbered = by_row is None and callable(getattr(guide, "sample", None))
        job = _Job(model, by_row, args, kwargs, plan, num_samples)
        job.parallel, job.moments = parallel, moments
        job.find_layout(batch_size)
        try:
            found = job.run(batch_size)
        except NotSliceable:  # noise that cannot be drawn by row: as many rows as share a state
            found = job.run(UNIT)
        job.check_guide_is_for_the_model()
    return found


class _Job:
    """One call of :func:`predict`."""

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

    def find_layout(self, batch_size: int | None) -> None:
        """Learns each site's row dimension and, if parallel, the shapes of a single draw."""
        rows = self.plan.rows
        if rows <= UNIT:
            if self.parallel:
                self._lay_out_all()
            return
        try:
            more = self._probe()
            parts = [self._probe(more, *part) for part in _PARTS]
        except RowsTogether:
            self.plan.whole = True
            self._lay_out_all()
            return
        except Exception:  # a model that only takes all of its rows, unless cutting is asked for
            if batch_size is not None and batch_size < rows:
                raise
            self._lay_out_all()
            return
        self.plan.layout = Layout.compare(parts[0], more)
        self._join_coupled_rows(more, parts)

    def check_guide_is_for_the_model(self) -> None:
        """Of another model's guide nothing would be used: its latents would come from the prior."""
        latents = set(self.plan.draws)
        if latents and not self.plan.met:
            raise SiteError(
                f"the guide draws {sorted(latents)}, none of which the model samples: predictions "
                "would come from its prior. Pass the model that the guide was fitted to, with the "
                "same names (BayesianModule(..., name=...) gives them a prefix)."
            )

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

    def _lay_out_all(self) -> None:
        """The layout from one draw of all rows."""
        run = PredictiveRun(self.plan, 0, self.plan.rows, 0, 1, vectorised=False)
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
        given = None if more is None else more.noise
        run = PredictiveRun(self.plan, start, stop, 0, 1, vectorised=False, given=given)
        run.looked_at = True
        with run:
            self.model(*args, **kwargs)
        self.plan.draws = latents
        return run

    def run(self, batch_size: int | None) -> dict[str, Tensor]:
        """All draws of all rows."""
        rows = max(self.plan.rows, 1)
        step = -(-(batch_size or rows) // UNIT) * UNIT if not self.plan.whole else rows
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
        size = _CHUNK if self.parallel else 1
        for first in range(0, self.num_samples, size):
            last = min(first + size, self.num_samples)
            self._draw_rows(args, kwargs, start, stop, first, last)
            if self.parallel and start == first == 0 and last > 1:
                self._check_draws_apart(args, kwargs, stop)
            run = self._evaluated(args, kwargs, start, stop, first, last)
            self._check_found(run)
            for name, value in run.values.items():
                chunks.setdefault(name, Moments() if self.moments else Draws()).add(value)
        return {name: parts.result() for name, parts in chunks.items()}

    def _evaluated(
        self, args: Any, kwargs: Any, start: int, stop: int, first: int, last: int
    ) -> PredictiveRun:
        run = PredictiveRun(self.plan, start, stop, first, last, vectorised=self.parallel)
        with run:
            if self.parallel:
                dim = -self.plan.layout.nesting - 1
                with pyro.plate(PREDICTIVE_PLATE, last - first, dim=dim):
                    self.model(*args, **kwargs)
            else:
                self.model(*args, **kwargs)
        return run

    def _check_draws_apart(self, args: Any, kwargs: Any, stop: int) -> None:
        """Refuses a model in which another second draw changes what is predicted by the first."""
        draws, offset = self.plan.draws, self.plan.offset
        runs = []
        for second in (1, 0):
            pair = {name: torch.stack([value[0], value[second]]) for name, value in draws.items()}
            self.plan.draws, self.plan.offset = pair, 0
            try:
                runs.append(self._evaluated(args, kwargs, 0, stop, 0, 2).values)
            finally:
                self.plan.draws, self.plan.offset = draws, offset
        for name, value in runs[0].items():
            if not torch.allclose(value[0], runs[1][name][0], rtol=1e-3, atol=1e-5, equal_nan=True):
                raise SiteError(
                    f"with parallel=True what one draw predicts at site {name!r} depends on the "
                    "other draws. Count dimensions from the right and name them, w[..., 0] and "
                    "(w * x).sum(-1), not w[0] and w.sum(), or leave parallel out."
                )

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
