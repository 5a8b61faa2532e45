"""The models of the main job: regression and classification by a Bayesian neural network."""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit.bayesian.module import BayesianModule

HIDDEN_UNITS = 50


def build_model(num_features: int, num_rows: int, num_classes: int = 0) -> Callable[..., Tensor]:
    """
    A Pyro model ``model(x, y=None)`` with latents ``sigma`` and the network's weights.

    One hidden layer of 50 tanh units, standard normal priors on all weights, log-normal prior on
    the noise; ``x`` ``(B, D)`` and ``y`` ``(B,)`` are standardised, and any B of the ``num_rows``
    rows. The network's output is recorded as the deterministic site ``mean``, shape ``(B,)``. With
    classes ``y`` holds their places, there is no noise, and the network's outputs are logits.

    :param int num_features: D.
    :param int num_rows: the number of training rows, to which a minibatch is scaled up.
    :param int num_classes: how many classes; 0 for numbers.
    """
    network = torch.nn.Sequential(
        torch.nn.Linear(num_features, HIDDEN_UNITS),
        torch.nn.Tanh(),
        torch.nn.Linear(HIDDEN_UNITS, num_classes or 1),
    )
    bayesian_network = BayesianModule(network, prior=dist.Normal(0.0, 1.0))

    def regression(x: Tensor, y: Tensor | None = None) -> Tensor:
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        output = bayesian_network(x).squeeze(-1)
        with pyro.plate("data", num_rows, subsample_size=len(x)):
            mean = pyro.deterministic("mean", output, event_dim=0)
            return pyro.sample("y", dist.Normal(mean, sigma), obs=y)

    def classification(x: Tensor, y: Tensor | None = None) -> Tensor:
        logits = bayesian_network(x)
        with pyro.plate("data", num_rows, subsample_size=len(x)):
            return pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return classification if num_classes else regression
