"""A log-density at many draws in one run of the model, NaN where distributions refuse a draw."""

# Shape legend: n draws, m unconstrained latents.
from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from pyro.poutine.util import enable_validation, is_validation_enabled
from torch import Tensor

from pyro_implicit.exceptions import ImplicitError
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.mapped.mapped_writing import WritingMap
from pyro_implicit.ops.graphs.noted_checks import NotedChecks
from pyro_implicit.ops.largest_tensor import LargestTensor

__all__ = ["MappedDensity"]

_MIN_DRAWS_FOR_A_MAP = 3
_MAX_NUMBERS_OF_A_TENSOR = 4_000_000  # of the largest one, for all draws of a map together
_RTOL_AND_ATOL = 1e-5, 1e-4  # between the density of a draw by itself and among others

_Function = Callable[[Tensor], Tensor]


class MappedDensity:
    """
    The density at many draws, in double precision where the model takes latents in it.

    ``torch.func.vmap`` of the model, whose distributions' checks become numbers, where this gives
    what single draws do and the data are not so large that it gains nothing; else a run of the
    model for each draw.

    :param LogJoint log_joint: the density, of a model that draws nothing beside its latents.
    """

    def __init__(self, log_joint: LogJoint) -> None:
        self.log_joint = log_joint
        self._map = WritingMap()
        self._most: int | None = None  # draws at once; None before it is known, 0 for none
        self._dtype = torch.float64

    @torch.no_grad()
    def __call__(self, draws: Tensor) -> Tensor:
        """
        Evaluates the density.

        :param torch.Tensor draws: shape ``(n, m)``.
        :returns: log-densities or NaN, shape ``(n,)``.
        """
        if self._most is None and len(draws) >= _MIN_DRAWS_FOR_A_MAP:
            self._most = self._find_most(draws)
        if not self._most or len(draws) < _MIN_DRAWS_FOR_A_MAP:
            return self._looped(draws)
        try:
            values = torch.cat([self._mapped(some) for some in draws.split(self._most)])
        except (ImplicitError, RuntimeError, ValueError, ArithmeticError):
            return self._looped(draws)
        bad = (~values.isfinite()).nonzero().flatten()
        if len(bad):  # which single precision may know
            values[bad] = self._looped(draws[bad]).to(values)
        self.log_joint.value(draws[0])  # what a model keeps of its last run is to be numbers again
        return values

    @torch.no_grad()
    def mapped(self, draws: Tensor) -> Tensor:
        """
        Evaluates it by the map alone, in as many runs as it takes; asked after :attr:`most`.

        :param torch.Tensor draws: shape ``(n, m)``.
        :returns: log-densities, NaN where the map has none; shape ``(n,)``.
        """
        return torch.cat([self._mapped(some) for some in draws.split(max(self.most, 1))])

    @property
    def most(self) -> int:
        """Draws in one run of the model, 0 before it is known and where they are run one by one."""
        return self._most or 0

    def _looped(self, draws: Tensor) -> Tensor:
        return torch.stack([self.log_joint.in_double(draw) for draw in draws])

    def _find_most(self, draws: Tensor) -> int | None:
        """How many at once, 0 for none; None if these tell nothing."""
        some = draws[:2]
        with LargestTensor() as largest:
            expected = self._looped(some)
        if not bool(expected.isfinite().all()):
            return None
        most = _MAX_NUMBERS_OF_A_TENSOR // max(largest.numel, 1)
        if most < _MIN_DRAWS_FOR_A_MAP:
            return 0
        # by data in double precision the density of single latents is in double as well
        dtypes = dict.fromkeys((expected.dtype, draws.dtype))
        return most if any(self._is_same(some, expected, dtype) for dtype in dtypes) else 0

    def _is_same(self, draws: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
        """Whether the map of latents of this type gives what was expected."""
        self._dtype = dtype
        try:
            found = self._mapped(draws)
        except Exception:  # whatever a model does with a batched tensor
            return False
        return found.dtype == expected.dtype and torch.allclose(found, expected, *_RTOL_AND_ATOL)

    def _mapped(self, draws: Tensor) -> Tensor:
        with _checks_alone():
            values: Tensor = self._map(self._checked, draws.to(self._dtype))
        return values

    def _checked(self, u: Tensor) -> Tensor:
        with NotedChecks() as checks:
            value = self.log_joint(u)
        return value.where(checks.passed(), torch.nan)


@contextmanager
def _checks_alone() -> Iterator[None]:
    """Without Pyro's looks at each log-density, which read numbers."""
    was = is_validation_enabled()
    enable_validation(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        enable_validation(was)
