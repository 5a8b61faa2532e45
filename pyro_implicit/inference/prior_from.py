"""Yesterday's posterior as today's prior."""

# Shape legend: m unconstrained entries of all sites, S draws, r rank.
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pyro
import torch
from pyro.infer.autoguide import AutoContinuous, AutoGuide, AutoNormal
from pyro.poutine.messenger import unwrap
from torch import Tensor

from pyro_implicit._checks import (
    check_choice,
    check_count,
    check_guide,
    check_number,
    check_seed,
)
from pyro_implicit._misspelt import check_misspelt
from pyro_implicit._random import RandomStream
from pyro_implicit._warn import warn
from pyro_implicit.bayesian.joint_prior import JointPrior
from pyro_implicit.bayesian.joint_site import JointSite
from pyro_implicit.exceptions import ArgumentError, SiteError
from pyro_implicit.guides.argument_dims import rows_of_first_call
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.draw_quantiles import DrawQuantiles
from pyro_implicit.guides.held_data import program_of
from pyro_implicit.guides.initialization.gaussian_start import gaussian_of
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.guides.members import members_of
from pyro_implicit.guides.since_fit import replaced_since_fit
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.handlers.pointwise import latent_sites
from pyro_implicit.handlers.rows.same_rows import SameRows
from pyro_implicit.inference.guide_prior import check_all_rows
from pyro_implicit.inference.posterior_draws import draws_of
from pyro_implicit.ops.moments import draws_in_factors

__all__ = ["prior_from"]

_FORMS = ("diagonal", "low-rank", "full")
_MIN_CORRELATION = (
    0.7  # to warn of: a deviation is 1.4 times that at a known value of the other latent
)
_MAX_LATENTS_TO_CORRELATE = 2000


@torch.no_grad()
def prior_from(
    guide: Callable[..., Any],
    *args: Any,
    form: str = "diagonal",
    rank: int = 10,
    num_samples: int | None = None,
    widen: float = 1.0,
    seed: int | None = None,
    **kwargs: Any,
) -> JointPrior:
    r"""
    A guide's posterior as a prior for the next data, by its moments.

    It is the Gaussian over the unconstrained values of all latents with the mean of the guide and

    ``"diagonal"``
        its variances: what variational continual learning carries on (Nguyen et al. 2018);
    ``"low-rank"``
        its variances, and its covariances as far as ``rank`` directions hold them;
    ``"full"``
        its covariances, for up to some thousand latents.

    Of all Gaussians of that form it is, but for ``"low-rank"``, the one closest to the guide in
    :math:`KL(q \,\|\, p)`. Moments of Pyro's Gaussian autoguides are exact, those of others are
    taken of draws. What a guide knows beyond its moments (skewness, curved ridges, several modes)
    is lost: two modes become one wide prior around a mean where neither is. ``"diagonal"`` loses
    correlations too: where latents trade off, as an intercept and the effects of groups do, the
    next posterior becomes too narrow. An implicit guide itself, whole, is a prior by
    :class:`~pyro_implicit.inference.GuidePrior`.

    Source: `Variational Continual Learning`, Nguyen, Li, Bui and Turner, ICLR 2018.

    Example::

        prior = prior_from(guide, form="low-rank")        # fitted to yesterday's data
        model = prior(model)                              # sites of the same names; or
        net = BayesianModule(network, prior=prior)        # its part for a network's weights

    :param guide: a fitted guide; its latents outside of all plates or, with ``"diagonal"``, in
        plates that show all rows.
    :param args: arguments of the guide (of no use to guides that are built already).
    :param str form: see above.
    :param int rank: of ``"low-rank"``.
    :param int num_samples: draws ``S`` for the moments; by default 1000, and 20 for each latent
        with ``"full"``.
    :param float widen: deviations are multiplied by it: above 1 for what drifts, so that the old
        data count less and less.
    :param int seed: of the draws; None: one that torch draws.
    :param kwargs: keyword arguments of the guide.
    :returns: the prior; :meth:`~pyro_implicit.bayesian.JointPrior.restricted` takes a part of it.
    :raises ArgumentError: for a bad number or form, an option that is none of this function, fewer
        draws than latents with ``"full"``, a conditional guide, or one within handlers.
    :raises SiteError: for latents that only some rows were shown of, or whose draws do not differ.
    :warns UserWarning: if Pyro's store has given the guide the parameters of another one since its
        own fit ended; if ``"diagonal"`` forgets correlations above 0.7.
    """
    check_guide(guide)
    check_misspelt(prior_from, program_of(guide), kwargs)
    check_choice("form", form, _FORMS)
    rank, widen = check_count("rank", rank), check_number("widen", widen, above=0)
    _check_carried(guide)
    with explained_errors(args, kwargs):
        sites = _sites(guide, args, kwargs)
    seed = int(torch.randint(2**31, ())) if seed is None else check_seed("seed", seed)
    numel = sum(site.numel for site in sites)
    if num_samples is None:
        num_samples = max(1000, 20 * numel) if form == "full" else 1000
    num_samples = check_count("num_samples", num_samples, 2)
    known = _gaussian(guide, sites)
    if known is None:
        with RandomStream(seed):
            draws = draws_of(guide, num_samples, *args, **kwargs)
        loc, rows = _centred(sites, draws)
        if form == "full" and num_samples <= numel:
            raise ArgumentError(
                f"num_samples={num_samples}; the covariance of {numel} latents needs more draws "
                "than that, and several times as many to be told well. Take form='low-rank'."
            )
    else:
        loc, rows = known
    prior = _prior(sites, loc, widen * rows, form, rank)
    sizes = [(site.name, site.shape[: len(site.shape) - site.event_dim]) for site in sites]
    traded: list[str] = []
    if form == "diagonal" and rows.dim() == 2:
        traded = _warning_of_traded(sites, rows, None if known is not None else num_samples)
    for text in [*traded, *replaced_since_fit(guide)]:
        warn(text)
    prior._same_rows = SameRows(rows_of_first_call(guide), sizes)
    return prior


def _check_carried(guide: Any) -> None:
    """Refuses guides without a posterior of their own, also among several."""
    for part in members_of(guide):
        _check_carried(part)
    if isinstance(guide, ConditionalGuide):
        raise ArgumentError(
            f"guide is a {type(guide).__name__}, whose latents are functions of each row's inputs: "
            "there is no posterior of theirs to carry on to other rows."
        )
    inner: Any = unwrap(guide)
    if inner is not guide and isinstance(inner, (DrawQuantiles, AutoGuide)):
        raise ArgumentError(
            f"guide is a {type(inner).__name__} within handlers (poutine.condition, block, scale, "
            "mask), of which its latents know nothing. Hand over the guide itself, and of its "
            "prior take the sites that are to be carried on: prior_from(guide).restricted(['w'])."
        )


def _warning_of_traded(sites: list[JointSite], rows: Tensor, num_draws: int | None) -> list[str]:
    """Of latents that the data tell together: ``rows`` of shape ``(S, m)``, draws or exact."""
    names = [site.name for site in sites for _ in range(site.numel)]
    if not 2 <= len(names) <= _MAX_LATENTS_TO_CORRELATE:
        return []
    unit = rows / rows.square().sum(0).sqrt()
    pairs = (unit.mT @ unit).tril(-1)
    most = int(pairs.abs().argmax())
    i, j = divmod(most, len(names))
    correlation = float(pairs[i, j])
    error = 0.0  # of Fisher's transform, of the largest of so many pairs
    if num_draws is not None:
        error = math.sqrt(2 * math.log(len(names) ** 2) / max(num_draws - 3, 1))
    if not math.atanh(min(abs(correlation), 1 - 1e-6)) - error > math.atanh(_MIN_CORRELATION):
        return []
    which = " and ".join(repr(name) for name in dict.fromkeys([names[j], names[i]]))
    return [
        f"latents of {which} have a correlation of {correlation:.2f}, and form='diagonal' forgets "
        "correlations: what the data tell of both together counts for each by itself, and the next "
        "posterior can be too narrow by a factor of two. Take form='full' or 'low-rank', or, with "
        "latents in plates, GuidePrior(guide), which keeps all"
    ]


def _prior(sites: list[JointSite], loc: Tensor, rows: Tensor, form: str, rank: int) -> JointPrior:
    """The prior with covariance ``rows' rows``, shape ``(S, m)``, or these deviations, ``(m,)``."""
    scale = rows if rows.dim() == 1 else rows.square().sum(0).sqrt()
    _check_spread(sites, loc, scale)
    if form == "diagonal" or rows.dim() == 1:
        return JointPrior(sites, loc, scale)
    if form == "full":
        wide = rows.double()
        return JointPrior(sites, loc, covariance=(wide.mT @ wide).to(loc))
    factor, rest = draws_in_factors(rows, rank)
    return JointPrior(sites, loc, rest, factor)


def _check_spread(sites: list[JointSite], loc: Tensor, scale: Tensor) -> None:
    apart = scale > 1e-6 * loc.abs()  # beyond rounding
    parts = apart.split([site.numel for site in sites])
    flat = [site.name for site, part in zip(sites, parts, strict=True) if not part.all()]
    if flat:
        raise SiteError(
            f"draws of the guide do not differ at {flat}: it is a point there, and as a prior "
            "would never move again. Leave these sites to the guide of a model that fixes them, or "
            "fit a guide that has a spread (no AutoDelta)."
        )


def _sites(guide: Callable[..., Any], args: Any, kwargs: Any) -> list[JointSite]:
    """The latents of a guide with their supports."""
    if members := members_of(guide):  # an ensemble, all of whose guides draw the same sites
        return _sites(members[0], args, kwargs)
    if isinstance(guide, DrawQuantiles):  # an implicit guide, or chains
        sites: list[LatentSite] = guide.sites
        return [_known(site) for site in sites]
    prototype = getattr(guide, "prototype_trace", None)
    if isinstance(guide, AutoGuide) and prototype is not None:
        nodes = dict(prototype.iter_stochastic_nodes())
    else:
        nodes = latent_sites(guide, args, kwargs)
    if not nodes:
        raise SiteError("the guide has no latent site, and so no posterior to carry on.")
    return [_known(LatentSite.from_trace(node, False)) for node in nodes.values()]


def _known(site: LatentSite) -> JointSite:
    check_all_rows(site)
    return JointSite(site.name, site.shape, site.event_dim, site.support)


def _gaussian(guide: Any, sites: list[JointSite]) -> tuple[Tensor, Tensor] | None:
    """Mean and ``rows`` with ``rows' rows`` the covariance (or deviations), if it is Gaussian."""
    if not isinstance(guide, (AutoNormal, AutoContinuous)) or guide.prototype_trace is None:
        return None
    try:
        with pyro.poutine.block():
            found = gaussian_of(guide, sites)
    except ArgumentError:  # a flow, or another guide without these moments
        return None
    root = found.factor
    assert root is not None
    return found.loc, root if root.dim() == 1 else root.mT


def _centred(sites: list[JointSite], draws: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The mean, and centred draws over the square root of their number."""
    flat = torch.cat([site.flat(draws[site.name]) for site in sites], -1)
    loc = flat.mean(0)  # theory/after.md (prior-from-divergence)
    return loc, (flat - loc) / (len(flat) - 1) ** 0.5
