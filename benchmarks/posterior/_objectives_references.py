"""Posteriors of more dimensions: their moments come from long chains of Pyro's NUTS."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import init_to_value
from pyro.infer.mcmc import MCMC, NUTS
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor

from benchmarks.common import fixed_seed, stopwatch
from benchmarks.posterior._objectives_targets import Target, gaussian_of
from benchmarks.records import read_record

__all__ = ["REFERENCED", "REFERENCE_SETTINGS", "Diffusion", "Referenced", "Waveform", "reference"]

RECORD = "objectives_reference"
REFERENCE_SETTINGS = {"num_draws": 2500, "warmup_steps": 800}


class Referenced(Target):
    """A posterior that is known by the mean and covariance of long chains."""

    log_evidence = None
    #: whether chains learn a full mass matrix
    correlated = True

    def start(self, site: dict[str, object]) -> Tensor:
        """See :class:`Target`."""
        return init_to_value(site, values={"w": torch.zeros(self.dim)})

    @abstractmethod
    def log_density(self, x: Tensor) -> Tensor:
        """The joint log-density with the data at ``x`` of shape ``(..., dim)``."""

    def exact(self, n: int) -> Tensor:
        """
        :raises NotImplementedError: always: the moments are known, and no draws.
        """
        raise NotImplementedError(f"{self.name!r} has no exact draws")

    def errors(self, draws: Tensor) -> dict[str, float]:
        """
        :returns: root mean squares of the errors of means (in deviations), of log-deviations and
            of correlations; the KL divergence of the Gaussians of the moments.
        """
        mean, covariance = moments(self.name)
        draws = draws.double()
        known = torch.distributions.MultivariateNormal(mean, covariance)
        own_sd, sd = draws.std(0), covariance.diagonal().sqrt()
        apart = (draws.T.corrcoef() - covariance / sd.outer(sd)).tril(-1)
        num_pairs = self.dim * (self.dim - 1) // 2
        return {
            "mean_error": float(((draws.mean(0) - mean) / sd).square().mean().sqrt()),
            "sd_error": float((own_sd / sd).log().square().mean().sqrt()),
            "correlation_error": math.sqrt(float(apart.square().sum()) / num_pairs),
            "gaussian_kl": float(torch.distributions.kl_divergence(gaussian_of(draws), known)),
        }


class Waveform(Referenced):
    """
    Logistic regression on two of the three classes of Breiman's waveforms, 400 rows of 21 features
    and an intercept, prior N(0, 100).

    A waveform is a random convex combination of two of three triangles with unit noise (Breiman,
    Friedman, Olshen and Stone, `Classification and Regression Trees`, 1984, section 2.6.2).
    """

    name, dim, nesting = "waveform", 22, 1
    num_rows, prior_scale = 400, 10.0

    def __init__(self) -> None:
        own = torch.Generator().manual_seed(0)
        place = torch.arange(1.0, 22.0)
        triangles = [(6 - (place - peak).abs()).clamp(min=0) for peak in (11.0, 15.0, 7.0)]
        self.y = torch.randint(2, (self.num_rows,), generator=own).float()
        share = torch.rand(self.num_rows, 1, generator=own)
        other = torch.where(self.y[:, None] == 1, triangles[1], triangles[2])
        noise = torch.randn(self.num_rows, 21, generator=own)
        features = share * triangles[0] + (1 - share) * other + noise
        self.x = torch.cat([torch.ones(self.num_rows, 1), features], -1)

    def model(self) -> None:
        """With independent normal priors."""
        w = pyro.sample("w", dist.Normal(torch.zeros(22), self.prior_scale).to_event(1))
        with pyro.plate("data", self.num_rows):
            logits = (w * self.x).sum(-1)
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=self.y)

    def log_density(self, x: Tensor) -> Tensor:
        """See :class:`Referenced`."""
        logits = x @ self.x.to(x).T
        prior = dist.Normal(0.0, self.prior_scale).log_prob(x).sum(-1)
        return dist.Bernoulli(logits=logits).log_prob(self.y.to(x)).sum(-1) + prior


class Diffusion(Referenced):
    """
    The path of ``dx = 10 x (1 - x^2) dt + dw`` from 0 in 100 Euler steps up to time 1, seen at
    every fifth with noise of deviation 0.1, as in the papers on semi-implicit inference.
    """

    name, dim = "diffusion", 100
    correlated = False  # its precision has three diagonals
    strength, noise, every = 10.0, 0.1, 5

    def __init__(self) -> None:
        own = torch.Generator().manual_seed(0)
        x, path = torch.zeros(()), []
        for _ in range(self.dim):
            x = self._next(x) + self.dim**-0.5 * torch.randn((), generator=own)
            path.append(x)
        seen = torch.stack(path)[self.every - 1 :: self.every]
        self.y = seen + self.noise * torch.randn(len(seen), generator=own)

    def _next(self, x: Tensor) -> Tensor:
        return x + self.strength / self.dim * x * (1 - x**2)

    def model(self) -> None:
        """As a likelihood, with a prior N(0, 25) for all."""
        prior = dist.Normal(torch.zeros(self.dim), 5.0).to_event(1)
        w = pyro.sample("w", prior)
        pyro.factor("density", self.log_density(w) - prior.log_prob(w))

    def log_density(self, x: Tensor) -> Tensor:
        """See :class:`Referenced`."""
        before = torch.cat([torch.zeros_like(x[..., :1]), x[..., :-1]], -1)
        steps = dist.Normal(self._next(before), self.dim**-0.5).log_prob(x).sum(-1)
        seen = x[..., self.every - 1 :: self.every]
        return steps + dist.Normal(seen, self.noise).log_prob(self.y.to(x)).sum(-1)


REFERENCED: dict[str, type[Referenced]] = {c.name: c for c in (Waveform, Diffusion)}


def reference(target: Referenced, seeds: Sequence[int], quiet: bool) -> dict[str, Any]:
    """
    A row of the record of references: moments of long chains, and what tells how good they are.

    :param Referenced target: the posterior.
    :param seeds: of the chains.
    :param bool quiet: no progress bars.
    """
    chains = []
    with stopwatch() as watch, pyro.validation_enabled(False):
        for seed in seeds:
            with fixed_seed(seed):
                kernel = NUTS(
                    target.model,
                    full_mass=target.correlated,
                    jit_compile=True,
                    ignore_jit_warnings=True,
                )
                numbers = REFERENCE_SETTINGS["num_draws"], REFERENCE_SETTINGS["warmup_steps"]
                chain = MCMC(kernel, *numbers, disable_progbar=quiet)
                chain.run()
                chains.append(chain.get_samples()["w"].double())
    draws = torch.stack(chains)
    flat = draws.flatten(0, 1)
    covariance = flat.T.cov()
    rows, columns = torch.tril_indices(target.dim, target.dim)
    return {
        "target": target.name,
        "draws": len(flat),
        "r_hat": float(split_gelman_rubin(draws, sample_dim=1, chain_dim=0).max()),
        "effective": float(effective_sample_size(draws, sample_dim=1, chain_dim=0).min()),
        "cpu_seconds": watch.cpu_seconds,
        "mean": _short(flat.mean(0)),
        "covariance": _short(covariance[rows, columns]),
    }


@functools.cache
def moments(name: str) -> tuple[Tensor, Tensor]:
    """Mean ``(d,)`` and covariance ``(d, d)`` of a reference, from its record."""
    rows = read_record(RECORD)["rows"]
    row = next(row for row in rows if row["target"] == name)
    mean = torch.tensor(row["mean"], dtype=torch.float64)
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    lower, columns = torch.tril_indices(len(mean), len(mean))
    covariance[lower, columns] = torch.tensor(row["covariance"], dtype=torch.float64)
    return mean, covariance + covariance.tril(-1).T


def _short(values: Tensor) -> list[float]:
    """Five digits: less than the chains' own error."""
    return [float(f"{value:.5g}") for value in values.tolist()]
