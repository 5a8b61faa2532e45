"""A generator of the user's own, with first draws of a wanted size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators.base import Generator
from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.logdet import is_zero

__all__ = ["Rescaled", "rescaled"]


class Rescaled(Generator):
    r"""
    A generator shifted and scaled by fixed numbers: :math:`s \odot (g(z) - c)`.

    The numbers are saved with it. Jacobians, products and log-determinants are those of ``g``,
    scaled.

    :param Generator inner: ``g``.
    :param torch.Tensor factor: ``s``, positive, shape ``(m,)``.
    :param torch.Tensor shift: ``c``, shape ``(m,)``.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, inner: Generator, factor: Tensor, shift: Tensor) -> None:
        super().__init__(inner.noise_shape, inner.output_dim)
        self.inner = inner
        self.register_buffer("factor", factor.detach().clone())
        self.register_buffer("shift", shift.detach().clone())

    @property
    def full_rank(self) -> bool:  # type: ignore[override]
        """Whether draws of ``g`` fill the space."""
        return self.inner.full_rank

    @property
    def is_bijective(self) -> bool:  # type: ignore[override]
        """Whether ``g`` is certain to be a bijection."""
        return self.inner.is_bijective

    @property
    def has_structured_log_det(self) -> bool:  # type: ignore[override]
        """Whether the determinant of ``g`` is cheap by structure."""
        return self.inner.has_structured_log_det

    def inverse(self, x: Tensor) -> Tensor:
        """See :meth:`Generator.inverse`."""
        return self.inner.inverse(x / self.factor + self.shift)

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        scaled: Tensor = self.factor * (self.inner(z) - self.shift)
        return scaled

    def jacobian(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.jacobian`."""
        jacobian = self.inner.jacobian(z)
        return self.factor.to(jacobian)[:, None] * jacobian

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`."""
        inner = self.inner.linearise(z)
        return _Scaled(inner, self.factor, self.factor * (inner.value - self.shift))

    def half_log_det(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        """See :meth:`Generator.half_log_det`; by the inner one's route, in units of ``s``."""
        return self.inner.half_log_det(z, self._inner_scale(scale)) + self.factor.log().sum()

    def det_sign(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        """See :meth:`Generator.det_sign`."""
        return self.inner.det_sign(z, self._inner_scale(scale))

    def _inner_scale(self, scale: float | Tensor) -> float | Tensor:
        """The output noise in units of ``s``; that it is 0 stays a number."""
        return scale if is_zero(scale) else scale / self.factor


class _Scaled(Linearisation):
    """Value and derivative with each output multiplied by a constant."""

    def __init__(self, inner: Linearisation, factor: Tensor, value: Tensor) -> None:
        super().__init__(value, inner.input_dim)
        self._inner, self._factor = inner, factor
        self.by_adjoint = inner.by_adjoint

    def let_go(self) -> None:
        """See :meth:`Linearisation.let_go`."""
        super().let_go()
        self._inner.let_go()

    def jvp(self, v: Tensor) -> Tensor:
        """See :meth:`Linearisation.jvp`."""
        return self._factor * self._inner.jvp(v)

    def vjp(self, u: Tensor) -> Tensor:
        """See :meth:`Linearisation.vjp`."""
        return self._inner.vjp(self._factor * u)


@torch.no_grad()
def rescaled(inner: Generator, target: float) -> Rescaled:
    """
    Scales a generator so that its outputs have mean 0 and a chosen standard deviation.

    :param Generator inner: any generator.
    :param float target: positive.
    :returns: ``inner``, whose outputs now have mean 0 and that standard deviation, as measured on
        draws of a generator of their own (the global one is left alone).
    :raises ArgumentError: if an output does not vary with the noise, or is not finite.
    """
    like = next(inner.parameters(), torch.zeros(()))
    count = max(64, min(4096, 2**22 // inner.output_dim))
    random = torch.Generator("cpu").manual_seed(0)
    noise = torch.randn(count, *inner.noise_shape, generator=random, device="cpu")
    modes: dict[nn.Module, bool] = {module: module.training for module in inner.modules()}
    inner.eval()  # measuring is no training: running statistics stay as they are
    try:
        out = inner(noise.to(like))
    finally:
        for module, mode in modes.items():
            module.training = mode
    spread, mean = out.std(0), out.mean(0)
    bad = ~(torch.isfinite(spread) & (spread > 1e-6 * mean.abs().clamp(min=1e-6)))
    if bad.any():
        first = int(bad.nonzero()[0])
        raise ArgumentError(
            f"init_scale={target:g} cannot be had: output {first} of the generator has standard "
            f"deviation {float(spread[first]):.3g} over {count} noises. Let each output depend on "
            "the noise at the start, or leave init_scale out: the generator then stays as it is."
        )
    return Rescaled(inner, target / spread, mean)
