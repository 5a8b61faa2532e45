"""What is told of a distribution of noise, and how it is drawn from."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit.distributions._base_dist import (
    draw,
    is_one_law,
    is_standard_normal,
    loses_gradients,
)


def _normal(*shape: int) -> Any:
    return dist.Normal(torch.zeros(shape), 1.0).to_event(1)


def _mixture(locs: torch.Tensor) -> Any:
    return dist.MixtureSameFamily(
        dist.Categorical(torch.ones(2)), dist.Normal(locs, 1.0).to_event(1)
    )


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        (_normal(2), True),
        (_normal(1, 2), True),
        (_normal(2).expand([5]), True),
        (_normal(2).expand([4, 5]), True),
        (_normal(5, 2), False),  # five rows of numbers that need not be the same
        (dist.Normal(torch.zeros(2), torch.ones(5, 1)).to_event(1), False),
        (_mixture(torch.zeros(2, 3)), True),
        (_mixture(torch.zeros(2, 3)).expand([5]), False),  # nobody can tell
        (dist.Uniform(0.0, 1.0).expand([2]).to_event(1), True),
        (dist.Uniform(0.0, 1.0).expand([5, 2]).to_event(1), False),
    ],
)
def test_copies_of_one_law(base: Any, expected: bool) -> None:
    assert is_one_law(base) is expected


def test_what_a_plate_leaves_is_one_law() -> None:
    with pyro.poutine.trace() as tracer, pyro.plate("rows", 4):
        pyro.sample("z", _normal(2))
        pyro.sample("v", dist.Delta(torch.zeros(2), event_dim=1))
    assert is_one_law(tracer.trace.nodes["z"]["fn"])


def test_draws_move_where_they_can() -> None:
    loc = torch.zeros(2, requires_grad=True)
    assert draw(dist.Normal(loc, 1.0).to_event(1), (3,)).requires_grad
    assert not draw(_mixture(loc[:, None]), (3,)).requires_grad


def test_lost_gradients() -> None:
    loc = torch.zeros(2, requires_grad=True)
    assert not loses_gradients(dist.Normal(loc, 1.0).to_event(1), torch.zeros(2))
    assert loses_gradients(_mixture(loc[:, None]), torch.zeros(1))
    assert not loses_gradients(_mixture(loc[:, None].detach()), torch.zeros(1))
    with torch.no_grad():
        assert not loses_gradients(_mixture(loc[:, None]), torch.zeros(1))


def test_the_standard_normal() -> None:
    assert is_standard_normal(_normal(2)) and is_standard_normal(dist.Normal(0.0, 1.0))
    assert not is_standard_normal(dist.Normal(torch.zeros(2, requires_grad=True), 1.0).to_event(1))
    assert not is_standard_normal(dist.Normal(torch.zeros(2), 2.0).to_event(1))
    assert not is_standard_normal(dist.Laplace(0.0, 1.0))
