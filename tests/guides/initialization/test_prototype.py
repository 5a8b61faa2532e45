"""What an ``init_loc_fn`` returns must be a value of its site."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import (
    init_to_feasible,
    init_to_median,
    init_to_uniform,
    init_to_value,
)
from torch.distributions import transforms

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import ImplicitError, ShapeError, SiteError
from pyro_implicit.handlers.supports.own_support import own_support


def model() -> None:
    pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("scale", dist.LogNormal(0.0, 1.0))


@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        ({"w": torch.zeros(3)}, ShapeError, r"shape \(3,\) for latent site 'w', .* \(2,\)"),
        ({"scale": torch.tensor(-1.0)}, SiteError, "'scale' outside of its support"),
        ({"scale": torch.tensor(torch.nan)}, SiteError, "'scale' that is not finite"),
    ],
)
def test_starts_that_are_no_values(values: Any, error: type[ImplicitError], match: str) -> None:
    guide = HyperNetworkGuide(model, init_loc_fn=init_to_value(values=values))
    with pytest.raises(error, match=match):
        guide.setup()


@pytest.mark.parametrize(("value", "kind"), [(None, "NoneType"), ("a", "str"), ({}, "dict")])
def test_starts_that_are_no_numbers(value: Any, kind: str) -> None:
    guide = HyperNetworkGuide(model, init_loc_fn=lambda _: value)
    with pytest.raises(SiteError, match=f"a {kind}, for latent site 'w'; expected a tensor"):
        guide.setup()


def test_starts_that_are() -> None:
    values = {"w": torch.ones(2), "scale": torch.tensor(2.0)}
    guide = HyperNetworkGuide(model, init_loc_fn=init_to_value(values=values), init_scale=1e-3)
    guide.setup()
    assert torch.allclose(guide.median()["scale"], values["scale"], rtol=0.05)


@pytest.mark.parametrize("init_loc_fn", [init_to_feasible, init_to_median, init_to_uniform])
@pytest.mark.parametrize(
    "moves",
    [
        [transforms.ExpTransform(), transforms.AffineTransform(1.0, 2.0)],
        [transforms.SigmoidTransform(), transforms.AffineTransform(3.0, -1.0)],
        [transforms.ExpTransform(), transforms.AffineTransform(0.0, torch.arange(1.0, 4.0))],
    ],
)
@pytest.mark.parametrize("is_vector", [False, True])
def test_starts_that_pyro_makes_in_a_support_that_is_stated_too_wide(
    init_loc_fn: Any, moves: Any, is_vector: bool
) -> None:
    base = dist.Normal(torch.zeros(3), 1.0)
    prior = dist.TransformedDistribution(base.to_event(1) if is_vector else base, moves)
    prior = prior if is_vector else prior.to_event(1)

    def vector_model() -> None:
        pyro.sample("a", prior)

    guide = HyperNetworkGuide(vector_model, init_loc_fn=init_loc_fn)
    value = guide()["a"]
    assert bool(own_support(prior).check(value).all())
    assert bool(prior.log_prob(value).isfinite())


def test_a_start_by_value_outside_of_the_support_that_is_narrower_than_stated() -> None:
    base = dist.Normal(torch.zeros(3), 1.0).to_event(1)
    moves = [transforms.ExpTransform(), transforms.AffineTransform(1.0, 1.0)]

    def shifted() -> None:
        pyro.sample("a", dist.TransformedDistribution(base, moves))

    guide = HyperNetworkGuide(shifted, init_loc_fn=init_to_value(values={"a": torch.zeros(3)}))
    with pytest.raises(SiteError, match="'a' outside of its support"):
        guide.setup()
