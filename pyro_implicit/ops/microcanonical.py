r"""
The two moves of microcanonical Langevin dynamics that change the direction of motion.

A particle in ``m`` dimensions moves at unit speed, and the gradient of the log-density turns it.
What the turns add up to is an energy; at constant energy positions have the density as their
stationary distribution.

References

- `Microcanonical Hamiltonian Monte Carlo`, J. Robnik, G. B. De Luca, E. Silverstein, U. Seljak,
  JMLR 24, 2023.
- `Fluctuation without dissipation: Microcanonical Langevin Monte Carlo`, J. Robnik,
  U. Seljak, 2023.
"""

# Shape legend: C chains, m dimensions.
from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["turn", "unit", "wobble"]


def unit(direction: Tensor) -> Tensor:
    """
    Scales vectors to unit length.

    :param torch.Tensor direction: shape ``(..., m)``.
    :returns: the same directions, of the same shape; zero stays zero.
    """
    norm = torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
    unit: Tensor = direction / norm.clamp(min=torch.finfo(direction.dtype).tiny)
    return unit


def turn(velocity: Tensor, gradient: Tensor, duration: Tensor) -> tuple[Tensor, Tensor]:
    r"""
    Turns unit velocities towards the gradient, by the exact flow at a fixed position.

    With ``e`` the gradient's direction, ``c = e . velocity``,
    :math:`\delta = t\,|g| / (m - 1)` and :math:`\zeta = \exp(-\delta)` the new velocity is along
    :math:`e (1-\zeta)(1+\zeta+c(1-\zeta)) + 2\zeta u`, which no :math:`\delta` makes overflow.

    :param torch.Tensor velocity: of unit length, shape ``(C, m)`` with ``m >= 2``.
    :param torch.Tensor gradient: of the log-density, shape ``(C, m)``.
    :param torch.Tensor duration: shape ``(C, 1)``.
    :returns: new velocities, shape ``(C, m)``, and the change of the kinetic energy, ``(C,)``.
    """
    # by the largest entry first, lest the squares leave the range of the type
    largest = gradient.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(gradient.dtype).tiny)
    towards = gradient / largest
    size = torch.linalg.vector_norm(towards, dim=-1, keepdim=True)
    towards = towards / size.clamp(min=torch.finfo(gradient.dtype).tiny)
    delta = duration * (size * largest / (velocity.shape[-1] - 1))
    zeta = torch.exp(-delta)
    cosine = (towards * velocity).sum(-1, keepdim=True)
    # theory/chains.md (mclmc-turn)
    along = (1 - zeta) * (1 + zeta + cosine * (1 - zeta))
    turned = unit(along * towards + 2 * zeta * velocity)
    # theory/chains.md (mclmc-kinetic)
    change = delta - math.log(2) + torch.log(1 + cosine + (1 - cosine) * zeta.square())
    return turned, (velocity.shape[-1] - 1) * change[..., 0]


def wobble(velocity: Tensor, noise: Tensor, travelled: Tensor) -> Tensor:
    r"""
    Refreshes unit velocities in part.

    :math:`u + \nu\,\xi`, normalised, with :math:`\nu^2 = (\exp(2 t / L) - 1) / m`: after a distance
    ``L`` the direction is forgotten.

    :param torch.Tensor velocity: of unit length, shape ``(C, m)``.
    :param torch.Tensor noise: standard normal, shape ``(C, m)``.
    :param torch.Tensor travelled: the distance in units of ``L``, shape ``(C, 1)``.
    :returns: shape ``(C, m)``.
    """
    # theory/chains.md (mclmc-refresh)
    strength = torch.sqrt(torch.expm1(2 * travelled) / velocity.shape[-1])
    return unit(velocity + strength * noise)
