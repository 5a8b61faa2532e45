r"""
Densities of a Gaussian whose mean is random, from draws of the mean.

References

- `Importance Weighted Hierarchical Variational Inference`, A. Sobolev, D. Vetrov, NeurIPS 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_implicit.ops.kernels import squared_distances

__all__ = ["Proposal", "gauss_newton_proposal", "gaussian_log_density", "log_densities"]


def gaussian_log_density(value: Tensor, mean: Tensor, scale: Tensor | float) -> Tensor:
    r"""
    The log-density of a Gaussian with independent entries.

    :param torch.Tensor value: shape ``(..., m)``.
    :param torch.Tensor mean: shape ``(..., m)``.
    :param scale: ``sigma > 0``, a number or shape ``()`` or ``(m,)``.
    :returns: :math:`\log \mathcal N(value \mid mean, \mathrm{diag}(\sigma^2))`, shape ``(...)``.
    """
    square = ((value - mean) / scale).square().sum(-1)
    return -0.5 * square - log_normaliser(value, scale)


def log_densities(values: Tensor, means: Tensor, scale: Tensor | float) -> Tensor:
    """
    Log-densities of all pairs of value and mean, by inner products.

    :param torch.Tensor values: shape ``(n, m)``.
    :param torch.Tensor means: shape ``(k, m)``.
    :param scale: ``sigma > 0``, a number or shape ``()`` or ``(m,)``.
    :returns: shape ``(n, k)``.
    """
    return -0.5 * squared_distances(values / scale, means / scale) - log_normaliser(values, scale)


def log_normaliser(value: Tensor, scale: Tensor | float) -> Tensor:
    """The log of the normalising constant of ``m`` Gaussians, shape ``()``."""
    m = value.shape[-1]
    log_scale = torch.as_tensor(scale, dtype=value.dtype, device=value.device).log()
    return log_scale.expand(m).sum() + 0.5 * m * math.log(2 * math.pi)


@dataclass(frozen=True)
class Proposal:
    r"""
    A Gaussian proposal for noise, mixed with the standard normal.

    :math:`\tau(z \mid w) = (1 - \epsilon) \mathcal N(z \mid \mu, (R^\top R)^{-1}) + \epsilon\,
    \mathcal N(z \mid 0, I)` with ``R`` upper triangular.

    :param torch.Tensor mean: shape ``(n, d)``.
    :param torch.Tensor factor: ``R``, shape ``(n, d, d)``.
    :param float prior_share: ``epsilon``.
    """

    mean: Tensor
    factor: Tensor
    prior_share: float = 0.1

    def sample(self, num_samples: int) -> Tensor:
        """
        Draws noises from the proposal.

        :param int num_samples: number ``k`` for each of the ``n``.
        :returns: shape ``(k, n, d)``.
        """
        n, d = self.mean.shape
        noise = torch.randn(num_samples, n, d, dtype=self.mean.dtype, device=self.mean.device)
        columns = noise.permute(1, 2, 0)  # n systems with k right-hand sides each
        local = torch.linalg.solve_triangular(self.factor, columns, upper=True).permute(2, 0, 1)
        prior = torch.rand(num_samples, n, 1, device=noise.device) < self.prior_share
        return torch.where(prior, noise, self.mean + local)

    def log_density(self, z: Tensor) -> Tensor:
        """
        The log-density of the proposal at some noises.

        :param torch.Tensor z: shape ``(..., n, d)``.
        :returns: shape ``(..., n)``.
        """
        # theory/semi_implicit.md (noise-proposal)
        white = torch.einsum("nij,...nj->...ni", self.factor, z - self.mean)
        log_det = self.factor.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        local = gaussian_log_density(white, torch.zeros_like(white), 1.0) + log_det
        prior = gaussian_log_density(z, torch.zeros_like(z), 1.0)
        shares = math.log(1 - self.prior_share), math.log(self.prior_share)
        return torch.logaddexp(local + shares[0], prior + shares[1])


@torch.no_grad()
def gauss_newton_proposal(
    value: Tensor,
    generator: Callable[[Tensor], Tensor],
    jacobian: Callable[[Tensor], Tensor],
    noise_dim: int,
    scale: Tensor | float,
    num_steps: int = 10,
    start: Tensor | None = None,
) -> Proposal:
    r"""
    A proposal for the noise ``z`` given :math:`w = g(z) + \sigma \varepsilon`.

    It has the mode of the posterior of ``z``, by damped Gauss-Newton steps from a fixed point near
    0, and the curvature there.

    **It depends on** ``w`` **alone**, not on the ``z`` that made it; importance-weighted bounds on
    the density of ``w`` are then valid (Sobolev and Vetrov 2019), however poor the proposal.

    :param torch.Tensor value: ``w``, shape ``(n, m)``.
    :param generator: ``g``, from ``(n, d)`` to ``(n, m)``.
    :param jacobian: its Jacobians, from ``(n, d)`` to ``(n, m, d)``.
    :param int noise_dim: ``d``.
    :param scale: ``sigma``, a number or shape ``()`` or ``(m,)``.
    :param int num_steps: steps.
    :param torch.Tensor start: where the steps begin, shape ``(n, d)``, found without the ``z`` that
        made ``w``; a fixed point by default.
    :returns: the proposal for each of the ``n``.
    """
    z = start
    if z is None:  # not at 0, where a symmetric generator has no slope
        z = torch.full((len(value), noise_dim), 0.1, dtype=value.dtype, device=value.device)
    eye = torch.eye(noise_dim, dtype=value.dtype, device=value.device)
    damping = torch.full((len(value), 1, 1), 1e-2, dtype=value.dtype, device=value.device)

    def energy(z: Tensor) -> Tensor:
        # theory/semi_implicit.md (noise-energy)
        rest = (value - generator(z)) / scale
        return 0.5 * (rest.square().sum(-1) + z.square().sum(-1))

    now = energy(z)
    for _ in range(num_steps):
        # theory/semi_implicit.md (gauss-newton-step), damped by a share of the diagonal
        hessian, gradient = _curvature(value, generator, jacobian, scale, z)
        lifted = hessian + damping * hessian.diagonal(dim1=-2, dim2=-1)[..., None] * eye
        step = torch.linalg.solve(lifted, gradient[..., None])[..., 0]
        then = energy(z + step)
        better = then < now
        z = torch.where(better[:, None], z + step, z)
        now = torch.where(better, then, now)
        damping = torch.where(better[:, None, None], damping / 10, damping * 10)
    hessian, _ = _curvature(value, generator, jacobian, scale, z)
    return Proposal(z, torch.linalg.cholesky(hessian).mT)


def _curvature(
    value: Tensor,
    generator: Callable[[Tensor], Tensor],
    jacobian: Callable[[Tensor], Tensor],
    scale: Tensor | float,
    z: Tensor,
) -> tuple[Tensor, Tensor]:
    """The Gauss-Newton matrix of the posterior of ``z``, and its gradient upwards."""
    rows = jacobian(z) / (scale[..., None] if isinstance(scale, Tensor) and scale.dim() else scale)
    rest = (value - generator(z)) / scale
    eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    # both sides of theory/semi_implicit.md (gauss-newton-step)
    return rows.mT @ rows + eye, (rows.mT @ rest[..., None])[..., 0] - z
