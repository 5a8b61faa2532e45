r"""
The kernel Stein discrepancy of a guide's draws to the model's posterior.

References

- `A Kernelized Stein Discrepancy for Goodness-of-fit Tests`, Q. Liu, J. Lee, M. Jordan, ICML
  2016.
- `Measuring Sample Quality with Kernels`, J. Gorham, L. Mackey, ICML 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_model, check_number
from pyro_implicit._inference_mode import refuse_inference_mode
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit._seeded import seeded
from pyro_implicit._warn import warn
from pyro_implicit.diagnostics._significance import SIGNIFICANCE_LEVEL
from pyro_implicit.diagnostics._unconstrained import constrained_draws, unconstrained_draws
from pyro_implicit.guides.argument_order import check_order
from pyro_implicit.guides.diverged import refuse_diverged
from pyro_implicit.guides.model_parameters import WatchedParameters
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.errors.weights_around import refuse_weights_around
from pyro_implicit.handlers.held.held_latents import refuse_held_latents
from pyro_implicit.handlers.held.held_sites import refuse_condition_around
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.rows.row_slices import number_of_rows
from pyro_implicit.ops.kernels import median_distance
from pyro_implicit.ops.logdet import upcast
from pyro_implicit.ops.stein import bootstrap_null, stein_matrix, stein_u_statistic

__all__ = ["SteinDiscrepancy", "stein_discrepancy"]


@dataclass(frozen=True)
class SteinDiscrepancy:
    """
    What a kernel Stein test has found.

    :param float squared: the unbiased estimate of the squared discrepancy; negative at times.
    :param float p_value: share of bootstrap replicates, made as if the draws were right, that are
        at least as large.
    :param float length: of the kernel, in units of the draws' spread.
    :param int num_samples: draws.
    """

    squared: float
    p_value: float
    length: float
    num_samples: int

    def __float__(self) -> float:
        return self.squared

    def __str__(self) -> str:
        verdict = "nothing found against the guide"
        if self.p_value < SIGNIFICANCE_LEVEL:
            verdict = "the draws are not the posterior's; compare sizes from guide to guide"
        return (
            f"squared Stein discrepancy {self.squared:.3g} of {self.num_samples} draws, p-value "
            f"{self.p_value:.2g}: {verdict}"
        )


@evaluation_mode()
def stein_discrepancy(
    model: Callable[..., Any],
    guide: Any,
    *args: Any,
    num_samples: int = 500,
    num_bootstrap: int = 1000,
    length: float | str = "median",
    beta: float = -0.5,
    seed: int | None = None,
    **kwargs: Any,
) -> SteinDiscrepancy:
    r"""
    Compares draws with the posterior by the gradient of the model's log-density.

    **No density of the guide, no reference draws and no normalising constant are needed**, and any
    guide will do. The kernel is the inverse multiquadric (Gorham and Mackey 2017) on unconstrained
    latents, each in units of its spread over the draws; the test is the bootstrap of Liu, Lee and
    Jordan (2016).

    It sees bias and wrong spread, and in high dimensions sees less of both. **It does not see a
    missing mode**: near the mode that the draws have, the score says that all is well. And as every
    test it rejects any guide, however good, if there are draws enough; look at the size of
    ``squared`` from guide to guide, and at ``p_value`` with a few hundred draws.

    Cost: a gradient of the model for each draw, and ``num_samples`` squared kernel values.

    Example::

        stein_discrepancy(model, guide, x, y).p_value

    Sources:

    - `A Kernelized Stein Discrepancy for Goodness-of-fit Tests`, Liu, Lee and Jordan, ICML 2016.
    - `Measuring Sample Quality with Kernels`, Gorham and Mackey, ICML 2017.

    :param callable model: a Pyro model.
    :param guide: any guide, or draws by site, ``{name: (n, *site_shape)}`` (of a sampler, say), of
        which ``num_samples`` are taken, evenly spaced.
    :param args: arguments of model and guide, observations included.
    :param int num_samples: draws, at least 2.
    :param int num_bootstrap: bootstrap replicates.
    :param length: of the kernel, a positive number in units of the spread, or ``"median"``: the
        median distance between two draws.
    :param float beta: exponent of the kernel, between -1 and 0.
    :param int seed: of the guide's draws and the bootstrap; None: the global random numbers are
        drawn from.
    :param kwargs: keyword arguments of model and guide.
    :returns: the squared discrepancy, which ``float`` reads, and its p-value.
    :raises ArgumentError: for values outside of these, or a guide that is none.
    :raises NonFiniteError: if a gradient is not finite, or a parameter of the guide NaN.
    :raises ShapeError: for fewer draws than ``num_samples``, or data without rows.
    :raises SiteError: if the model has other latents than those drawn, holds one of them, or draws
        by itself; within ``with poutine.scale(...)``, ``poutine.mask`` or ``poutine.condition``.
    :raises StateError: within ``torch.inference_mode()``, where there are no gradients.
    :warns UserWarning: if parameters of the model were lost that the guide was fitted with.
    """
    refuse_inference_mode("stein_discrepancy")
    check_count("num_samples", num_samples, minimum=2)
    check_count("num_bootstrap", num_bootstrap)
    check_model(model)
    refuse_condition_around("stein_discrepancy")
    refuse_weights_around("stein_discrepancy")
    check_order(model, "stein_discrepancy(model, guide, ...)", guide)
    check_misspelt(stein_discrepancy, model, kwargs)
    refuse_diverged(guide)
    beta = check_number("beta", beta, above=-1, below=0)
    number_of_rows(args, kwargs)  # which are some
    if not (isinstance(length, str) and length == "median"):
        length = check_number("length", length, above=0, why=", or 'median'")
    watched = WatchedParameters(guide)
    with explained_errors(args, kwargs, guide), seeded(seed):
        draws = constrained_draws(guide, num_samples, args, kwargs)
        refuse_held_latents("stein_discrepancy", model, draws, args, kwargs)
        sites, u = unconstrained_draws(model, draws, args, kwargs)
        scores = LogJoint(model, sites, args, kwargs).scores(u)
        found = _compare(upcast(u), upcast(scores), num_bootstrap, length, beta)
    for text in watched.warnings():
        warn(text)
    return found


@torch.no_grad()
def _compare(
    u: Tensor, scores: Tensor, num_bootstrap: int, length: float | str, beta: float
) -> SteinDiscrepancy:
    spread = u.std(0)
    spread = torch.where(spread > 0, spread, 1.0)  # a latent that never moves keeps its own unit
    x = u / spread
    chosen = float(median_distance(x, x)) if isinstance(length, str) else float(length)
    matrix = stein_matrix(x, scores * spread, chosen, beta)
    squared = stein_u_statistic(matrix)
    replicates = bootstrap_null(matrix, num_bootstrap)
    p_value = (1 + int((replicates >= squared).sum())) / (1 + num_bootstrap)
    return SteinDiscrepancy(float(squared), p_value, chosen, len(u))
