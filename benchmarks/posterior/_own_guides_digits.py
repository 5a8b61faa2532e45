"""Variational autoencoders of digits, as Pyro's example vae.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from benchmarks.posterior._own_guides_problem import Problem, rows_of
from benchmarks.shared.images import load_mnist

__all__ = ["digits", "mnist"]

_TRAIN = 1297  # of 1797 small ones
_HELD = 500  # of 10 000 large ones
_RATE = 1e-3  # that of the example


class Encoder(nn.Module):
    """
    The example's: one hidden layer, a mean and a log-deviation of each latent.

    :param int num_pixels: of an image.
    :param int num_units: of the hidden layer.
    :param int num_latents: of an image.
    """

    def __init__(self, num_pixels: int, num_units: int, num_latents: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(num_pixels, num_units), nn.Softplus())
        self.loc = nn.Linear(num_units, num_latents)
        self.log_scale = nn.Linear(num_units, num_latents)

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Both, side by side."""
        hidden = self.hidden(x)
        return torch.cat([self.loc(hidden), self.log_scale(hidden)], -1)


class Hidden(nn.Module):
    """
    The hidden layer of the example's encoder alone, as context.

    :param int num_pixels: of an image.
    :param int num_units: of the layer.
    """

    def __init__(self, num_pixels: int, num_units: int) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(num_pixels, num_units), nn.Softplus())

    def forward(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """One number for each unit."""
        return self.hidden(x)


class Autoencoder:
    """
    Model and guide of the example, in minibatches.

    :param int num_rows: of the data.
    :param int num_pixels: of an image.
    :param int num_units: of the hidden layers.
    :param int num_latents: of an image.
    """

    def __init__(self, num_rows: int, num_pixels: int, num_units: int, num_latents: int) -> None:
        self.num_rows, self.num_latents = num_rows, num_latents
        self.encoder = Encoder(num_pixels, num_units, num_latents)
        self.decoder = nn.Sequential(
            nn.Linear(num_latents, num_units), nn.Softplus(), nn.Linear(num_units, num_pixels)
        )

    def model(self, x: Tensor, rows: Tensor | None = None) -> None:
        """A standard normal prior and a decoder, which is learned."""
        pyro.module("decoder", self.decoder)
        with rows_of(self.num_rows, x, rows):
            z = pyro.sample("z", dist.Normal(torch.zeros(self.num_latents), 1.0).to_event(1))
            pyro.sample("x", dist.Bernoulli(logits=self.decoder(z)).to_event(1), obs=x)

    def guide(self, x: Tensor, rows: Tensor | None = None) -> None:
        """A diagonal Gaussian of each row."""
        pyro.module("encoder", self.encoder)
        loc, log_scale = self.encoder(x).chunk(2, -1)
        with rows_of(self.num_rows, x, rows):
            pyro.sample("z", dist.Normal(loc, log_scale.exp()).to_event(1))


def digits() -> Problem:
    """The digits of scikit-learn, a pixel set from half of the highest value on."""
    from sklearn.datasets import load_digits

    images: Any = load_digits().data
    x = torch.from_numpy(images >= 8).float()
    x = x[torch.randperm(len(x))]
    return _problem(x[:_TRAIN], x[_TRAIN:], num_units=100, num_latents=6)


def mnist(root: Path) -> Problem:
    """
    Those of MNIST in the sizes of the example, a pixel set from half of the highest value on.

    :param Path root: folder of the public data sets.
    """
    data = load_mnist(root, download=False)
    train, held = ((data[k].flatten(1) >= 0.5).float() for k in ("x_train", "x_test"))
    held = held[torch.randperm(len(held))[:_HELD]]
    return _problem(train, held, num_units=400, num_latents=50)


def _problem(train: Tensor, held: Tensor, num_units: int, num_latents: int) -> Problem:
    own = Autoencoder(len(train), train.shape[-1], num_units, num_latents)
    context = Hidden(train.shape[-1], num_units)
    return Problem(own.model, own.guide, context, train, held, _RATE)
