"""Entropy estimates of one independent part of a guide, draw by draw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pyro_implicit.diagnostics._density import Part
from pyro_implicit.exceptions import DensityError, GuideError
from pyro_implicit.ops.det_sign import det_sign
from pyro_implicit.ops.lanczos import draw_probes, lanczos_quadrature
from pyro_implicit.ops.logdet import half_log_det, is_zero
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian

__all__ = ["PartEntropy", "effective_rank", "part_entropy"]

MAX_JACOBIAN_ENTRIES = 50_000_000  # of one draw
_MAX_ENTRIES_AT_ONCE = 4_000_000  # of the Jacobians of several draws


@dataclass(frozen=True)
class PartEntropy:
    """
    Values per draw, shape ``(n,)`` unless said otherwise.

    ``lower`` and ``upper`` are freed of what the lengths of the noises explain, whose means are
    known.

    :param linearised: linearised entropy.
    :param singular_value: its bound by the smallest singular value.
    :param gauss: its upper estimate by Lanczos quadrature.
    :param radau: its lower estimate.
    :param lower: minus the upper estimate of the log-density; None if it cannot be had.
    :param upper: minus the lower one.
    :param log_density_error: its standard error.
    :param singular_values: of the Jacobian in units of the latents' spread, shape ``(n, r)``.
    :param dead: number of directions without spread of their own.
    :param signs: of the Jacobian's determinant, see :func:`~pyro_implicit.ops.det_sign.det_sign`.
    :param refusal: why the density cannot be had.
    """

    linearised: Tensor
    singular_value: Tensor
    gauss: Tensor
    radau: Tensor
    lower: Tensor | None
    upper: Tensor | None
    log_density_error: Tensor | None
    singular_values: Tensor
    dead: Tensor
    signs: Tensor
    refusal: str = ""


def part_entropy(
    part: Part, num_samples: int, num_inner: int, num_starts: int, num_steps: int, num_probes: int
) -> PartEntropy:
    """
    Estimates the entropy of one part of the latents in several ways.

    :param Part part: generator, preconditioner and scale.
    :param int num_samples: draws ``n``.
    :param int num_inner: noises for the density at each, see
        :func:`~pyro_implicit.ops.inversion.density_by_sampling`.
    :param int num_starts: starts of the search for them.
    :param int num_steps: Lanczos steps.
    :param int num_probes: Lanczos probes.
    """
    m, d = part.output_dim, part.noise_dim
    if m * d > MAX_JACOBIAN_ENTRIES:
        raise GuideError(
            f"the Jacobian of this guide has {m} x {d} entries, too many to form; train with "
            "LanczosELBO and look at its last_report"
        )
    noise, u = part.draw(num_samples)
    found = [
        _linearised(part, z, u.std(0), num_steps, num_probes)
        for z in noise.split(max(1, _MAX_ENTRIES_AT_ONCE // (m * d)))
    ]
    linearised, bound, gauss, radau, values, dead, signs = (
        torch.cat(pieces) for pieces in zip(*found, strict=True)
    )
    constant = 0.5 * m * (1 + math.log(2 * math.pi)) + part.preconditioner.log_abs_det
    lower = upper = error = None
    refusal = ""
    try:
        density = part.density(u, num_inner, num_starts, noise)
    except DensityError as reason:
        refusal = str(reason)
    else:
        controls = _controls(part, noise, u)
        lower, upper = _adjusted(-density.upper, controls), _adjusted(-density.value, controls)
        error = density.standard_error
    return PartEntropy(
        linearised + constant,
        bound + constant,
        gauss + constant,
        radau + constant,
        lower,
        upper,
        error,
        values,
        dead,
        signs,
        refusal,
    )


def effective_rank(singular_values: Tensor) -> Tensor:
    r"""
    The effective rank of a matrix: how many of its singular values count.

    It is the exponential of the Shannon entropy of :math:`s_i / \sum_j s_j` (Roy and Vetterli, The
    effective rank, EUSIPCO 2007): ``r`` if all are equal, 1 if one is alone.

    :param torch.Tensor singular_values: shape ``(..., r)``.
    :returns: shape ``(...)``.
    """
    shares = singular_values / singular_values.sum(-1, keepdim=True)
    effective: Tensor = torch.special.entr(shares).sum(-1).exp()
    return effective


def _linearised(
    part: Part, z: Tensor, spread: Tensor, num_steps: int, num_probes: int
) -> tuple[Tensor, ...]:
    """All that follows from the Jacobians at ``z``; log-determinants without constants."""
    jacobian = part.map.jacobian(z)
    m, d = jacobian.shape[-2:]
    exact = half_log_det(jacobian, part.scale)
    scale = 1.0 if is_zero(part.scale) else part.scale
    sigma = torch.as_tensor(scale).to(z).expand(m)[:, None]
    own = torch.linalg.svdvals(jacobian / sigma)
    smallest = own[:, -1]
    if is_zero(part.scale):
        bound = min(m, d) * smallest.log()
    else:
        bound = 0.5 * min(m, d) * torch.log1p(smallest.square()) + torch.log(sigma).sum()
    noise = z.reshape(-1, *part.generator.noise_shape)
    linearisation = part.generator.linearise(noise)
    whitened = ScaledJacobian(linearisation, part.scale)
    quadrature = lanczos_quadrature(
        whitened, draw_probes("orthogonal", num_probes, whitened), num_steps
    )
    gauss, radau = (
        0.5 * rule.mean(0) + whitened.log_scale() for rule in (quadrature.gauss, quadrature.radau)
    )
    in_units = part.preconditioner(jacobian.mT).mT - part.preconditioner.centre[:, None]
    values = torch.linalg.svdvals(in_units / spread.clamp(min=1e-300)[:, None])
    dead = values < 1e-6 * values[:, :1] if is_zero(part.scale) else own < 1
    signs = det_sign(jacobian, part.scale)
    return exact, bound, gauss, radau, values, dead.sum(-1).to(exact), signs


def _controls(part: Part, noise: Tensor, u: Tensor) -> Tensor:
    """Half the squared lengths of both noises less their means, shape ``(n, 1 or 2)``."""
    columns = [0.5 * (noise.square().sum(-1) - part.noise_dim)]
    if not is_zero(part.scale):
        rest = (part.preconditioner.inverse(u) - part.map.value(noise)) / part.scale
        columns.append(0.5 * (rest.square().sum(-1) - part.output_dim))
    return torch.stack(columns, -1)


def _adjusted(values: Tensor, controls: Tensor) -> Tensor:
    """``values`` less their regression on controls of mean 0; the mean is estimated as before."""
    if not bool(values.isfinite().all()) or len(values) < 10 * (controls.shape[-1] + 1):
        return values
    design = torch.cat([torch.ones_like(controls[:, :1]), controls], -1)
    slopes = torch.linalg.lstsq(design, values[:, None]).solution[1:, 0]
    controlled: Tensor = values - controls @ slopes
    return controlled
