"""Functions drawn from a random process, and their moments: what a process is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_implicit._checks import (
    check_callable,
    check_choice,
    check_count,
    check_instance,
    check_number,
    shown,
)
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError
from pyro_implicit.ops.logdet import upcast
from pyro_implicit.processes.function_draws import frozen, network_functions

__all__ = ["Functions", "ProcessMoments", "as_like", "check_finite"]

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
        check_callable("prior", prior, "a function (inputs, num_functions), or a BayesianModule")
        if not isinstance(inputs, Tensor) or not inputs.dim():
            raise ArgumentError(f"inputs is {shown(inputs)}; expected a tensor (N, ...).")
        self.prior, self.inputs = prior, inputs
        self.num_functions = check_count("num_functions", num_functions, 2)
        self.noise_scale = 0.0 if noise_scale is None else _checked("noise_scale", noise_scale)
        self.psi = None if psi is None else _checked("psi", psi)
        self.seed = None if seed is None else check_count("seed", seed, 0, 2**32 - 1)
        self.event_dims = check_choice("event_dim", event_dim, (1, 2))
        self._values: Tensor | None = None
        shape = self._joint_shape()
        super().__init__(shape[:-event_dim], shape[-event_dim:], validate_args=False)

    def _joint_shape(self) -> torch.Size:
        """``(*batch, N)`` of the functions, the noise and ``psi`` together."""
        shape = self.functions.shape[1:]
        if len(shape) < self.event_dims:
            raise ShapeError(
                f"functions of shape {tuple(self.functions.shape)}: too few dims for event_dim="
                f"{self.event_dims}; expected (num_functions, *batch, outputs, N)."
            )
        size = shape[-1]
        for name, value, last in (("noise_scale", self.noise_scale, size), ("psi", self.psi, 1)):
            if not isinstance(value, Tensor):
                continue
            alike = {1, *value.shape[-self.event_dims :]} if name == "psi" else {1}
            try:
                shape = torch.broadcast_shapes(shape, value.shape)
                fits = value.shape[-1:] in ((), (1,), (last,)) and alike == {1}
            except RuntimeError:
                fits = False
            if not fits:
                raise ShapeError(
                    f"{name} of shape {tuple(value.shape)} for functions of shape "
                    f"{tuple(self.functions.shape[1:])}; expected a number, or a tensor that "
                    f"broadcasts with (*batch, {last}): one value for each batch or particle is "
                    f"{name}{'[..., None]' * self.event_dims}."
                )
        return shape

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
        if not values.is_floating_point():
            raise ArgumentError(
                f"the prior returned values of type {values.dtype}; expected floating-point "
                "numbers: convert the inputs within it, x.float()."
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
        narrow = flat.reshape(*flat.shape[:-1], *self.event_shape).to(self.functions.dtype)
        return narrow.expand(shape)

    @property
    def covariance(self) -> Tensor:
        """Of ``y``, all of it, shape ``(*batch, N, N)`` (Eq. 6)."""
        _, factor, diagonal = self._low_rank()
        covariance = factor @ factor.mT + torch.diag_embed(diagonal)
        return covariance.expand(*self.batch_shape, *covariance.shape[-2:])

    @property
    def _is_bare(self) -> bool:
        """Whether some value has nothing but the low-rank part of the covariance."""
        if any(not isinstance(v, Tensor) and v for v in (self.noise_scale, self.psi)):
            return False
        return not bool((self._diagonal(self.num_functions).detach() != 0).all())

    @property
    def _divisor(self) -> int:
        """What the sum of squares is divided by (Eq. 6, or C.3 with ``psi``)."""
        return self.num_functions if self.psi is None else self.num_functions - 1

    def _low_rank(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""
        Mean ``(*batch, M)``, factor :math:`\Phi` ``(*batch, M, S)`` and diagonal ``(*batch, M)`` in
        float64, ``M`` the entries of one event; ``batch`` without what only :meth:`expand` added.
        """
        values = upcast(self.functions)
        values = values.expand(values.shape[: -self.event_dims] + self.event_shape)
        values = values.flatten(-self.event_dims)
        mean, diagonal = values.mean(0), self._diagonal(self.num_functions)
        factor = (values - mean).movedim(0, -1) / math.sqrt(self._divisor)
        shape = torch.broadcast_shapes(mean.shape, diagonal.shape)
        return mean.expand(shape), factor.expand(*shape, -1), diagonal.expand(shape)

    def _diagonal(self, count: int) -> Tensor:
        """What the covariance of ``y`` has beside its part from ``count`` functions."""
        diagonal = self._flat(self.noise_scale).square()
        return diagonal if self.psi is None else diagonal + self._flat(self.psi) / (count - 1)

    def _flat(self, value: float | Tensor) -> Tensor:
        """One value for each entry of an event, ``(*batch, M)``."""
        tensor = as_like(value, upcast(self.functions))
        batch = tensor.shape[: max(tensor.dim() - self.event_dims, 0)]
        return tensor.expand(batch + self.event_shape).flatten(-self.event_dims)

    # ---- checks

    def _checked_value(self, value: Tensor) -> Tensor:
        """
        :param torch.Tensor value: ``y``, shape ``(..., *batch, N)``.
        :returns: it, in float64.
        :raises ArgumentError: if it is no tensor.
        :raises ShapeError: if it has another number of values, or another batch.
        """
        check_instance("value", value, Tensor, "a tensor of observations")
        shape = self.batch_shape + self.event_shape
        try:
            joint = torch.broadcast_shapes(value.shape, shape)
            fits = value.shape[-self.event_dims :] == self.event_shape and len(joint) > 0
        except RuntimeError:
            fits = False
        if not fits:
            raise ShapeError(
                f"value of shape {tuple(value.shape)}; expected (..., "
                f"{', '.join(map(str, shape))}), one value for each input."
            )
        return upcast(value)


def as_like(value: float | Tensor, like: Tensor) -> Tensor:
    """A number or tensor in the dtype and on the device of another."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


def check_finite(name: str, value: Tensor) -> None:
    """
    :raises NonFiniteError: if an entry is NaN or infinite.
    """
    if not bool(value.detach().isfinite().all()):
        raise NonFiniteError(f"{name} has entries that are NaN or infinite; leave these rows out.")


def _told(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _checked(name: str, value: Any) -> float | Tensor:
    """A number, or a tensor of numbers, none of them negative."""
    if not isinstance(value, Tensor):
        return check_number(name, value, minimum=0.0)
    if value.is_complex() or value.dtype == torch.bool:
        raise ArgumentError(f"{name}={shown(value)}; expected real numbers >= 0.")
    if bool((value.detach() < 0).any()):  # NaN goes on, to where losses are checked
        raise ArgumentError(
            f"{name}={shown(value)} has negative entries, down to {value.min():.4g}; expected "
            "numbers >= 0: transform it (softplus, exp) or give it a positive prior."
        )
    return value
