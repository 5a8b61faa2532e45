r"""
Pareto k-hat: whether importance sampling can bridge the gap between guide and posterior.

References

- `Pareto Smoothed Importance Sampling`, A. Vehtari, D. Simpson, A. Gelman, Y. Yao, J. Gabry,
  Journal of Machine Learning Research, 2024.
- `Yes, but Did It Work?: Evaluating Variational Inference`, Y. Yao, A. Vehtari, D. Simpson,
  A. Gelman, ICML 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_model, check_number
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit._seeded import seeded
from pyro_implicit._warn import warn
from pyro_implicit.arviz.compatibility import psis_khat
from pyro_implicit.diagnostics._density import GuideDensity, check_implicit_guide
from pyro_implicit.exceptions import DensityError, NonFiniteError
from pyro_implicit.guides.argument_order import check_order
from pyro_implicit.guides.diverged import refuse_diverged
from pyro_implicit.guides.model_parameters import WatchedParameters
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.errors.weights_around import refuse_weights_around
from pyro_implicit.handlers.held.held_latents import refuse_held_latents
from pyro_implicit.handlers.held.held_sites import refuse_condition_around
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.rows.row_slices import number_of_rows
from pyro_implicit.ops.inversion import DensityEstimate

__all__ = ["KHat", "khat"]

#: where no noise was found the lower estimate of a draw's density is minus infinity
MAX_GAP_OF_ONE_DRAW_NATS = 10.0
#: effective samples as a share of the draws, above which their weights hardly differ
_NEARLY_EQUAL_WEIGHTS_SHARE = 0.9


@dataclass(frozen=True)
class KHat:
    """
    What importance sampling from a guide tells of it.

    :param float value: k-hat.
    :param int num_samples: draws that it was found from.
    :param float log_evidence: the importance-sampled estimate of the model's log-evidence from the
        same ratios; to be believed if k-hat is small.
    :param float density_error: mean standard error of the guide's log-density, in nats.
    :param float density_gap: mean difference between the upper and the lower estimate of it.
    :param float effective_samples: what the draws are worth with their weights, at most all.
    """

    value: float
    num_samples: int
    log_evidence: float
    density_error: float
    density_gap: float
    effective_samples: float

    @property
    def threshold(self) -> float:
        """What k-hat should stay below with so many draws: ``min(1 - 1/log10(S), 0.7)``."""
        return min(1 - 1 / math.log10(self.num_samples), 0.7)

    @property
    def is_good(self) -> bool:
        """Whether k-hat is below its threshold."""
        return self.value < self.threshold

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        place, verdict = "below", "importance weights can repair what the guide lacks"
        if not self.is_good:
            place, verdict = "above", "the guide is too narrow somewhere, or misses what is near it"
            if self.effective_samples > _NEARLY_EQUAL_WEIGHTS_SHARE * self.num_samples:
                verdict = "a long tail of weights that are nearly equal, of a guide that is close"
        shown = [f"{one:.2f}" for one in (self.value, self.threshold)]
        if shown[0] == shown[1]:
            shown = [f"{one:.4f}" for one in (self.value, self.threshold)]
        return (
            f"k-hat {shown[0]}, {place} the threshold {shown[1]} of "
            f"{self.num_samples} draws, which are worth {self.effective_samples:.0f}: {verdict}"
        )


def khat(
    model: Callable[..., Any],
    guide: Any,
    *args: Any,
    num_samples: int = 1000,
    num_inner: int = 500,
    num_starts: int = 8,
    tolerance: float = 0.1,
    seed: int | None = None,
    **kwargs: Any,
) -> KHat:
    r"""
    The shape of the tail of the importance ratios of posterior and guide, fitted by ArviZ.

    The ratios are :math:`p(y, \theta) / q(\theta)` (Yao et al. 2018). Below 0.7 importance sampling
    can repair the guide; a guide that is too narrow, or misses what lies next to it, has a large
    one. With 1000 draws it scatters: eight calls on one guide whose deviations were right within 3%
    gave 0.39 to 0.80, so that a single value just above the threshold proves little. It does not
    see what no draw comes near: a guide that has one of two separated modes passes, and so does a
    modest bias. It is a shape, without a scale: where weights hardly differ
    (:attr:`KHat.effective_samples` near ``num_samples``), as of one or two latents that are fitted
    well, a large one says nothing against the guide.

    The guide's density is estimated as in :func:`~pyro_implicit.diagnostics.log_density`. At its
    own draws the noise is known that made each, so that two estimates can be made of it, one too
    small and one too large in expectation, whatever the search has missed. **k-hat is refused where
    they are apart** by more than ``tolerance`` nats on average, or where the standard error is
    larger: the tail would be that of the estimate. Then use checks that need draws only
    (:func:`~pyro_implicit.diagnostics.stein_discrepancy`, :func:`~pyro_implicit.diagnostics.vsbc`,
    :func:`~pyro_implicit.diagnostics.c2st`), or the k-hat of each datum in ``az.loo``.

    Cost: a run of the model for each draw, and ``num_samples * num_inner`` runs of the generator.

    Source: `Yes, but Did It Work?: Evaluating Variational Inference`, Yao et al., ICML 2018.

    :param callable model: a Pyro model.
    :param ImplicitGuide guide: a guide of this package that is built.
    :param args: arguments of the model, observations included.
    :param int num_samples: draws, at least 100.
    :param int num_inner: draws of the noise for each, see
        :func:`~pyro_implicit.diagnostics.log_density`.
    :param int num_starts: starts of the search for noises, at most 64.
    :param float tolerance: in nats, see above.
    :param int seed: of all draws; None: the global random numbers are drawn from.
    :param kwargs: keyword arguments of the model.
    :returns: k-hat, and what it rests on; ``float(khat(...))`` is the number alone.
    :raises ArgumentError: for numbers outside of these, and for model and guide in the wrong order.
    :raises DensityError: where the density cannot be estimated well enough.
    :raises GuideError: for any other guide.
    :raises NonFiniteError: if the model's density is NaN or infinite at a draw.
    :raises ShapeError: for data without rows.
    :raises SiteError: if the model draws something by itself, or lacks or holds a latent of the
        guide; within ``with poutine.scale(...)``, ``poutine.mask`` or ``poutine.condition``.
    :warns UserWarning: if parameters of the model were lost that the guide was fitted with.
    """
    check_model(model)
    refuse_condition_around("khat")
    refuse_weights_around("khat")
    check_order(model, "khat(model, guide, ...)", guide)
    check_misspelt(khat, model, kwargs)
    refuse_diverged(guide)
    guide = check_implicit_guide(guide, "khat")
    tolerance = check_number("tolerance", tolerance, above=0)
    check_count("num_samples", num_samples, minimum=100)
    check_count("num_inner", num_inner)
    check_count("num_starts", num_starts, maximum=64)
    number_of_rows(args, kwargs)  # which are some
    latents = [site.name for site in guide.sites]
    refuse_held_latents("khat", model, latents, args, kwargs)
    watched = WatchedParameters(guide)
    with torch.no_grad(), explained_errors(args, kwargs, guide), seeded(seed):
        draws, density = GuideDensity(guide, num_inner, num_starts).of_own_draws(num_samples)
        error, gap = _check_density(density, tolerance, num_inner, num_starts)
        u = torch.cat(draws, -1)
        example = guide.samplers[0].preconditioner.loc
        log_joint = LogJoint(model, guide.sites, args, kwargs).at_draws(u.to(example)).to(u)
    for text in watched.warnings():
        warn(text)
    _check_finite(log_joint)
    ratios = log_joint - density.upper
    log_evidence = float(ratios.logsumexp(0)) - math.log(num_samples)
    value = psis_khat(ratios.cpu().numpy())
    effective = float(1 / ratios.softmax(0).square().sum())
    return KHat(value, num_samples, log_evidence, error, gap, effective)


def _check_density(
    density: DensityEstimate, tolerance: float, num_inner: int, num_starts: int
) -> tuple[float, float]:
    """Mean standard error and mean gap of a density that is good enough."""
    error = float(density.standard_error.mean())
    gap = float((density.upper - density.value).clamp(max=MAX_GAP_OF_ONE_DRAW_NATS).mean())
    if error <= tolerance and abs(gap) <= tolerance:
        return error, gap
    raise DensityError(
        f"k-hat is refused: the guide's log-density is known to within a standard error of "
        f"{error:.2g} nats, and its upper and lower estimates are {gap:.2g} apart (tolerance "
        f"{tolerance:g}), so that the tail of the importance ratios would be that of this "
        f"estimate. Try num_inner={10 * num_inner} or num_starts={min(4 * num_starts, 64)}; with "
        "many noise dimensions use checks that need draws only: stein_discrepancy, vsbc, c2st, or "
        "the k-hat of each datum in az.loo."
    )


def _check_finite(log_joint: Tensor) -> None:
    bad = int((~log_joint.isfinite()).sum())
    if bad:
        raise NonFiniteError(
            f"the model's log-density is not finite at {bad} of {len(log_joint)} draws; look for a "
            "likelihood scale that reaches 0, or for NaN in the data"
        )
