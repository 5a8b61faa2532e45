"""Which of torch's ways to the Jacobian of a module has the right gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from pyro_implicit.exceptions import LayerError
from pyro_implicit.ops.jacobian import function_jacobian
from pyro_implicit.ops.second_derivatives import second_derivatives

if TYPE_CHECKING:
    from pyro_implicit.generators.base import Generator

__all__ = [
    "ERRORS_OF_TORCH",
    "fixed_vectors",
    "kind_of",
    "right_route",
    "tolerance_of",
    "two_noises",
]

#: by generator and mode (whether it is in training)
_ROUTES: WeakKeyDictionary[nn.Module, dict[bool, str]] = WeakKeyDictionary()
#: what torch raises for an operation without a rule
ERRORS_OF_TORCH = (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError)


def right_route(generator: Generator, like: Tensor) -> str | None:
    r"""
    Finds for a generator, once in each mode, the route whose Jacobian has the right gradient.

    torch has several ways to a Jacobian, and differentiates some operations wrongly in one of them
    (normalisation within ``torch.jit``, say), or not at all (what is written in place, ``cdist``).
    At one noise, :math:`u^\top J v` is therefore differentiated by each route in turn and compared
    with the derivative of :math:`(J^\top u)^\top v`, which asks least of torch; the first that
    agrees is taken from then on. Draws no random number.

    :param Generator generator: one that does not form its Jacobian itself.
    :param torch.Tensor like: a noise, for dtype and device.
    :returns: ``"forward"``, ``"reverse"`` or ``"products"``; None, for what torch does first, where
        nobody asks for a gradient or nothing can be compared.
    :raises LayerError: if no route agrees, or torch cannot differentiate the generator at all.
    """
    known = _ROUTES.get(generator, {}).get(generator.training)
    if known is not None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return known
    found = _first_right_route(generator, like)
    if found is not None:
        _ROUTES.setdefault(generator, {})[generator.training] = found
    return found


def kind_of(generator: Generator) -> str:
    """
    Names what a user has built, for messages.

    :param Generator generator: the generator.
    :returns: the class of the module that it wraps, or its own.
    """
    return type(getattr(generator, "module", generator)).__name__


def two_noises(generator: Generator, like: Tensor) -> Tensor:
    """
    Makes a pair of noises to try a generator on.

    :param Generator generator: the generator.
    :param torch.Tensor like: for dtype and device, if the generator has no parameter.
    :returns: all entries 0.3 in the first and -0.7 in the second, shape ``(2, *noise_shape)``.
    """
    like = next((p for p in generator.parameters() if p.is_floating_point()), like)
    ones = torch.ones(2, *generator.noise_shape, dtype=like.dtype, device=like.device)
    return ones * ones.new_tensor([0.3, -0.7]).reshape(2, *[1] * len(generator.noise_shape))


def _first_right_route(part: Generator, like: Tensor) -> str | None:
    """
    The first route with the gradient of the reference; None where nothing can be compared.

    :raises LayerError: if those that run all have another, or torch has no derivative.
    """
    weights = [p for p in part.parameters() if p.requires_grad and p.is_floating_point()]
    if not weights:
        return None
    z, u, v = fixed_vectors(part, like)
    modes = ["forward", "reverse"] if z.numel() <= part.output_dim else ["reverse", "forward"]
    try:
        wanted = _gradients(part.linearise(z).vjp(u[None, None]).reshape(-1) @ v, weights)
    except LayerError:
        raise
    except ERRORS_OF_TORCH:
        _name_operation(lambda mode: _gradients(u @ _jacobian(part, z, mode) @ v, weights), modes)
        return None
    if not all(bool(one.isfinite().all()) for one in wanted):
        return None
    runs = False
    for route in (*modes, "products"):
        try:
            found = _gradients(u @ _jacobian(part, z, route) @ v, weights)
        except ERRORS_OF_TORCH:
            continue
        if _are_alike(found, wanted, tolerance_of(z)):
            return route
        runs = True
    if runs:
        raise LayerError(
            f"torch differentiates the Jacobian of the generator {kind_of(part)} wrongly, by each "
            f"of the routes {', '.join(modes)}, products that it can go. Use LanczosELBO, which "
            "does not form it, or write the operation out (normalisation: (x - mean) / deviation)."
        )
    return None


def _name_operation(differentiate: Callable[[str], object], modes: Sequence[str]) -> None:
    """
    Names what has no second derivative, if the first mode that runs needs one.

    :raises LayerError: if so.
    """
    for mode in modes:
        try:
            with second_derivatives():
                differentiate(mode)
            return
        except LayerError:
            raise
        except ERRORS_OF_TORCH:  # the objective says what it is
            continue


def _jacobian(part: Generator, z: Tensor, route: str) -> Tensor:
    if route == "products":
        return part.linearise(z).jacobian()[0]
    return function_jacobian(part, z, part.output_dim, len(part.noise_shape), mode=route)[0]


def _gradients(number: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(number, weights, materialize_grads=True)
    return [one.detach() for one in found]


def fixed_vectors(part: Generator, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One noise, and two fixed directions without a symmetry: ``(1, *shape)``, ``m``, ``d``."""
    z = two_noises(part, like)[:1]
    place = torch.arange(1.0, z.numel() + 1.0, dtype=torch.float64, device="cpu")
    z = z * place.mul(2.3).cos().to(z).reshape(z.shape)
    u = torch.arange(1.0, part.output_dim + 1.0, dtype=torch.float64, device="cpu").mul(1.7).sin()
    return z, u.to(z), place.mul(0.9).sin().to(z)


def _are_alike(found: Sequence[Tensor], wanted: Sequence[Tensor], tolerance: float) -> bool:
    """By parameter; one whose gradient is a tolerance of the whole says nothing."""
    sizes = [float(torch.linalg.vector_norm(one)) for one in wanted]
    least = tolerance * max(sizes)
    gaps = [float(torch.linalg.vector_norm(a - b)) for a, b in zip(found, wanted, strict=True)]
    return all(gap <= tolerance * size + least for gap, size in zip(gaps, sizes, strict=True))


def tolerance_of(z: Tensor) -> float:
    """The relative difference up to which derivatives count as the same: rounding is far below."""
    return math.exp(math.log(torch.finfo(z.dtype).eps) / 3)
