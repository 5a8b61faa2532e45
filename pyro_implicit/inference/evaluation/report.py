"""What an evaluation has found: a score for each question, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from pyro_implicit._checks import check_count, check_instance, check_names
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.ops.scoring import mean_and_error

__all__ = ["EvaluationReport", "Score", "SiteEvaluation"]

_MAX_SITES_PRINTED, _NUM_SITES_PRINTED_OF_MORE = 8, 2


class Score(NamedTuple):
    """
    A score and its standard error over rows.

    :param float value: the score.
    :param float standard_error: NaN if it has none, as of a single row or a calibration error.
    """

    value: float
    standard_error: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.standard_error):
            return f"{self.value:.4g}"
        return f"{self.value:.4g} +- {self.standard_error:.2g}"


@dataclass(frozen=True)
class SiteEvaluation:
    """
    The scores of one observed site, each also an attribute (``site.rmse``).

    :param str kind: ``"real"``, ``"count"``, ``"class"`` or ``"angle"``.
    :param int num_data: number of data that are not masked.
    :param scores: by name.
    :param rows: what each datum has, by name, shape ``(num_data,)``: ``row`` (its number),
        ``log_density`` and what the scores are the means of; for numbers also the predicted
        ``mean`` and the bounds ``lower_90``, ``upper_90`` and so on (of an observation with several
        entries their mean).
    """

    kind: str
    num_data: int
    scores: Mapping[str, Score]
    rows: Mapping[str, Tensor] = field(repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        check_names("scores", list(check_instance("scores", self.scores, Mapping, "by name")))
        check_names("kind", [self.kind])
        check_count("num_data", self.num_data, 0)
        _check_rows(self.rows)

    def __getattr__(self, name: str) -> Score:
        scores = self.__dict__.get("scores", {})
        if name in scores:
            score: Score = scores[name]
            return score
        raise AttributeError(f"no score {name!r}; there are {sorted(scores)}")


@dataclass(frozen=True)
class EvaluationReport:
    """
    What :func:`~pyro_implicit.evaluate` has found.

    It can be printed, and ``to_dict()`` gives plain numbers. With one observed site its scores are
    attributes of the report too: ``report.rmse``.

    :param Score log_density: the log predictive density of a datum, on average. Observed sites in
        the same plates are one datum.
    :param sites: the scores of each observed site by name.
    :param int num_samples: draws of the guide.
    :param rows: of each datum ``log_density``, ``row`` and ``fingerprint`` (a number made of what
        was observed, by which :meth:`difference` knows the same data), shape ``(N,)``.
    :param notes: what a user should know, in words.
    """

    log_density: Score
    sites: Mapping[str, SiteEvaluation]
    num_samples: int
    rows: Mapping[str, Tensor] = field(repr=False, default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_instance("log_density", self.log_density, Score, "a Score")
        check_instance("sites", self.sites, Mapping, "SiteEvaluation by name")
        for name, site in self.sites.items():
            check_instance(f"sites[{name!r}]", site, SiteEvaluation, "a SiteEvaluation")
        check_count("num_samples", self.num_samples)
        check_instance("notes", self.notes, tuple, "a tuple of texts")
        _check_rows(self.rows)

    def __getattr__(self, name: str) -> Score:
        sites = self.__dict__.get("sites", {})
        if len(sites) == 1 and not name.startswith("_"):
            score: Score = getattr(next(iter(sites.values())), name)
            return score
        raise AttributeError(f"no attribute {name!r}; the observed sites are {sorted(sites)}")

    def __getitem__(self, site: str) -> SiteEvaluation:
        return self.sites[site]

    def difference(self, other: EvaluationReport) -> Score:
        """
        How much larger the log predictive density is than another guide's, datum by datum.

        The standard error is that of the differences, which is far smaller than those of the two
        values: what makes a datum hard to predict is hard for both.

        :param EvaluationReport other: of the same data.
        :returns: the mean difference a datum and its standard error over rows.
        :raises ShapeError: if the other report is of other data.
        """
        check_instance("other", other, EvaluationReport, "a report of the same data")
        mine, theirs = self.rows["log_density"], other.rows["log_density"]
        if mine.shape != theirs.shape:
            raise ShapeError(
                f"the reports are of {len(mine)} and {len(theirs)} data; expected two of the same."
            )
        changed = self._changed_data(other)
        if changed:
            raise ShapeError(
                f"the reports are of other data: {changed} of {len(mine)} have other observations. "
                "Expected two evaluations of the same rows in the same order, such as "
                "evaluate(model, guide, x_test, y_test) of two guides."
            )
        return Score(*mean_and_error(mine - theirs, self.rows["row"]))

    def _changed_data(self, other: EvaluationReport) -> int:
        """How many data have other observations; as many at most as both reports tell of."""
        mine, theirs = (report.rows.get("fingerprint") for report in (self, other))
        if mine is None or theirs is None:
            return 0
        same = mine.isclose(theirs.to(mine), rtol=1e-5, atol=1e-6, equal_nan=True)
        return int((~same).sum())

    def to_dict(self) -> dict[str, Any]:
        """
        The report as plain numbers and texts, as JSON has them.

        :returns: ``num_samples``, ``log_density``, ``sites`` and ``notes``; each score is a
            dictionary, too.
        """
        sites = {
            name: {"kind": site.kind, "num_data": site.num_data}
            | {score: value._asdict() for score, value in site.scores.items()}
            for name, site in self.sites.items()
        }
        return {
            "num_samples": self.num_samples,
            "log_density": self.log_density._asdict(),
            "sites": sites,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        names = [len(name) for name in self.sites]
        width = max([len("all sites"), *names])
        lines = [f"{'site':<{width}}  {'score':<16}{'value':>12}{'std. error':>12}"]
        if len(self.sites) != 1 or "log_density" not in next(iter(self.sites.values())).scores:
            lines.append(_line("all sites", "log_density", self.log_density, width))
        most = _NUM_SITES_PRINTED_OF_MORE if len(self.sites) > _MAX_SITES_PRINTED else None
        shown = list(self.sites)[:most]
        for name in shown:
            for score, value in self.sites[name].scores.items():
                lines.append(_line(name, score, value, width))
        counts = ", ".join(f"{self.sites[name].num_data} data of {name}" for name in shown)
        left = len(self.sites) - len(shown)
        if left:
            last = list(self.sites)[-1]
            counts += f"; {left} more sites: report[{last!r}] has the scores of one, to_dict() all"
        lines.append(f"{self.num_samples} draws; {counts}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _check_rows(rows: Any) -> None:
    for name, value in check_instance("rows", rows, Mapping, "tensors by name").items():
        check_instance(f"rows[{name!r}]", value, Tensor, "a tensor")


_LABELS_OF_SCORES = {
    "log_density": "log density",
    "rmse": "RMSE",
    "mae": "MAE",
    "crps": "CRPS",
    "nll": "NLL",
    "brier": "Brier score",
    "ece": "ECE",
}


def _line(site: str, name: str, score: Score, width: int) -> str:
    kind, _, percent = name.partition("_")
    shown = _LABELS_OF_SCORES.get(name, f"{kind} of {percent}%" if percent else name)
    error = "" if math.isnan(score.standard_error) else f"{score.standard_error:.4g}"
    return f"{site:<{width}}  {shown:<16}{score.value:>12.4g}{error:>12}"
