"""Peers of an implicit process: several networks, and one whose weights are normal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from benchmarks.papers.vip._vip_fits import Fit
from pyro_implicit.processes import RandomNetwork

__all__ = ["PEERS", "Ensemble", "MeanField"]

#: prior and spread of mean-field by the bound on a training set of vip_synthetic with a seed of its
#: own (99), of 1, 2, 4 and of 0.01, 0.05; trained, the prior's scales fell, and all functions to 0
PEERS: dict[str, Any] = {
    "num_members": 5,
    "mean-field": {"num_particles": 10, "num_draws": 200, "prior": 4.0, "spread": 0.01},
}


class Ensemble(Fit):
    """
    Networks from starts of their own by maximum likelihood, with a noise scale each. Predictions
    have the mean and the variance of the mixture of all.

    :param make: makes a network with one output.
    :param int num_members: how many there are.
    :param float noise: where the noise scales start.
    """

    def __init__(self, make: Callable[[], nn.Module], num_members: int, noise: float) -> None:
        super().__init__(nn.ModuleList([make() for _ in range(num_members)]), noise)
        self.log_noise = nn.Parameter(torch.full((num_members, 1), math.log(noise)))

    def loss(self, x: Tensor, y: Tensor, num_rows: int) -> Tensor:
        """The sum over networks of the mean over rows."""
        normal = dist.Normal(self._outputs(x), self.noise, validate_args=False)
        each: Tensor = normal.log_prob(y)
        return -each.mean(1).sum()

    def predict(
        self, x: Tensor, y: Tensor, new: Tensor, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The data are in the networks."""
        f = self._outputs(new)
        noise = (self.noise * factor).square().mean(0)
        return f.mean(0), (f.var(0, unbiased=False) + noise).sqrt()

    def _outputs(self, x: Tensor) -> Tensor:
        members: Any = self.prior
        return torch.stack([member(x)[:, 0] for member in members])


class MeanField(Fit):
    """
    Independent normal weights by the evidence bound, with its divergence in closed form.

    :param network: whose weights the means start at; one output.
    :param float noise: where the noise scale starts.
    :param int num_particles: draws of a step.
    :param int num_draws: draws of a prediction.
    :param float prior: deviation of the weights' priors, whose mean is 0.
    :param float spread: where the deviations of weights start.
    """

    def __init__(
        self,
        network: nn.Module,
        noise: float,
        *,
        num_particles: int,
        num_draws: int,
        prior: float,
        spread: float,
    ) -> None:
        posterior = RandomNetwork(network)
        with torch.no_grad():
            for loc, log_scale, start in zip(
                posterior.loc, posterior.log_scale, network.parameters(), strict=True
            ):
                loc.copy_(start)
                log_scale.fill_(math.log(spread))
        super().__init__(posterior, noise)
        self.num_particles, self.num_draws = num_particles, num_draws
        self.weights_prior = dist.Normal(0.0, prior, validate_args=False)

    def divergence(self) -> Tensor:
        """From the posterior to the prior of all weights."""
        posterior: Any = self.prior
        pairs = zip(posterior.loc, posterior.log_scale, strict=True)
        each = (dist.Normal(loc, scale.exp(), validate_args=False) for loc, scale in pairs)
        parts = [kl_divergence(one, self.weights_prior).sum() for one in each]
        return torch.stack(parts).sum()

    def loss(self, x: Tensor, y: Tensor, num_rows: int) -> Tensor:
        """Minus the bound, divided by the number of rows."""
        f = self.prior(x, self.num_particles)
        fit: Tensor = dist.Normal(f, self.noise, validate_args=False).log_prob(y).mean()
        return self.divergence() / num_rows - fit

    def predict(
        self, x: Tensor, y: Tensor, new: Tensor, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Mean and variance over draws of the weights."""
        f = self.prior(new, self.num_draws)
        return f.mean(0), (f.var(0) + (self.noise * factor).square()).sqrt()
