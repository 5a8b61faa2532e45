"""
Small models with their data: what the checks of guides and objectives run on.

Each is a plain Pyro model ``model(x, y=None, idx=None, size=ROWS)``: ``idx`` are the rows that a
minibatch shows of ``size``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor, nn

from pyro_implicit.bayesian.module import BayesianModule

__all__ = ["MODELS", "ROWS", "Case"]

#: the number of rows of all data
ROWS = 6


@dataclass(frozen=True)
class Case:
    """
    A model with its data, on which checks are made.

    :param make: makes the model anew, for data of the given dtype; no two tests share a network.
    :param sites: shapes of one draw of each latent site.
    :param inputs: number of columns of ``x``.
    :param local: names of the sites inside of the data plate.
    :param improper: whether Pyro itself cannot draw from the prior.
    :param coupled: whether the prior of one site depends on another site.
    """

    make: Callable[..., Callable[..., Any]]
    sites: dict[str, tuple[int, ...]]
    inputs: int = 2
    local: tuple[str, ...] = field(default=())
    improper: bool = False
    coupled: bool = False

    def data(self, rows: int = ROWS, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """
        Inputs and targets, the same in every process.

        :param int rows: their number.
        :param torch.dtype dtype: of both.
        :returns: inputs, shape ``(rows, inputs)``, and targets, shape ``(rows,)``.
        """
        x = torch.linspace(-1.0, 1.0, rows * self.inputs, dtype=dtype).sin().reshape(rows, -1)
        return x, x.sum(-1) + 0.1 * torch.cos(7 * x[:, 0])

    def create_plates(self) -> Callable[..., Any] | None:
        """
        The plates that a guide needs to train local latents on minibatches.

        :returns: what to pass as ``create_plates``; None for a model without local latents.
        """
        if not self.local:
            return None
        return lambda x, y=None, idx=None, size=ROWS: pyro.plate(
            "data", size, subsample_size=len(x), subsample=idx, dim=-1
        )


def _aligned(value: Tensor, event_dim: int, nesting: int) -> Tensor:
    """
    A multivariate draw with the dimensions of the plates that it is not in.

    Pyro's ``Predictive(parallel=True)`` leaves them out, for any guide.
    """
    event = value.shape[value.dim() - event_dim :]
    if value.dim() == event_dim or value.dim() - event_dim > nesting:
        return value
    return value.reshape(-1, *[1] * nesting, *event)


def _regression(dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    def model(x: Tensor, y: Any = None, idx: Tensor | None = None, size: int = ROWS) -> Any:
        scale = pyro.sample("scale", dist.LogNormal(-1.0, 0.5))
        w = _aligned(pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1)), 1, 1)
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx):
            return pyro.sample("y", dist.Normal((w * x).sum(-1), scale), obs=y)

    return model


def _network(dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    layers = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1))
    net = BayesianModule(layers, prior=dist.Normal(0.0, 1.0)).to(dtype)

    def model(x: Tensor, y: Any = None, idx: Tensor | None = None, size: int = ROWS) -> Any:
        f = net(x).squeeze(-1)
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx):
            return pyro.sample("y", dist.Normal(f, 0.3), obs=y)

    return model


def _local(dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    def model(x: Tensor, y: Any = None, idx: Tensor | None = None, size: int = ROWS) -> Any:
        mean = pyro.sample("mean", dist.Normal(x.new_zeros(()), 1.0))
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx):
            rate = pyro.sample("rate", dist.LogNormal(mean, 0.5))
            return pyro.sample("y", dist.Normal(x[:, 0] * rate, 0.3), obs=y)

    return model


def _plain(dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    def model(x: Tensor, y: Any = None, idx: Tensor | None = None, size: int = ROWS) -> Any:
        share = pyro.sample("share", dist.Dirichlet(x.new_tensor([2.0, 3.0, 4.0])))
        share = _aligned(share, 1, 2)
        with pyro.plate("groups", 3, dim=-2):
            level = pyro.sample("level", dist.Normal(share[..., 0], 1.0))
        f = level.mean(-2, keepdim=True) + share[..., 1] * x[:, 0]
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx, dim=-1):
            return pyro.sample("y", dist.StudentT(4.0, f, 0.5), obs=y)

    return model


def _flat_priors(dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    def model(x: Tensor, y: Any = None, idx: Tensor | None = None, size: int = ROWS) -> Any:
        w = _aligned(pyro.sample("w", dist.ImproperUniform(constraints.real, (), (2,))), 1, 1)
        scale = pyro.sample("scale", dist.ImproperUniform(constraints.positive, (), ()))
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx):
            return pyro.sample("y", dist.Normal((w * x).sum(-1), 0.1 + scale), obs=y)

    return model


#: regression, a network, local latents, plates, and improper priors
MODELS: dict[str, Case] = {
    "regression": Case(_regression, {"scale": (), "w": (2,)}),
    "network": Case(
        _network,
        {"0.weight": (2, 1), "0.bias": (2,), "2.weight": (1, 2), "2.bias": (1,)},
        inputs=1,
    ),
    "local": Case(_local, {"mean": (), "rate": (ROWS,)}, inputs=1, local=("rate",), coupled=True),
    "plain": Case(_plain, {"share": (3,), "level": (3, 1)}, inputs=1, coupled=True),
    "flat priors": Case(_flat_priors, {"w": (2,), "scale": ()}, improper=True),
}
