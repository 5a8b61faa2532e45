"""Rows that the model names are those that its densities are of, whatever the guide draws."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoGuideList
from torch import Tensor

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    ImplicitDistribution,
    LinearisedELBO,
    MixtureDensityGuide,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import SiteError
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.objectives import IWAE

ROWS = 7
OFFSETS = 3.0 * torch.arange(ROWS)
GUIDES = [ConditionalHyperNetworkGuide, MixtureDensityGuide]


def model(y: Tensor | None, rows: Tensor) -> Tensor:
    with pyro.plate("data", ROWS, subsample=rows) as index:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        return pyro.sample("y", dist.Normal(z + OFFSETS[index], 1.0), obs=y)


def plate(y: Tensor | None, rows: Tensor) -> pyro.plate:
    return pyro.plate("data", ROWS, subsample=rows)


def evidence(y: Tensor, rows: Tensor) -> float:
    """Of these rows: each is Normal(offset, sqrt 2), without its latent."""
    return float(dist.Normal(OFFSETS[rows], math.sqrt(2)).log_prob(y).sum())


def make(kind: Any, **options: Any) -> Any:
    # the exact posterior of z is Normal(residual / 2, 1 / sqrt 2)
    return kind(model, context=lambda y, rows: (y - OFFSETS[rows])[:, None], **options)


@st.composite
def named_rows(draw: Any) -> Tensor:
    order = draw(st.permutations(range(ROWS)))
    return torch.tensor(order[: draw(st.integers(1, ROWS))])


@pytest.mark.parametrize("kind", GUIDES)
@pytest.mark.parametrize("vectorised", [False, True])
@given(rows=named_rows())
@settings(max_examples=8)
def test_the_models_rows_are_kept(kind: Any, vectorised: Any, rows: Tensor) -> None:
    y = OFFSETS[rows] + torch.linspace(-1, 1, len(rows))
    pyro.set_rng_seed(0)
    alone, told = make(kind), make(kind, create_plates=plate)
    told.setup(y, rows) if kind is ConditionalHyperNetworkGuide else told(y, rows)
    alone(y, rows)
    alone.load_state_dict(told.state_dict())
    objective = IWAE(16, vectorize_particles=vectorised, max_plate_nesting=1)
    values = []
    for guide in (alone, told):
        pyro.set_rng_seed(1)
        values.append(objective.loss(model, guide, y, rows))
    assert values[0] == pytest.approx(values[1], rel=1e-5)


@pytest.mark.parametrize("kind", GUIDES)
def test_the_evidence_is_of_the_rows_that_the_model_names(kind: Any) -> None:
    rows = torch.tensor([5, 2, 6])
    y = OFFSETS[rows] + torch.tensor([0.5, -1.0, 2.0])
    pyro.set_rng_seed(0)
    guide = make(kind, init_scale=1.5)
    guide(y, rows)
    objective = IWAE(20_000, vectorize_particles=True, max_plate_nesting=1)
    found = -objective.loss(model, guide, y, rows) * len(rows) / ROWS
    assert found == pytest.approx(evidence(y, rows), abs=0.1)


def test_pyros_own_objective_keeps_the_models_rows_as_well() -> None:
    rows = torch.tensor([5, 2, 6])
    y = OFFSETS[rows]
    guide = make(MixtureDensityGuide)
    guide(y, rows)
    objective = Trace_ELBO(2_000, vectorize_particles=True, max_plate_nesting=1)
    found = -objective.loss(model, guide, y, rows) * len(rows) / ROWS
    assert evidence(y, rows) - 3 * len(rows) < found < evidence(y, rows)  # far rows: below -50


# ---- refused


@pytest.mark.parametrize("kind", [HyperNetworkGuide, *GUIDES])
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_guide_that_is_told_other_rows_than_the_model_names(kind: Any, vectorised: bool) -> None:
    def slip(y: Tensor, rows: Tensor) -> pyro.plate:
        return pyro.plate("data", ROWS, subsample=torch.arange(len(rows)))

    rows = torch.tensor([5, 2, 6])
    y = OFFSETS[rows]
    if kind is HyperNetworkGuide:
        guide = kind(model, create_plates=slip, init_from=None)
    else:
        guide = make(kind, create_plates=slip)
    guide(y, rows)
    objective = LinearisedELBO(2, vectorize_particles=vectorised, max_plate_nesting=1)
    if kind is MixtureDensityGuide:
        objective = IWAE(2, vectorize_particles=vectorised, max_plate_nesting=1)
    with pytest.raises(SiteError, match=r"'data' has other rows in the model than in the guide"):
        objective.loss(model, guide, y, rows)


def test_a_part_of_a_list_that_is_not_told_the_rows() -> None:
    rows = torch.tensor([5, 2, 6])
    y = OFFSETS[rows]
    guide = AutoGuideList(model)
    part = poutine.block(model, expose=["z"])
    guide.append(ConditionalHyperNetworkGuide(part, context=lambda y, rows: y[:, None]))
    guide(y, rows)
    with pytest.raises(SiteError, match=r"'data' has other rows in.*create_plates"):
        LinearisedELBO(2).loss(model, guide, y, rows)


@pytest.mark.parametrize("count", [1, 2])
def test_a_guide_that_draws_for_another_number_of_rows(count: int) -> None:
    generator = MLPGenerator(noise_dim=3, output_dim=1, hidden_dims=(4,))

    def guide(y: Tensor, rows: Tensor) -> None:
        with poutine.block(hide=["data"]):
            own = pyro.plate("data", ROWS, subsample=torch.arange(count))
        with own:
            z = sample_implicit("flat", ImplicitDistribution(generator), latents=("z",))
            pyro.sample("z", dist.Delta(z[..., 0]))

    rows = torch.tensor([5, 2, 6])
    match = rf"'data' shows 3 rows in the model and {count} in the guide.*'z' among them"
    with pytest.raises(SiteError, match=match):
        LinearisedELBO(2).loss(model, guide, OFFSETS[rows], rows)


def test_draws_that_are_mapped_may_have_rows_of_their_own() -> None:
    """A plate that numbers a minibatch at random does so for each draw."""
    y = torch.tensor([0.3, -1.0, 0.5])

    def program(y: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", ROWS, subsample_size=len(y)):
            z = pyro.sample("z", dist.Normal(a, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    guide = AutoGuideList(
        program, create_plates=lambda y: pyro.plate("data", ROWS, subsample_size=len(y))
    )
    guide.append(HyperNetworkGuide(poutine.block(program, expose=["a"]), init_from=None))
    part = poutine.block(program, expose=["z"])
    guide.append(ConditionalHyperNetworkGuide(part, context=lambda y: y[:, None]))
    guide(y)
    pyro.set_rng_seed(0)
    found = {
        way: LinearisedELBO(400, vectorize_particles=way).loss(program, guide, y)
        for way in (False, True, "vmap")
    }
    assert found["vmap"] == pytest.approx(found[False], abs=1.5)
    assert found["vmap"] == pytest.approx(found[True], abs=1.5)
