"""The log-density of a model and its gradient at the positions of many chains."""

# Shape legend: C chains, m unconstrained latents.
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyro
import torch
from torch import Tensor

from pyro_implicit._warn import warn
from pyro_implicit.exceptions import ImplicitError
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.mapped.mapped_gradients import MappedGradients
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.ops.graphs.noticed_operation import CONVOLUTION, NoticedOperation
from pyro_implicit.ops.graphs.recording import record

__all__ = ["ChainDensity"]

_ADVICE_ON_OWN_RANDOMNESS = (
    ": it draws random numbers beside its latents, so that it has no density to sample from. "
    "Give every random quantity a pyro.sample statement, and call .eval() on networks with dropout."
)
Evaluation = tuple[Tensor, Tensor]


class ChainDensity:
    """
    Log-density and gradient at ``C`` unconstrained points at once.

    By ``torch.func.vmap`` over the model, recorded as a graph of tensor operations where that gives
    the same bits; or point by point, where the model does not vectorise, with a warning that says
    why. A recorded model with convolutions goes point by point, too: one with as many groups as
    there are points takes longer than as many convolutions.

    :param LogJoint log_joint: the model's density.
    :param torch.dtype dtype: that the model is evaluated in.
    """

    def __init__(self, log_joint: LogJoint, dtype: torch.dtype) -> None:
        self.log_joint, self.dtype = log_joint, dtype
        #: gradients evaluated since the beginning, of all chains together
        self.num_gradients = 0
        #: ``"recorded"``, ``"vmap"`` or ``"loop"``; and why it is a loop
        self.how, self.reason = "loop", ""
        self._evaluate: Callable[[Tensor], Evaluation] = self._looped
        self._num_chains = 0
        self._convolves = False
        self._mapped = MappedGradients(log_joint)

    @contextmanager
    def ready(self, u: Tensor) -> Iterator[ChainDensity]:
        """
        Makes the density ready for points like these, and leaves no global state behind.

        Parameters, data and networks are looked at now: they must stay while the context is open.

        :param torch.Tensor u: shape ``(C, m)``.
        :raises SiteError: if two evaluations at one point differ.
        """
        with self.typed(), pyro.validation_enabled(False):
            self.log_joint.check_deterministic(u[0], _ADVICE_ON_OWN_RANDOMNESS)
            self._num_chains = 0
            self.fit_to(u)
            yield self

    @contextmanager
    def typed(self) -> Iterator[None]:
        """The model runs in the type of the chains, its networks as they predict."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            with evaluation_mode():
                yield
        finally:
            torch.set_default_dtype(before)

    def fit_to(self, u: Tensor) -> None:
        """
        Makes a density that is ready so for another number of points.

        :param torch.Tensor u: shape ``(C, m)``.
        """
        if len(u) != self._num_chains:
            self._choose(u)

    def __call__(self, u: Tensor) -> Evaluation:
        """
        Evaluates the density.

        :param torch.Tensor u: shape ``(C, m)``.
        :returns: log-densities, shape ``(C,)``, and gradients, ``(C, m)``; not finite where the
            distributions compute none. What these would refuse by their checks has some number: see
            :func:`~pyro_implicit.chains.domain.check_domain`.
        """
        self.num_gradients += len(u)
        if len(u) != self._num_chains:
            return self._looped(u)
        try:
            return self._evaluate(u)
        except torch.linalg.LinAlgError:  # at some of them a matrix has no factors
            return self._looped(u)

    def _choose(self, u: Tensor) -> None:
        self._num_chains, self._evaluate, self.how = len(u), self._looped, "loop"
        before, self.reason = self.reason, self._refusal(u)
        if self.reason:
            if self.reason != before:
                warn(
                    "the chains are evaluated one after the other, because the model does not "
                    f"vectorise over them: {self.reason}"
                )
            return
        self._evaluate, self.how = self._vectorised, "vmap"
        recorded = record(self._vectorised, u[:1] if self._convolves else u)
        if recorded is not None:
            self._evaluate = one_by_one(recorded) if self._convolves else recorded
            self.how = "recorded"

    def _refusal(self, u: Tensor) -> str:
        """Why the model cannot be vectorised over chains, or an empty text."""
        # beside the chains, which may all be at one mode, where gradients are rounding alone
        some = torch.stack([u[0], u[-1] * 0.97 + 0.01])
        try:
            with NoticedOperation(CONVOLUTION) as seen:
                values, _ = self._vectorised(some)
        except ImplicitError:
            raise
        except Exception as error:  # whatever the model does with a batched tensor
            lines = str(error).strip().splitlines() or [type(error).__name__]
            return lines[0]
        self._convolves = seen.found
        single = self._looped(some)[0].to(values)  # of data in double precision it may be wider
        if torch.allclose(values, single, rtol=1e-3, atol=1e-2, equal_nan=True):
            return ""
        return "its values at several points at once differ from those at single points"

    def _vectorised(self, u: Tensor) -> Evaluation:
        return self._mapped(u)

    def _looped(self, u: Tensor) -> Evaluation:
        values, gradients = [], []
        for row in u:
            with torch.enable_grad():
                leaf = row.detach().requires_grad_(True)
                value = self.log_joint.value(leaf)
                (gradient,) = torch.autograd.grad(value, leaf)
            values.append(value.detach())
            gradients.append(gradient)
        return torch.stack(values), torch.stack(gradients)


def one_by_one(function: Callable[[Tensor], Evaluation]) -> Callable[[Tensor], Evaluation]:
    """
    A density of several points from one of a single point.

    :param function: from ``(1, m)`` to a log-density ``(1,)`` and its gradient ``(1, m)``.
    :returns: the same from ``(C, m)``.
    """

    def each(u: Tensor) -> Evaluation:
        values, gradients = zip(*(function(row[None]) for row in u), strict=True)
        return torch.cat(values), torch.cat(gradients)

    return each


def cast(values: Any, dtype: torch.dtype) -> Any:
    """
    Converts the floating-point tensors among arguments of a model.

    :param values: a tuple or a dictionary of arguments.
    :param torch.dtype dtype: what tensors of floating-point numbers become.
    :returns: the same, with anything else as it was.
    """

    def one(value: Any) -> Any:
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(dtype) if floating else value

    if isinstance(values, dict):
        return {name: one(value) for name, value in values.items()}
    return tuple(one(value) for value in values)
