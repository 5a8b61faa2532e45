"""A variational autoencoder of a posterior's draws, whose decoder is a guide (LIVI, F.5)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributions as dist
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.chains import HMC, refine

__all__ = ["Autoencoder", "hamiltonian_draws", "trained"]


def hamiltonian_draws(
    model: Callable[..., Any], x: Tensor, y: Tensor, settings: dict[str, Any]
) -> tuple[Any, float]:
    """
    Chains from one mode.

    :param dict settings: ``chains``, ``chain_steps``, ``chain_warmup`` and ``max_leapfrog``.
    :returns: the chains, and the worst r-hat of the network's output at the data.
    """
    options: dict[str, Any] = {
        "num_chains": settings["chains"],
        "num_steps": settings["chain_steps"],
        "num_warmup": settings["chain_warmup"],
        "kernel": HMC(max_leapfrog=settings["max_leapfrog"]),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # hidden units change places
        chains = refine(model, 1, x, y, progress=False, **options)
        r_hat = chains.predictive_r_hat(x, sites=["f"])["f"]
    return chains, float(r_hat.max())


class Autoencoder(nn.Module):
    """
    The decoder is the guide's own generator with its output noise, so that a draw of it is a draw
    of the guide; the encoder is a perceptron with a Gaussian.

    :param HyperNetworkGuide guide: built, with output noise.
    :param int hidden: units of the encoder.
    """

    def __init__(self, guide: HyperNetworkGuide, hidden: int) -> None:
        super().__init__()
        ((_, self.sites, self.sampler),) = guide._groups()
        generator = self.sampler.generator
        self.noise_dim = generator.noise_dim
        self.encoder = nn.Sequential(
            nn.Linear(generator.output_dim, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 2 * self.noise_dim),
        )

    def flat(self, draws: dict[str, Tensor]) -> Tensor:
        """Draws of chains ``(C, n, *site_shape)`` as the guide orders its latents, ``(C n, m)``."""
        return torch.cat([draws[site.name].flatten(2) for site in self.sites], -1).flatten(0, 1)

    def elbo(self, theta: Tensor) -> Tensor:
        """
        :param theta: draws ``(n, m)``.
        :returns: the evidence bound of each, with one noise.
        """
        return self._log_weights(theta, self._code(theta).rsample())

    @torch.no_grad()
    def entropy(self, num_samples: int, num_inner: int) -> float:
        """
        Eq. F.2 of LIVI: importance sampling with the encoder. It is above the truth, by what the
        encoder misses.

        :param int num_samples: draws.
        :param int num_inner: noises of the encoder for each.
        """
        z = torch.randn(num_samples, self.noise_dim)
        theta = self._decoded(z).sample()
        total = [self._log_weights(one, self._code(one).sample((num_inner,))) for one in theta]
        log_q = torch.stack(total).logsumexp(-1) - math.log(num_inner)
        return -log_q.mean().item()

    def _code(self, theta: Tensor) -> dist.Normal:
        loc, log_scale = self.encoder(theta).chunk(2, -1)
        return dist.Normal(loc, log_scale.exp())

    def _decoded(self, z: Tensor) -> dist.Normal:
        mean = self.sampler.preconditioner(self.sampler.generator(z))
        return dist.Normal(mean, self.sampler.scale)

    def _log_weights(self, theta: Tensor, z: Tensor) -> Tensor:
        log_prior = dist.Normal(0.0, 1.0).log_prob(z).sum(-1)
        log_code = self._code(theta).log_prob(z).sum(-1)
        return self._decoded(z).log_prob(theta).sum(-1) + log_prior - log_code


def trained(
    auto: Autoencoder, theta: Tensor, batch_size: int, lr: float, steps: Iterable[int]
) -> Iterator[tuple[int, float]]:
    """
    Adam on the evidence bound of batches.

    :param theta: draws ``(n, m)``.
    :returns: each step before it is made, and the bound of a draw then.
    """
    optimizer = torch.optim.Adam(auto.parameters(), lr=lr)
    for step in steps:
        bound = auto.elbo(theta[torch.randint(len(theta), (batch_size,))]).mean()
        yield step, bound.item()
        optimizer.zero_grad()
        (-bound).backward()
        optimizer.step()
