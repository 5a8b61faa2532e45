"""All draws on all rows, batch by batch: what every datum has scored."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import MissingExtraError, SiteError
from pyro_implicit.handlers.pointwise import warning_of_factors_alone
from pyro_implicit.inference.evaluation.draw_chunks import DrawChunks
from pyro_implicit.inference.evaluation.evaluation_run import EvaluationRun
from pyro_implicit.inference.evaluation.observation import DatumKey, Observation
from pyro_implicit.inference.evaluation.tally import ClassTally, DensityTally, NumberTally
from pyro_implicit.inference.from_prior import came_from_prior
from pyro_implicit.inference.layout import Layout
from pyro_implicit.inference.predictive_job import PredictiveJob
from pyro_implicit.inference.predictive_run import PredictiveRun
from pyro_implicit.inference.run_plan import ROWS_PER_SEED

__all__ = ["EvaluationJob", "SiteData"]

_MIN_OUTCOMES = 1000  # draws of the observations, for intervals
# Of the draws of a batch, unless a batch size is given.
_MAX_NUMBERS_OF_OUTCOMES = 2**23
_MAX_ROWS_PER_BATCH = 4096


@dataclass
class SiteData:
    """
    What the data of a site have scored.

    :param str kind: what the data are.
    :param parts: of each batch of rows the scores of its data, by name, in datum shape.
    :param row_dim: negative dimension of the rows in them.
    :param calibration: confidence and rightness of labels.
    :param bool has_density: whether its data have a density apart from those of other sites.
    :param exact: their log densities, in place of those of the parts, or None.
    """

    kind: str
    parts: list[dict[str, Tensor]] = field(default_factory=list)
    row_dim: int | None = None
    calibration: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    has_density: bool = True
    exact: Tensor | None = None

    @property
    def num_masked(self) -> int:
        """Data that are left out."""
        return sum(int((~part["counted"].bool()).sum()) for part in self.parts)

    def joined(self) -> dict[str, Tensor]:
        """The scores of all data that are not masked, flat, in the order of the plates."""
        joined = {}
        for name in self.parts[0]:
            values = [part[name] for part in self.parts]
            whole = values[0] if self.row_dim is None else torch.cat(values, self.row_dim)
            joined[name] = whole.flatten()
        kept = joined.pop("counted").bool()
        found = {name: value[kept] for name, value in joined.items()}
        if not self.has_density:
            del found["log_density"]
        return found if self.exact is None else found | {"log_density": self.exact}


class EvaluationJob(PredictiveJob):
    """One call of :func:`~pyro_implicit.evaluate`."""

    def prepare(self, chunks: DrawChunks | None) -> None:
        """
        Says where draws come from.

        :param chunks: the draws; None for a conditional guide, which draws by row.
        """
        self.chunks = chunks
        self.num_outcomes = -(-_MIN_OUTCOMES // self.num_samples)
        self.kinds: dict[str, str] = {}
        self.run_kind = partial(EvaluationRun, num_outcomes=self.num_outcomes, kinds=self.kinds)
        self.sites: dict[str, SiteData] = {}
        self.joint: dict[DatumKey, SiteData] = {}
        self.notes: dict[str, None] = {}
        self.from_prior: set[str] = set()
        #: names of the plates that have the rows
        self.row_plates: set[str] = set()
        #: names of latents that are to be summed out; their runs here are at draws of them
        self.summed_out: set[str] = set()

    def find_layout(self, batch_size: int | None) -> None:
        """
        Learns each site's row dimension.

        Rows that are too few for batches are compared with one less of them: sizes alone do not
        tell rows from the other plates of as many. Where the observations cannot be cut with the
        rows (those of a plate in front, and as many), distributions alone are compared.

        :param int batch_size: rows at a time.
        """
        super().find_layout(batch_size)
        before = self.plan.layout
        self._lay_out_few_rows()
        layout, rows = self.plan.layout, self.plan.rows
        here = min(rows, ROWS_PER_SEED) if layout is before else rows
        many = {n for n, dim in layout.row_dims.items() if layout.shapes[n][dim] != here}
        if many:  # several data of a row, each by itself: they are not those of one row at a time
            dims = {name: dim for name, dim in layout.row_dims.items() if name not in many}
            self.plan.layout = replace(layout, row_dims=dims, shifted=layout.shifted | many)
            self.plan.whole = True

    def _lay_out_few_rows(self) -> None:
        plan = self.plan
        if plan.rows < 2 or plan.whole or plan.layout.row_dims:
            return
        found = self._one_row_less(self.run_kind) if plan.rows <= ROWS_PER_SEED else None
        if found is None:
            found = self._one_row_less(PredictiveRun)
            if found is None or not found.row_dims:
                return
            plan.whole = True
        plan.layout = found

    def kind_to_look_with(self) -> Any:
        """See :meth:`PredictiveJob.kind_to_look_with`: one draw of the observations is enough."""
        return partial(EvaluationRun, num_outcomes=1, kinds=self.kinds)

    def _one_row_less(self, run_kind: Any) -> Layout | None:
        """The layout by runs on all rows and on one less; None if the model takes only all."""
        own, self.run_kind = self.run_kind, run_kind
        try:
            fewer, more = self._probe(stop=self.plan.rows - 1), self._probe(stop=self.plan.rows)
        except Exception:  # whatever a model does without a row of its data
            return None
        finally:
            self.run_kind = own
        return Layout.compare(fewer, more)

    def evaluate(self, batch_size: int | None, *, exactly: bool = False) -> None:
        """
        Fills ``sites`` and ``joint``.

        :param int batch_size: rows at a time; None for as many as fit.
        :param bool exactly: whether there may not be more.
        :raises SiteError: if there is no data.
        """
        self.sites, self.joint, self.notes = {}, {}, {}
        rows = max(self.plan.rows, 1)
        step = rows if self.plan.whole else self._step(batch_size, rows)
        step = self.rows_at_a_time(step, exactly=exactly)
        self.known = None  # whose draws of observations are not all that are wanted
        for start in range(0, rows, step):
            self._one_batch(start, min(start + step, self.plan.rows))

    def missing_latents(self) -> str:
        """What to say of latents that the guide does not draw; empty if it draws them all."""
        return came_from_prior(self.from_prior, set(self.plan.draws) - self.plan.met)

    def rows_of_little(self) -> int:
        """See :meth:`PredictiveJob.rows_of_little`: draws of observations are kept as well."""
        return min(super().rows_of_little(), self._step(None, self.plan.rows))

    def _step(self, batch_size: int | None, rows: int) -> int:
        layout = self.plan.layout
        if batch_size is None:
            sizes = [layout.shapes[name].numel() // ROWS_PER_SEED for name in layout.row_dims]
            if not sizes:
                return rows
            draws = self.num_outcomes * self.num_samples
            most = _MAX_NUMBERS_OF_OUTCOMES // (draws * max(*sizes, 1))
            batch_size = min(max(most, 1), _MAX_ROWS_PER_BATCH)
        return -(-batch_size // ROWS_PER_SEED) * ROWS_PER_SEED

    def _one_batch(self, start: int, stop: int) -> None:
        """All draws of some rows."""
        args, kwargs = self._cut(start, stop)
        tallies: dict[str, Any] = {}
        alone: dict[str, DensityTally] = {}
        joint: dict[Any, DensityTally] = {}
        seen: dict[str, Observation] = {}
        for index in range(self.num_samples):
            if self.chunks is not None:
                self.plan.draws, self.plan.offset = self.chunks.holding(index)
            self._draw_rows(args, kwargs, start, stop, index, index + 1)
            run: Any = self._evaluated(args, kwargs, start, stop, index, index + 1)
            self._check_data(run)
            self.from_prior |= run.from_prior
            if index == 0:
                seen = run.seen
                tallies = {name: self._tally(name, one) for name, one in seen.items()}
            together: dict[Any, Any] = {}
            for name, one in run.seen.items():
                if index and name in seen:
                    seen[name].compare(one)
                log_prob = one.log_prob()
                alone.setdefault(name, DensityTally()).add(log_prob)
                together[one.key] = together.get(one.key, 0.0) + one.joint(log_prob)
                if tallies.get(name) is not None:
                    tallies[name].add(one, run.outcomes.get(name))
            for key, log_prob in together.items():
                joint.setdefault(key, DensityTally()).add(log_prob)
        self._keep(seen, tallies, alone, joint)

    def _check_data(self, run: EvaluationRun) -> None:
        listed = ", ".join(map(repr, sorted(run.factors)))
        if listed:
            self.notes[f"pyro.factor sites hold no data and count for nothing here: {listed}"] = (
                None
            )
        self.summed_out |= run.summed_out
        if run.seen:
            return
        if listed:
            raise SiteError(warning_of_factors_alone(run.factors))
        raise SiteError(
            "the model observes nothing with these arguments, so there is nothing to evaluate: "
            "held-out data need the observations too, as training data do, such as "
            "evaluate(model, guide, x_test, y_test)."
        )

    def _tally(self, name: str, seen: Observation) -> Any:
        """What scores a site beyond its density; None for angles."""
        kind = self.kinds[name]
        site = self.sites.setdefault(name, SiteData(kind, row_dim=seen.row_dim))
        if not seen.value.dim() and seen.batch_shape.numel() > 1:
            self.notes[f"site {name!r} observes one number for {seen.batch_shape.numel()} data"] = (
                None
            )
        if seen.has_undeclared_rows:
            self.notes[
                f"the rows of site {name!r} are in no plate, and were taken for independent data"
            ] = None
        if seen.like_rows:
            self.notes[
                f"site {name!r} has as many entries as rows in dimensions {seen.like_rows}, and "
                f"the model takes only all rows: {seen.row_dim} was taken for theirs; a plate of "
                "len(x) would tell"
            ] = None
        if seen.value.dim() and seen.is_one_for_all:
            self.notes[
                f"site {name!r} observes one value of shape {tuple(seen.value.shape)} in each of "
                f"{seen.batch_shape.numel()} rows of its plates, and each counts; rows that are "
                "one event belong in no plate of rows"
            ] = None
        if seen.rows_are_one_event:
            self.notes[
                f"the rows of site {name!r} are one event of its distribution, and so one datum, "
                "which has no standard error; if they are independent, a plate in place of "
                ".to_event makes them many: with pyro.plate(name, len(x))"
            ] = None
        if kind == "angle":
            self.notes[f"site {name!r} observes angles, which are scored by density alone"] = None
            return None
        if site.kind == "class":
            _need_torchmetrics()
            return ClassTally()
        return NumberTally(whole=kind == "count")

    def _keep(
        self,
        seen: dict[str, Observation],
        tallies: dict[str, Any],
        alone: dict[str, DensityTally],
        joint: dict[Any, DensityTally],
    ) -> None:
        """Adds the scores of a batch to those of the others."""
        for name, one in seen.items():
            site, tally = self.sites[name], tallies[name]
            if one.has_moving_values:
                tally = None
                self.notes[
                    f"site {name!r} observes what follows latents, other values at each draw, and "
                    "is scored by density alone; let the model observe the data themselves"
                ] = None
            part = {"log_density": alone[name].log_density()} | _places(one)
            self.row_plates |= {one.row_plate} - {None}  # type: ignore[arg-type]
            if tally is not None:
                part |= tally.scores(one)
            if isinstance(tally, ClassTally):
                site.calibration.append(tally.calibration(one))
            if isinstance(tally, NumberTally) and not tally.draws:
                self.notes[f"site {name!r} cannot be drawn from: no CRPS and no intervals"] = None
            if one.has_moving_mask:
                self.notes[
                    f"the mask of site {name!r} follows latents: a datum counts that some draw "
                    "does not mask, with density 1 at each of the others, so that log densities of "
                    "other models are of other data"
                ] = None
            site.parts.append(part)
        for key, tally in joint.items():
            together = [one for one in seen.values() if one.key == key]
            data = self.joint.setdefault(key, SiteData("joint", row_dim=together[0].joint_row_dim))
            counted = [one.joint(one.counted()) for one in together]
            places = {"row": together[0].joint(together[0].rows())}
            places["counted"] = torch.stack(torch.broadcast_tensors(*counted)).any(0)
            prints = [one.joint(one.fingerprint()) for one in together]
            places["fingerprint"] = torch.stack(torch.broadcast_tensors(*prints)).sum(0)
            data.parts.append({"log_density": tally.log_density()} | places)


def _places(seen: Observation) -> dict[str, Tensor]:
    return {"row": seen.rows(), "counted": seen.counted()}


def _need_torchmetrics() -> None:
    try:
        import torchmetrics  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            'the calibration error of classes needs torchmetrics: pip install "pyro-implicit[main]"'
        ) from error
