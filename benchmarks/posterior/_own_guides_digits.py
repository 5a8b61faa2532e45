"""A variational autoencoder of small digits, as Pyro's example vae.py."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from benchmarks.posterior._own_guides_problem import Problem, rows_of

__all__ = ["digits"]

_LATENTS, _HIDDEN, _PIXELS = 6, 100, 64
_TRAIN = 1297  # of 1797
_RATE = 1e-3  # that of the example


class Encoder(nn.Module):
    """The example's: one hidden layer, a mean and a log-deviation of each latent."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(_PIXELS, _HIDDEN), nn.Softplus())
        self.loc, self.log_scale = nn.Linear(_HIDDEN, _LATENTS), nn.Linear(_HIDDEN, _LATENTS)

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Both, side by side."""
        hidden = self.hidden(x)
        return torch.cat([self.loc(hidden), self.log_scale(hidden)], -1)


class Hidden(nn.Module):
    """The hidden layer of the example's encoder alone, as context."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(_PIXELS, _HIDDEN), nn.Softplus())

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """One number for each unit."""
        return self.hidden(x)


class Autoencoder:
    """Model and guide of the example, in minibatches."""

    def __init__(self) -> None:
        self.encoder = Encoder()
        self.decoder = nn.Sequential(
            nn.Linear(_LATENTS, _HIDDEN), nn.Softplus(), nn.Linear(_HIDDEN, _PIXELS)
        )

    def model(self, x: Tensor, rows: Tensor | None = None) -> None:
        """A standard normal prior and a decoder, which is learned."""
        pyro.module("decoder", self.decoder)
        with rows_of(_TRAIN, x, rows):
            z = pyro.sample("z", dist.Normal(torch.zeros(_LATENTS), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x: Tensor, rows: Tensor | None = None) -> None:
        """A diagonal Gaussian of each row."""
        pyro.module("encoder", self.encoder)
        loc, log_scale = self.encoder(x).chunk(2, -1)
        with rows_of(_TRAIN, x, rows):
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


def digits() -> Problem:
    """The digits of scikit-learn, a pixel set from half of the highest value on."""
    from sklearn.datasets import load_digits

    images: Any = load_digits().data
    x = torch.from_numpy(images >= 8).float()
    x = x[torch.randperm(len(x))]
    own = Autoencoder()
    return Problem(own.model, own.guide, Hidden(), x[:_TRAIN], x[_TRAIN:], _RATE)
