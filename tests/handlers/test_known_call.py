"""Modules of a user's may have an attribute of the name that guides give to their first call."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from pyro_implicit import ConditionalHyperNetworkGuide, evaluate, fit, predict
from pyro_implicit.handlers.known_call import known_call_of


class Context(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first_call = True
        self.layer = nn.Linear(2, 4)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        out: Tensor = self.layer(x)
        return out


def model(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z + x.sum(-1), 0.5), obs=y)


def test_an_attribute_of_a_users_module_is_not_taken_for_the_first_call() -> None:
    x = torch.randn(6, 2)
    guide = ConditionalHyperNetworkGuide(model, context=Context())
    fit(model, guide, x, x.sum(-1), num_steps=3, progress=False)
    predict(model, guide, x, num_samples=2)
    evaluate(model, guide, x, x.sum(-1), num_samples=2)
    assert known_call_of(guide) is guide.first_call is not None
    assert known_call_of(guide.context_network) is None and known_call_of(print) is None
