"""Bounds of supports go where the modules go that map draws on them."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.handlers.supports.served_supports import bounds_of
from pyro_implicit.inference import GuidePrior, prior_from

LOW, HIGH = torch.tensor([-2.0, -1.0]), torch.tensor([3.0, 1.0])


def model() -> None:
    pyro.sample("u", dist.Uniform(LOW, HIGH).to_event(1))


def guide() -> Any:
    return HyperNetworkGuide(model, init_from=None).setup()


def sites_of(module: Any) -> Any:
    return module._map.sites if isinstance(module, GuidePrior) else module.sites


def bounds(module: Any) -> list[Tensor]:
    return [bound for site in sites_of(module) for bound in bounds_of(site.support)]


MAKERS = [guide, lambda: GuidePrior(guide()), lambda: prior_from(guide(), seed=0)]


@pytest.mark.parametrize("make", MAKERS)
def test_they_are_moved_with_the_tensors(make: Any) -> None:
    module = make()
    before, seen = bounds(module), []
    module._apply(lambda tensor: (seen.append(tensor), tensor)[1])  # as .to does
    assert len(before) == 2
    assert all(any(bound is one for one in seen) for bound in before)


@pytest.mark.parametrize("make", MAKERS)
def test_they_keep_their_dtype_and_their_numbers(make: Any) -> None:
    module = make()
    module.double()
    assert [bound.dtype for bound in bounds(module)] == [torch.float32] * 2
    assert torch.equal(bounds(module)[0], LOW) and torch.equal(bounds(module)[1], HIGH)


def test_a_prior_has_sites_of_its_own() -> None:
    before = guide()
    assert GuidePrior(before)._map.sites[0] is not before.sites[0]
