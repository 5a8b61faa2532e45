"""Whether the exact determinant of a generator's Jacobian is worth its time."""

from __future__ import annotations

from torch import Tensor

from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.rescaled import Rescaled
from pyro_implicit.ops.logdet import is_zero

__all__ = ["exact_is_cheap"]

_MAX_ENTRIES_OF_JACOBIAN = 2000**2  # up to which the exact determinant is cheaper than an estimate
#: Those of the Jacobian's Gram matrix (and of about each layer that its columns go through), up to
#: which the exact determinant is cheaper where no structure helps. Of guides with matrices of
#: noise, steps with the exact determinant take 5, 16, 84 and 108 ms at 30, 100, 256 and 3000
#: latents, others 8.
_MAX_MULTIPLICATIONS = 5_000_000


def exact_is_cheap(generator: Generator, scale: float | Tensor) -> bool:
    """
    Whether the exact determinant takes no longer than an estimate of it, or hardly.

    It does for generators that know theirs by structure; else for Jacobians of up to four million
    entries, where in addition their Gram matrix has to be multiplied (the generator has no
    :meth:`~pyro_implicit.generators.Generator.half_log_det` of its own) of up to five million
    products.

    :param Generator generator: of ``d`` noises and ``m`` outputs.
    :param scale: of the output noise.
    """
    inner = _innermost(generator)
    if inner.has_structured_log_det and is_zero(scale):
        return True
    entries = inner.noise_dim * inner.output_dim
    if type(inner).half_log_det is not Generator.half_log_det:
        return entries <= _MAX_ENTRIES_OF_JACOBIAN
    return entries <= _MAX_ENTRIES_OF_JACOBIAN and entries * inner.noise_dim <= _MAX_MULTIPLICATIONS


def _innermost(generator: Generator) -> Generator:
    generator = generator.origin
    while isinstance(generator, Rescaled):
        generator = generator.inner.origin
    return generator
