"""Peaks of a posterior of few latents that a fitted guide does not reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit._random import RandomStream
from pyro_implicit.exceptions import ImplicitError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.initialization.curvature import hessian
from pyro_implicit.guides.initialization.lbfgs import maximise
from pyro_implicit.guides.initialization.network import has_layers
from pyro_implicit.guides.initialization.search_density import SearchDensity
from pyro_implicit.guides.values import unconstrain
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.supports.served_supports import is_real
from pyro_implicit.training.fitting.checks.screened_starts import screened_starts

__all__ = ["MissedPeaks", "missed_peaks"]

_MAX_LATENTS = 64
#: Above, draws of a guide are hardly within the ellipsoid about their own peak, where that is
#: skewed: what some of them lead to is not missed.
_MAX_LATENTS_TOLD_BY_DRAWS = 20
_NUM_CLIMBS_FROM_DRAWS = 6
_NUM_PRIOR_DRAWS = 32  # which tell where it is
_NUM_STARTS_FROM_PRIOR, _NUM_UNIFORM_STARTS = 8, 4
_MAX_STEPS_PER_START = 50
_MAX_DENSITY_EVALUATIONS = 600  # as many as a few dozen steps of training take
_MAX_MORE_EVALUATIONS = 200  # from starts that many points were screened for
_MAX_EVALUATIONS_FROM_DRAWS = 600
_NUM_GUIDE_DRAWS = 1000
_DRAWS_PER_PEAK = 400  # by whose weights the mass of the ellipsoid about a peak is told
#: At a peak of less mass nothing is told. One of a hundredth that is twelve deviations away makes
#: those of the posterior half as large again, and a skewed one has more than Laplace's method says.
_MIN_SHARE_OF_EVIDENCE = 0.01
_MAX_RELATIVE_SHARE_OF_DRAWS = 0.1  # of the guide at a missed peak, to the peak's share of the mass
_ERRORS_OF_MODELS = (ImplicitError, RuntimeError, ValueError, ArithmeticError, IndexError)


@dataclass(frozen=True)
class _Peak:
    point: Tensor
    precision: Tensor
    log_mass: float  # by Laplace's method, or by draws


@dataclass(frozen=True)
class MissedPeaks:
    """
    What a guide does not reach.

    :param float share: of the posterior's mass, at all these peaks together; 0 if there is none.
    :param str text: what a user should know, in words; empty if there is none.
    """

    share: float = 0.0
    text: str = ""


def missed_peaks(
    guide: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], bound: float
) -> MissedPeaks:
    """
    Looks for peaks with a good part of the posterior's mass and hardly a draw of the guide.

    The divergence that guides are trained by asks them to leave out what they cannot reach, and
    neither the loss nor the draws tell. Peaks are searched uphill from draws of the prior, from
    uniform points and from those that :func:`~.screened_starts.screened_starts` chooses; one that
    few points lead to may be missed, and other seeds of ``fit`` look from other points. The mass of
    each is that of the ellipsoid about it, by draws of the Gaussian of Laplace's method and their
    importance weights: in a funnel that method alone errs by thousands.

    Above 20 latents a peak that draws of the guide lead to is not missed. Ellipsoids have little of
    a skewed posterior there: the share of another peak is told in two ways, of the bound and beside
    the guide's own peak, measured alike, which is more where that is the more skewed one.

    :param guide: a fitted guide; others than an :class:`~pyro_implicit.guides.ImplicitGuide` of at
        most 64 latents are not looked at, nor one of a network's weights above 20, which has peaks
        without number that mean the same.
    :param model: the model.
    :param args: its arguments, the whole data.
    :param kwargs: its keyword arguments.
    :param float bound: the evidence bound that was reached, in nats.
    :returns: what it does not reach.
    """
    if not isinstance(guide, ImplicitGuide) or not math.isfinite(bound):
        return MissedPeaks()
    try:
        sites = list(guide.sites)
        num_latents = sum(site.numel for site in sites)
        by_draws = num_latents <= _MAX_LATENTS_TOLD_BY_DRAWS
        if not 0 < num_latents <= _MAX_LATENTS or not (by_draws or _has_no_layers(guide)):
            return MissedPeaks()
        joint = LogJoint(model, sites, args, kwargs)
        with (
            RandomStream(torch.initial_seed() % 2**31),
            evaluation_mode(),
            pyro.validation_enabled(False),
            torch.no_grad(),
        ):
            draws, _ = unconstrain(guide.sample(_NUM_GUIDE_DRAWS), sites, next(guide.parameters()))
            joint.check_deterministic(draws[0], "")  # another subsample at each call, for example
            density = SearchDensity(joint)
            density.record(draws[0])
            own = _Found() if by_draws else _own_peaks(density, draws)
            peaks = list(_peaks(density, draws, own))
            missed = [peak for peak in peaks if _is_missed(peak, draws, bound)]
            missed = [_weighed(peak, density) for peak in missed]
            missed = [peak for peak in missed if _is_missed(peak, draws, bound)]
            reached = [_weighed(peak, density).log_mass for peak in own.peaks]
            alike = min(bound, max(reached, default=bound))
            return _described(missed, joint, bound, alike) if missed else MissedPeaks()
    except _ERRORS_OF_MODELS:
        return MissedPeaks()  # a model without a density at all points, or with draws of its own


def _has_no_layers(guide: ImplicitGuide) -> bool:
    trace = getattr(guide, "prototype_trace", None)  # None of one that was loaded
    unbounded = [site for site in guide.sites if is_real(site.support)]  # a Cholesky factor is none
    return trace is None or not has_layers(unbounded, trace)


@dataclass
class _Found:
    """What searches have come to."""

    peaks: list[_Peak] = field(default_factory=list)
    points: list[Tensor] = field(default_factory=list)  # of all, whatever the curvature there

    def knows(self, point: Tensor) -> bool:
        return any(_is_near(point, peak) for peak in self.peaks)


def _own_peaks(density: SearchDensity, draws: Tensor) -> _Found:
    """Those that some draws of the guide lead to."""
    own = _Found()
    counted = _counted(density, _MAX_EVALUATIONS_FROM_DRAWS)
    with suppress(_ExhaustedError):
        for start in draws[:_NUM_CLIMBS_FROM_DRAWS]:
            for _ in _peak_from(start, density.log_joint, counted, own):
                pass
    return own


def _peaks(density: SearchDensity, draws: Tensor, own: _Found) -> Iterator[_Peak]:
    """Other peaks with a proper curvature, as many as some evaluations find."""
    prior = _prior_draws(density.log_joint, draws[0])
    found = _Found(list(own.peaks), list(own.points))
    for peak in _searched(density, draws, prior, found):
        if not any(_is_near(point, peak) for point in own.points):
            yield peak


def _searched(
    density: SearchDensity, draws: Tensor, prior: Tensor, found: _Found
) -> Iterator[_Peak]:
    """From starts in the prior, and from those that many points are screened for."""
    counted = _counted(density, _MAX_DENSITY_EVALUATIONS)
    with suppress(_ExhaustedError):
        for start in _starts(prior):
            yield from _peak_from(start, density.log_joint, counted, found)
    counted = _counted(density, _MAX_MORE_EVALUATIONS)
    # a model may fail in any way at some point of thousands: what was found until then counts
    with suppress(Exception):
        for start in screened_starts(density, prior, draws, found.points):
            yield from _peak_from(start, density.log_joint, counted, found)


class _ExhaustedError(Exception):
    """A search has taken as many evaluations as it may."""


def _counted(density: SearchDensity, most: int) -> Callable[[Tensor], Tensor]:
    """The density, which ends every search after so many evaluations."""
    count = 0

    def counted(u: Tensor) -> Tensor:
        nonlocal count
        count += 1
        if count > most:
            raise _ExhaustedError
        return density.quick(u)

    return counted


def _peak_from(
    start: Tensor,
    joint: LogJoint,
    density: Callable[[Tensor], Tensor],
    found: _Found,
) -> Iterator[_Peak]:
    """The peak that a start leads to, if it is a new one with a proper curvature."""
    try:
        point, _ = maximise(density, start, _MAX_STEPS_PER_START)
    except _ERRORS_OF_MODELS:
        return  # one start that leads nowhere; peaks that others lead to count
    value = float(joint.in_double(point))
    if not math.isfinite(value) or found.knows(point):
        return
    found.points.append(point)
    precision = -hessian(joint.value, point).double()
    root, info = torch.linalg.cholesky_ex(precision)
    if int(info) or not bool(root.isfinite().all()):
        return
    log_mass = value + 0.5 * len(point) * math.log(2 * math.pi)
    log_mass -= float(root.diagonal().log().sum())
    found.peaks.append(_Peak(point, precision, log_mass))
    yield found.peaks[-1]


def _weighed(peak: _Peak, density: SearchDensity) -> _Peak:
    """The same peak with the mass of the ellipsoid about it, if that is less than Laplace's."""
    root = torch.linalg.cholesky(peak.precision)
    noise = torch.randn(_DRAWS_PER_PEAK, len(peak.point), 1, dtype=torch.float64).to(root.device)
    steps = torch.linalg.solve_triangular(root.mT, noise, upper=True)[..., 0]
    squares = noise.square().sum((-1, -2))
    inside = squares < _radius(len(peak.point))
    values = density.at_draws((peak.point + steps[inside]).to(peak.point)).double()
    top = float(density.log_joint.in_double(peak.point))
    log_ratios = (values - top + 0.5 * squares[inside]).nan_to_num(nan=-math.inf)
    log_share = float(log_ratios.logsumexp(0)) - math.log(max(len(values), 1))
    return replace(peak, log_mass=peak.log_mass + min(log_share, 0.0))


def _prior_draws(joint: LogJoint, like: Tensor) -> Tensor:
    """Unconstrained draws of the prior, shape ``(k, m)``."""
    rows = []
    for _ in range(_NUM_PRIOR_DRAWS):
        trace = poutine.block(poutine.trace(joint.model).get_trace)(*joint.args, **joint.kwargs)
        nodes: dict[str, Any] = dict(trace.nodes)
        values = {site.name: nodes[site.name]["value"].unsqueeze(0) for site in joint.sites}
        rows.append(unconstrain(values, joint.sites, like)[0][0].to(like))
    return torch.stack(rows)


def _starts(prior: Tensor) -> Iterator[Tensor]:
    yield from prior[:_NUM_STARTS_FROM_PRIOR]
    for _ in range(_NUM_UNIFORM_STARTS // 2):
        uniform = 4 * torch.rand_like(prior[0]) - 2
        yield uniform
        yield -uniform  # of four on their own, one in sixteen has all at one side


def _distances(points: Tensor, peak: _Peak) -> Tensor:
    """Squared Mahalanobis distances from a peak, shape ``(n,)``."""
    apart = (points - peak.point).double()
    return ((apart @ peak.precision) * apart).sum(-1)


def _radius(size: int) -> float:
    """The squared distance that nearly all draws of a Gaussian are within."""
    return size + 3.0 * math.sqrt(2.0 * size)


def _is_near(point: Tensor, peak: _Peak) -> bool:
    return float(_distances(point.unsqueeze(0), peak)) < _radius(len(point))


def _is_missed(peak: _Peak, draws: Tensor, bound: float) -> bool:
    inside = (_distances(draws, peak) < _radius(draws.shape[-1])).double().mean()
    share, _ = _shares([peak.log_mass], bound)
    return share > _MIN_SHARE_OF_EVIDENCE and float(inside) < _MAX_RELATIVE_SHARE_OF_DRAWS * share


def _described(missed: list[_Peak], joint: LogJoint, bound: float, alike: float) -> MissedPeaks:
    """In words; ``alike`` is the mass of the guide's own peak, measured as that of the others."""
    peak = max(missed, key=lambda one: one.log_mass)
    masses = [one.log_mass for one in missed]
    share, together = _shares(masses, bound)
    most, _ = _shares(masses, alike)
    values, _ = joint.values(peak.point)
    where = ", ".join(f"{name} = {_shown(value)}" for name, value in list(values.items())[:3])
    count = "a peak" if len(missed) == 1 else f"{len(missed)} peaks"
    size = f"about {share:.0%}" if most < 1.5 * share else f"between {share:.0%} and {most:.0%}"
    return MissedPeaks(
        together,
        f"the posterior has {count} that the guide does not reach; one of {size} of the mass, by "
        f"draws about it, is at {where}. Where peaks mean the same (labels that may be exchanged), "
        "predictions are right with one; else join guides that start at each (init_loc_fn, "
        "EnsembleGuide), or run refine(model, 16, ...)",
    )


def _shares(log_masses: list[float], there: float) -> tuple[float, float]:
    """Of the largest of some peaks, and of all, beside what the guide has reached."""
    masses = torch.tensor([there, *log_masses], dtype=torch.float64)
    reached, *shares = masses.softmax(0).tolist()
    return max(shares), 1.0 - reached


def _shown(value: Tensor) -> str:
    few = [f"{number:.3g}" for number in value.reshape(-1)[:3].tolist()]
    dots = ", ..." if value.numel() > 3 else ""
    return few[0] if value.numel() == 1 else f"({', '.join(few)}{dots})"
