"""The density of a search: the model's own wherever it ends, also where its graph knows less."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.guides.initialization import search_density
from pyro_implicit.guides.initialization.ascent import ascend
from pyro_implicit.guides.initialization.lbfgs import maximise
from pyro_implicit.guides.initialization.search_density import SearchDensity
from pyro_implicit.handlers.log_joint import LogJoint

ONES = torch.ones(6)


def smooth(y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.StudentT(4.0, w.sum(), 0.5), obs=y)


class Rising(dist.TorchDistribution):  # type: ignore[misc]
    """A density that goes on rising beyond the values that its parameter may have."""

    arg_constraints = {"a": dist.constraints.unit_interval}
    support = dist.constraints.real

    def __init__(self, a: Tensor) -> None:
        self.a = a
        super().__init__(a.shape)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Rising:
        return Rising(self.a.expand(batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        return 100 * self.a


def edged(y: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.5, 0.1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", Rising(a).expand([len(y)]), obs=y)


def search(model: Any) -> SearchDensity:
    guide = HyperNetworkGuide(model, init_from=None)
    guide(ONES)
    return SearchDensity(LogJoint(model, list(guide.sites), (ONES,), {}))


@pytest.mark.parametrize("how", ["ascend", "maximise"])
def test_it_finds_what_the_model_finds(how: str) -> None:
    density, start = search(smooth), torch.full((3,), -0.3)
    value = density.log_joint.value
    exact = {"ascend": ascend, "maximise": maximise}[how](value, start, 30)
    found = getattr(density, how)(start, 30)
    assert density.record(start)
    assert torch.equal(found[0], exact[0]) and found[1] == exact[1]
    assert density.num_gradients >= 10


@pytest.mark.long
@pytest.mark.parametrize("how", ["ascend", "maximise"])
def test_it_never_ends_where_the_model_refuses(how: str) -> None:
    density, start = search(edged), torch.full((1,), 0.9)
    point, _ = getattr(density, how)(start, 60)
    assert density.record(start)
    assert 0 <= float(point) <= 1 and bool(density.log_joint.value(point).isfinite())
    graph = {"ascend": ascend, "maximise": maximise}[how](density.quick, start, 60)[0]
    assert float(graph) > 1  # which the graph by itself does


def test_a_start_outside_and_one_that_is_large_are_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    density, outside = search(edged), torch.full((1,), 1.5)
    _, score = density.ascend(outside, 5)
    assert score == -math.inf and density._recorded is None
    monkeypatch.setattr(search_density, "MAX_LATENTS_TO_RECORD", 2)
    density = search(smooth)
    density.maximise(torch.zeros(3), 5)
    assert density._recorded is None and not density.record(torch.zeros(3))


def test_draws_are_in_double_precision() -> None:
    density = search(smooth)
    draws = 0.5 * torch.randn(5, 3)
    values = density.at_draws(draws)
    assert values.dtype == torch.float64
    assert torch.allclose(values, torch.stack([density.log_joint.in_double(u) for u in draws]))
