"""Priors of parameters that several layers share."""

from __future__ import annotations

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import BayesianModule
from pyro_implicit.bayesian import last_layer, priors_by_type

WIDE, NARROW = dist.Normal(0.0, 2.0), dist.Normal(0.0, 1.0)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.middle = nn.Linear(4, 4)
        self.decoder = nn.Linear(4, 7, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.decoder(self.middle(self.embedding(x)))
        return found


MIDDLE = {"middle.weight": NARROW, "middle.bias": NARROW}


@pytest.mark.parametrize(
    ("priors", "expected"),
    [
        ({nn.Linear: NARROW}, MIDDLE | {"embedding.weight": NARROW}),
        ({nn.Embedding: WIDE}, {"embedding.weight": WIDE}),
        ({nn.Embedding: WIDE, nn.Linear: NARROW}, MIDDLE | {"embedding.weight": WIDE}),
        ({nn.Embedding: None, nn.Module: NARROW}, MIDDLE),
    ],
)
def test_a_kind_has_what_it_shares(priors: dict[type, object], expected: object) -> None:
    assert priors_by_type(Tied(), priors) == expected


def test_the_last_layer_has_what_it_shares() -> None:
    net = Tied()
    prior = last_layer(net, NARROW)
    assert prior == {"embedding.weight": NARROW}
    net.decoder.weight.requires_grad_(False)
    assert last_layer(net, NARROW) == MIDDLE


def test_a_draw_is_the_same_in_both_places() -> None:
    net = Tied()
    model = BayesianModule(net, prior=last_layer(net, NARROW))
    assert model(torch.arange(3)).shape == (3, 7)
