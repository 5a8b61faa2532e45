"""A radiance field: a network of density and colour, and what is seen of it along rays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

__all__ = ["RadianceField", "pixels_model"]


class RadianceField(nn.Module):
    r"""
    A perceptron of waves of a place, and the integral of volume rendering as a sum along rays.

    The waves are :math:`\sin(2^k \pi x), \cos(2^k \pi x)` of both coordinates.

    :param dict sizes: ``waves`` of each coordinate, ``width`` of the two hidden layers, ``samples``
        along each ray from ``near`` to ``far``.
    """

    def __init__(self, sizes: dict[str, Any]) -> None:
        super().__init__()
        ends = torch.linspace(sizes["near"], sizes["far"], sizes["samples"] + 1)
        self.register_buffer("places", (ends[1:] + ends[:-1]) / 2)
        self.register_buffer("waves", math.pi * 2.0 ** torch.arange(sizes["waves"]))
        self.step = float(ends[1] - ends[0])
        self.layers = nn.Sequential(
            nn.Linear(2 + 4 * sizes["waves"], sizes["width"]),
            nn.ReLU(),
            nn.Linear(sizes["width"], sizes["width"]),
            nn.ReLU(),
            nn.Linear(sizes["width"], 4),
        )

    def forward(self, rays: Tensor) -> Tensor:
        """
        :param torch.Tensor rays: origin and direction, ``(N, 4)``.
        :returns: the colours that come along them, ``(N, 3)``.
        """
        places = rays[:, None, :2] + self.places[:, None] * rays[:, None, 2:]
        angles = (places[..., None] * self.waves).flatten(-2)
        found = self.layers(torch.cat([places, angles.sin(), angles.cos()], -1))
        depth = 10.0 * self.step * nn.functional.softplus(found[..., 0])
        before = (depth.cumsum(-1) - depth).neg().exp()
        weight = before * (1 - depth.neg().exp())
        return (weight[..., None] * found[..., 1:].sigmoid()).sum(-2)


def pixels_model(network: Any, num_pixels: int) -> Callable[..., Any]:
    """
    :param network: a Bayesian radiance field.
    :param int num_pixels: of all views that it is trained on.
    :returns: a model of the colours of rays, with noise of unknown size.
    """

    def model(rays: Tensor, colours: Tensor | None = None) -> Tensor:
        sigma = pyro.sample("sigma", dist.LogNormal(-3.0, 1.0))
        mean = pyro.deterministic("mean", network(rays))
        with pyro.plate("pixels", num_pixels, subsample_size=len(rays)):
            noise = dist.Normal(mean, sigma[..., None]).to_event(1)
            return pyro.sample("colour", noise, obs=colours)

    return model
