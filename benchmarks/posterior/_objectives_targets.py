"""Small posteriors with a known density, and how far draws are from them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import init_to_value
from scipy.spatial import cKDTree
from scipy.special import digamma
from scipy.stats import wasserstein_distance
from torch import Tensor

from benchmarks.posterior.non_gaussian import Banana as _Banana
from benchmarks.posterior.non_gaussian import wasserstein

__all__ = ["SETTINGS", "TARGETS", "Target", "entropy", "gaussian_kl", "gaussian_of"]

#: of the prior of the targets that are given as a density
PRIOR_SCALE = 5.0
NEIGHBOURS = 5
SETTINGS: dict[str, Any] = {
    "lr": 5e-3,
    "last_lr": 2.5e-4,
    "num_particles": 32,
    "num_draws": 10_000,
    "last": 100,
    "num_exact": 20_000,
    "num_assigned": 1000,
}


class Target(ABC):
    """A model without arguments whose posterior is known."""

    name: str
    dim: int
    nesting = 0
    #: None where it is not known
    log_evidence: float | None = 0.0
    #: standard deviation of the first draws of every implicit guide
    init_scale = 0.1
    #: options of a guide whose objective needs output noise
    guide_noise: ClassVar[dict[str, Any]] = {"scale": 0.1, "learn_scale": "scalar"}
    #: draws a step, if other than in ``SETTINGS``
    num_particles: int | None = None

    @abstractmethod
    def model(self) -> None:
        """The Pyro model."""

    @abstractmethod
    def log_density(self, x: Tensor) -> Tensor:
        """The posterior's log-density at ``x`` of shape ``(n, dim)``."""

    @abstractmethod
    def exact(self, n: int) -> Tensor:
        """Draws of the posterior, shape ``(n, dim)``."""

    def start(self, site: dict[str, object]) -> Tensor:
        """For ``init_loc_fn``: the origin, for every method."""
        zeros = {"w": torch.zeros(2)} | {name: torch.zeros(()) for name in "txy"}
        return init_to_value(site, values=zeros)

    def errors(self, draws: Tensor) -> dict[str, float]:
        """
        :returns: Wasserstein-1 distance (2-D: of 1000 draws, by assignment), KL divergence of
            the Gaussians of the moments, KL(q || posterior) by nearest neighbours.
        """
        draws = draws.double()
        exact = self.exact(SETTINGS["num_exact"]).double()
        if self.dim == 1:
            distance = float(wasserstein_distance(draws[:, 0].numpy(), exact[:, 0].numpy()))
        else:
            distance = _assigned(draws, exact)
        expected = float(self.log_density(draws).mean())
        return {
            "w1": distance,
            "gaussian_kl": gaussian_kl(draws, exact),
            "true_kl": -entropy(draws) - expected,
        }


class Mixture(Target):
    """Modes at -3 and 3 of standard deviation 1 (appendix A.1 of the paper)."""

    name, dim, init_scale = "mixture", 1, 3.0
    #: of the mode at 3
    share = 0.5

    def model(self) -> None:
        """As a likelihood, with a prior N(0, 25)."""
        prior = dist.Normal(0.0, PRIOR_SCALE)
        t = pyro.sample("t", prior)
        pyro.factor("density", self._density(t) - prior.log_prob(t))

    def _density(self, t: Tensor) -> Tensor:
        modes = [
            dist.Normal(mode, 1.0).log_prob(t) + math.log(share)
            for mode, share in ((-3.0, 1 - self.share), (3.0, self.share))
        ]
        return torch.stack(modes).logsumexp(0)  # logaddexp has no second derivative far out

    def log_density(self, x: Tensor) -> Tensor:
        """See :class:`Target`."""
        return self._density(x[:, 0])

    def exact(self, n: int) -> Tensor:
        """See :class:`Target`."""
        return torch.randn(n, 1) + 3.0 * (2 * (torch.rand(n, 1) < self.share).float() - 1)

    def errors(self, draws: Tensor) -> dict[str, float]:
        """With the share of draws right of 0 and that of the bridge."""
        shares = {"right": (draws > 0), "bridge": (draws.abs() < 1)}
        return super().errors(draws) | {k: float(v.double().mean()) for k, v in shares.items()}


class Unequal(Mixture):
    """The same modes in proportion 1 to 4."""

    name, share = "unequal", 0.8


class XShape(Target):
    """Two crossed Gaussians, as in the papers on semi-implicit inference."""

    name, dim = "x-shape", 2
    covariance = torch.tensor([[2.0, 1.8], [1.8, 2.0]])

    def model(self) -> None:
        """As a likelihood, with a prior N(0, 25) for both."""
        prior = dist.Normal(torch.zeros(2), PRIOR_SCALE).to_event(1)
        w = pyro.sample("w", prior)
        pyro.factor("density", self.log_density(w) - prior.log_prob(w))

    def log_density(self, x: Tensor) -> Tensor:
        """See :class:`Target`."""
        turned = x * x.new_tensor([1.0, -1.0])
        one = dist.MultivariateNormal(x.new_zeros(2), self.covariance.to(x))
        both = torch.stack([one.log_prob(x), one.log_prob(turned)])
        return both.logsumexp(0) - math.log(2)

    def exact(self, n: int) -> Tensor:
        """See :class:`Target`."""
        draws = torch.randn(n, 2) @ torch.linalg.cholesky(self.covariance).mT
        return draws * torch.stack([torch.ones(n), 2.0 * torch.randint(2, (n,)) - 1], -1)


class StudentT(Target):
    """Student's t of 5 degrees of freedom in the plane, correlation 0.9: heavy tails."""

    name, dim = "student-t", 2
    degrees = 5.0
    factor = torch.tensor([[1.0, 0.0], [0.9, 0.19**0.5]])

    def model(self) -> None:
        """As a likelihood, with a prior N(0, 25) for both."""
        prior = dist.Normal(torch.zeros(2), PRIOR_SCALE).to_event(1)
        w = pyro.sample("w", prior)
        pyro.factor("density", self.log_density(w) - prior.log_prob(w))

    def log_density(self, x: Tensor) -> Tensor:
        """See :class:`Target`."""
        return dist.MultivariateStudentT(
            x.new_tensor(self.degrees), x.new_zeros(2), self.factor.to(x)
        ).log_prob(x)

    def exact(self, n: int) -> Tensor:
        """See :class:`Target`."""
        chi2 = torch.distributions.Chi2(self.degrees).sample((n, 1))
        return torch.randn(n, 2) @ self.factor.mT * (self.degrees / chi2).sqrt()


class Banana(Target):
    """That of ``non_gaussian``."""

    name, dim = "banana", 2

    def model(self) -> None:
        """As a likelihood, with a prior N(0, 25) for both."""
        prior = dist.Normal(0.0, PRIOR_SCALE)
        x, y = pyro.sample("x", prior), pyro.sample("y", prior)
        pyro.factor("density", self._density(x, y) - prior.log_prob(x) - prior.log_prob(y))

    def _density(self, x: Tensor, y: Tensor) -> Tensor:
        return dist.Normal(0.0, 1.0).log_prob(x) + dist.Normal(x**2 - 1, 0.5).log_prob(y)

    def log_density(self, x: Tensor) -> Tensor:
        """See :class:`Target`."""
        return self._density(x[:, 0], x[:, 1])

    def exact(self, n: int) -> Tensor:
        """See :class:`Target`."""
        return _Banana().exact(n)


class Logistic(Target):
    """
    Bayesian logistic regression on 200 points in the plane with inputs of correlation 0.9
    (appendix A.2 of the paper); its posterior on a grid.
    """

    name, dim, nesting = "logistic", 2, 1
    num_rows, side, half_width = 200, 501, 5.0

    def __init__(self) -> None:
        own = torch.Generator().manual_seed(0)
        factor = torch.tensor([[1.0, 0.0], [0.9, 0.19**0.5]])
        self.x = torch.randn(self.num_rows, 2, generator=own) @ factor.T
        logits = self.x @ torch.randn(2, generator=own)
        self.y = (torch.rand(self.num_rows, generator=own) < logits.sigmoid()).float()
        axis = torch.linspace(-self.half_width, self.half_width, self.side)
        self._grid = torch.cartesian_prod(axis, axis)
        self._cell = float(axis[1] - axis[0])
        joint = torch.cat([self._joint(part) for part in self._grid.split(20_000)])
        self.log_evidence = float(joint.double().logsumexp(0)) + 2 * math.log(self._cell)
        self._weights = (joint.double() - joint.double().logsumexp(0)).exp()

    def model(self) -> None:
        """Standard normal prior."""
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", self.num_rows):
            logits = (w * self.x).sum(-1)
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=self.y)

    def _joint(self, w: Tensor) -> Tensor:
        logits = w @ self.x.to(w).T
        likelihood = dist.Bernoulli(logits=logits).log_prob(self.y.to(w)).sum(-1)
        return likelihood + dist.Normal(0.0, 1.0).log_prob(w).sum(-1)

    def log_density(self, x: Tensor) -> Tensor:
        """See :class:`Target`."""
        return self._joint(x) - self.log_evidence

    def exact(self, n: int) -> Tensor:
        """Cells of the grid, and a place in each."""
        chosen = torch.multinomial(self._weights, n, replacement=True)
        return self._grid[chosen] + self._cell * (torch.rand(n, 2) - 0.5)


TARGETS: dict[str, type[Target]] = {
    c.name: c for c in (Mixture, Unequal, XShape, Logistic, Banana, StudentT)
}


def _assigned(a: Tensor, b: Tensor) -> float:
    """Of equally many draws each."""
    n = min(SETTINGS["num_assigned"], len(a), len(b))
    return wasserstein(a[:n], b[:n])


def entropy(draws: Tensor) -> float:
    """
    The Kozachenko-Leonenko estimate from distances to the fifth neighbour: it needs no bandwidth.

    :param torch.Tensor draws: shape ``(n, d)``.
    """
    points = draws.double().numpy()
    n, d = points.shape
    distances = cKDTree(points).query(points, NEIGHBOURS + 1)[0][:, -1]
    ball = 0.5 * d * math.log(math.pi) - math.lgamma(0.5 * d + 1)
    away = np.log(np.maximum(distances, 1e-300)).mean()
    return float(digamma(n) - digamma(NEIGHBOURS) + ball + d * away)


def gaussian_kl(q: Tensor, p: Tensor) -> float:
    """KL divergence of the Gaussian of the moments of ``q`` to that of ``p``; no regularisation."""
    return float(torch.distributions.kl_divergence(gaussian_of(q), gaussian_of(p)))


def gaussian_of(draws: Tensor) -> torch.distributions.MultivariateNormal:
    """With the moments of draws of shape ``(n, d)``."""
    covariance = draws.T.cov().reshape(draws.shape[1], -1)
    return torch.distributions.MultivariateNormal(draws.mean(0), covariance)
