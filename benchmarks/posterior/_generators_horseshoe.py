"""A small regression with a horseshoe prior, and its moments by a Gibbs sampler."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.posterior._posteriordb_reference import Moments

__all__ = ["horseshoe", "horseshoe_data", "horseshoe_moments"]

Draws = dict[str, Tensor]
ROWS, COLUMNS = 40, 10
#: shape and scale of the prior of the noise's variance
NOISE = (2.0, 1.0)
CHAINS = 200


def horseshoe_data() -> tuple[Tensor, Tensor]:
    """Inputs ``(40, 10)`` and outputs ``(40,)`` of which three inputs matter, in float64."""
    own = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, generator=own, dtype=torch.float64)
    weights = torch.zeros(COLUMNS, dtype=torch.float64)
    weights[:3] = torch.tensor([2.0, -1.0, 0.5])
    return x, x @ weights + torch.randn(ROWS, generator=own, dtype=torch.float64)


def horseshoe(x: Tensor, y: Tensor) -> None:
    """Global scale, local scales and standardised weights as the latents."""
    tau = pyro.sample("tau", dist.HalfCauchy(1.0))
    local = pyro.sample("local", dist.HalfCauchy(1.0).expand([x.shape[-1]]).to_event(1))
    z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[-1]]).to_event(1))
    variance = pyro.sample("variance", dist.InverseGamma(*NOISE))
    with pyro.plate("data", len(y)):
        weights = tau[..., None] * local * z
        pyro.sample("y", dist.Normal((weights * x).sum(-1), variance.sqrt()), obs=y)


def parameters(draws: Draws) -> Draws:
    """What is compared: weights, the logarithm of the global scale, the noise's deviation."""
    tau, variance = draws["tau"].reshape(-1), draws["variance"].reshape(-1)
    local, z = (draws[name].reshape(len(tau), -1) for name in ("local", "z"))
    return {
        "weight": tau[:, None] * local * z,
        "log tau": tau.log(),
        "sigma": variance.sqrt(),
    }


def horseshoe_moments(
    x: Tensor, y: Tensor, num_steps: int
) -> tuple[Moments, Callable[[Draws], Draws]]:
    """
    Long chains of a Gibbs sampler with half-Cauchy scales as mixtures of inverse gammas.

    Source: `A Simple Sampler for the Horseshoe Estimator`, Makalic and Schmidt, IEEE Signal
    Processing Letters 2016.

    :param int num_steps: of each of 200 chains, after a fifth as many of warm-up.
    :returns: mean and standard deviation by parameter, and :func:`parameters`.
    """
    state = torch.random.get_rng_state()
    torch.manual_seed(1)
    chains = _Gibbs(x, y)
    count, total, squares = 0, torch.zeros(()).double(), torch.zeros(()).double()
    for step in range(num_steps + num_steps // 5):
        chains.step()
        if step >= num_steps // 5:
            now = chains.values()
            count, total = count + len(now), total + now.sum(0)
            squares = squares + now.square().sum(0)
    torch.random.set_rng_state(state)
    mean = total / count
    deviation = (squares / count - mean**2).sqrt()
    names = [f"weight[{j}]" for j in range(1, x.shape[1] + 1)] + ["log tau", "sigma"]
    pairs = zip(mean.tolist(), deviation.tolist(), strict=True)
    return dict(zip(names, pairs, strict=True)), parameters


def _inverse_gamma(shape: float, rate: Tensor) -> Tensor:
    return rate / torch._standard_gamma(torch.full_like(rate, shape))


class _Gibbs:
    """All chains at once; the scales are kept squared."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.gram, self.moment = x.T @ x, x.T @ y
        one = torch.ones(CHAINS, dtype=x.dtype)
        self.local = self.local_mixing = one[:, None].repeat(1, x.shape[1])
        self.tau, self.tau_mixing, self.noise = one, one, one

    def step(self) -> None:
        rows, columns = self.x.shape
        prior = torch.diag_embed(1 / (self.local * self.tau[:, None]))
        factor = torch.linalg.cholesky(self.gram / self.noise[:, None, None] + prior)
        mean = torch.cholesky_solve(self.moment[:, None] / self.noise[:, None, None], factor)
        noise = torch.randn_like(mean)
        away = torch.linalg.solve_triangular(factor.mT, noise, upper=True)
        self.weights = (mean + away)[..., 0]
        square = self.weights**2
        self.local = _inverse_gamma(1, 1 / self.local_mixing + square / (2 * self.tau[:, None]))
        self.local_mixing = _inverse_gamma(1, 1 + 1 / self.local)
        spread = (square / self.local).sum(-1) / 2
        self.tau = _inverse_gamma((columns + 1) / 2, 1 / self.tau_mixing + spread)
        self.tau_mixing = _inverse_gamma(1, 1 + 1 / self.tau)
        error = (self.y - self.weights @ self.x.T).square().sum(-1)
        self.noise = _inverse_gamma(NOISE[0] + rows / 2, NOISE[1] + error / 2)

    def values(self) -> Tensor:
        scales = torch.stack([self.tau.log() / 2, self.noise.sqrt()], -1)
        return torch.cat([self.weights, scales], -1)
