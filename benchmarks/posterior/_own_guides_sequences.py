"""A deep Markov model of short sequences, as Pyro's example dmm.py, and its evidence."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from benchmarks.posterior._own_guides_problem import Problem, rows_of

__all__ = ["MarkovModel", "sequences"]

_LATENTS, _UNITS, _OBSERVED, _STEPS, _STATES = 2, 8, 8, 8, 40
_TRAIN, _HELD = 300, 200
_RATE = 3e-4  # that of the example
_FILTERED = 20_000  # particles of the filter


class MarkovModel:
    """
    A latent state that moves by a network and shows bits by another, both fixed.

    :param int num_steps: length of a sequence.
    :param int num_rows: all sequences that are fitted.
    """

    def __init__(self, num_steps: int, num_rows: int) -> None:
        random = torch.Generator().manual_seed(5)
        self.num_steps, self.num_rows = num_steps, num_rows
        sizes = ((_LATENTS, _UNITS), (_UNITS, _LATENTS), (_LATENTS, _UNITS), (_UNITS, _OBSERVED))
        drawn = [torch.randn(*size, generator=random) for size in sizes]
        self.weights = [w * s for w, s in zip(drawn, (1.0, 0.5, 1.0, 1.0), strict=True)]

    def moved(self, z: Tensor) -> dist.Normal:
        """The next state."""
        first, second, _, _ = self.weights
        return dist.Normal(0.5 * z + torch.tanh(z @ first) @ second, 0.5)

    def shown(self, z: Tensor) -> dist.Bernoulli:
        """The bits of a state."""
        _, _, first, second = self.weights
        return dist.Bernoulli(logits=torch.tanh(z @ first) @ second)

    def draw(self, num: int) -> Tensor:
        """Sequences, shape ``(num, steps, bits)``."""
        z, found = torch.randn(num, _LATENTS), []
        for step in range(self.num_steps):
            z = z if step == 0 else self.moved(z).sample()
            found.append(self.shown(z).sample())
        return torch.stack(found, 1)

    def model(self, x: Tensor, rows: Tensor | None = None) -> None:
        """Of a minibatch; the first state is standard normal."""
        before: dist.Normal = dist.Normal(torch.zeros(_LATENTS), 1.0)
        with rows_of(self.num_rows, x, rows):
            for step in range(self.num_steps):
                z = pyro.sample(f"z{step}", before.to_event(1))
                pyro.sample(f"x{step}", self.shown(z).to_event(1), obs=x[:, step])
                before = self.moved(z)

    @torch.no_grad()
    def evidence(self, x: Tensor, num_particles: int = _FILTERED) -> Tensor:
        """Log evidence of each sequence by a particle filter."""
        rows, total = len(x), torch.zeros(len(x))
        z = torch.randn(rows, num_particles, _LATENTS)
        for step in range(self.num_steps):
            z = z if step == 0 else self.moved(z).sample()
            weights = self.shown(z).log_prob(x[:, step].unsqueeze(1)).sum(-1)
            total += weights.logsumexp(-1) - math.log(num_particles)
            chosen = torch.multinomial(weights.softmax(-1), num_particles, replacement=True)
            z = z.gather(1, chosen.unsqueeze(-1).expand_as(z))
        return total


class Recurrent(nn.Module):
    """What is still to come of a sequence, at each of its steps."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.GRU(_OBSERVED, _STATES, batch_first=True)

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """By step from the first to the last, shape ``(rows, steps, states)``."""
        found: Tensor = self.network(x.flip(1))[0]
        return found.flip(1)


class Guide(nn.Module):
    """The example's: a Gaussian of each state, given the one before and what is to come."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.num_rows = num_rows
        self.recurrent, self.from_before = Recurrent(), nn.Linear(_LATENTS, _STATES)
        self.loc, self.scale = nn.Linear(_STATES, _LATENTS), nn.Linear(_STATES, _LATENTS)
        self.first = nn.Parameter(torch.zeros(_LATENTS))

    def forward(self, x: Tensor, rows: Tensor | None = None) -> None:
        """Draws all states."""
        pyro.module("guide", self)
        hidden, z = self.recurrent(x), self.first
        with rows_of(self.num_rows, x, rows):
            for step in range(x.shape[1]):
                both = 0.5 * (torch.tanh(self.from_before(z)) + hidden[:, step])
                scale = nn.functional.softplus(self.scale(both))
                z = pyro.sample(f"z{step}", dist.Normal(self.loc(both), scale).to_event(1))


def sequences(num_steps: int = _STEPS, train: int = _TRAIN, held: int = _HELD) -> Problem:
    """
    Sequences of the model, whose networks are known.

    :param int num_steps: length of a sequence.
    :param int train: sequences to fit.
    :param int held: sequences to judge by.
    """
    known, guide = MarkovModel(num_steps, train), Guide(train)
    x = known.draw(train + held)

    def evidence(rows: Tensor) -> Tensor:
        return torch.cat([known.evidence(part) for part in rows.split(50)])

    return Problem(known.model, guide, Recurrent(), x[:train], x[train:], _RATE, evidence)
