"""Latents that nobody can draw get some value of their support."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints

from pyro_implicit.handlers.looks.any_value import AnyValue


@pytest.mark.parametrize(
    ("support", "batch", "event"),
    [
        (constraints.real, (), ()),
        (constraints.positive, (3,), ()),
        (constraints.unit_interval, (2,), (4,)),
        (constraints.simplex, (3,), (4,)),
        (constraints.lower_cholesky, (), (3, 3)),
        (constraints.ordered_vector, (2,), (3,)),
    ],
)
def test_it_is_of_the_shape_and_within_the_support(support: Any, batch: Any, event: Any) -> None:
    fn = dist.ImproperUniform(support, batch, event)
    with AnyValue(), poutine.trace() as tracer:
        with pyro.plate("one", 2, dim=-2):
            value = pyro.sample("w", fn)
    assert value.shape == torch.Size((2, *(batch or (1,)), *event))
    assert bool(fn.support.check(value).all())
    assert not tracer.trace.nodes["w"]["is_observed"]


def test_others_are_drawn_and_data_stay() -> None:
    with AnyValue():
        draws = {float(pyro.sample("w", dist.Normal(0.0, 1.0))) for _ in range(3)}
        fn = dist.ImproperUniform(constraints.real, (), ())
        seen = pyro.sample("y", fn, obs=torch.tensor(2.5))
    assert len(draws) == 3 and float(seen) == 2.5
