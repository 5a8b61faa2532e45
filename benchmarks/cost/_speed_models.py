"""Three small posteriors, each as a Pyro model and as a log-joint written by hand."""

# Shape legend: S draws, N rows, D features, m latents.
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.posterior._posteriordb_models import eight_schools
from pyro_implicit import BayesianModule

__all__ = ["TARGETS", "Target", "linear", "schools_data"]

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_HIDDEN = 8
_NOISE = 0.1


@dataclass(frozen=True)
class Target:
    """
    :param model: a Pyro model.
    :param args: its arguments.
    :param log_joint: its log-density by hand, from unconstrained latents ``(S, m)`` in the model's
        order to ``(S,)``.
    """

    model: Callable[..., Any]
    args: tuple[Tensor, ...]
    log_joint: Callable[[Tensor], Tensor]


def linear(x: Tensor, w: Tensor) -> Tensor:
    """
    :param Tensor x: rows ``(N, D)``.
    :param Tensor w: coefficients ``(D,)``, or those of several draws ``(S, 1, D)``.
    :returns: a linear predictor ``(N,)`` or ``(S, N)``.
    """
    found = F.linear(w, x)
    return found.squeeze(-2) if w.dim() > 1 else found


def schools_data() -> tuple[Tensor, Tensor]:
    """Effects and standard errors of the eight schools, each ``(8,)``."""
    effects = torch.tensor([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    return effects, torch.tensor([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def _schools() -> Target:
    y, sigma = schools_data()
    constant = math.log(2 / math.pi) - 2 * math.log(5) - 17 * _HALF_LOG_2PI
    constant -= float(sigma.log().sum())

    def log_joint(u: Tensor) -> Tensor:
        mu, log_tau, t = u[:, 0], u[:, 1], u[:, 2:]
        tau = log_tau.exp()
        rest = (y - mu[:, None] - tau[:, None] * t) / sigma
        squares = (mu / 5).square() + t.square().sum(-1) + rest.square().sum(-1)
        return constant - 0.5 * squares - torch.log1p((tau / 5).square()) + log_tau

    return Target(eight_schools, (y, sigma), log_joint)


def _logistic(num_rows: int = 200, num_features: int = 10) -> Target:
    x, truth = torch.randn(num_rows, num_features), torch.randn(num_features)
    y = (torch.rand(num_rows) < torch.sigmoid(x @ truth)).float()

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(x.new_zeros(num_features), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=linear(x, w)), obs=y)

    def log_joint(u: Tensor) -> Tensor:
        logits = u @ x.mT
        prior = -0.5 * u.square().sum(-1) - num_features * _HALF_LOG_2PI
        return prior + (y * logits - F.softplus(logits)).sum(-1)

    return Target(model, (x, y), log_joint)


def _network(num_rows: int = 100) -> Target:
    """A 1-8-8-1 perceptron: 97 weights."""
    x = torch.linspace(-1, 1, num_rows)[:, None]
    y = torch.sin(3 * x[:, 0]) + _NOISE * torch.randn(num_rows)
    h = _HIDDEN
    layers = [nn.Linear(1, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 1)]
    net = BayesianModule(nn.Sequential(*layers), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, _NOISE), obs=y)

    def log_joint(u: Tensor) -> Tensor:
        w1, b1, w2, b2, w3, b3 = u.split([h, h, h * h, h, h, 1], -1)
        hidden = torch.tanh(x * w1[:, None] + b1[:, None])  # (S, N, h)
        kernel = w2.reshape(-1, h, h).mT
        hidden = torch.tanh(torch.baddbmm(b2[:, None], hidden, kernel))
        mean = torch.baddbmm(b3[:, None], hidden, w3[..., None])[..., 0]
        squares = u.square().sum(-1) + ((y - mean) / _NOISE).square().sum(-1)
        constant = (num_rows + u.shape[-1]) * _HALF_LOG_2PI + num_rows * math.log(_NOISE)
        return -0.5 * squares - constant

    return Target(model, (x, y), log_joint)


#: name -> how to make it
TARGETS: dict[str, Callable[[], Target]] = {
    "eight schools": _schools,
    "logistic regression": _logistic,
    "network of 97 weights": _network,
}
