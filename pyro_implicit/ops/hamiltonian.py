"""Hamiltonian Monte Carlo on a batch of points, each by itself, with a step size for all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["hamiltonian_chain"]


def hamiltonian_chain(
    log_density: Callable[[Tensor], Tensor],
    start: Tensor,
    step_size: float,
    num_steps: int,
    num_leapfrog: int = 5,
) -> tuple[list[Tensor], Tensor]:
    """
    Moves points by steps that leave a density as it is.

    Points that begin as draws of it are draws of it after every step, however long the step.

    :param log_density: from ``(*batch, *event)`` to ``(*batch)``, up to a constant.
    :param torch.Tensor start: shape ``(*batch, *event)``.
    :param float step_size: of the leapfrog.
    :param int num_steps: proposals, each accepted or refused.
    :param int num_leapfrog: gradients for each.
    :returns: the points after each step, without gradients, each of the shape of ``start``; the
        mean probability of acceptance, shape ``()``.
    """
    z, rate = start.detach(), start.new_zeros(())
    value, slope = _value_and_slope(log_density, z)
    event = tuple(range(value.dim() - z.dim(), 0))
    states = []
    for _ in range(num_steps):
        momentum = torch.randn_like(z)
        # leapfrog steps: theory/chains.md (hmc-step)
        moved, speed, then, there = z, momentum + 0.5 * step_size * slope, value, slope
        for i in range(num_leapfrog):
            moved = moved + step_size * speed
            then, there = _value_and_slope(log_density, moved)
            speed = speed + (step_size if i < num_leapfrog - 1 else 0.5 * step_size) * there
        kinetic = 0.5 * (momentum.square() - speed.square())
        kinetic = kinetic.sum(event) if event else kinetic  # a sum over no dimension is one of all
        log_ratio = (then - value + kinetic).nan_to_num(nan=-torch.inf, posinf=-torch.inf)
        rate = rate + log_ratio.clamp(max=0).exp().mean() / num_steps
        # theory/chains.md (hmc-accept)
        accepted = torch.rand_like(value).log() < log_ratio
        value = torch.where(accepted, then, value)
        wide = accepted[(..., *[None] * len(event))]
        z, slope = torch.where(wide, moved, z), torch.where(wide, there, slope)
        states.append(z)
    return states, rate


def _value_and_slope(log_density: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        value = log_density(leaf)
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), slope
