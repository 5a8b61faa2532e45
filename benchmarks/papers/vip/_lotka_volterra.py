"""The Lotka-Volterra model: exact stochastic simulation, and its mean field as random functions."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["DEFAULT", "RATES", "STARTS", "STEP", "MeanField", "simulate"]

#: birth of a predator (per pair), its death, birth of prey, its death (per pair)
RATES = (0.01, 0.5, 1.0, 0.01)
#: predators and prey at time 0; the rates keep 100 and 50. The paper gives no state: the default is
#: of the work that it refers to, ``near`` swings by a tenth, ``far`` all but dies out each time
STARTS = {"near": (95, 55), "middle": (50, 100), "far": (20, 150)}
DEFAULT = "middle"
STEP = 0.05


def simulate(num_steps: int, seed: int, start: tuple[int, int] = STARTS[DEFAULT]) -> np.ndarray:
    """
    One path by Gillespie's algorithm, seen every 0.05 time units.

    :param int num_steps: observations.
    :param start: predators and prey at time 0.
    :returns: numbers of predators and prey, shape ``(2, num_steps)``.
    """
    rng = np.random.default_rng(seed)
    changes = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    state, time = np.array(start), 0.0
    seen = np.empty((2, num_steps))
    for index in range(num_steps):
        end = index * STEP
        while time <= end:
            predators, prey = state
            weights = RATES * np.array([predators * prey, predators, prey, predators * prey])
            total = weights.sum()
            if total == 0:
                time = math.inf
                break
            wait = rng.exponential(1 / total)
            if time + wait > end:
                time = end  # the process has no memory
                break
            time += wait
            state = state + changes[rng.choice(4, p=weights / total)]
        seen[:, index] = state
    return seen


class MeanField(nn.Module):
    """
    Solutions of the differential equations with random log-normal rates: a prior over functions of
    time, with two outputs. Means and scales of the logarithms are trained.

    :param medians: of the rates, to start with.
    :param float spread: standard deviation of the logarithms, to start with.
    :param shift: subtracted from predators and prey.
    :param scale: what they are divided by.
    :param start: predators and prey at time 0, which are known.
    """

    def __init__(
        self,
        medians: tuple[float, ...],
        spread: float,
        shift: Tensor,
        scale: Tensor,
        start: tuple[int, int] = STARTS[DEFAULT],
    ) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.tensor(medians).log())
        self.log_spread = nn.Parameter(torch.full((4,), math.log(spread)))
        self.register_buffer("shift", shift)
        self.register_buffer("scale", scale)
        self.start = start

    def forward(self, times: Tensor, num_functions: int) -> Tensor:
        """
        :param torch.Tensor times: multiples of the step, shape ``(N, 1)``.
        :param int num_functions: S.
        :returns: shape ``(S, 2, N)``.
        """
        noise = torch.randn(num_functions, 4)
        rates = (self.loc + self.log_spread.exp() * noise).exp().unbind(-1)
        index = (times[:, 0] / STEP).round().long()
        logs = torch.tensor([float(value) for value in self.start]).log().expand(num_functions, 2)
        path = [logs]
        for _ in range(int(index.max())):
            path.append(_heun(path[-1], rates))
        values = torch.stack(path, -1)[..., index].exp()
        return (values - self.shift[:, None]) / self.scale[:, None]


def _heun(logs: Tensor, rates: tuple[Tensor, ...]) -> Tensor:
    """One step of the logarithms, which keeps numbers positive."""
    first = _slope(logs, rates)
    second = _slope(logs + STEP * first, rates)
    return (logs + 0.5 * STEP * (first + second)).clamp(-10.0, 10.0)


def _slope(logs: Tensor, rates: tuple[Tensor, ...]) -> Tensor:
    predators, prey = logs.exp().unbind(-1)
    return torch.stack([rates[0] * prey - rates[1], rates[2] - rates[3] * predators], -1)
