r"""
Mode and curvature of a log-density, for Gaussian initialisations.

The generalised Gauss-Newton matrix of a likelihood with parameters :math:`f(u)` is
:math:`J^\top F J` with ``F`` its Fisher information: the Hessian without the second derivatives of
the network. It is written here as :math:`R^\top R` with ``R`` the Jacobian of a residual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.guides.initialization.lbfgs import maximise
from pyro_implicit.handlers.log_joint import LogJoint

__all__ = ["find_mode", "gradient_and_hessian", "hessian", "inverse_root", "mean_curvature"]

Density = Callable[[Tensor], Tensor]

#: between two widths, relative to a row's largest entry: at a kink they differ by a factor of two
_DIFFERENCE_TOLERANCE = 0.1
_MIN_RELATIVE_EIGENVALUE = 1e-8  # less of the largest eigenvalue cannot be told from 0
_MAX_ROWS_AT_ONCE = 32  # of a Jacobian or Hessian: more do not stay in the cache


def find_mode(
    log_joint: Density,
    start: Tensor,
    explain: Callable[[Tensor], str] = lambda u: "",
    *,
    climb: Callable[[Tensor, int], tuple[Tensor, float]] | None = None,
    num_rounds: int = 10,
    num_steps: int = 200,
    num_newton: int = 20,
) -> tuple[Tensor, Tensor]:
    """
    L-BFGS with restarts, then damped Newton steps with a clamped Hessian.

    :param log_joint: the log-density, NaN outside of its domain.
    :param torch.Tensor start: shape ``(m,)``.
    :param explain: says of a point what makes the density there what it is, for the message.
    :param climb: L-BFGS on the same density from a point, with most steps; by default
        :func:`~pyro_implicit.guides.initialization.lbfgs.maximise`.
    :param int num_rounds: how often L-BFGS begins anew, at most.
    :param int num_steps: steps of each round, at most.
    :param int num_newton: Newton steps, at most.
    :returns: the mode ``(m,)`` and the negative Hessian there ``(m, m)``.
    :raises NonFiniteError: if the search ends at a point without a finite density or curvature.
    """
    u, climb = start.detach().clone(), climb or partial(maximise, log_joint)
    for _ in range(num_rounds):
        u, gain = climb(u, num_steps)
        if not gain > 1e-6:
            break
    curvature = -hessian(log_joint, u)
    for _ in range(num_newton):
        if not torch.isfinite(curvature).all():
            break
        u, gain = _newton(log_joint, u, curvature)
        curvature = -hessian(log_joint, u)
        if not gain > 1e-6:
            break
    _check_mode(log_joint, u, curvature, explain)
    return u, curvature


def _check_mode(
    log_joint: Density, u: Tensor, curvature: Tensor, explain: Callable[[Tensor], str]
) -> None:
    point = u.detach().clone().requires_grad_(True)
    with torch.enable_grad():
        value = log_joint(point)
        (gradient,) = torch.autograd.grad(value, point)
    finite = bool(torch.cat([value.detach().reshape(1), u, gradient]).isfinite().all())
    if finite and not bool(curvature.isfinite().all()):
        raise NonFiniteError(
            "at the posterior mode that was found the log-density and its gradient are finite, and "
            "its second derivative is not: a kink there (a norm, square root or absolute value at "
            "0). Use init_from='mean-field' or None, which take first derivatives alone."
        )
    if not finite or not curvature.any():
        raise NonFiniteError(
            "the search for the posterior mode ended where the log-density is not finite, or flat "
            f"in every direction{explain(u)}: the density may be unbounded, or init_loc_fn may "
            "start outside of its domain. Use init_from=None, or give another init_loc_fn."
        )


def _newton(log_joint: Density, u: Tensor, curvature: Tensor) -> tuple[Tensor, float]:
    """One damped step; returns the new point and the gain."""
    point = u.clone().requires_grad_(True)
    with torch.enable_grad():
        value = log_joint(point)
        (gradient,) = torch.autograd.grad(value, point)
    root = inverse_root(curvature)
    step = root @ (root.mT @ gradient)
    with torch.no_grad():
        for power in range(10):
            candidate = u + step * 0.5**power
            gain = float(log_joint(candidate) - value)
            if gain > 0:
                return candidate, gain
    return u, 0.0


def hessian(function: Callable[[Tensor], Tensor], u: Tensor) -> Tensor:
    """
    The matrix of second derivatives of a function, see :func:`gradient_and_hessian`.

    :param function: from ``(m,)`` to a scalar.
    :param torch.Tensor u: shape ``(m,)``.
    :returns: symmetric matrix ``(m, m)``.
    """
    return gradient_and_hessian(function, u)[1]


def gradient_and_hessian(function: Callable[[Tensor], Tensor], u: Tensor) -> tuple[Tensor, Tensor]:
    """
    The first and second derivatives of a function.

    Rows that torch does not have (its second derivative of ``logaddexp`` is NaN where the two are
    far apart, and so is that of a norm at 0) are central differences of the gradient, where those
    of two widths agree: at a kink they do not, and the row stays as it is.

    :param function: from ``(m,)`` to a scalar.
    :param torch.Tensor u: shape ``(m,)``.
    :returns: the gradient ``(m,)`` and a symmetric matrix ``(m, m)``.
    """
    with torch.enable_grad():
        point = u.detach().clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(function(point), point, create_graph=True)
        matrix = _jacobian_rows(gradient, point)
    missing = (~matrix.isfinite().all(-1)).nonzero().flatten().tolist()
    if missing and bool(gradient.isfinite().all()):
        differences = {index: _difference(function, u, index) for index in missing}
        for index, row in differences.items():
            if row is not None:
                matrix[index] = matrix[:, index] = row
    return gradient.detach(), 0.5 * (matrix + matrix.mT)


def _difference(function: Density, u: Tensor, index: int) -> Tensor | None:
    """One row of the Hessian, ``(m,)``; None where the gradient has no derivative."""
    width = torch.finfo(u.dtype).eps ** (1 / 3) * (1.0 + float(u[index].abs()))
    coarse, fine = (_central_difference(function, u, index, h) for h in (2 * width, width))
    largest = fine.abs().max()
    agree = bool(((coarse - fine).abs() <= _DIFFERENCE_TOLERANCE * largest).all())
    return fine if agree and bool(largest.isfinite()) else None


def _central_difference(function: Density, u: Tensor, index: int, width: float) -> Tensor:
    step = torch.zeros_like(u)
    step[index] = width
    gradients = []
    for place in (u + step, u - step):
        point = place.detach().requires_grad_(True)
        with torch.enable_grad():
            gradients.append(torch.autograd.grad(function(point), point)[0])
    return (gradients[0] - gradients[1]) / (2 * width)


def _jacobian_rows(outputs: Tensor, inputs: Tensor) -> Tensor:
    """The Jacobian of a vector, ``(n, m)``, in blocks of rows."""
    if not outputs.requires_grad:
        return inputs.new_zeros(outputs.numel(), inputs.numel())
    n = outputs.numel()
    blocks = []
    for first in range(0, n, _MAX_ROWS_AT_ONCE):
        last = min(first + _MAX_ROWS_AT_ONCE, n)
        seeds = torch.zeros(last - first, n, dtype=outputs.dtype, device=outputs.device)
        seeds[torch.arange(last - first), torch.arange(first, last)] = 1
        (rows,) = torch.autograd.grad(
            outputs, inputs, seeds, retain_graph=True, is_grads_batched=True, allow_unused=True
        )
        blocks.append(inputs.new_zeros(last - first, inputs.numel()) if rows is None else rows)
    return torch.cat(blocks)


def inverse_root(matrix: Tensor) -> Tensor:
    """
    An ``L`` with ``L L'`` the inverse of ``matrix``; symmetric where that can be.

    Eigenvalues are taken absolute and clamped from below to ``1e-8`` of the largest. Where some of
    a positive matrix are below that, it is first brought to units in which its diagonal is one: the
    scales of latents may be further apart than eigenvalues can be told.

    :param torch.Tensor matrix: symmetric, shape ``(m, m)``.
    """
    wide = matrix.double()
    values, vectors = torch.linalg.eigh(wide)
    diagonal = wide.diagonal()
    is_clamped = bool((values.abs() < _MIN_RELATIVE_EIGENVALUE * values.abs().max()).any())
    if is_clamped and bool((diagonal > 0).all()):
        unit = diagonal.rsqrt()
        values, vectors = torch.linalg.eigh(unit[:, None] * wide * unit)
        return (unit[:, None] * _root(values, vectors)).to(matrix.dtype)
    return _root(values, vectors).to(matrix.dtype)


def _root(values: Tensor, vectors: Tensor) -> Tensor:
    values = values.abs()
    values = values.clamp(min=float(values.max()) * _MIN_RELATIVE_EIGENVALUE + 1e-300)
    root: Tensor = (vectors * values.rsqrt()) @ vectors.mT
    return root


def mean_curvature(
    log_joint: LogJoint,
    mean: Tensor,
    scale: Tensor,
    num_samples: int = 12,
    *,
    gauss_newton: bool = True,
    unit: Tensor | None = None,
    is_enough: Callable[[Tensor], bool] | None = None,
) -> Tensor:
    """
    The curvature of the log-joint density, averaged over draws in pairs around the mean.

    It is Gauss-Newton of the likelihood plus the prior's, or the Hessian of both, its eigenvalues
    in some units clamped at 0 draw by draw. In units of the deviations no direction is lost to a
    larger one beside it. What is odd in the distance from the mean cancels in a pair.

    The second is larger in directions that only the network's second derivatives see: a Gaussian of
    that width stays where the network is nearly linear.

    :param torch.Tensor mean: shape ``(m,)``.
    :param torch.Tensor scale: standard deviations of the draws, shape ``(m,)``.
    :param int num_samples: draws with a finite curvature, at most.
    :param bool gauss_newton: the first of the two, where the likelihood has one.
    :param torch.Tensor unit: of the latents, shape ``(m,)``; 1 by default.
    :param is_enough: told the average after each second draw; the last one if it says so.
    :returns: shape ``(m, m)``.
    :raises NonFiniteError: if the density or its curvature is finite at none of many draws.
    """
    total, used, has_density = torch.zeros(mean.numel(), mean.numel()).to(mean), 0, False
    for draw in _pairs(mean, scale, 3 * num_samples):
        with torch.no_grad():
            inside = bool(torch.isfinite(log_joint.value(draw)))
        has_density |= inside
        matrix = _curvature_at(log_joint, draw, gauss_newton, unit) if inside else None
        if matrix is None:
            continue
        total, used = total + matrix, used + 1
        notes = is_enough if used % 2 == 0 else None
        if (notes is not None and notes(total / used)) or used == num_samples:
            break
    if not used:
        density = "the log-density"
        what = f"the second derivative of {density}, itself finite," if has_density else density
        raise NonFiniteError(
            f"{what} is finite at no draw of the mean-field fit{log_joint.explain(mean)}. Use "
            "init_from='mean-field' or None, or give another init_loc_fn."
        )
    return total / used


def _pairs(mean: Tensor, scale: Tensor, num_draws: int) -> Iterator[Tensor]:
    """Draws of a diagonal Gaussian, each followed by its mirror image."""
    for _ in range((num_draws + 1) // 2):
        distance = scale * torch.randn_like(mean)
        yield mean + distance
        yield mean - distance


def _curvature_at(
    log_joint: LogJoint, u: Tensor, gauss_newton: bool, unit: Tensor | None
) -> Tensor | None:
    """The curvature at one draw with a finite density, None where it is not finite."""
    residual = _residual(log_joint, u) if gauss_newton else None
    if residual is None:
        matrix, rows = -hessian(log_joint.value, u), u.new_zeros(1, u.numel())
    else:
        matrix, rows = -hessian(_prior_part(log_joint), u), _residual_jacobian(*residual)
    if not (torch.isfinite(matrix).all() and torch.isfinite(rows).all()):
        return None
    unit = torch.ones_like(u) if unit is None else unit
    units = unit * unit[:, None]
    return rows.mT @ rows + _clamped(matrix * units) / units


def _clamped(matrix: Tensor) -> Tensor:
    """With eigenvalues below 0 set to 0; itself, without a decomposition, if there are none."""
    if not bool(torch.linalg.cholesky_ex(matrix).info):
        return matrix
    values, vectors = torch.linalg.eigh(matrix)
    clamped: Tensor = (vectors * values.clamp(min=0.0)) @ vectors.mT
    return clamped


def _prior_part(log_joint: LogJoint) -> Callable[[Tensor], Tensor]:
    def prior(u: Tensor) -> Tensor:
        trace, correction = log_joint.trace(u)
        names = {site.name for site in log_joint.sites}
        return trace.log_prob_sum(lambda name, _: name in names) + correction

    return prior


def _residual(log_joint: LogJoint, u: Tensor) -> tuple[Tensor, Tensor] | None:
    """``(r, u)`` with the likelihood's curvature ``(dr/du)'(dr/du)``, or None if none is known."""
    with torch.enable_grad():
        point = u.detach().clone().requires_grad_(True)
        trace, _ = log_joint.trace(point)
        names = {site.name for site in log_joint.sites}
        parts = []
        for name, node in trace.nodes.items():
            if (
                node["type"] != "sample"
                or name in names
                or site_is_subsample(node)
                or (node["infer"] or {}).get("_deterministic")
            ):
                continue
            part = _site_residual(node)
            if part is None:
                return None
            parts.extend(part)
    return (torch.cat(parts), point) if parts else None


def _site_residual(node: Any) -> list[Tensor] | None:
    fn = node["fn"]
    while type(fn).__name__ in ("Independent", "ExpandedDistribution"):
        fn = fn.base_dist
    kind = type(fn).__name__
    scale = torch.as_tensor(node["scale"])
    if node["mask"] is not None or scale.dim() or kind not in _RESIDUALS_BY_LIKELIHOOD:
        return None
    residuals = _RESIDUALS_BY_LIKELIHOOD[kind](fn)
    return [(scale.sqrt().to(part) * part).reshape(-1) for part in residuals]


def _normal(fn: Any) -> list[Tensor]:
    precision = 1 / fn.scale.detach()
    return [fn.loc * precision, math.sqrt(2) * fn.scale * precision]


def _bernoulli(fn: Any) -> list[Tensor]:
    p = fn.probs.detach()
    return [fn.logits * (p * (1 - p)).sqrt()]


def _categorical(fn: Any) -> list[Tensor]:
    p = fn.probs.detach()
    return [(fn.logits - (p * fn.logits).sum(-1, keepdim=True)) * p.sqrt()]


def _poisson(fn: Any) -> list[Tensor]:
    return [fn.rate / fn.rate.detach().sqrt()]


_RESIDUALS_BY_LIKELIHOOD: dict[str, Callable[[Any], list[Tensor]]] = {
    "Bernoulli": _bernoulli,
    "Categorical": _categorical,
    "Normal": _normal,
    "Poisson": _poisson,
}


def _residual_jacobian(residual: Tensor, point: Tensor) -> Tensor:
    """Jacobian of the residual, by rows or by columns, whichever are fewer."""
    if residual.numel() <= point.numel() or not residual.requires_grad:
        return _jacobian_rows(residual, point)
    # J w for unit vectors w as the derivative of v -> <J' v, w>: two backward passes
    seed = torch.zeros_like(residual, requires_grad=True)
    (pulled,) = torch.autograd.grad(residual, point, seed, create_graph=True)
    return _jacobian_rows(pulled, seed).mT
