r"""
The inverse of a contractive residual block, in the space of its hidden units.

A block :math:`y = x + W_2\,\phi(W_1 x + b)` is inverted through its pre-activations
:math:`a = W_1 x + b`, which solve :math:`a + W_1 W_2\,\phi(a) = W_1 y + b`: a problem of ``h``
unknowns whatever the number of outputs. Where :math:`\|W_1\| \|W_2\| \sup|\phi'| = c < 1` it has
exactly one solution, and the fixed-point step :math:`a \leftarrow r - W_1 W_2\,\phi(a)` shrinks the
residual by ``c`` at least. Newton's step is taken wherever it shrinks it more.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.ops.activations import Activation
from pyro_implicit.ops.inverse import Inversion, first_order

__all__ = ["invert_block", "spectral_norm"]


def spectral_norm(weight: Tensor) -> Tensor:
    """
    Find the largest singular value exactly, from the Gram matrix on the smaller side.

    No power iteration is needed where one side is narrow.

    :param torch.Tensor weight: shape ``(a, b)``.
    :returns: shape ``()``, differentiable; NaN for a weight that is not finite.
    """
    gram = weight @ weight.mT if weight.shape[0] <= weight.shape[1] else weight.mT @ weight
    if not bool(gram.detach().isfinite().all()):
        return gram.sum() * torch.nan  # for an objective to name the site
    norm: Tensor = torch.linalg.eigvalsh(gram)[-1].clamp(min=torch.finfo(gram.dtype).tiny).sqrt()
    return norm


def invert_block(
    y: Tensor,
    weights: tuple[Tensor, Tensor, Tensor],
    activation: Activation,
    tolerance: float,
    max_iterations: int,
) -> Inversion:
    """
    Find the argument of a residual block from its value.

    Gradients are those of the implicit function theorem: one differentiable Newton step from the
    solution.

    :param torch.Tensor y: values of the block, shape ``(..., m)``.
    :param weights: ``W_1``, ``b`` and ``W_2``, shapes ``(h, m)``, ``(h,)`` and ``(m, h)``.
    :param activation: the function and its slope.
    :param float tolerance: largest residual of a pre-activation, relative to its size.
    :param int max_iterations: when to give up.
    :returns: the arguments, shape ``(..., m)``, and what it took to find them.
    :raises NonFiniteError: if the tolerance is not reached.
    """
    weight_in, bias, weight_out = weights
    function, slope = activation
    product = weight_in @ weight_out
    target = y @ weight_in.mT + bias  # of theory/guides.md (block-equation)
    a, count, worst = _solve(
        target.detach(), product.detach(), activation, tolerance, max_iterations
    )
    if not worst <= tolerance:
        raise NonFiniteError(
            f"the inverse of a residual block was not found in {count} iterations: a residual of "
            f"{worst:.2g} is left, above the tolerance of {tolerance:.2g}. Are all parameters and "
            "values finite? Or give more iterations, or a larger tolerance."
        )
    if torch.is_grad_enabled():
        matrix = _matrix(product.detach(), slope(a))
        step = torch.linalg.solve(matrix, (a + function(a) @ product.mT - target)[..., None])
        a = a - step[..., 0]
    noise = y - function(a) @ weight_out.mT
    return Inversion(first_order(noise) if torch.is_grad_enabled() else noise, count, worst)


def _matrix(product: Tensor, slopes: Tensor) -> Tensor:
    """The derivative ``I + W_1 W_2 D`` of the equation, shape ``(..., h, h)``."""
    eye = torch.eye(product.shape[-1], dtype=product.dtype, device=product.device)
    return eye + product * slopes[..., None, :]


@torch.no_grad()
def _solve(
    target: Tensor, product: Tensor, activation: Activation, tolerance: float, max_iterations: int
) -> tuple[Tensor, int, float]:
    """The pre-activations, the number of iterations and the largest relative residual."""
    function, slope = activation

    def residual(a: Tensor) -> Tensor:
        return a + function(a) @ product.mT - target

    def size(rest: Tensor) -> Tensor:
        error: Tensor = rest.norm(dim=-1) / scale
        return error

    scale = 1 + target.norm(dim=-1)
    a = target
    rest = residual(a)
    count = 0
    while count < max_iterations and not bool((size(rest) <= tolerance).all()):
        count += 1
        step = torch.linalg.solve_ex(_matrix(product, slope(a)), rest[..., None])[0][..., 0]
        # the better of theory/guides.md (block-newton) and the step of the fixed point
        newton, fixed = a - step, a - rest
        after_newton, after_fixed = residual(newton), residual(fixed)
        better = (size(after_newton) < size(after_fixed))[..., None]
        a = torch.where(better, newton, fixed)
        rest = torch.where(better, after_newton, after_fixed)
    worst = float(size(rest).max()) if rest.numel() else 0.0
    return a, count, worst
