"""The number of plate dimensions that was asked for is one that draws can stand left of."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import config_enumerate

from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import ArgumentError

Y = torch.tensor([0.3, -1.2, 0.8])


def plain() -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(Y)):
        pyro.sample("y", dist.Normal(w, 1.0), obs=Y)


@config_enumerate
def listed() -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(Y)):
        z = pyro.sample("z", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Normal(w + z, 1.0), obs=Y)


@pytest.mark.parametrize("validated", [True, False])
@pytest.mark.parametrize(
    ("model", "vectorised"), [(plain, True), (listed, False), (listed, True), (listed, "vmap")]
)
def test_fewer_than_there_are_are_refused(model: Any, vectorised: Any, validated: bool) -> None:
    """With as many draws as rows and no validation the two were taken for each other."""
    guide = HyperNetworkGuide(model, init_from=None).setup()
    few = LinearisedELBO(len(Y), vectorize_particles=vectorised, max_plate_nesting=0)
    told = r"max_plate_nesting=0, and model and guide have plates in 1 dim.*Write max_plate_nesti"
    with pyro.validation_enabled(validated), pytest.raises(ArgumentError, match=told):
        few.loss(model, guide)
    for enough in (1, 3, math.inf):
        objective = LinearisedELBO(len(Y), vectorize_particles=vectorised, max_plate_nesting=enough)
        assert math.isfinite(objective.loss(model, guide))


@pytest.mark.parametrize("vectorised", [False, "vmap"])
def test_where_nothing_stands_left_of_plates_the_number_is_for_validation(vectorised: Any) -> None:
    guide = HyperNetworkGuide(plain, init_from=None).setup()
    objective = LinearisedELBO(3, vectorize_particles=vectorised, max_plate_nesting=0)
    with pytest.raises(ValueError, match="Try increasing max_plate_nesting to at least 1"):
        objective.loss(plain, guide)
    with pyro.validation_enabled(False):
        assert math.isfinite(objective.loss(plain, guide))
