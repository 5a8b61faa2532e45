"""Fits of implicit processes that the benchmarks share: two objectives, one way to train them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from pyro_implicit import ImplicitProcess
from pyro_implicit.training import EarlyStopping

__all__ = [
    "Collapsed",
    "Fit",
    "Weights",
    "interval_coverage",
    "negative_log_likelihood",
    "train",
]

Prior = Callable[[Tensor, int], Tensor]


class Fit(nn.Module):
    """
    A prior over functions with a noise scale, to train and to predict with. Targets have the shape
    ``(N,)``, or ``(K, N)`` for a prior with ``K`` outputs.

    :param prior: a module that draws functions.
    :param float noise: where the noise scale starts.
    """

    def __init__(self, prior: nn.Module, noise: float) -> None:
        super().__init__()
        self.prior = prior
        self.log_noise = nn.Parameter(torch.tensor(math.log(noise)))

    @property
    def noise(self) -> Tensor:
        """The noise scale."""
        return self.log_noise.exp()

    def loss(self, x: Tensor, y: Tensor, num_rows: int) -> Tensor:
        """Of a minibatch, for each row of the data."""
        raise NotImplementedError

    def predict(
        self, x: Tensor, y: Tensor, new: Tensor, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of new observations; the noise is scaled by ``factor``."""
        raise NotImplementedError


class Collapsed(Fit):
    """
    The marginal likelihood of new functions at each step; minibatches are data sets of their own.
    Several outputs share their functions, and so their coefficients.

    :param int num_functions: in training.
    :param int num_predictive: in prediction.
    :param psi: of :class:`~pyro_implicit.ImplicitProcess`, in training.
    """

    def __init__(
        self,
        prior: nn.Module,
        noise: float,
        num_functions: int,
        num_predictive: int,
        psi: float | None = None,
    ) -> None:
        super().__init__(prior, noise)
        self.num_functions, self.num_predictive, self.psi = num_functions, num_predictive, psi

    def loss(self, x: Tensor, y: Tensor, num_rows: int) -> Tensor:
        """The log-marginal likelihood of these rows, divided by their number."""
        process = ImplicitProcess(
            self.prior, x, self.num_functions, self.noise, psi=self.psi, event_dim=y.dim()
        )
        return -process.log_prob(y) / len(x)

    def predict(
        self, x: Tensor, y: Tensor, new: Tensor, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Conditions on all rows, with the same functions at both inputs."""
        count, noise = self.num_predictive, self.noise * factor
        process = ImplicitProcess(self.prior, x, count, noise, seed=0, event_dim=y.dim())
        q = process.weight_posterior(y)
        f = ImplicitProcess(self.prior, new, count, seed=0).marginals(q)
        return f.mean, (f.variance + noise**2).sqrt()


class Weights(Fit):
    """
    A Gaussian posterior of the coefficients of frozen functions, trained by the alpha-energy.

    :param int num_functions: functions, of training and prediction.
    :param float alpha: of the energy.
    """

    def __init__(self, prior: nn.Module, noise: float, num_functions: int, alpha: float) -> None:
        super().__init__(prior, noise)
        self.num_functions, self.alpha = num_functions, alpha
        self.loc = nn.Parameter(torch.zeros(num_functions))
        self.factor = nn.Parameter(torch.zeros(num_functions, num_functions))

    @property
    def posterior(self) -> Any:
        """Of the coefficients."""
        scale = self.factor.tril(-1) + torch.diag(self.factor.diagonal().exp())
        return dist.MultivariateNormal(self.loc, scale_tril=scale, validate_args=False)

    def loss(self, x: Tensor, y: Tensor, num_rows: int) -> Tensor:
        """Eq. 11 of the paper, divided by the number of rows."""
        process = ImplicitProcess(self.prior, x, self.num_functions, self.noise, seed=0)
        posterior = self.posterior
        eye = torch.eye(self.num_functions)
        prior = dist.MultivariateNormal(torch.zeros(len(eye)), scale_tril=eye, validate_args=False)
        energy = process.alpha_energy(y, posterior, self.alpha).sum() / len(x)
        return kl_divergence(posterior, prior) / num_rows - energy

    def predict(
        self, x: Tensor, y: Tensor, new: Tensor, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """By the posterior; the data are in it."""
        f = ImplicitProcess(self.prior, new, self.num_functions, seed=0).marginals(self.posterior)
        return f.mean, (f.variance + (self.noise * factor) ** 2).sqrt()


def negative_log_likelihood(y: Tensor, prediction: tuple[Tensor, Tensor]) -> float:
    """Mean over rows."""
    return -dist.Normal(*prediction, validate_args=False).log_prob(y).mean().item()


def interval_coverage(y: Tensor, prediction: tuple[Tensor, Tensor], level: float = 0.9) -> float:
    """Share of the targets in the central interval of that probability."""
    half = dist.Normal(0.0, 1.0).icdf(torch.tensor((1 + level) / 2))
    return ((y - prediction[0]).abs() <= half * prediction[1]).double().mean().item()


def train(
    fit: Fit,
    data: tuple[Tensor, Tensor],
    steps: Iterable[int],
    *,
    rate: float,
    batch_size: int | None = None,
    score: Callable[[], float] | None = None,
    every: int = 50,
    patience: int = 6,
) -> int:
    """
    Adam on random minibatches (or all rows).

    :param fit: trained in place.
    :param data: ``x`` and ``y``.
    :param steps: their numbers, counting from 0.
    :param float rate: the learning rate.
    :param int batch_size: rows of a step; None for all.
    :param score: on validation rows, lower is better; then training stops early, and the best state
        is put back.
    :param int every: steps between scores.
    :param int patience: scores without an improvement after which to stop.
    :returns: the number of steps of the state.
    """
    x, y = data
    optimiser = torch.optim.Adam(fit.parameters(), lr=rate, fused=True)
    stopping = EarlyStopping(patience)
    done = 0
    for step in steps:
        rows = slice(None)
        if batch_size is not None and batch_size < len(x):
            rows = torch.randperm(len(x))[:batch_size]
        optimiser.zero_grad()
        fit.loss(x[rows], y[..., rows], len(x)).backward()
        optimiser.step()
        done = step + 1
        if score is not None and done % every == 0:
            with torch.no_grad():
                stop = stopping.step(score(), fit)
            if stop:
                break
    if stopping.best_step is None:
        return done
    stopping.restore(fit)
    return (stopping.best_step + 1) * every
