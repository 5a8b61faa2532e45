r"""
The density of an implicit distribution at given points, by seeking the noises that lead there.

Shape legend: ``n`` points, ``m`` outputs, ``d`` noise dimensions, ``k`` starts, ``K`` inner draws.

With output noise, :math:`q(w) = \int \mathcal N(w \mid g(z), \sigma^2 I)\, \mathcal N(z \mid 0, I)
\,dz` is estimated by importance sampling from Gaussians around the noises that lead near ``w`` (the
linearised posterior of ``z``, appendix F.5 of Uppal et al. 2023). Without it, and with ``d = m``,
:math:`q(w) = \sum_{z: g(z) = w} \mathcal N(z \mid 0, I) / |\det J(z)|` over all such noises.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023.
- `Sandwiching the marginal likelihood using bidirectional Monte Carlo`, R. Grosse, Z. Ghahramani,
  R. Adams, 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_implicit.ops.kernels import squared_distances
from pyro_implicit.ops.semi_implicit import Proposal, gauss_newton_proposal, gaussian_log_density

__all__ = ["DensityEstimate", "Map", "density_by_preimages", "density_by_sampling", "spread_starts"]

NUM_NEAREST_CANDIDATES = 64  # to each point, among which its starts are chosen


@dataclass(frozen=True)
class Map:
    """
    A generator of flat noise.

    :param value: ``g``, from ``(n, d)`` to ``(n, m)``.
    :param jacobian: its Jacobians, from ``(n, d)`` to ``(n, m, d)``.
    :param int noise_dim: ``d``.
    """

    value: Callable[[Tensor], Tensor]
    jacobian: Callable[[Tensor], Tensor]
    noise_dim: int


@dataclass(frozen=True)
class DensityEstimate:
    r"""
    Estimates of the density of an implicit distribution at some points.

    Source: `Sandwiching the marginal likelihood using bidirectional Monte Carlo`, Grosse,
    Ghahramani and Adams, 2015.

    :param torch.Tensor value: :math:`\log q(w)` from draws that know nothing but ``w``, shape
        ``(n,)``; in expectation never too large, minus infinity where no noise was found.
    :param torch.Tensor standard_error: of it, shape ``(n,)``; as far as the draws can tell.
    :param torch.Tensor upper: the same with the noise that made ``w`` among the draws, shape
        ``(n,)``; in expectation over ``w`` never too small (Grosse, Ghahramani and Adams 2015);
        ``value`` if that noise is not known.
    """

    value: Tensor
    standard_error: Tensor
    upper: Tensor


@torch.no_grad()
def spread_starts(
    points: Tensor, generator: Map, num_starts: int, num_candidates: int = 4096
) -> Tensor:
    """
    Finds noises whose images are near each point, and which are far from each other.

    Where a map folds, several noises lead to one point.

    :param torch.Tensor points: ``w``, shape ``(n, m)``.
    :param Map generator: ``g``.
    :param int num_starts: ``k``.
    :param int num_candidates: draws of the noise to choose from.
    :returns: shape ``(n, k, d)``.
    """
    noise = torch.randn(
        num_candidates, generator.noise_dim, dtype=points.dtype, device=points.device
    )
    images = generator.value(noise)
    spread = images.std(0).clamp(min=torch.finfo(points.dtype).tiny)
    distances = squared_distances(points / spread, images / spread)
    # (n, NUM_NEAREST_CANDIDATES), nearest first
    nearest = distances.topk(NUM_NEAREST_CANDIDATES, largest=False).indices
    candidates = noise[nearest]
    chosen = [candidates[:, 0]]
    apart = (candidates - chosen[0][:, None]).square().sum(-1)
    for _ in range(1, num_starts):
        farthest = apart.argmax(-1)
        chosen.append(candidates.gather(1, _rows(farthest, candidates))[:, 0])
        apart = torch.minimum(apart, (candidates - chosen[-1][:, None]).square().sum(-1))
    return torch.stack(chosen, 1)


@torch.no_grad()
def density_by_sampling(
    points: Tensor,
    generator: Map,
    scale: Tensor | float,
    num_inner: int,
    num_starts: int,
    own: Tensor | None = None,
) -> DensityEstimate:
    r"""
    The density at points by importance sampling of the noise.

    The proposal is a mixture of Gaussians around several noises, each found by Gauss-Newton steps
    from a start of its own.

    :param torch.Tensor points: ``w``, shape ``(n, m)``.
    :param Map generator: ``g``.
    :param scale: ``sigma > 0``, a number or shape ``()`` or ``(m,)``.
    :param int num_inner: ``K``.
    :param int num_starts: ``k``.
    :param torch.Tensor own: the noises that made the points, shape ``(n, d)``, if known.
    :returns: the estimates, one for each point.
    """
    n, d = len(points), generator.noise_dim
    starts = spread_starts(points, generator, num_starts).reshape(-1, d)
    many = points.repeat_interleave(num_starts, 0)
    # one proposal for each noise: theory/semi_implicit.md (gauss-newton-step, noise-proposal)
    around = gauss_newton_proposal(
        many, generator.value, generator.jacobian, d, scale, num_steps=20, start=starts
    )
    # their shares: theory/semi_implicit.md (laplace-mass)
    mass = _laplace_log_mass(many, generator, scale, around).reshape(n, num_starts)
    shares = 0.8 * mass.softmax(-1) + 0.2 / num_starts  # none of them tiny

    def log_weight(z: Tensor) -> Tensor:
        # N(w | g(z)) N(z | 0, I) / tau(z | w): theory/semi_implicit.md (weighed-average)
        image = generator.value(z.reshape(-1, d)).reshape(*z.shape[:-1], -1)
        log_joint = gaussian_log_density(points, image, scale)
        log_joint = log_joint + gaussian_log_density(z, torch.zeros_like(z), 1.0)
        every = z[:, :, None].expand(-1, -1, num_starts, -1).reshape(len(z), -1, d)
        log_tau = around.log_density(every).reshape(len(z), n, num_starts) + shares.log()
        return log_joint - log_tau.logsumexp(-1)

    draws = around.sample(num_inner).reshape(num_inner, n, num_starts, d)
    which = torch.multinomial(shares, num_inner, replacement=True).T  # (K, n)
    index = which[..., None, None].expand(-1, -1, 1, d)
    weights = log_weight(draws.gather(2, index)[:, :, 0])
    # without the own noise, at most log q on average: theory/semi_implicit.md (semi-implicit-upper)
    value = weights.logsumexp(0) - math.log(num_inner)
    relative = (weights - value).exp()
    error = relative.std(0) / math.sqrt(num_inner) if num_inner > 1 else relative[0] * torch.nan
    upper = value
    if own is not None:
        # with it, at least log q on average: theory/semi_implicit.md (semi-implicit-lower)
        total = torch.logaddexp(weights.logsumexp(0), log_weight(own[None])[0])
        upper = total - math.log(num_inner + 1)
    return DensityEstimate(value, error, upper)


@torch.no_grad()
def density_by_preimages(
    points: Tensor, generator: Map, num_starts: int, own: Tensor | None = None
) -> DensityEstimate:
    """
    The density at points as a sum over all noises that lead there.

    Newton's method finds them from several starts. Nothing is random in it: its standard error is
    0, and what it misses shows in ``upper``.

    :param torch.Tensor points: ``w``, shape ``(n, m)``.
    :param Map generator: ``g``, with ``d = m``.
    :param int num_starts: ``k``.
    :param torch.Tensor own: the noises that made the points, shape ``(n, d)``, if known.
    :returns: the estimates, one for each point.
    """
    n, d = points.shape
    spread = generator.value(torch.randn(256, d, dtype=points.dtype, device=points.device)).std(0)
    spread = spread.clamp(min=torch.finfo(points.dtype).tiny)
    starts = spread_starts(points, generator, num_starts).reshape(-1, d)
    many = points.repeat_interleave(num_starts, 0)
    near = gauss_newton_proposal(
        many, generator.value, generator.jacobian, d, 1e-3 * spread, num_steps=15, start=starts
    )
    # all solutions of g(z) = w: theory/semi_implicit.md (newton-preimage)
    z, residual = _newton(many, generator, near.mean, spread)
    is_root = residual < math.sqrt(torch.finfo(points.dtype).eps)
    roots, found = z.reshape(n, num_starts, d), is_root.reshape(n, num_starts)
    gap = (roots[:, :, None] - roots[:, None]).norm(dim=-1)
    same = gap < 1e-4 * (1 + roots.norm(dim=-1, keepdim=True))
    earlier = torch.ones_like(same).tril(-1)  # [i, j]: j before i
    found = found & ~(same & earlier & found[:, None, :]).any(-1)
    # the sum over them: theory/linearised.md (preimage-density)
    terms = _term(generator, roots.reshape(-1, d)).reshape(n, num_starts)
    value = terms.masked_fill(~found, -torch.inf).logsumexp(-1)
    upper = value
    if own is not None:
        close = (roots - own[:, None]).norm(dim=-1) < 1e-4 * (1 + own.norm(dim=-1, keepdim=True))
        missed = ~(close & found).any(-1)
        upper = torch.where(missed, torch.logaddexp(value, _term(generator, own)), value)
    return DensityEstimate(value, torch.zeros_like(value), upper)


def _rows(index: Tensor, candidates: Tensor) -> Tensor:
    return index[:, None, None].expand(-1, 1, candidates.shape[-1])


def _laplace_log_mass(
    points: Tensor, generator: Map, scale: Tensor | float, around: Proposal
) -> Tensor:
    """Roughly the mass around each mode; a constant is left out."""
    # theory/semi_implicit.md (laplace-mass)
    z = around.mean
    log_mass = gaussian_log_density(points, generator.value(z), scale)
    log_mass = log_mass + gaussian_log_density(z, torch.zeros_like(z), 1.0)
    return log_mass - around.factor.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


def _term(generator: Map, z: Tensor) -> Tensor:
    """The log-density of the noise at ``z`` over the volume that the map makes of it there."""
    # q_k: theory/linearised.md (preimage-density)
    log_det = torch.linalg.slogdet(generator.jacobian(z)).logabsdet
    log_density: Tensor = gaussian_log_density(z, torch.zeros_like(z), 1.0) - log_det
    return log_density


def _newton(
    points: Tensor, generator: Map, z: Tensor, spread: Tensor, num_steps: int = 60
) -> tuple[Tensor, Tensor]:
    """Newton's method with halved steps where they do not help; noises and relative residuals."""

    def distance(z: Tensor) -> Tensor:
        distance: Tensor = ((points - generator.value(z)) / spread).norm(dim=-1)
        return distance

    now = distance(z)
    length = torch.ones_like(now)
    enough = torch.finfo(points.dtype).eps ** 0.75
    for _ in range(num_steps):
        if bool((now < enough).all()):
            break
        rest = (points - generator.value(z))[..., None]
        # theory/semi_implicit.md (newton-preimage)
        step, singular = torch.linalg.solve_ex(generator.jacobian(z), rest)
        step = torch.where((singular > 0)[:, None], 0.0, step[..., 0]).nan_to_num(0.0, 0.0, 0.0)
        then = distance(z + length[:, None] * step)
        better = then < now
        z = torch.where(better[:, None], z + length[:, None] * step, z)
        now = torch.where(better, then, now)
        length = torch.where(better, (2 * length).clamp(max=1.0), length / 2)
    return z, now
