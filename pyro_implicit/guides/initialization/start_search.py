"""The search for a Gaussian initialisation: from where, how often, and whether it is good."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_implicit._warn import warn
from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.guides.initialization.blended_curvature import blended_curvature
from pyro_implicit.guides.initialization.centring import centred
from pyro_implicit.guides.initialization.curvature import (
    find_mode,
    inverse_root,
)
from pyro_implicit.guides.initialization.full_rank import fit_full_rank
from pyro_implicit.guides.initialization.gaussian_bound import objective
from pyro_implicit.guides.initialization.mean_field import (
    MeanField,
    fit_mean_field_from,
    fit_mean_field_near,
)
from pyro_implicit.guides.initialization.search_density import SearchDensity
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode

__all__ = ["ADVICE_ON_RANDOM_DENSITIES", "search", "starting_points"]

ADVICE_ON_RANDOM_DENSITIES = (
    ", so it has no one mode to start from: a latent site is hidden from this guide, or a plate "
    "draws a random subsample. Call guide.setup(...) with the whole data, or leave init_from out."
)

_NUM_RANDOM_POINTS = 8  # besides the location asked for
_NUM_BOUND_DRAWS = 200  # that two mean-field fits are compared on
_POINT_REFERENCE_SD = 0.01  # of the Gaussian that stands for a mere point
_MAX_TRIES = {
    "laplace": 4,
    "hessian": 2,
    "ggn": 2,
    "full-rank": 2,
}  # each of the last three takes thousands of steps


@dataclass
class _Found:
    """A Gaussian, its evidence lower bound, and that of the mean-field Gaussian beside it."""

    loc: Tensor
    factor: Tensor
    bound: float
    mean_field: float


@evaluation_mode()
def search(
    kind: str, log_joint: LogJoint, loc: Tensor, *, is_network: bool = False
) -> tuple[Tensor, Tensor]:
    """
    The Gaussian of :func:`~pyro_implicit.guides.initialization.gaussian_start`.

    Searches begin at ``loc``. If that fails, or finds a Gaussian whose evidence lower bound (ELBO)
    is far below that of a narrow one around any starting point, others begin at points drawn
    uniformly from (-2, 2) in the unconstrained space (by a generator of their own: the global one
    is left alone), and the best Gaussian is taken.

    :param str kind: ``"laplace"``, ``"hessian"``, ``"ggn"`` or ``"full-rank"``.
    :param LogJoint log_joint: the model's density.
    :param torch.Tensor loc: where to begin, shape ``(m,)``.
    :param bool is_network: whether the latents are a network's, which are fitted more slowly.
    :returns: mean ``(m,)`` and a root of the covariance ``(m, m)``.
    :raises NonFiniteError: if the density is finite at no starting point, naming the site, or no
        search finds a mode.
    :raises SiteError: if the density is random.

    Warns if the Gaussian found is still far worse than the starting points or than a mean-field
    Gaussian in the same place.
    """
    points = starting_points(log_joint, loc)
    log_joint.check_deterministic(points[0], ADVICE_ON_RANDOM_DENSITIES)
    density, narrow = SearchDensity(log_joint), torch.full_like(loc, _POINT_REFERENCE_SD)
    floors = [objective(density, point, narrow, 4) for point in points]
    far = 10.0 + loc.numel()  # nats
    others = sorted(range(1, len(points)), key=lambda index: -floors[index])
    best, failure = None, None
    for index in [0, *others][: _MAX_TRIES[kind]]:
        try:
            found = _fit(kind, density, points[index], is_network)
        except NonFiniteError as error:
            failure = failure or error
            continue
        if best is None or found.bound > best.bound:
            best = found
        if best.bound >= max(floors) - far:
            break
    if best is None:
        assert failure is not None
        raise failure
    _warn_if_far(kind, best, max(floors), far)
    return best.loc, best.factor


def _fit(kind: str, density: SearchDensity, point: Tensor, is_network: bool) -> _Found:
    if kind == "laplace":
        mean, curvature = _mode(density, point)
        scale = curvature.diagonal().clamp(min=1e-4).rsqrt()
    else:
        fit = _mean_field(density, point, is_network)
        if not (fit.is_level or is_network):
            fit = _by_the_mode(density, fit)
        mean, scale = fit.loc, fit.scale
        if kind == "full-rank":
            mean, factor = fit_full_rank(density, fit.loc, fit.scale)
            bound, other = objective(density, mean, factor), objective(density, fit.loc, scale)
            return _Found(mean, factor, bound, other)
        curvature, _ = blended_curvature(density.log_joint, mean, scale, gauss_newton=kind == "ggn")
    factor = inverse_root(curvature)
    if kind != "laplace" and not is_network:
        mean = centred(density, mean, factor)
    bounds = [objective(density, mean, root) for root in (factor, scale)]
    return _Found(mean, factor, *bounds)


def _mode(density: SearchDensity, point: Tensor) -> tuple[Tensor, Tensor]:
    return find_mode(density, point, density.log_joint.explain, climb=density.maximise)


def _mean_field(density: SearchDensity, point: Tensor, is_network: bool) -> MeanField:
    """Fits a diagonal Gaussian, to a recorded density where that pays."""

    def near(density: Callable[[Tensor], Tensor]) -> MeanField:
        return fit_mean_field_near(density, [point], is_network=is_network)

    return density.mean_field(point, near)


def _by_the_mode(density: SearchDensity, fit: MeanField) -> MeanField:
    """A fit that is still on its way, or the better one that begins at a mode."""
    try:
        mode, curvature = _mode(density, fit.loc)
    except NonFiniteError:
        return fit
    scale = curvature.diagonal().clamp(min=1e-4).rsqrt()
    other = fit_mean_field_from(density, mode, scale)
    fits = [(objective(density, one.loc, one.scale, _NUM_BOUND_DRAWS), one) for one in (fit, other)]
    return max(fits, key=lambda pair: pair[0])[1]


def starting_points(log_joint: LogJoint, loc: Tensor) -> list[Tensor]:
    """
    Chooses points that a search for the mode can begin at.

    :param LogJoint log_joint: the model's density.
    :param torch.Tensor loc: shape ``(m,)``.
    :returns: ``loc`` and points drawn uniformly from (-2, 2), those with a finite density.
    :raises NonFiniteError: if there is none.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    uniform = 4 * torch.rand(_NUM_RANDOM_POINTS, loc.numel(), generator=generator, device="cpu") - 2
    with torch.no_grad():
        points = [u for u in (loc, *uniform.to(loc)) if torch.isfinite(log_joint.value(u))]
    if not points:
        raise NonFiniteError(
            "the model's log-density is not finite at the start, nor at any of "
            f"{_NUM_RANDOM_POINTS} others{log_joint.explain(loc)}, so no Gaussian can be sought. "
            "Look for NaN in the data, and for latents that lead out of that site's domain (a "
            "scale that reaches 0, say); or leave init_from out and give an init_loc_fn."
        )
    return points


def _warn_if_far(kind: str, found: _Found, floor: float, far: float) -> None:
    if found.bound >= max(floor, found.mean_field) - far:
        return
    if found.mean_field > floor:
        rival, bound = "a mean-field Gaussian in the same place", found.mean_field
    else:
        rival, bound = "a narrow Gaussian around a place where the search began", floor
    other = "" if kind == "hessian" else "init_from='hessian', "
    warn(
        f"init_from={kind!r} starts with a loss of about {-found.bound:.3g}, and {rival} has "
        f"{-bound:.3g}: the posterior is far from the Gaussian of its curvature there, and training"
        f" may never come back. Try {other}a fitted AutoNormal (init_from=autonormal), or leave "
        "init_from out."
    )
