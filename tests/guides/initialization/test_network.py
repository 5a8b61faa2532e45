"""Which models are networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyro_implicit import BayesianModule, HyperNetworkGuide
from pyro_implicit.guides import base
from pyro_implicit.guides.initialization.gaussian_start import GaussianStart
from pyro_implicit.guides.initialization.network import has_layers, is_network


def _perceptron(width: int, num_layers: int = 2) -> Callable[[], Any]:
    layers: list[nn.Module] = [nn.Linear(4, width), nn.Tanh()]
    network = nn.Sequential(*layers, nn.Linear(width, 1)) if num_layers == 2 else layers[0]
    bayesian = BayesianModule(network, prior=dist.Normal(0.0, 1.0))
    return lambda: bayesian(torch.ones(3, 4))


def _by_hand() -> None:
    """Two matrices and as many numbers beside them."""
    pyro.sample("first", dist.Normal(0.0, 1.0).expand([4, 40]).to_event(2))
    pyro.sample("second", dist.Normal(0.0, 1.0).expand([40, 3]).to_event(2))
    pyro.sample("others", dist.Normal(0.0, 1.0).expand([280]).to_event(1))


def _mostly_others() -> None:
    _by_hand()
    pyro.sample("one more", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize(
    "make, layers, network",
    [
        (lambda: _perceptron(50), True, True),
        (lambda: _perceptron(10), True, False),  # 61 latents
        (lambda: _perceptron(300, num_layers=1), False, False),
        (lambda: _by_hand, True, True),
        (lambda: _mostly_others, False, False),
    ],
)
def test_a_network_is_mostly_weights_of_several_layers(
    make: Callable[[], Any], layers: bool, network: bool
) -> None:
    guide = HyperNetworkGuide(make(), init_from=None).setup()
    found = [judge(guide.sites, guide.prototype_trace) for judge in (has_layers, is_network)]
    assert found == [layers, network]


@pytest.mark.parametrize("kind", ["mean-field", "hessian", "ggn"])
@pytest.mark.parametrize("width, expected", [(50, True), (10, False)])
def test_a_start_by_name_is_told(
    kind: str, width: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def start(kind: str, log_joint: Any, loc: Any, *, is_network: bool) -> GaussianStart:
        told.append(is_network)
        return GaussianStart(loc)

    monkeypatch.setattr(base, "gaussian_start", start)
    HyperNetworkGuide(_perceptron(width), init_from=kind).setup()
    assert told == [expected]
