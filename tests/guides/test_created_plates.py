"""What ``create_plates`` may return, as Pyro's autoguides take it."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import ConditionalHyperNetworkGuide, HyperNetworkGuide
from pyro_implicit.exceptions import ArgumentError

X = torch.randn(20, 2)


def model(x):
    with pyro.plate("data", 20, dim=-1):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(level, 1.0), obs=x[:, 0])


def rows():
    return pyro.plate("data", 20, dim=-1)


@pytest.mark.parametrize("made", [None, 3, "data", [None], {"data": 1}], ids=repr)
@pytest.mark.parametrize("kind", [HyperNetworkGuide, ConditionalHyperNetworkGuide])
def test_what_is_no_plate_is_told(kind, made):
    guide = kind(model, create_plates=lambda x: made)
    with pytest.raises(ArgumentError, match="create_plates returned .* where a plate of the model"):
        guide(X)


def test_an_error_of_the_function_is_its_own():
    def plates(x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        HyperNetworkGuide(model, create_plates=plates)(X)


@pytest.mark.parametrize("make", [rows, lambda: [rows()], lambda: (rows(),), list])
def test_plates_are_taken_as_pyro_takes_them(make):
    guide = HyperNetworkGuide(model, create_plates=lambda x: make())
    assert guide(X)["level"].shape == (20,)
