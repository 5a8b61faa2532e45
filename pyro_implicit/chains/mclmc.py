"""Unadjusted microcanonical Langevin dynamics, and how its step size is found."""

# Shape legend: C chains, m unconstrained latents.
from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_choice, check_count, check_number
from pyro_implicit.chains.kernel import Density, State, Statistics, normal_like, where
from pyro_implicit.chains.units import (
    MAX_LATENTS_FOR_COVARIANCE,
    PRECONDITIONS,
    log_size,
    pulled,
    stretched,
)
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.ops.microcanonical import turn, unit, wobble

__all__ = ["MCLMC", "target_of"]

_STEPS_OF_RUNNING_MEAN = 200  # of the energy error's constant
_MAX_STEP_SIZE_GROWTH = 1.3  # factor in one step; it may shrink to 1 / _MAX_STEP_SIZE_GROWTH**2
_MAX_ERROR_IN_TARGETS = 100.0  # a larger energy error of one step is not believed
#: Mean squared energy errors per latent and step, that the step size is tuned to.
_TARGET_OF_FEW_LATENTS = 1.25e-3
_TARGET_OF_MANY_LATENTS = 5e-3
_FIRST_STEP_SIZE = 0.02  # in units of the square root of the number of latents


@dataclass(frozen=True)
class MCLMC:
    r"""
    Microcanonical Langevin Monte Carlo without an accept step.

    Each step costs one gradient. A chain moves at constant speed, is turned by the gradient, and
    forgets its direction over the decoherence length. Without an accept step the result is
    **biased by its step size**, which is chosen so that the mean squared energy error per latent
    and step is ``energy_error``: a sixty-fourth of the error is half the step and a quarter of the
    bias, which falls as the cubic root of the error.

    What that meant for variances (16 chains of 4000 steps from exact draws; chance 1 to 3%):

    ===========================  =======  =======  =======
    energy error                 0.005    0.00125  0.0003
    ===========================  =======  =======  =======
    10 normal latents            +8%      +5%      +3%
    5 of a Gamma(2, 1)           +10%     +6%      +4%
    12 of three kinds, worst     +18%     +10%     +7%
    ===========================  =======  =======  =======

    Deviations are off by half as much. **For exact moments of up to 64 latents write**
    ``kernel="hmc"`` (:class:`~pyro_implicit.chains.HMC`): it has no such bias, and had three to
    four times the effective samples per gradient on these models. Not where deviations of latents
    are thousands of times apart, which it does not learn in a warm-up of thousands of gradients.

    Steps whose energy error is not finite, or enormous, are refused: the chain stays and turns
    round. They are counted as diverging.

    :param energy_error: the mean of :math:`\Delta E^2 / m` that the step size is tuned to. None:
        0.00125 up to 64 latents, where that costs few effective samples, and 0.005 above.
    :param decoherence: length over which the direction is forgotten, in units of the preconditioned
        latents; by default :math:`\tfrac12 \sqrt m`.
    :param precondition: the units that the warm-up learns, within chains: ``"diagonal"``, a
        deviation for each latent; ``"dense"``, a covariance; None, none; ``"auto"``, ``"dense"`` up
        to 64 latents and None above (networks are sampled better without).
    :param step_size: None: tuned in the warm-up, by chain. A number: used as it is.
    :param int thin: keep a draw every so many steps.
    :raises ArgumentError: for bad values.

    Source: `Fluctuation without dissipation: Microcanonical Langevin Monte Carlo`, J. Robnik,
    U. Seljak; started from modes as in `Microcanonical Langevin Ensembles: Advancing the Sampling
    of Bayesian Neural Networks`, E. Sommer, J. Robnik, G. Nozadze, U. Seljak, D. Rügamer, ICLR.
    """

    energy_error: float | None = None
    decoherence: float | None = None
    precondition: str | None = "auto"
    step_size: float | None = None
    thin: int = 10

    def __post_init__(self) -> None:
        for name in ("energy_error", "decoherence", "step_size"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0, why=", or None")
        check_choice("precondition", self.precondition, PRECONDITIONS)
        check_count("thin", self.thin)

    def begin(self, u: Tensor, density: Density, generator: torch.Generator) -> State:
        """See :class:`~pyro_implicit.chains.kernel.Kernel`."""
        if u.shape[-1] < 2:
            raise ArgumentError(
                "kernel='mclmc' needs two latents at least, since a direction in one dimension "
                "cannot turn; the model has one. Write kernel='hmc'."
            )
        value, gradient = density(u)
        first = self.step_size or _FIRST_STEP_SIZE * math.sqrt(u.shape[-1])
        return {
            "u": u,
            "value": value,
            "gradient": gradient,
            "scale": torch.ones_like(u[0]),
            "velocity": unit(normal_like(u, generator)),
            "step_size": torch.full_like(u[:, 0], first),
            "constant": torch.zeros_like(u[:, 0]),
            "tuned": u.new_zeros(()),
        }

    def step(
        self, state: State, density: Density, generator: torch.Generator, tune: bool
    ) -> tuple[State, Statistics]:
        """See :class:`~pyro_implicit.chains.kernel.Kernel`."""
        # half a turn, a drift, half a turn: theory/chains.md (mclmc-turn)
        size, scale = state["step_size"][:, None], state["scale"]
        velocity, first = turn(state["velocity"], pulled(scale, state["gradient"]), size / 2)
        u = state["u"] + stretched(scale, size * velocity)
        value, gradient = density(u)
        velocity, second = turn(velocity, pulled(scale, gradient), size / 2)
        error = first + second - (value - state["value"])  # theory/chains.md (mclmc-error)
        usable = error.isfinite() & (error.abs() < 50 + 5 * math.sqrt(u.shape[-1]))
        usable = usable & gradient.isfinite().all(-1)
        new = {
            **state,
            "u": where(usable, u, state["u"]),
            "value": where(usable, value, state["value"]),
            "gradient": where(usable, gradient, state["gradient"]),
            "velocity": where(usable, velocity, -state["velocity"]),
        }
        if tune and self.step_size is None:
            new |= self._tuned(state, error, usable)
        travelled = new["step_size"][:, None] / self._length(u.shape[-1])
        new["velocity"] = wobble(new["velocity"], normal_like(u, generator), travelled)
        stats = {
            "lp": new["value"],
            "energy_error": where(usable, error, torch.zeros_like(error)),
            "step_size": state["step_size"],
            "diverging": ~usable,
        }
        return new, stats

    def _length(self, num_latents: int) -> float:
        return self.decoherence or 0.5 * math.sqrt(num_latents)

    def _tuned(self, state: State, error: Tensor, usable: Tensor) -> State:
        """
        The squared energy error grows as the sixth power of the step size.

        The constant is a running mean, so that the size follows it at once and without a rate.
        """
        size, num_latents = state["step_size"], state["u"].shape[-1]
        target = target_of(self, num_latents)
        found = (error.square() / num_latents).clamp(max=_MAX_ERROR_IN_TARGETS * target)
        found = torch.where(usable, found, torch.full_like(found, _MAX_ERROR_IN_TARGETS * target))
        # theory/chains.md (mclmc-tuner)
        constant = found / size.pow(6)
        weight = 1 / (state["tuned"] + 1).clamp(max=_STEPS_OF_RUNNING_MEAN)
        constant = ((1 - weight) * state["constant"] + weight * constant).clamp(min=1e-30)
        wanted = (target / constant).pow(1 / 6)
        return {
            "constant": constant,
            "tuned": state["tuned"] + 1,
            "step_size": wanted.clamp(
                size / _MAX_STEP_SIZE_GROWTH**2, size * _MAX_STEP_SIZE_GROWTH
            ),
        }

    def rescale(self, state: State, scale: Tensor, generator: torch.Generator) -> State:
        """See :class:`~pyro_implicit.chains.kernel.Kernel`."""
        if scale is state["scale"]:
            return state
        change = (log_size(state["scale"]) - log_size(scale)).exp()
        size = state["step_size"] if self.step_size else state["step_size"] * change
        return {
            **state,
            "scale": scale,
            "velocity": unit(normal_like(state["u"], generator)),
            "step_size": size,
            "constant": torch.zeros_like(size),
            "tuned": torch.zeros_like(state["tuned"]),
        }

    def settle(self, state: State) -> State:
        """See :class:`~pyro_implicit.chains.kernel.Kernel`."""
        return state

    def describe(self) -> dict[str, Any]:
        """See :class:`~pyro_implicit.chains.kernel.Kernel`."""
        return {"kernel": "mclmc", **asdict(self)}


def target_of(kernel: MCLMC, num_latents: int) -> float:
    """
    The energy error that a kernel tunes its step size to.

    :param MCLMC kernel: the kernel.
    :param int num_latents: ``m``.
    :returns: the mean squared energy error per latent and step.
    """
    return kernel.energy_error or (
        _TARGET_OF_FEW_LATENTS
        if num_latents <= MAX_LATENTS_FOR_COVARIANCE
        else _TARGET_OF_MANY_LATENTS
    )
