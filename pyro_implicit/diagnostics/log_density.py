r"""
The log-density of an implicit guide, estimated.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Appendix F.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pyro_implicit._checks import check_count, check_tensors
from pyro_implicit._seeded import seeded
from pyro_implicit.diagnostics._density import GuideDensity, check_implicit_guide

__all__ = ["LogDensity", "log_density"]


@dataclass(frozen=True)
class LogDensity:
    r"""
    An estimate of the log-density of a guide at some values.

    :param torch.Tensor value: :math:`\log q(\theta)` in the constrained space, shape ``(n,)``.
    :param torch.Tensor standard_error: of it, shape ``(n,)``.
    """

    value: Tensor
    standard_error: Tensor


def log_density(
    guide: Any,
    theta: Mapping[str, Tensor],
    *,
    num_inner: int = 500,
    num_starts: int = 8,
    seed: int | None = None,
) -> LogDensity:
    r"""
    Estimates the log-density of an implicit guide, which nobody can evaluate, at given values.

    **With output noise** the density is :math:`\int \mathcal N(w \mid g(z), \sigma^2)\, p(z)\, dz`,
    estimated by importance sampling from the linearised posterior of ``z`` given ``w`` (appendix
    F.5 of Uppal et al. 2023), found from several starts, since a map that folds reaches ``w`` from
    several sides. The estimate of ``q`` is unbiased, that of its logarithm too small on average by
    half its squared standard error.

    **Without output noise**, with as many noises as latents, it is exact for a guide that is
    certain to be bijective (``guide.log_density`` gives the same), and for others the sum of
    :math:`p(z) / |\det J(z)|` over the noises ``z`` that lead there, found by Newton's method; its
    standard error is 0, and minus infinity means that no noise was found: the guide, as far as the
    search can tell, never draws such a value.

    *When to use it:* up to some tens of noise dimensions. A branch of a folded map that every start
    misses is missing from the value and, what is worse, from its standard error, which is of few
    draws with large weights elsewhere too: two of it held the density of a perceptron of two noises
    at 88 of 100 draws. At draws of the guide itself :func:`~pyro_implicit.diagnostics.khat` and
    :func:`~pyro_implicit.entropy_report` look for that.

    Example::

        draws = posterior_draws(guide, 100)
        log_q = log_density(guide, draws)
        log_q.value, log_q.standard_error

    Source: `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS
    2023.

    :param ImplicitGuide guide: a guide of this package that is built.
    :param dict theta: constrained values of every latent site, shape ``(n, *site_shape)`` each, as
        :func:`~pyro_implicit.posterior_draws` returns them.
    :param int num_inner: draws of the noise for each value.
    :param int num_starts: starts of the search, at most 64.
    :param int seed: of all draws; None: the global random numbers are drawn from.
    :returns: log-densities in the constrained space (for a simplex: with respect to all entries
        but the last) and their standard errors.
    :raises ArgumentError: if a number is below 1, or ``num_starts`` above 64.
    :raises DensityError: for more than 100 noises, or without output noise a number of noises that
        is not that of the latents.
    :raises GuideError: for any other guide.
    :raises ShapeError: for values of another shape than the sites'.
    :raises SiteError: for values of other sites, or outside of a support.
    :raises StateError: for a guide that is not built yet.
    """
    guide = check_implicit_guide(guide, "log_density")
    check_count("num_inner", num_inner)
    check_count("num_starts", num_starts, maximum=64)
    check_tensors("theta", theta, "values by site, {name: (n, *site_shape)}")
    with seeded(seed):
        estimate, log_jacobian = GuideDensity(guide, num_inner, num_starts).at(theta)
    return LogDensity(estimate.value + log_jacobian, estimate.standard_error)
