"""What a kernel of chains is: a start, a step, and what is learned in the warm-up."""

# Shape legend: C chains, m unconstrained latents.
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

__all__ = ["Density", "Kernel", "State", "Statistics", "normal_like", "where"]

#: everything that a chain goes on from, as tensors by name: what a checkpoint holds
State = dict[str, Tensor]
#: of one step, ``(C,)`` each
Statistics = dict[str, Tensor]
#: log-densities and gradients at positions ``(C, m)``
Density = Callable[[Tensor], tuple[Tensor, Tensor]]


@runtime_checkable
class Kernel(Protocol):
    """
    A Markov chain's step, for many chains at once.

    States are never changed in place: a step that is broken off leaves the one before.
    """

    #: a draw is kept every so many steps
    thin: int
    #: which units the warm-up learns: ``"auto"``, ``"dense"``, ``"diagonal"`` or None
    precondition: str | None

    def begin(self, u: Tensor, density: Density, generator: torch.Generator) -> State:
        """
        The first state.

        :param torch.Tensor u: where the chains start, shape ``(C, m)``.
        :param density: the log-density and its gradient.
        :param torch.Generator generator: of all random numbers.
        :returns: a state with ``u``, ``value`` and ``gradient`` among its entries.
        """
        ...

    def step(
        self, state: State, density: Density, generator: torch.Generator, tune: bool
    ) -> tuple[State, Statistics]:
        """
        One step of all chains.

        :param dict state: of the step before.
        :param density: the log-density and its gradient.
        :param torch.Generator generator: of all random numbers.
        :param bool tune: whether step sizes are still learned.
        :returns: the next state, and what happened.
        """
        ...

    def rescale(self, state: State, scale: Tensor, generator: torch.Generator) -> State:
        """
        Changes the units of the latents.

        :param dict state: of the step before.
        :param torch.Tensor scale: deviations of the latents, shape ``(m,)``, or a lower root of
            their covariance, ``(m, m)``.
        :param torch.Generator generator: of all random numbers.
        :returns: the state in these units.
        """
        ...

    def settle(self, state: State) -> State:
        """
        Ends the tuning.

        :param dict state: of the last step of the warm-up.
        :returns: the state with the step size that is used from now on.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """
        The settings, as plain values.

        :returns: settings by name, ``kernel`` among them.
        """
        ...


def normal_like(value: Tensor, generator: torch.Generator) -> Tensor:
    """
    Draws standard normal numbers.

    :param torch.Tensor value: gives shape, type and device.
    :param torch.Generator generator: where they come from.
    :returns: numbers like ``value``.
    """
    return torch.randn(value.shape, generator=generator, dtype=value.dtype, device=value.device)


def where(accepted: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """
    Chooses by chain between two tensors.

    :param torch.Tensor accepted: flags, shape ``(C,)``.
    :param torch.Tensor new: shape ``(C, ...)``.
    :param torch.Tensor old: of the same shape.
    :returns: ``new`` where accepted, else ``old``.
    """
    return torch.where(accepted.reshape(-1, *(1,) * (new.dim() - 1)), new, old)
