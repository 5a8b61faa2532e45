"""What posterior-predictive training stands beside: networks whose output is a distribution."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributions as dist
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit.training import Annealed

__all__ = ["MixtureNetwork", "Recipe", "State", "by_maximum_likelihood"]


class MixtureNetwork(nn.Module):
    """
    A mixture density network of one output (Bishop 1994): two layers of ReLU units, from an input
    to weights, locations and scales of Gaussians.

    :param int num_inputs: entries of an input.
    :param int num_components: 1 for a Gaussian.
    :param int hidden: units of a layer.
    """

    def __init__(self, num_inputs: int, num_components: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(num_inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.head = nn.Linear(hidden, 3 * num_components)
        self.starts = nn.Parameter(torch.linspace(-1.0, 1.0, num_components + 2)[1:-1])

    def forward(self, x: Tensor, floor: float) -> dist.Distribution:
        """
        :param x: inputs ``(N, k)``.
        :param float floor: noise that every component has beside its own scale.
        :returns: a distribution of batch shape ``(N,)``.
        """
        logits, steps, scales = self.head(self.layers(x)).chunk(3, -1)
        scales = (F.softplus(scales).square() + floor**2).sqrt()
        parts = dist.Normal(self.starts + steps, scales)
        return dist.MixtureSameFamily(dist.Categorical(logits=logits), parts)


@dataclass(frozen=True)
class Recipe:
    """
    How such a network is trained.

    :param int num_components: 1 for a Gaussian.
    :param int num_starts: of which the best on validation data is kept.
    :param int num_steps: of each start.
    :param float lr: of Adam; it falls to a tenth.
    :param float floor: of the scales; it falls from 1 to that over the first half of the steps, as
        the scale of a likelihood is annealed.
    :param int check_every: steps between two looks at the validation data.
    """

    num_components: int
    num_starts: int
    num_steps: int
    lr: float
    floor: float
    check_every: int


@dataclass(frozen=True)
class State:
    """
    :param str name: ``"best"`` by validation data, or ``"last"``.
    :param int step: that it is from.
    :param score: minus the mean log-density of the validation data.
    """

    name: str
    step: int
    net: MixtureNetwork
    score: float


def by_maximum_likelihood(
    recipe: Recipe,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    progress: Callable[[], Any] = lambda: None,
) -> list[State]:
    """
    Adam from several starts.

    :param train: inputs ``(N, k)`` and targets ``(N,)``.
    :param validation: the same to stop by, and to choose the start by.
    :param progress: called after each step.
    :returns: the best state of the best start, and its last one.
    """
    found = [_one_start(recipe, train, validation, progress) for _ in range(recipe.num_starts)]
    return min(found, key=lambda states: states[0].score)


def _one_start(
    recipe: Recipe,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    progress: Callable[[], Any],
) -> list[State]:
    net = MixtureNetwork(train[0].shape[1], recipe.num_components)
    rate = torch.optim.Adam(net.parameters(), lr=recipe.lr)
    falling = torch.optim.lr_scheduler.ExponentialLR(rate, 0.1 ** (1 / recipe.num_steps))
    floor = Annealed(1.0, recipe.floor, max(1, recipe.num_steps // 2))
    best = State("best", 0, net, math.inf)
    score = math.inf
    for step in range(1, recipe.num_steps + 1):
        rate.zero_grad()
        (-net(train[0], floor()).log_prob(train[1]).mean()).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        rate.step()
        falling.step()
        floor.step()
        progress()
        if step % recipe.check_every == 0 or step == recipe.num_steps:
            with torch.no_grad():
                score = -net(validation[0], recipe.floor).log_prob(validation[1]).mean().item()
            if score < best.score:
                best = State("best", step, copy.deepcopy(net), score)
    return [best, State("last", recipe.num_steps, net, score)]
