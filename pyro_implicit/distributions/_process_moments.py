"""Functions drawn from a random process, and their moments: what a process is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_implicit.distributions._random_functions import frozen, network_functions
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError
from pyro_implicit.nn.bayesian import BayesianModule
from pyro_implicit.ops.logdet import is_zero, upcast

__all__ = ["Functions", "ProcessMoments", "as_like"]

Functions = Callable[[Tensor, int], Tensor]


class ProcessMoments(dist.TorchDistribution):
    """
    The first half of :class:`~pyro_implicit.ImplicitProcess`, which tells the parameters: draws of
    the functions, their mean and covariance.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True

    def __init__(
        self,
        prior: Functions | BayesianModule,
        inputs: Tensor,
        num_functions: int = 20,
        noise_scale: float | Tensor | None = None,
        *,
        psi: float | Tensor | None = None,
        seed: int | None = None,
        event_dim: int = 1,
    ) -> None:
        _check_settings(num_functions, noise_scale, psi, event_dim)
        self.prior, self.inputs = prior, inputs
        self.num_functions = num_functions
        self.noise_scale = 0.0 if noise_scale is None else noise_scale
        self.psi = psi
        self.seed = seed
        self.event_dims = event_dim
        self._values: Tensor | None = None
        shape = self.functions.shape[1:]
        if isinstance(noise_scale, Tensor):
            shape = torch.broadcast_shapes(shape, noise_scale.shape)
        split = len(shape) - event_dim
        if split < 0:
            raise ShapeError(
                f"functions of shape {tuple(self.functions.shape)}: too few dims for event_dim="
                f"{event_dim}; expected (num_functions, *batch, outputs, N)."
            )
        super().__init__(shape[:split], shape[split:], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Real vectors, or matrices with ``event_dim=2``."""
        return constraints.independent(constraints.real, self.event_dims)

    # ---- functions

    @property
    def functions(self) -> Tensor:
        """The functions that the moments are taken of, shape ``(S, *batch, N)``; drawn once."""
        if self._values is None:
            with frozen(self.seed):
                self._values = self._draw(self.inputs, self.num_functions)
        return self._values

    def _draw(self, inputs: Tensor, num_functions: int) -> Tensor:
        """New functions at ``inputs``."""
        if isinstance(self.prior, BayesianModule):
            values = network_functions(self.prior, inputs, num_functions)
        else:
            values = self.prior(inputs, num_functions)
        expected = (num_functions, len(inputs))
        if not isinstance(values, Tensor) or values.dim() < 2:
            raise ShapeError(
                f"the prior returned {_told(values)}; expected a tensor (num_functions, ..., N) = "
                f"({expected[0]}, ..., {expected[1]})."
            )
        if (values.shape[0], values.shape[-1]) != expected:
            raise ShapeError(
                f"the prior returned shape {tuple(values.shape)} for {expected[0]} functions at "
                f"{expected[1]} inputs; expected ({expected[0]}, ..., {expected[1]})."
            )
        if not bool(values.detach().isfinite().all()):
            raise NonFiniteError(
                "a function drawn from the prior is not finite at some input: look for NaN in the "
                "inputs, or a prior scale that has diverged."
            )
        return values

    # ---- moments

    @property
    def mean(self) -> Tensor:
        """``m``, shape ``(*batch, N)`` (Eq. 5)."""
        return self.functions.mean(0).expand(self.batch_shape + self.event_shape)

    @property
    def variance(self) -> Tensor:
        """Of ``y``, shape ``(*batch, N)``."""
        _, factor, diagonal = self._low_rank()
        flat = factor.square().sum(-1) + diagonal
        shape = self.batch_shape + self.event_shape
        return flat.reshape(*flat.shape[:-1], *self.event_shape).expand(shape).to(self.inputs.dtype)

    @property
    def covariance(self) -> Tensor:
        """Of ``y``, all of it, shape ``(*batch, N, N)`` (Eq. 6)."""
        _, factor, diagonal = self._low_rank()
        return factor @ factor.mT + torch.diag_embed(diagonal.expand(factor.shape[:-1]))

    @property
    def _is_bare(self) -> bool:
        """Whether the covariance is nothing but its low-rank part."""
        return self.psi is None and is_zero(self.noise_scale)

    @property
    def _divisor(self) -> int:
        """What the sum of squares is divided by (Eq. 6, or C.3 with ``psi``)."""
        return self.num_functions if self.psi is None else self.num_functions - 1

    def _low_rank(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""
        Mean ``(*batch, M)``, factor :math:`\Phi` ``(*batch, M, S)`` and diagonal ``(*batch, M)`` in
        float64, ``M`` the entries of one event.
        """
        values = upcast(self.functions).flatten(-self.event_dims)
        centred = values - values.mean(0)
        factor = centred.movedim(0, -1) / math.sqrt(self._divisor)
        return values.mean(0), factor, self._diagonal(values.shape[1:])

    def _diagonal(self, shape: torch.Size, latent: bool = False) -> Tensor:
        """What the covariance has beside its low-rank part."""
        like = upcast(self.functions)
        noise = as_like(self.noise_scale, like)
        if noise.dim() >= self.event_dims:
            noise = noise.expand(self.batch_shape + self.event_shape).flatten(-self.event_dims)
        elif noise.dim():
            noise = noise.expand(self.event_shape).flatten()
        square = torch.zeros_like(noise) if latent else noise.square()
        if self.psi is not None:
            square = square + as_like(self.psi, like) / (self.num_functions - 1)
        return square.expand(torch.broadcast_shapes(square.shape, shape))


def as_like(value: float | Tensor, like: Tensor) -> Tensor:
    """A number or tensor in the dtype and on the device of another."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


def _told(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _check_settings(count: Any, noise_scale: Any, psi: Any, event_dim: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise ArgumentError(f"num_functions={count!r}; expected an integer >= 2.")
    for name, value in (("noise_scale", noise_scale), ("psi", psi)):
        if isinstance(value, (int, float)) and not 0 <= value < math.inf:
            raise ArgumentError(f"{name}={value}; expected a finite number >= 0.")
    if event_dim not in (1, 2):
        raise ArgumentError(f"event_dim={event_dim}; expected 1, or 2 for several outputs.")
