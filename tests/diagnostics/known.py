"""Guides whose distribution is known, for the tests of the diagnostics."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide


class Affine(nn.Module):
    """``z A' + b``, so that draws are Gaussian."""

    def __init__(self, matrix: Any, shift: Any) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.as_tensor(matrix))
        self.shift = nn.Parameter(torch.as_tensor(shift))

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.matrix.T + self.shift


class Folded(nn.Module):
    """The same with ``|z|`` bent into a normal variable: exact draws, each made in two ways."""

    def __init__(self, inner: Affine) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, z: Tensor) -> Tensor:
        tail = torch.erfc(z[:, :1].abs() / 2**0.5)  # P(|Z| > |z|), uniform
        bent = -(2**0.5) * torch.erfinv((2 * tail - 1).clamp(-1 + 1e-15, 1 - 1e-12))
        return self.inner(torch.cat([bent, z[:, 1:]], -1))


def normal_model() -> None:
    """Its posterior is its prior, a standard normal."""
    pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))


def affine_guide(model: Any, matrix: Any, shift: Any, **options: Any) -> HyperNetworkGuide:
    """A guide whose unconstrained draws are exactly N(shift, A A' + sigma^2)."""
    options = {"scale": 0.0} | options
    args = options.pop("args", ())
    module = Affine(matrix, shift)
    if options.pop("folded", False):
        module = Folded(module)
    noise_dim = torch.as_tensor(matrix).shape[1]
    guide = HyperNetworkGuide(
        model, generator=module, noise_dim=noise_dim, init_loc_fn=_origin, **options
    )
    return guide.setup(*args)


def _origin(site: Any) -> Tensor:
    """The image of zero."""
    transform = torch.distributions.biject_to(site["fn"].support)
    return transform(torch.zeros(transform.inverse_shape(site["fn"].shape())))
