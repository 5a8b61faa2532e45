r"""
Products with the Jacobian of a generator, without the Jacobian.

Shape legend: ``...`` the batch of draws, ``d`` noise entries (flat), ``m`` outputs, ``P`` further
leading dimensions of the vectors (probes).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_implicit.exceptions import ImplicitError, LayerError, StateError
from pyro_implicit.ops.second_derivatives import second_derivatives
from pyro_implicit.ops.twice_differentiable import TwiceDifferentiable

__all__ = ["DenseLinearisation", "FunctionLinearisation", "Linearisation"]


class Linearisation(ABC):
    """
    A generator's value and derivative at a batch of noises, from one primal pass.

    Products are differentiable with respect to the generator's parameters if it was made with
    gradients enabled; wrap calls in :func:`torch.no_grad` where the graph is not needed.

    :param torch.Tensor value: the draws, shape ``(..., m)``.
    :param int input_dim: ``d``.
    """

    #: whether a gradient of ``u' J v`` is to be taken by ``J' u``: of products by torch alone that
    #: one has one derivative less in it, and is right where that of ``J v`` is not
    by_adjoint: bool = False
    #: ``log |det J|`` of a square Jacobian, shape ``(...)``, where the pass has told it
    log_abs_det: Tensor | None = None

    def __init__(self, value: Tensor, input_dim: int) -> None:
        self._value: Tensor | None = value
        self.input_dim = input_dim
        self.dtype, self.device = value.dtype, value.device
        self._shape = value.shape

    @property
    def value(self) -> Tensor:
        """
        The draws, shape ``(..., m)``.

        :raises StateError: if they were let go.
        """
        if self._value is None:
            raise StateError("the draws of this linearisation were let go; its products are left.")
        return self._value

    @property
    def holds_value(self) -> bool:
        """Whether the draws are still there."""
        return self._value is not None

    def let_go(self) -> None:
        """Lets go of the draws, which take as much memory as one product; products stay."""
        self._value = None

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of draws."""
        return self._shape[:-1]

    @property
    def output_dim(self) -> int:
        """Number of outputs ``m``."""
        return self._shape[-1]

    def score(self, of_noise: Tensor) -> Tensor | None:
        """
        Carry the derivative of the noise's log-density to that of the draws'.

        :param torch.Tensor of_noise: the former at the noises, shape ``(..., d)``.
        :returns: the latter at the draws, shape ``(..., m)``; None where no structure makes that
            cheap, or the draws are no function with an inverse.
        """
        return None

    @abstractmethod
    def jvp(self, v: Tensor) -> Tensor:
        """
        Multiplies directions by the Jacobian.

        :param torch.Tensor v: directions, shape ``(P, ..., d)``.
        :returns: ``J v``, shape ``(P, ..., m)``.
        """

    @abstractmethod
    def vjp(self, u: Tensor) -> Tensor:
        """
        Multiplies cotangents by the transposed Jacobian.

        :param torch.Tensor u: cotangents, shape ``(P, ..., m)``.
        :returns: ``J' u``, shape ``(P, ..., d)``.
        """

    def kept_jvp(self, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """
        :meth:`jvp`, and what it met on the way that :meth:`pairing` can use.

        :param torch.Tensor v: directions, shape ``(P, ..., d)``.
        :returns: the products, and matrices ``(P, ..., a, b)`` of any sizes, all linear in ``v``.
        """
        return self.jvp(v), [v[..., None]]

    def kept_vjp(self, u: Tensor) -> tuple[Tensor, list[Tensor]]:
        """
        :meth:`vjp`, and what it met on the way that :meth:`pairing` can use.

        :param torch.Tensor u: cotangents, shape ``(P, ..., m)``.
        :returns: the products, and matrices ``(P, ..., a, b)`` of any sizes, all linear in ``u``.
        """
        return self.vjp(u), []

    def pairing(self, u: Tensor, tangents: list[Tensor], cotangents: list[Tensor]) -> Tensor:
        """
        A number whose gradient in the generator's parameters is that of ``u' J v``.

        It is so with ``u`` and ``v`` held fixed; the value itself means nothing.

        :param torch.Tensor u: cotangents, shape ``(P, ..., m)``.
        :param tangents: what :meth:`kept_jvp` kept of ``v``, or a combination of such: matrices of
            shapes ``(P, ..., a, b)``.
        :param cotangents: what :meth:`kept_vjp` kept of ``u``, or a combination of such: matrices
            of shapes ``(P, ..., a, b)``.
        :returns: summed over ``P``, shape ``(...)``.
        """
        return self.paired(u, tangents[0][..., 0]).sum(0)

    def paired(self, u: Tensor, v: Tensor) -> Tensor:
        """
        Multiplies the Jacobian from both sides, by the product whose gradient is right.

        :param torch.Tensor u: cotangents, shape ``(P, ..., m)``.
        :param torch.Tensor v: directions, shape ``(P, ..., d)``.
        :returns: ``u' J v``, shape ``(P, ...)``.
        """
        return ((self.vjp(u) * v) if self.by_adjoint else (u * self.jvp(v))).sum(-1)

    def unsqueezed(self) -> Linearisation:
        """
        The derivative of this draw as that of a batch of one.

        :returns: the same, with a batch dimension of size 1 in front.
        """
        return _Unsqueezed(self)

    def jacobian(self) -> Tensor:
        """
        Forms the Jacobian from its products.

        :returns: the Jacobians, shape ``(..., m, d)``, one product per noise entry.
        """
        identity = torch.eye(self.input_dim, dtype=self.dtype, device=self.device)
        directions = identity.reshape(-1, *[1] * len(self.batch_shape), self.input_dim)
        return self.jvp(directions.expand(-1, *self.batch_shape, -1)).movedim(0, -1)


class _Unsqueezed(Linearisation):
    """
    The derivative of one draw as that of a batch of draws, of which there is one.

    :param Linearisation one: of batch shape ``(...)``; that of this one is ``(1, ...)``.
    """

    def __init__(self, one: Linearisation) -> None:
        held = one.holds_value
        value = one.value if held else torch.empty(0, dtype=one.dtype, device=one.device)
        super().__init__(value.unsqueeze(0), one.input_dim)
        self._one, self._shape = one, torch.Size((1, *one.batch_shape, one.output_dim))
        self.by_adjoint = one.by_adjoint
        if not held:
            self.let_go()
        if one.log_abs_det is not None:
            self.log_abs_det = one.log_abs_det.unsqueeze(0)

    def let_go(self) -> None:
        """See :meth:`Linearisation.let_go`."""
        super().let_go()
        self._one.let_go()

    def score(self, of_noise: Tensor) -> Tensor | None:
        """See :meth:`Linearisation.score`."""
        found = self._one.score(of_noise.squeeze(0))
        return None if found is None else found.unsqueeze(0)

    def jvp(self, v: Tensor) -> Tensor:
        """See :meth:`Linearisation.jvp`."""
        return self._one.jvp(v.squeeze(1)).unsqueeze(1)

    def vjp(self, u: Tensor) -> Tensor:
        """See :meth:`Linearisation.vjp`."""
        return self._one.vjp(u.squeeze(1)).unsqueeze(1)

    def kept_jvp(self, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """See :meth:`Linearisation.kept_jvp`."""
        product, kept = self._one.kept_jvp(v.squeeze(1))
        return product.unsqueeze(1), [one.unsqueeze(1) for one in kept]

    def kept_vjp(self, u: Tensor) -> tuple[Tensor, list[Tensor]]:
        """See :meth:`Linearisation.kept_vjp`."""
        product, kept = self._one.kept_vjp(u.squeeze(1))
        return product.unsqueeze(1), [one.unsqueeze(1) for one in kept]

    def pairing(self, u: Tensor, tangents: list[Tensor], cotangents: list[Tensor]) -> Tensor:
        """See :meth:`Linearisation.pairing`."""
        met = [[one.squeeze(1) for one in kept] for kept in (tangents, cotangents)]
        return self._one.pairing(u.squeeze(1), *met).unsqueeze(0)


class DenseLinearisation(Linearisation):
    r"""
    The derivative of a multilayer perceptron beside a linear map.

    It is :math:`W_{k+1} D_k W_k \cdots D_1 W_1 + A`.

    :param torch.Tensor value: the draws, shape ``(..., m)``.
    :param weights: ``W_1 ... W_{k+1}``, shapes ``(h_i, h_{i-1})``.
    :param slopes: the diagonals ``D_1 ... D_k``, shapes ``(..., h_i)``.
    :param torch.Tensor skip: ``A``, shape ``(m, d)``, or its diagonal ``(m,)``, or None.
    """

    def __init__(
        self,
        value: Tensor,
        weights: Sequence[Tensor],
        slopes: Sequence[Tensor],
        skip: Tensor | None = None,
    ) -> None:
        super().__init__(value, weights[0].shape[-1])
        self._weights, self._slopes, self._skip = list(weights), list(slopes), skip

    def jvp(self, v: Tensor) -> Tensor:
        """See :meth:`Linearisation.jvp`."""
        out = v
        for weight, slope in zip(self._weights[:-1], self._slopes, strict=True):
            out = slope * (out @ weight.mT)
        out = out @ self._weights[-1].mT
        if self._skip is None:
            return out
        return out + (self._skip * v if self._skip.dim() == 1 else v @ self._skip.mT)

    def vjp(self, u: Tensor) -> Tensor:
        """See :meth:`Linearisation.vjp`."""
        out = u @ self._weights[-1]
        for weight, slope in zip(reversed(self._weights[:-1]), reversed(self._slopes), strict=True):
            out = (slope * out) @ weight
        if self._skip is None:
            return out
        return out + (self._skip * u if self._skip.dim() == 1 else u @ self._skip)


class FunctionLinearisation(Linearisation):
    """
    The derivative of any function by ``torch.func``.

    It is correct for every module, and slower than products that know the structure. The function
    is run once: products go back through what that run kept, with ``J v`` as the transpose of
    ``u -> J' u``, so that they take no pass of their own and belong to the value even where the
    function draws random numbers.

    :param function: maps ``(n, *noise_shape)`` to ``(n, m)``, each row by itself.
    :param torch.Tensor z: noise, shape ``(..., *noise_shape)``.
    :param int noise_ndim: number of dimensions of one noise.
    :raises LayerError: if torch cannot take the derivative of what it runs without; from
        :meth:`jvp`, where torch has no second derivative of an operation.
    """

    by_adjoint = True

    def __init__(
        self, function: Callable[[Tensor], Tensor], z: Tensor, noise_ndim: int = 1
    ) -> None:
        batch = z.shape[: z.dim() - noise_ndim]
        self._noise_shape = z.shape[z.dim() - noise_ndim :]
        self._num_draws = batch.numel()
        value, self._pull = _pulled_back(function, z.reshape(-1, *self._noise_shape))
        self._push: Callable[[Tensor], tuple[Tensor]] | None = None
        self._tracks_gradients = torch.is_grad_enabled()
        super().__init__(value.reshape(*batch, -1), self._noise_shape.numel())

    def jvp(self, v: Tensor) -> Tensor:
        """See :meth:`Linearisation.jvp`."""
        directions, lead = self._rows(v, self._noise_shape)
        with second_derivatives():
            if self._push is None:
                self._push = self._transposed(directions.new_ones(self._num_draws, self.output_dim))
            outputs = [self._push(row)[0] for row in directions]
        return torch.stack(outputs).reshape(*lead, self.output_dim)

    def vjp(self, u: Tensor) -> Tensor:
        """See :meth:`Linearisation.vjp`."""
        cotangents, lead = self._rows(u, torch.Size((self.output_dim,)))
        outputs = [self._pull(row)[0] for row in cotangents]
        return torch.stack(outputs).reshape(*lead, self.input_dim)

    def _transposed(self, anywhere: Tensor) -> Callable[[Tensor], tuple[Tensor]]:
        """``v -> (J v,)``, by differentiating ``u -> J' u``, which is linear."""
        with torch.set_grad_enabled(self._tracks_gradients):
            push: Callable[[Tensor], tuple[Tensor]] = torch.func.vjp(self._pulled, anywhere)[1]
        return push

    def _pulled(self, u: Tensor) -> Tensor:
        pulled: Tensor = self._pull(u)[0]
        return pulled

    def _rows(self, vectors: Tensor, shape: torch.Size) -> tuple[Tensor, torch.Size]:
        """Vectors as ``(P, n, *shape)`` and the leading shape of the result."""
        lead = vectors.shape[:-1]
        return vectors.reshape(-1, self._num_draws, *shape), lead


def _pulled_back(
    function: Callable[[Tensor], Tensor], z: Tensor
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
    """
    Value and transposed derivative by ``torch.func``.

    :raises LayerError: if it fails at what runs without derivatives.
    """
    try:
        with TwiceDifferentiable():
            value, pull = torch.func.vjp(function, z)  # type: ignore[misc]
    except ImplicitError:
        raise
    except Exception as error:
        with torch.no_grad():
            function(z)  # an error of its own is raised as it is
        line = (str(error).strip() or "no message").splitlines()[0]
        raise LayerError(
            f"torch.func cannot take the derivative of the generator ({type(error).__name__}: "
            f"{line}), which this objective needs. Leave torch.compile, torch.utils.checkpoint and "
            "autograd functions without setup_context out of it, or use an objective that needs "
            "draws alone, such as KernelDensityRatioELBO."
        ) from error
    return value, pull
