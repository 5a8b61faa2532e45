"""
Latents whose deviations importance weights know better than a fitted guide.

References

- `Truncated Importance Sampling`, E. L. Ionides, Journal of Computational and Graphical
  Statistics, 2008.
"""

from __future__ import annotations

import math
import warnings
from statistics import NormalDist
from typing import Any

import pyro
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils import _pytree

from pyro_implicit._random import RandomStream
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.distributions.implicit_sites import keep_linearisation
from pyro_implicit.exceptions import ImplicitError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.looks.unvalidated import Unvalidated
from pyro_implicit.handlers.mapped.mapped_density import MappedDensity
from pyro_implicit.handlers.mapped.mapped_writing import WritingMap
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.ops.largest_tensor import LargestTensor

__all__ = ["wrong_widths"]

_MAX_LATENTS = 1024  # for which the default guide has bijections by structure
_MAX_DRAWS, _MIN_DRAWS = 40_000, 5000
_MAX_NUMBERS_OF_DRAWS = 10_000_000  # draws times latents
#: Draws times the numbers of the data, or of the largest tensor that the model makes of them: takes
#: as long as some ten steps of training.
_MAX_NUMBERS_OF_MODEL = 100_000_000
_MAX_NUMBERS_PER_CHUNK = 10_000_000  # the same, of the draws that are evaluated at once
_MAX_NOISES_PER_CHUNK = 1_000_000  # numbers of noise, for each of which a generator keeps some ten
_MIN_RELATIVE_ESS = 0.02  # of the weights, by draw: with less they know no deviation better
#: By which a guide is told to be far off where the weights are worth less than that: as many as
#: deviations cost that are off by a seventh.
_MIN_NATS_PER_LATENT = 0.02
_MIN_RATIO_OF_SDS = 1.15  # a smaller one is not worth telling
#: Beyond so many deviations of its bulk a latent counts as there: a variance that is infinite, as
#: that of a Cauchy's, is told by no number of draws.
_MAX_DEVIATIONS_FROM_MEDIAN = 10.0
_NUM_DRAWS_IN_DOUBLE, _MAX_ROUNDING_IN_NATS = 10, 0.05
_SIGNIFICANCE_LEVEL = 0.005  # of the ratios of all latents together


def wrong_widths(
    guide: Any, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], mode: Any = True
) -> list[str]:
    """
    Compares the deviations of a guide's draws with those that their importance weights tell.

    A loss that is level to a fiftieth of a nat may hide a bound that rises slowly for long, at
    deviations that are far too small. Where the density of the draws is known and the weights
    of posterior over guide are even enough, they repair what is wrong, and so tell it. Large
    weights are cut, which errs to the side of the guide. Where they are not even enough, what the
    draws see of the evidence tells how far the guide is at least.

    :param guide: a fitted guide; others than an :class:`~pyro_implicit.guides.ImplicitGuide` of
        certified bijections and at most 1024 latents are not looked at.
    :param model: the model.
    :param args: its arguments, the whole data.
    :param kwargs: its keyword arguments.
    :param mode: the ``vectorize_particles`` of the fit, which the model allows.
    :returns: what a user should know, in words: at most one text.
    """
    if not isinstance(guide, ImplicitGuide):
        return []
    try:
        sites = list(guide.sites)
        num_latents = sum(site.numel for site in sites)
        if not 0 < num_latents <= _MAX_LATENTS:
            return []
        with RandomStream(0), evaluation_mode(), pyro.validation_enabled(False), Unvalidated():
            with torch.no_grad():
                joint = LogJoint(model, sites, args, kwargs)
                size = _size(joint, guide)
                most = min(_MAX_NUMBERS_OF_DRAWS // num_latents, _MAX_NUMBERS_OF_MODEL // size)
                num_draws = min(_MAX_DRAWS, most)
                if num_draws < _MIN_DRAWS:
                    return []
                drawn = _draws(guide, num_draws)
                if drawn is None:
                    return []
                draws, log_density = drawn
                joint.check_deterministic(draws[0], "")  # another subsample at each call
                values, log_ratios = _weighed(joint, draws, log_density, size)
                num_draws = len(log_ratios)
                weights = _truncated(log_ratios)
    except (ImplicitError, RuntimeError, ValueError, ArithmeticError):
        return []  # a model that does not vectorise, or without a density at all points
    # NaN, which is not enough either, if no draw has a density
    if not float(1 / weights.square().sum()) >= _MIN_RELATIVE_ESS * num_draws:
        far = _distance(log_ratios)
        return [_warning_of_distance(far)] if far > _MIN_NATS_PER_LATENT * draws.shape[-1] else []
    flat = {name: value.reshape(num_draws, -1).double() for name, value in values.items()}
    errors = _errors(sum(value.shape[-1] for value in flat.values()))
    notes = {name: _worst(value, weights, errors) for name, value in flat.items()}
    wrong = {name: ratio for name, ratio in notes.items() if ratio is not None}
    return [_described(wrong, mode)] if wrong else []


def _size(joint: LogJoint, guide: ImplicitGuide) -> int:
    """
    Numbers of the data, or of the largest tensor of a run of the model, if that has more.

    A run of many small operations keeps all of their results: usual ones have ten to a number.
    """
    data = _pytree.tree_leaves((joint.args, joint.kwargs))
    drawn = _draws(guide, 1)
    if drawn is None:
        return _MAX_NUMBERS_OF_MODEL
    with LargestTensor() as largest:
        joint(drawn[0][0])
    given = sum(leaf.numel() for leaf in data if isinstance(leaf, Tensor))
    size: int = max(1, largest.numel, largest.total // 10, given)
    return size


def _errors(num_latents: int) -> float:
    """Standard errors that one of so many ratios is from 1 by chance at the significance level."""
    return NormalDist().inv_cdf(1 - _SIGNIFICANCE_LEVEL / max(1, num_latents))


def _draws(guide: ImplicitGuide, num_draws: int) -> tuple[Tensor, Tensor] | None:
    """Unconstrained draws ``(n, m)`` and their log-densities ``(n,)``, if these are known."""
    draws, total = [], torch.zeros(())
    for sampler in guide.samplers:
        fn = sampler.distribution()  # type: ignore[operator]
        if not fn.is_bijective:
            return None
        noise = fn.base_dist.sample((num_draws,))
        at_once = max(1, _MAX_NOISES_PER_CHUNK // noise.shape[-1])
        mapped = [_mapped(fn.given(some)) for some in noise.split(at_once)]
        draw, log_det = (torch.cat(parts) for parts in zip(*mapped, strict=True))
        draws.append(draw)
        total = total + fn.base_dist.log_prob(noise) - log_det
    return torch.cat(draws, -1), total


def _mapped(fixed: ImplicitDistribution) -> tuple[Tensor, Tensor]:
    """The draws at some noises ``(n, m)``, and the log-determinants ``(n,)``."""
    keep_linearisation(fixed)
    return fixed.rsample(), fixed.half_log_det()


def _at(joint: LogJoint, draws: Tensor, at_once: int) -> tuple[dict[str, Tensor], Tensor]:
    """Values of all draws by site, and the log-joint ``(n,)``, held to that of one of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values, _ = vmap(joint.values)(draws)
        log_joint = WritingMap()(joint, draws, chunk_size=at_once)
    if not torch.allclose(log_joint[0], joint(draws[0]), rtol=1e-3, atol=1e-2):
        raise ValueError("the model's value at one draw depends on the others")
    return values, log_joint.nan_to_num(nan=-math.inf)


def _weighed(
    joint: LogJoint, draws: Tensor, log_density: Tensor, size: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Values by site and log-ratios, in double precision of fewer draws where single one rounds."""
    values, log_joint = _at(joint, draws, max(1, _MAX_NUMBERS_PER_CHUNK // size))
    log_ratios = (log_joint - log_density).double()
    if not _is_rounding(joint, draws, log_joint, log_ratios):
        return values, log_ratios
    exact = MappedDensity(joint)(draws[:_MIN_DRAWS]).nan_to_num(nan=-math.inf)
    values = {name: value[:_MIN_DRAWS] for name, value in values.items()}
    return values, exact.double() - log_density[:_MIN_DRAWS]


def _is_rounding(joint: LogJoint, draws: Tensor, log_joint: Tensor, log_ratios: Tensor) -> bool:
    """
    Whether single precision does not tell the weights that count, or those that lower the bound.

    Far out in a heavy tail large terms cancel, as in the Gamma functions of a Beta-binomial.
    """
    order = log_ratios.nan_to_num(nan=-math.inf).argsort()
    some = torch.cat([order[:_NUM_DRAWS_IN_DOUBLE], order[-_NUM_DRAWS_IN_DOUBLE:]])
    exact = torch.stack([joint.in_double(draws[index]).double() for index in some])
    difference = (exact - log_joint[some].double()).abs()
    return bool((difference[difference.isfinite()] > _MAX_ROUNDING_IN_NATS).any())


def _truncated(log_ratios: Tensor) -> Tensor:
    """Weights of sum 1, none above the root of their number times their mean (Ionides 2008)."""
    most = log_ratios.logsumexp(0) - 0.5 * math.log(len(log_ratios))
    return log_ratios.clamp(max=float(most)).softmax(0)


def _distance(log_ratios: Tensor) -> float:
    """Nats from the guide's bound to the evidence, at least; 0 where draws have no density."""
    if not bool(log_ratios.isfinite().all()):
        return 0.0
    log_evidence = float(log_ratios.logsumexp(0)) - math.log(len(log_ratios))
    return log_evidence - float(log_ratios.mean())


def _worst(draws: Tensor, weights: Tensor, errors: float) -> float | None:
    """The ratio of deviations ``(n, k)`` that is farthest from 1, if one is certainly far."""
    ratio, error = _ratios(draws, weights)
    far = (ratio.log().abs() > math.log(_MIN_RATIO_OF_SDS)) & ((ratio - 1).abs() > errors * error)
    if not bool(far.any()):
        return None
    return float(max(ratio[far].tolist(), key=lambda one: abs(math.log(one))))


def _ratios(draws: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Deviations by weights over those of the draws, and standard errors, by the delta method."""
    draws = _clamped(draws, weights)
    own_square = (draws - draws.mean(0)).square()
    own = own_square.mean(0)
    square = (draws - weights @ draws).square()
    variance = weights @ square
    ratio = (variance / own).sqrt()  # NaN, which is never far, of what is always the same
    change = weights[:, None] * (square / variance - 1) - (own_square / own - 1) / len(draws)
    return ratio, 0.5 * ratio * change.square().sum(0).sqrt()


def _clamped(draws: Tensor, weights: Tensor) -> Tensor:
    """Draws without the tails far outside of where guide or posterior have their bulk."""
    values, order = draws.sort(0)
    reached, last = weights[order].cumsum(0).mT.contiguous(), len(values) - 1
    ends = []
    for at in (NormalDist().cdf(-1.0), NormalDist().cdf(1.0)):
        index = torch.searchsorted(reached, torch.full_like(reached[:, :1], at)).clamp(max=last)
        ends.append(torch.stack([values[int(at * last)], values.gather(0, index.mT)[0]]))
    bulk = 0.5 * (ends[1] - ends[0]).amax(0)
    middle, far = values[len(values) // 2], _MAX_DEVIATIONS_FROM_MEDIAN * bulk
    return draws.clamp(middle - far, middle + far)


def _warning_of_distance(far: float) -> str:
    return (
        f"by importance weights, the guide is at least {far:.1f} nats from the posterior, so far "
        "that they do not tell in which latents; deviations may be much too small. Train on "
        "(resume=result, a larger num_steps), or run refine(model, guide, ..., kernel='hmc')"
    )


def _described(wrong: dict[str, float], mode: Any) -> str:
    worst = sorted(wrong, key=lambda name: -abs(math.log(wrong[name])))
    few = ", ".join(f"{name!r} ({wrong[name]:.2f})" for name in worst[:3])
    more = f" and {len(worst) - 3} more" if len(worst) > 3 else ""
    return (
        "by importance weights, deviations of the posterior are these times those of the guide, or "
        f"farther from it, at sites {few}{more}. Train on with more draws a step (resume=result, "
        f"objective=LinearisedELBO(64, vectorize_particles={mode!r}), a larger num_steps), or run "
        "refine(model, guide, ..., kernel='hmc')"
    )
