r"""
Gaussian approximations that a guide is initialised as and preconditioned by.

A posterior whose scales differ by orders of magnitude defeats a neural sampler in its own
coordinates. With :math:`u = c + L\,g(z)`, ``c`` and ``L L'`` the mean and covariance of a Gaussian
approximation and ``g`` near the identity at the start, the sampler begins as that Gaussian and
learns the rest. On seven reference posteriors this brought the worst error of a standard deviation
from 67% to a few percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from typing import Any

import torch
from pyro.infer.autoguide import AutoContinuous, AutoGuide, AutoNormal
from torch import Tensor

from pyro_implicit._warn import warn
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.guides.initialization.curvature import inverse_root
from pyro_implicit.guides.initialization.mean_field import fit_mean_field_near
from pyro_implicit.guides.initialization.start_search import (
    ADVICE_ON_RANDOM_DENSITIES,
    search,
    starting_points,
)
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.ops.logdet import upcast

__all__ = ["GaussianStart", "gaussian_start"]

_MAX_LATENTS_FOR_FULL_MATRIX = 8192  # which takes 0.5 GB in float64


@dataclass(frozen=True)
class GaussianStart:
    """
    The Gaussian that a guide begins as.

    :param torch.Tensor loc: mean, shape ``(m,)``.
    :param torch.Tensor factor: a root of the covariance, shape ``(m,)`` or ``(m, m)``; None if only
        the location is known.
    :param float guess: where the factor is that of a guess, and not found for each latent: what the
        scale of each was multiplied by; without a factor, the deviation of all latents.
    :param bool is_settled: whether the location is where training will leave it, within some
        deviations.
    """

    loc: Tensor
    factor: Tensor | None = None
    guess: float | None = None
    is_settled: bool = True

    def deviations(self) -> Tensor:
        """
        The marginal standard deviations.

        :returns: shape ``(m,)``; 1 without a factor.
        """
        if self.factor is None:
            return torch.ones_like(self.loc)
        return self.factor if self.factor.dim() == 1 else self.factor.square().sum(-1).sqrt()

    def padded(self, most: int) -> GaussianStart:
        """
        Gives the factor a shape that depends on the number of latents alone.

        :param int most: latents up to which it is a full matrix.
        :returns: a start as the same Gaussian.
        """
        if self.factor is None:
            return self
        if self.factor.dim() == 1 and self.loc.numel() <= most:
            return replace(self, factor=torch.diag(self.factor))
        return self

    def in_blocks(self, sizes: Sequence[int]) -> GaussianStart:
        """
        Makes consecutive blocks independent of each other, as a factorised guide is.

        Each has the covariance of its latents given all others: of all Gaussians of that form it
        is the one with the highest evidence bound. (Marginals are wider.)

        :param sizes: of the blocks.
        :returns: the Gaussian in blocks; itself if there is one block, or if it is diagonal.
        """
        if self.factor is None or self.factor.dim() == 1 or len(sizes) == 1:
            return self
        inverse = torch.linalg.inv(upcast(self.factor))
        precision = inverse.mT @ inverse
        ends = list(accumulate(sizes))
        blocks = [precision[e - n : e, e - n : e] for e, n in zip(ends, sizes, strict=True)]
        factor = torch.block_diag(*[inverse_root(block) for block in blocks])
        return replace(self, factor=factor.to(self.factor))

    def split(self, sizes: Sequence[int]) -> list[GaussianStart]:
        """
        The marginals of consecutive blocks, see :meth:`in_blocks`.

        :param sizes: of the blocks.
        :returns: one start for each.
        """
        locs = self.loc.split(list(sizes))
        if self.factor is None:
            return [replace(self, loc=loc) for loc in locs]
        rows = self.factor.split(list(sizes))
        if self.factor.dim() == 2:
            rows = tuple(torch.linalg.cholesky(row @ row.mT) for row in rows)
        return [replace(self, loc=loc, factor=r) for loc, r in zip(locs, rows, strict=True)]


def gaussian_start(
    kind: str | AutoGuide, log_joint: LogJoint, loc: Tensor, *, is_network: bool = False
) -> GaussianStart:
    """
    Finds a Gaussian near the posterior for the guide to begin as.

    :param kind: one of

        - ``"mean-field"``: a diagonal Gaussian, by Adam on the evidence bound with one draw a step
          and a rate that cools once the bound is level; for any number of latents. Where the limit
          of 5000 steps comes first, that is told (but for networks, whose fits are shorter);
        - ``"full-rank"``, for models with strong correlations, of at most some thousand latents:
          the Gaussian with the highest evidence bound, by natural-gradient steps of two Hessians
          each from a mean-field fit;
        - ``"laplace"``, for small models: the mode (L-BFGS, then Newton steps) and the inverse
          Hessian there;
        - ``"hessian"``, for networks: a mean-field fit and the Hessian averaged over pairs of its
          draws, eigenvalues in its units clamped at 0, with a part of the fit's own precision: as
          much as the evidence bound asks for. There are six pairs; above 800 latents no more once
          that bound rises by less than 0.01 nats a latent from pair to pair. The best blend of all
          averages on the way is taken, and moved to where its mean gradient is zero if that raises
          the bound. Of ``m`` latents each takes ``m`` products with a Hessian;
        - ``"ggn"``: the same with the generalised Gauss-Newton curvature (where the likelihood has
          one). Cheaper, but so flat in the directions that it does not see that the start may lie
          outside of where the network is nearly linear (see docs/results/uci_regression.md);
        - a fitted ``AutoNormal``, ``AutoDiagonalNormal``, ``AutoLowRankMultivariateNormal`` or
          ``AutoMultivariateNormal`` (which ``AutoLaplaceApproximation.laplace_approximation``
          returns).
    :param LogJoint log_joint: the model's density.
    :param torch.Tensor loc: where to begin, shape ``(m,)``.
    :param bool is_network: whether the latents are a network's
        (:func:`~pyro_implicit.guides.initialization.network.is_network`): mean-field fits then take
        a tenth of the rates, as the bound rises most quickly where hidden units are given up to the
        prior, and predictions suffer.
    :returns: the Gaussian.
    :raises ArgumentError: for too many latents for a full matrix, or a guide that is no fitted
        Gaussian with the model's sites.
    :raises SiteError: if the density is random.
    :raises NonFiniteError: if no search finds a Gaussian. A bad one is warned of; see
        :func:`~pyro_implicit.guides.initialization.start_search.search`.
    """
    if isinstance(kind, AutoGuide):
        return _from_guide(kind, log_joint.sites, loc)
    if kind == "mean-field":
        return _mean_field(log_joint, loc, is_network)
    if loc.numel() > _MAX_LATENTS_FOR_FULL_MATRIX:
        raise ArgumentError(
            f"init_from={kind!r} needs a {loc.numel()} x {loc.numel()} matrix; it is meant for at "
            f"most {_MAX_LATENTS_FOR_FULL_MATRIX} latents. Write init_from='mean-field', or pass a "
            "fitted AutoNormal: init_from=autonormal."
        )
    return GaussianStart(*search(kind, log_joint, loc, is_network=is_network))


@evaluation_mode()
def _mean_field(log_joint: LogJoint, loc: Tensor, is_network: bool) -> GaussianStart:
    """A mean-field fit from where the density is highest, after a few steps uphill."""
    points = starting_points(log_joint, loc)
    log_joint.check_deterministic(points[0], ADVICE_ON_RANDOM_DENSITIES)
    fit = fit_mean_field_near(log_joint.value, points, is_network=is_network)
    if not (fit.is_level or is_network):  # those are not waited for
        warn(
            "init_from='mean-field' came to the limit of its steps while its bound still rose: the "
            "guide begins somewhere on the way, and needs more steps of training. Latents may be "
            "very far, in their deviations, from where they begin: standardise the data, or take "
            "init_from='auto' (or 'laplace')."
        )
    return GaussianStart(fit.loc, fit.scale, is_settled=fit.is_level)


def _from_guide(guide: AutoGuide, sites: Sequence[LatentSite], loc: Tensor) -> GaussianStart:
    """A guide as a start for one with ``sites``, whose flat latent is like ``loc``."""
    start = gaussian_of(guide, sites)
    if start.loc.shape != loc.shape:
        raise ArgumentError(
            f"init_from has {start.loc.numel()} latent entries; this guide has {loc.numel()}: it "
            "was fitted to other shapes."
        )
    assert start.factor is not None
    return GaussianStart(start.loc.to(loc), start.factor.to(loc))


def gaussian_of(guide: AutoGuide, sites: Sequence[Any]) -> GaussianStart:
    """
    The Gaussian that one of Pyro's guides is, of unconstrained latents.

    :param guide: a fitted Gaussian autoguide.
    :param sites: its sites, in the order wanted.
    :returns: the mean and a root of the covariance.
    :raises ArgumentError: for other sites, and for a guide that is no fitted Gaussian.
    """
    if guide.prototype_trace is None:
        raise ArgumentError(
            f"init_from is a {type(guide).__name__} that has not been fitted: train it with SVI "
            "first."
        )
    names = [name for name, _ in guide.prototype_trace.iter_stochastic_nodes()]
    if set(names) != {site.name for site in sites}:
        raise ArgumentError(
            f"init_from has sites {names}; this guide has {[site.name for site in sites]}."
        )
    with torch.no_grad():
        if isinstance(guide, AutoNormal):
            locs = [attrgetter(s.name)(guide.locs).reshape(-1) for s in sites]
            scales = [attrgetter(s.name)(guide.scales).reshape(-1) for s in sites]
            start = GaussianStart(torch.cat(locs), torch.cat(scales))
        elif isinstance(guide, AutoContinuous):
            start = _from_posterior(guide, guide.get_posterior(), sites)
        else:
            raise _not_gaussian(guide)
    return start


def _from_posterior(guide: AutoContinuous, posterior: Any, sites: Sequence[Any]) -> GaussianStart:
    """Mean and covariance root of an ``AutoContinuous`` guide, in the order of ``sites``."""
    base = getattr(posterior, "base_dist", posterior)
    is_normal = type(base).__name__ == "Normal"
    root = base.scale if is_normal else getattr(posterior, "scale_tril", None)
    if root is None:
        raise _not_gaussian(guide)
    positions = torch.arange(guide.latent_dim, device=root.device)
    blocks = {node["name"]: part.reshape(-1) for node, part in guide._unpack_latent(positions)}
    order = torch.cat([blocks[site.name] for site in sites])
    loc = base.loc if is_normal else posterior.mean
    return GaussianStart(loc[order], root[order])  # a root, if no longer triangular


def _not_gaussian(guide: AutoGuide) -> ArgumentError:
    return ArgumentError(
        f"init_from is a {type(guide).__name__}; expected a Gaussian: AutoNormal, "
        "AutoDiagonalNormal, AutoLowRankMultivariateNormal, AutoMultivariateNormal, or what "
        "AutoLaplaceApproximation.laplace_approximation(...) returns."
    )
