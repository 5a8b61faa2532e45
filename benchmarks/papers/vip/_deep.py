r"""
Implicit processes on each other: the inputs of one are draws of the layer below.

A layer has a function for each of its outputs, all of them from one random network, and for each
function a Gaussian posterior of the coefficients of its frozen draws. Given what the layer below
has drawn for a row, the row's outputs are normal; they are drawn, row by row, and handed on. A
bound on the evidence, or an alpha-energy, is a sum over rows of terms that see one row's marginals
alone, so that this estimates it without bias (with ``alpha > 0`` the mean over the draws of inner
layers stays outside of the logarithm), and minibatches need nothing more.

The idea is that of `Deep Variational Implicit Processes`, L. A. Ortega, S. Rodriguez Santana,
D. Hernandez-Lobato, 2022; what is here was derived from the one-layer form.
"""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor, nn
from torch.distributions import kl_divergence

from benchmarks.papers.vip._vip_fits import Fit
from pyro_implicit import ImplicitProcess
from pyro_implicit.processes import RandomNetwork

__all__ = ["Layer", "Layered", "coverage_of_mixture", "mixture_nll", "principal_axes"]

Mixture = tuple[Tensor, Tensor]


class Layer(nn.Module):
    """
    Random functions of vectors, and posteriors of their coefficients.

    :param nn.Module network: from ``(N, D)`` to ``(N, K)``.
    :param int num_outputs: K.
    :param int num_functions: S, frozen.
    :param int seed: of their random numbers.
    :param float spread: of the coefficients under the posterior, to start with.
    """

    def __init__(
        self, network: nn.Module, num_outputs: int, num_functions: int, seed: int, spread: float
    ) -> None:
        super().__init__()
        self.prior, self.seed, self.num_functions = RandomNetwork(network), seed, num_functions
        batch = () if num_outputs == 1 else (num_outputs,)
        self.loc = nn.Parameter(torch.zeros(*batch, num_functions))
        start = math.log(spread) * torch.eye(num_functions)
        self.factor = nn.Parameter(start.expand(*batch, -1, -1).clone())

    @property
    def posterior(self) -> dist.MultivariateNormal:
        """Of the coefficients, batch shape ``(K,)``, or ``()`` for one output."""
        diagonal = torch.diag_embed(self.factor.diagonal(dim1=-2, dim2=-1).exp())
        scale = self.factor.tril(-1) + diagonal
        return dist.MultivariateNormal(self.loc, scale_tril=scale, validate_args=False)

    def kl(self) -> Tensor:
        """From the posterior to the prior of the coefficients, all outputs together."""
        posterior = self.posterior
        eye = torch.eye(self.num_functions)
        prior = dist.MultivariateNormal(torch.zeros(len(eye)), scale_tril=eye, validate_args=False)
        return kl_divergence(posterior, prior.expand(posterior.batch_shape)).sum()

    def process(self, x: Tensor, noise: Tensor | None = None) -> ImplicitProcess:
        """The functions at inputs ``(N, D)``."""
        return ImplicitProcess(self.prior, x, self.num_functions, noise, seed=self.seed)

    def marginals(self, x: Tensor) -> dist.Normal:
        """Of the function at inputs ``(N, D)``: shape ``(K, N)``, or ``(N,)`` for one output."""
        return self.process(x).marginals(self.posterior)


class Layered(Fit):
    """
    One or more layers under Gaussian noise. What a layer but the last adds to is a fixed linear map
    of its inputs, so that it starts near to handing them on.

    :param layers: the last one has one output.
    :param maps: of the layers before it, shape ``(D, K)`` each.
    :param float noise: where the noise scale starts.
    :param float alpha: of the energy; 0: the evidence bound.
    """

    def __init__(self, layers: list[Layer], maps: list[Tensor], noise: float, alpha: float) -> None:
        super().__init__(layers[-1].prior, noise)
        self.layers, self.alpha = nn.ModuleList(layers), alpha
        for place, linear in enumerate(maps):
            self.register_buffer(f"map{place}", linear)

    def hidden(self, x: Tensor) -> Tensor:
        """Draws of what the last layer sees, each row by itself."""
        for place, layer in enumerate(list(self.layers)[:-1]):
            linear: Any = getattr(self, f"map{place}")
            x = x @ linear + layer.marginals(x).rsample().to(x).mT
        return x

    def loss(self, x: Tensor, y: Tensor, num_rows: int) -> Tensor:
        """Minus the energy of each row, and its share of the KL terms."""
        last = self.layers[-1]
        process = last.process(self.hidden(x), self.noise)
        energy = process.alpha_energy(y, last.posterior, self.alpha).mean()
        return sum(layer.kl() for layer in self.layers) / num_rows - energy

    def mixture(self, new: Tensor, num_draws: int, factor: float = 1.0) -> Mixture:
        """
        Means and deviations of new observations for draws of the inner layers.

        :returns: shape ``(R, N)`` each; one layer has one draw.
        """
        parts = []
        for _ in range(num_draws if len(self.layers) > 1 else 1):
            f = self.layers[-1].marginals(self.hidden(new))
            parts.append((f.mean, (f.variance + (self.noise * factor) ** 2).sqrt()))
        mean, scale = (torch.stack(values) for values in zip(*parts, strict=True))
        return mean.double(), scale.double()


def principal_axes(x: Tensor, count: int) -> Tensor:
    """
    A linear map to so many dimensions: the identity, or the first axes of the rows.

    :param Tensor x: standardised, shape ``(N, D)``.
    :returns: shape ``(D, count)``.
    """
    if count == x.shape[1]:
        return torch.eye(count)
    _, _, axes = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    return axes[:count].mT.contiguous()


def mixture_nll(y: Tensor, mixture: Mixture) -> float:
    """Of rows ``(N,)``, mean, under equal parts of normals ``(R, N)``."""
    each = dist.Normal(*mixture, validate_args=False).log_prob(y)
    return -(each.logsumexp(0) - math.log(len(each))).mean().item()


def coverage_of_mixture(y: Tensor, mixture: Mixture, level: float = 0.9) -> float:
    """Share of the rows between the outer quantiles: told by the distribution function there."""
    below = dist.Normal(*mixture, validate_args=False).cdf(y).mean(0)
    tail = (1 - level) / 2
    return ((below >= tail) & (below <= 1 - tail)).double().mean().item()
