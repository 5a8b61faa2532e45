"""What posterior-predictive training stands beside: networks whose output is a distribution."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor

from pyro_implicit.distributions import MixtureDensityNetwork

__all__ = ["by_maximum_likelihood"]


def by_maximum_likelihood(
    num_components: int,
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    steps: Iterable[int],
    *,
    num_steps: int,
    lr: float,
    check_every: int,
) -> list[tuple[str, int, MixtureDensityNetwork]]:
    """
    A perceptron of two layers of 64 units from an input to a Gaussian or a mixture of several,
    whose scales depend on the input too; Adam whose rate falls to a tenth.

    :param int num_components: 1 for a Gaussian.
    :param train: inputs ``(N, k)`` and targets ``(N,)``.
    :param validation: the same to stop by.
    :returns: name, step and network: the best on validation data, and the last one.
    """
    net = MixtureDensityNetwork(
        train[0].shape[1], torch.zeros(1), num_components, (64, 64), init_scale=1.0
    )
    rate = torch.optim.Adam(net.parameters(), lr=lr)
    falling = torch.optim.lr_scheduler.ExponentialLR(rate, 0.1 ** (1 / num_steps))
    best = (float("inf"), 0, net)
    for step in steps:
        rate.zero_grad()
        loss = -_mean_log_density(net, *train)
        loss.backward()
        rate.step()
        falling.step()
        if step % check_every == 0 or step == num_steps - 1:
            with torch.no_grad():
                score = -_mean_log_density(net, *validation).item()
            if score < best[0]:
                best = (score, step, copy.deepcopy(net))
    return [("best", best[1], best[2]), ("last", num_steps, net)]


def _mean_log_density(net: MixtureDensityNetwork, x: Tensor, y: Tensor) -> Tensor:
    return net.distribution(x).log_prob(y[:, None]).mean()
