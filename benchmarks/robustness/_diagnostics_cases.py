"""Guides that are right, or wrong in a known way, for models whose posterior is known exactly."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import biject_to

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.generators import Generator

__all__ = ["CASES", "Case", "guide_of"]

ROWS = 20


class Affine(Generator):
    """``b + A z``; with ``folded`` after ``|z_1|`` was bent into a normal variable again."""

    full_rank = True

    def __init__(self, matrix: Tensor, shift: Tensor, folded: bool = False) -> None:
        super().__init__((matrix.shape[1],), matrix.shape[0])
        self.register_buffer("matrix", matrix)
        self.register_buffer("shift", shift)
        self.folded = folded

    def forward(self, z: Tensor) -> Tensor:
        if self.folded:
            z = torch.cat([_bent(z[..., :1])[0], z[..., 1:]], -1)
        return self.shift + z @ self.matrix.T

    def jacobian(self, z: Tensor) -> Tensor:
        columns = torch.ones_like(z)
        if self.folded:
            columns = torch.cat([_bent(z[..., :1])[1], columns[..., 1:]], -1)
        return self.matrix * columns[..., None, :]


def _bent(z: Tensor) -> tuple[Tensor, Tensor]:
    """A standard normal variable from the absolute value of another, and its slope."""
    wide = z.double()
    tail = torch.erfc(wide.abs() / 2**0.5)  # P(|Z| > |z|), uniform
    bent = -(2**0.5) * torch.erfinv((2 * tail - 1).clamp(-1 + 1e-15, 1 - 1e-12))
    slope = 2 * wide.sign() * (0.5 * (bent.square() - wide.square())).exp()
    return bent.to(z), slope.to(z)


class Quantiles(Generator):
    """The quantile function of a density on a grid, at ``Phi(z)``: exact draws, no folds."""

    full_rank = True

    def __init__(self, grid: Tensor, density: Tensor) -> None:
        super().__init__((1,), 1)
        cells = 0.5 * (density[1:] + density[:-1])
        mass = cells * (grid[1:] - grid[:-1])
        self.register_buffer("grid", grid)
        self.register_buffer("cell_density", cells / mass.sum())
        self.register_buffer("level", torch.cat([mass.new_zeros(1), mass.cumsum(0) / mass.sum()]))

    def _cell(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The cell that a quantile falls into, and the quantile's level."""
        level = torch.special.ndtr(z.double())
        right = torch.searchsorted(self.level, level).clamp(1, len(self.grid) - 1)
        return right - 1, level

    def forward(self, z: Tensor) -> Tensor:
        cell, level = self._cell(z)
        beyond = (level - self.level[cell]) / self.cell_density[cell]
        return (self.grid[cell] + beyond).to(z)

    def jacobian(self, z: Tensor) -> Tensor:
        cell, _ = self._cell(z)
        slope = (-0.5 * z.double().square()).exp() / math.sqrt(2 * math.pi)
        return (slope / self.cell_density[cell]).to(z)[..., None]


class Case(ABC):
    """A model with one latent site ``w``, and a generator for its posterior given data."""

    name: str
    dim: int
    #: the checks that should flag it
    wrong: frozenset[str] = frozenset()

    @abstractmethod
    def model(self, y: Tensor | None = None) -> None:
        """The Pyro model, data at the site ``y``."""

    @abstractmethod
    def generator(self, y: Tensor) -> Generator:
        """Of the guide, for these data."""

    @abstractmethod
    def exact(self, y: Tensor) -> Generator:
        """Of the exact posterior."""

    def data(self) -> Tensor:
        """One data set from the model."""
        trace = pyro.poutine.trace(self.model).get_trace()
        return trace.nodes["y"]["value"]

    @torch.no_grad()
    def draws(self, generator: Generator, n: int) -> dict[str, Tensor]:
        """Draws of a generator, by site."""
        return {"w": generator(torch.randn(n, self.dim))}


class Regression(Case):
    """Two weights, correlated inputs, known noise: a Gaussian posterior."""

    dim = 2
    noise = 0.5
    width, shift, folded = 1.0, 0.0, False

    def __init__(self) -> None:
        own = torch.Generator().manual_seed(0)
        factor = torch.tensor([[1.0, 0.0], [0.8, 0.6]])
        self.x = torch.randn(ROWS, 2, generator=own) @ factor.T

    def model(self, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", ROWS):
            pyro.sample("y", dist.Normal(self.x @ w, self.noise), obs=y)

    def _posterior(self, y: Tensor) -> tuple[Tensor, Tensor]:
        precision = torch.eye(2) + self.x.T @ self.x / self.noise**2
        covariance = torch.linalg.inv(precision)
        return covariance @ (self.x.T @ y) / self.noise**2, torch.linalg.cholesky(covariance)

    def exact(self, y: Tensor) -> Generator:
        loc, factor = self._posterior(y)
        return Affine(factor, loc)

    def generator(self, y: Tensor) -> Generator:
        loc, factor = self._posterior(y)
        loc = loc + factor @ torch.full((2,), self.shift)
        return Affine(self.width * factor, loc, self.folded)


class Correct(Regression):
    name = "correct"


class Narrow(Regression):
    name, width = "too narrow (half the deviation)", 0.5
    wrong = frozenset({"k-hat", "Stein", "SBC", "C2ST"})


class Biased(Regression):
    name, shift = "biased (half a deviation each)", 0.5
    wrong = frozenset({"Stein", "SBC", "C2ST"})


class FoldedExact(Regression):
    name, folded = "folded, draws exact", True
    wrong = frozenset({"entropy"})


class TwoModes(Case):
    """The sign of ``w`` is not in the data: two separated modes, exact on a grid."""

    name, dim, noise = "correct, two modes", 1, 0.5
    lowest = -6.0

    def model(self, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(1), 2.0).to_event(1))
        with pyro.plate("data", ROWS):
            pyro.sample("y", dist.Normal(w.abs().expand(ROWS), 4 * self.noise), obs=y)

    def _quantiles(self, y: Tensor, lowest: float) -> Generator:
        grid = torch.linspace(lowest, 6.0, 24_001).double()
        prior = dist.Normal(0.0, 2.0).log_prob(grid)
        scale = 4 * self.noise / math.sqrt(ROWS)  # the mean is sufficient
        log_density = prior + dist.Normal(grid.abs(), scale).log_prob(y.double().mean())
        return Quantiles(grid, (log_density - log_density.max()).exp())

    def exact(self, y: Tensor) -> Generator:
        return self._quantiles(y, -6.0)

    def generator(self, y: Tensor) -> Generator:
        return self._quantiles(y, self.lowest)


class OneOfTwo(TwoModes):
    name, lowest = "missing a mode", 0.0
    wrong = frozenset({"SBC", "C2ST"})


CASES: dict[str, type[Case]] = {
    case.name: case for case in (Correct, TwoModes, Narrow, Biased, OneOfTwo, FoldedExact)
}


def guide_of(case: Case, y: Tensor) -> HyperNetworkGuide:
    """An implicit guide with the case's generator."""

    def origin(site: Any) -> Tensor:
        return biject_to(site["fn"].support)(torch.zeros(site["fn"].shape()))

    guide = HyperNetworkGuide(
        case.model, generator=case.generator(y), scale=0.0, init_loc_fn=origin
    )
    return guide.setup(y)
