"""Hamiltonian Monte Carlo with an accept step, for many chains with one step size."""

# Shape legend: C chains, m unconstrained latents, T draws of a window.
from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_choice, check_count, check_number
from pyro_implicit.chains.kernel import Density, State, Statistics, normal_like, where
from pyro_implicit.chains.units import PRECONDITIONS, log_size, pulled, shrunk, stretched

__all__ = ["HMC"]

_FIRST_STEP_SIZE = 0.1
_MAX_ENERGY_ERROR_IN_NATS = 1000.0  # a draw with a larger one is divergent
_MAX_POSITIONS_OF_TRAIL = 64  # the latest of a window, which tell its longest direction
_MAX_NUMBERS_OF_TRAIL = 10**7


@dataclass(frozen=True)
class HMC:
    r"""
    Hamiltonian Monte Carlo: exact in the limit of many steps, whatever its settings.

    All chains share step size and number of leapfrog steps, so that they are evaluated together.
    The step size is tuned by dual averaging, masses are learned in the warm-up, and trajectories
    end after a quarter of the period of the longest direction seen there, in the units learned,
    times a random factor from 0.6 to 1.4. Each leapfrog step costs one gradient; those that end at
    a log-density that is not finite are refused.

    :param float target_accept: the mean acceptance probability that the step size is tuned to.
    :param trajectory: length of a trajectory in units of the preconditioned latents; None: learned.
    :param int max_leapfrog: most leapfrog steps of one trajectory.
    :param precondition: the units that the warm-up learns, within chains: ``"diagonal"``, a
        deviation for each latent; ``"dense"``, a covariance; None, none; ``"auto"``, ``"dense"`` up
        to 64 latents and None above (networks are sampled better without).
    :param step_size: None: tuned in the warm-up. A number: used as it is.
    :param int thin: keep a draw every so many trajectories.
    :raises ArgumentError: for bad values.

    Source: `MCMC using Hamiltonian dynamics`, R. M. Neal; dual averaging as in `The No-U-Turn
    Sampler`, M. D. Hoffman, A. Gelman.
    """

    target_accept: float = 0.8
    trajectory: float | None = None
    max_leapfrog: int = 100
    precondition: str | None = "auto"
    step_size: float | None = None
    thin: int = 1

    def __post_init__(self) -> None:
        check_number("target_accept", self.target_accept, above=0, below=1)
        for name in ("trajectory", "step_size"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0, why=", or None")
        check_count("max_leapfrog", self.max_leapfrog)
        check_choice("precondition", self.precondition, PRECONDITIONS)
        check_count("thin", self.thin)

    def begin(self, u: Tensor, density: Density, generator: torch.Generator) -> State:
        """See :class:`~pyro_implicit.chains.kernel.Kernel`."""
        value, gradient = density(u)
        size = u.new_tensor(self.step_size or _FIRST_STEP_SIZE)
        return {
            "u": u,
            "value": value,
            "gradient": gradient,
            "scale": torch.ones_like(u[0]),
            "length": u.new_tensor(self.trajectory or math.pi / 2),
            "trail": u[None][:0],
            **_averaging(size),
        }

    def step(
        self, state: State, density: Density, generator: torch.Generator, tune: bool
    ) -> tuple[State, Statistics]:
        """See :class:`~pyro_implicit.chains.kernel.Kernel`."""
        u, scale = state["u"], state["scale"]
        jitter = 0.6 + 0.8 * float(_uniform(u.new_empty(1), generator))
        size = float(state["step_size"]) * (0.9 + 0.2 * float(_uniform(u.new_empty(1), generator)))
        # theory/chains.md (hmc-length)
        count = round(jitter * float(state["length"]) / size)
        count = min(max(count, 1), self.max_leapfrog)
        momentum = normal_like(u, generator)
        energy = state["value"] - 0.5 * momentum.square().sum(-1)
        # theory/chains.md (hmc-step)
        momentum = momentum + 0.5 * size * pulled(scale, state["gradient"])
        for index in range(count):
            u = u + size * stretched(scale, momentum)
            value, gradient = density(u)
            kick = size if index < count - 1 else 0.5 * size
            momentum = momentum + kick * pulled(scale, gradient)
        change = value - 0.5 * momentum.square().sum(-1) - energy
        usable = change.isfinite() & gradient.isfinite().all(-1) & u.isfinite().all(-1)
        change = torch.where(usable, change, torch.full_like(change, -math.inf))
        probability = change.clamp(max=0).exp()  # theory/chains.md (hmc-accept)
        accepted = _uniform(probability, generator) < probability
        new = {
            **state,
            "u": where(accepted, u, state["u"]),
            "value": where(accepted, value, state["value"]),
            "gradient": where(accepted, gradient, state["gradient"]),
        }
        if tune:
            length = max(3, min(_MAX_POSITIONS_OF_TRAIL, _MAX_NUMBERS_OF_TRAIL // u.numel()))
            new["trail"] = torch.cat([state["trail"], new["u"][None]])[-length:]
            if self.step_size is None:
                new |= self._tuned(state, float(probability.mean()))
        stats = {
            "lp": new["value"],
            "energy_error": torch.where(usable, -change, torch.zeros_like(change)),
            "acceptance_rate": probability,
            "step_size": torch.full_like(probability, size),
            "n_steps": torch.full_like(probability, count),
            "diverging": ~usable | (change < -_MAX_ENERGY_ERROR_IN_NATS),
        }
        return new, stats

    def _tuned(self, state: State, accepted: float) -> State:
        """One step of dual averaging: gamma = 0.05, t0 = 10, kappa = 0.75."""
        count = float(state["tuned"]) + 1  # theory/chains.md (hmc-dual-averaging)
        error = (1 - 1 / (count + 10)) * state["error"]
        error = error + (self.target_accept - accepted) / (count + 10)
        size = (state["anchor"] - math.sqrt(count) / 0.05 * error).clamp(-30.0, 10.0)
        weight = count**-0.75
        return {
            "tuned": state["tuned"] + 1,
            "error": error,
            "step_size": size.exp(),
            "mean_size": weight * size + (1 - weight) * state["mean_size"],
        }

    def rescale(self, state: State, scale: Tensor, generator: torch.Generator) -> State:
        """See :class:`~pyro_implicit.chains.kernel.Kernel`."""
        change = (log_size(state["scale"]) - log_size(scale)).exp()
        new = {**state, "scale": scale, "trail": state["trail"][:0]}
        if self.step_size is None:
            new |= _averaging(state["step_size"] * change)
        if self.trajectory is None:
            new["length"] = math.pi / 2 * _longest(shrunk(scale, state["trail"]))
        return new

    def settle(self, state: State) -> State:
        """See :class:`~pyro_implicit.chains.kernel.Kernel`."""
        new = {**state, "trail": state["trail"][:0]}
        if self.step_size is None and float(state["tuned"]):
            new["step_size"] = state["mean_size"].exp()
        return new

    def describe(self) -> dict[str, Any]:
        """See :class:`~pyro_implicit.chains.kernel.Kernel`."""
        return {"kernel": "hmc", **asdict(self)}


def _averaging(size: Tensor) -> State:
    """Dual averaging from this step size on."""
    zero = torch.zeros_like(size)
    return {
        "step_size": size,
        "anchor": (10 * size).log(),
        "error": zero,
        "mean_size": zero,
        "tuned": zero,
    }


def _uniform(value: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(value.shape, generator=generator, dtype=value.dtype, device=value.device)


def _longest(trail: Tensor, num_steps: int = 20) -> Tensor:
    """
    The largest deviation of any direction, by power iteration.

    :param torch.Tensor trail: positions, shape ``(T, C, m)``.
    :returns: shape ``()``, 1 at least.
    """
    if len(trail) < 3:
        return trail.new_ones(())
    spread = (trail - trail.mean(0)).flatten(0, 1)
    direction = torch.ones_like(spread[0])
    for _ in range(num_steps):
        direction = spread.mT @ (spread @ direction)
        direction = direction / direction.norm().clamp(min=torch.finfo(direction.dtype).tiny)
    return ((spread @ direction).square().sum() / (len(spread) - trail.shape[1])).sqrt().clamp(1.0)
