"""The model of the main job: regression by a Bayesian neural network with unknown noise."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit.bayesian.module import BayesianModule

HIDDEN_UNITS = 50


def build_model(num_features: int, num_rows: int) -> Callable[..., Tensor]:
    """
    A Pyro model ``model(x, y=None)`` with latents ``sigma`` and the network's weights.

    One hidden layer of 50 tanh units, standard normal priors on all weights, log-normal prior on
    the noise; ``x`` ``(B, D)`` and ``y`` ``(B,)`` are standardised, and any B of the ``num_rows``
    rows. The network's output is recorded as the deterministic site ``mean``, shape ``(B,)``.

    :param int num_features: D.
    :param int num_rows: the number of training rows, to which a minibatch is scaled up.
    """
    network = torch.nn.Sequential(
        torch.nn.Linear(num_features, HIDDEN_UNITS),
        torch.nn.Tanh(),
        torch.nn.Linear(HIDDEN_UNITS, 1),
    )
    bayesian_network = BayesianModule(network, prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        output = bayesian_network(x).squeeze(-1)
        with pyro.plate("data", num_rows, subsample_size=len(x)):
            mean = pyro.deterministic("mean", output, event_dim=0)
            return pyro.sample("y", dist.Normal(mean, sigma), obs=y)

    return model
