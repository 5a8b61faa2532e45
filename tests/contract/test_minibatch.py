"""Minibatches: the rows that the model chose, the right weight, local latents only on request."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI

from pyro_implicit.exceptions import SiteError
from pyro_implicit.testing.objective import BATCHES, check_minibatches
from tests.contract.registry import MODELS, ROWS


@pytest.mark.long
@pytest.mark.turn(1, of=4)
def test_minibatch_loss_and_gradient_are_unbiased(make_guide, make_objective, case):
    with make_objective.allowed(make_guide, case, minibatch=True):
        unbiased = make_objective.unbiased
        check_minibatches(make_objective(max_plate_nesting=2), make_guide, case, which=unbiased)


def test_each_row_of_a_minibatch_is_seen_by_its_own_latent(make_guide):
    case = MODELS["local"]
    model, (x, y) = case.make(), case.data()
    guide = make_guide(model, create_plates=case.create_plates()).setup(x, y)
    for idx in BATCHES:
        pyro.set_rng_seed(5)
        everything = guide(x, y)["rate"]
        pyro.set_rng_seed(5)
        trace = poutine.trace(guide).get_trace(x[idx], y[idx], idx)
        assert torch.equal(trace.nodes["rate"]["value"], everything[idx])
        replayed = poutine.trace(poutine.replay(model, trace=trace)).get_trace(x[idx], y[idx], idx)
        assert torch.equal(replayed.nodes["data"]["value"], idx)
        assert torch.equal(replayed.nodes["rate"]["value"], everything[idx])


@pytest.mark.long
@pytest.mark.turn(6, of=8)
def test_all_rows_of_a_local_latent_train(make_guide, make_objective):
    case = MODELS["local"]
    model, (x, y) = case.make(), case.data()
    guide = make_guide(model, create_plates=case.create_plates())
    guide.setup(x, y)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), make_objective())
    before = guide.quantiles([0.5], num_samples=50)["rate"]
    with make_objective.allowed(make_guide, case, minibatch=True):
        for _ in range(2):
            for idx in BATCHES:
                assert math.isfinite(svi.step(x[idx], y[idx], idx))
        after = guide.quantiles([0.5], num_samples=50)["rate"]
        assert before.shape == after.shape == (1, ROWS)
        assert (before != after).all()


@pytest.mark.long
@pytest.mark.turn(7, of=8)
@pytest.mark.parametrize("rows", [4, 1])
def test_a_plate_that_draws_its_own_rows(make_guide, make_objective, rows):
    case = MODELS["local"]
    x, y = case.data()

    def sparse(x, y):  # the model draws rows and looks them up, as in Pyro's own tutorials
        with pyro.plate("data", ROWS, subsample_size=rows) as idx:
            return model_rows(x[idx], y[idx])

    def model_rows(x, y):
        rate = pyro.sample("rate", pyro.distributions.LogNormal(0.0, 0.5))
        return pyro.sample("y", pyro.distributions.Normal(x[:, 0] * rate, 0.3), obs=y)

    guide = make_guide(
        sparse,
        create_plates=lambda x, y: pyro.plate("data", ROWS, subsample_size=rows, dim=-1),
        init_from=None,  # needs all rows at once
    )
    svi = SVI(sparse, guide, pyro.optim.Adam({"lr": 0.01}), make_objective())
    with make_objective.allowed(make_guide, case, minibatch=True):
        for _ in range(3):
            assert math.isfinite(svi.step(x, y))
    assert guide.sample(2)["rate"].shape == (2, ROWS)


def test_local_latents_under_a_subsampled_plate_are_refused_without_create_plates(make_guide):
    case = MODELS["local"]
    (x, y), idx = case.data(), BATCHES[0]
    with pytest.raises(SiteError, match=r"'rate' is local to plate 'data', which shows 4 of its 6"):
        make_guide(case.make()).setup(x[idx], y[idx], idx)


@pytest.mark.turn(1, of=8)
def test_a_guide_built_on_all_rows_refuses_a_minibatch_of_local_latents(make_guide, make_objective):
    case = MODELS["local"]
    model, (x, y), idx = case.make(), case.data(), BATCHES[0]
    guide = make_guide(model).setup(x, y)
    with pytest.raises(SiteError, match="plate 'data' has 4 rows in the model and 6 in the guide"):
        make_objective().loss(model, guide, x[idx], y[idx], idx)


@pytest.mark.long
@pytest.mark.turn(0, of=8)
def test_global_latents_take_batches_of_any_size(make_guide, make_objective, global_case):
    model, (x, y) = global_case.make(), global_case.data()
    guide = make_guide(model).setup(x, y)
    for idx in (*BATCHES, torch.arange(ROWS)):
        for explicit in (None, idx):  # subsample_size alone, or the indices too
            with make_objective.allowed(make_guide, global_case, minibatch=len(idx) < ROWS):
                loss = make_objective().loss(model, guide, x[idx], y[idx], explicit)
                assert math.isfinite(loss)
