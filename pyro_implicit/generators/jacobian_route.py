"""Which of torch's ways to the Jacobian of a module has the right gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from pyro_implicit.exceptions import LayerError
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.routes import remember_route
from pyro_implicit.ops.jacobian import function_jacobian
from pyro_implicit.ops.second_derivatives import second_derivatives
from pyro_implicit.ops.twice_differentiable import TwiceDifferentiable

__all__ = ["check_one_derivative", "settle_routes", "two_noises"]

#: generators that were tried, with their modes then (whether they were in training)
_SETTLED_MODES: WeakKeyDictionary[nn.Module, set[bool]] = WeakKeyDictionary()
_ERRORS_OF_TORCH = (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError)


def settle_routes(generator: Generator, like: Tensor) -> None:
    r"""
    Finds for a generator, once in each mode, the route whose Jacobian has the right gradient.

    torch has several ways to a Jacobian, and differentiates some operations wrongly in one of them
    (normalisation within ``torch.jit``, say), or not at all (what is written in place, ``cdist``).
    At one noise, :math:`u^\top J v` is therefore differentiated by each route in turn and compared
    with the derivative of :math:`(J^\top u)^\top v`, which asks least of torch; the first that
    agrees is taken from then on (:func:`~pyro_implicit.generators.routes.route_of`). Generators
    that form their Jacobians themselves are left alone. Draws no random number.

    :param Generator generator: the generator.
    :param torch.Tensor like: a noise, for dtype and device.
    :raises LayerError: if no route agrees, or torch cannot differentiate the generator at all.
    """
    origin = generator.origin
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return
    if generator.training in _SETTLED_MODES.get(origin, ()):
        return
    for part in _without_own_jacobian(origin):
        remember_route(part, _first_right_route(part, like))
    _SETTLED_MODES.setdefault(origin, set()).add(generator.training)


def check_one_derivative(generator: Generator, like: Tensor) -> None:
    r"""
    Refuses generators whose derivatives by forward and by reverse mode are not the same.

    :param Generator generator: the generator.
    :param torch.Tensor like: a noise, for dtype and device.
    :raises LayerError: if :math:`u^\top (J v)` and :math:`(J^\top u)^\top v` differ by more than
        rounding.
    """
    for part in _without_own_products(generator.origin):
        z, u, v = _vectors(part, like)
        direction = v.reshape(z.shape)
        try:
            with TwiceDifferentiable(), torch.no_grad():
                forward = torch.func.jvp(part, (z,), (direction,))[1].reshape(-1)
                pull = torch.func.vjp(part, z)[1]
                pulled = [(one, pull(one[None])[0].reshape(-1)) for one in (u, u.abs(), u**3)]
        except _ERRORS_OF_TORCH:  # no rule for one of the modes: nothing to compare
            continue
        if not all(_is_same(one @ forward, back, v, _tolerance(z)) for one, back in pulled):
            raise LayerError(
                f"the generator {_kind(part)} has two derivatives: one by forward and one by "
                "reverse mode, so that a part of it is hidden from the latter, by torch.no_grad() "
                "or by an autograd function of one's own (a straight-through estimator, say). Let "
                "gradients go through all of it, or use an objective that needs draws alone, such "
                "as KernelDensityRatioELBO."
            )


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


def _without_own_jacobian(origin: Generator) -> Iterator[Generator]:
    for part in origin.modules():
        if isinstance(part, Generator) and type(part).jacobian is Generator.jacobian:
            yield part


def _without_own_products(origin: Generator) -> Iterator[Generator]:
    for part in origin.modules():
        if not isinstance(part, Generator) or type(part).linearise is not Generator.linearise:
            continue
        if not any(m._forward_hooks or m._forward_pre_hooks for m in part.modules()):
            yield part  # hooks of a user's would be shown what belongs to the derivative


def _first_right_route(part: Generator, like: Tensor) -> str | None:
    """
    The first route with the gradient of the reference; None where nothing can be compared.

    :raises LayerError: if those that run all have another, or torch has no derivative.
    """
    weights = [p for p in part.parameters() if p.requires_grad and p.is_floating_point()]
    if not weights:
        return None
    z, u, v = _vectors(part, like)
    modes = ["forward", "reverse"] if z.numel() <= part.output_dim else ["reverse", "forward"]
    try:
        wanted = _gradients(part.linearise(z).vjp(u[None, None]).reshape(-1) @ v, weights)
    except LayerError:
        raise
    except _ERRORS_OF_TORCH:
        _name_operation(lambda mode: _gradients(u @ _jacobian(part, z, mode) @ v, weights), modes)
        return None
    if not all(bool(one.isfinite().all()) for one in wanted):
        return None
    runs = False
    for route in (*modes, "products"):
        try:
            found = _gradients(u @ _jacobian(part, z, route) @ v, weights)
        except _ERRORS_OF_TORCH:
            continue
        if _are_alike(found, wanted, _tolerance(z)):
            return route
        runs = True
    if runs:
        raise LayerError(
            f"torch differentiates the Jacobian of the generator {_kind(part)} wrongly, by each of "
            f"the routes {', '.join(modes)}, products that it can go. Use LanczosELBO, which does "
            "not form it, or write the operation out (normalisation: (x - mean) / deviation)."
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
        except _ERRORS_OF_TORCH:  # the objective says what it is
            continue


def _jacobian(part: Generator, z: Tensor, route: str) -> Tensor:
    if route == "products":
        return part.linearise(z).jacobian()[0]
    return function_jacobian(part, z, part.output_dim, len(part.noise_shape), mode=route)[0]


def _gradients(number: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    found = torch.autograd.grad(number, weights, materialize_grads=True)
    return [one.detach() for one in found]


def _vectors(part: Generator, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
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


def _is_same(forward: Tensor, pulled: Tensor, v: Tensor, tolerance: float) -> bool:
    """Whether both are ``u' J v``."""
    size = torch.linalg.vector_norm(pulled) * torch.linalg.vector_norm(v) + forward.abs()
    gap = (forward - pulled @ v).abs()
    return bool(gap <= tolerance * size) or not bool(gap.isfinite())


def _tolerance(z: Tensor) -> float:
    return math.exp(math.log(torch.finfo(z.dtype).eps) / 3)


def _kind(part: Generator) -> str:
    return type(getattr(part, "module", part)).__name__
