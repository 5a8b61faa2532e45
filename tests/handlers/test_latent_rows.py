"""Latents with a value for each row: the right rows, or a clear error."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, AutoNormal

from pyro_implicit import (
    HyperNetworkGuide,
    evaluate,
    log_predictive_density,
    posterior_draws,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError
from pyro_implicit.handlers.latent_rows import at_rows

SIZE = 6
LEVELS = torch.arange(float(SIZE))  # of row i: i
ROWS = torch.tensor([4, 1, 3])
ALL = torch.tensor([4, 1, 3, 0, 5, 2])


def minibatch(x, y=None):
    with pyro.plate("d", SIZE, subsample_size=len(x)):
        level = pyro.sample("level", dist.Normal(0.0, 30.0))
        pyro.sample("y", dist.Normal(level, 0.1), obs=y)


def named(rows, y=None):
    with pyro.plate("d", SIZE, subsample=rows):
        level = pyro.sample("level", dist.Normal(0.0, 30.0))
        pyro.sample("y", dist.Normal(level, 0.1), obs=y)


def at_levels(site):
    return LEVELS.clone()


def make(kind, model=minibatch, **options):
    pyro.set_rng_seed(0)
    data = (LEVELS, LEVELS) if model is minibatch else (torch.arange(SIZE), LEVELS)
    if kind == "chains":
        start = {"level": LEVELS[None]}
        return refine(model, start, *data, num_chains=1, num_steps=0, progress=False)
    if kind == "implicit":
        options |= {"init_from": None, "scale": 0.01}
        guide = HyperNetworkGuide(model, init_loc_fn=at_levels, **options)
    elif kind == "point":
        guide = AutoDelta(model, init_loc_fn=at_levels, **options)
    else:
        guide = AutoNormal(model, init_loc_fn=at_levels, init_scale=0.01, **options)
    guide(*data)
    return guide


def run_all(model, guide, x, y):
    """What each function says of every row."""
    found = {"predict": predict(model, guide, x, num_samples=2)["y"].mean(0)}
    found["parallel"] = predict(model, guide, x, num_samples=2, parallel=True)["y"].mean(0)
    report = evaluate(model, guide, x, y, num_samples=2)
    found["evaluate"] = report.rows["log_density"]
    found["density"] = log_predictive_density(model, guide, x, y, num_samples=2)
    data = to_arviz(model, guide, x, y, num_samples=2)
    found["arviz"] = torch.as_tensor(data["log_likelihood"]["y"].values)[0].mean(0)
    found["level"] = torch.as_tensor(data["posterior"]["level"].values)[0].mean(0)
    return found


CALLS = {
    "predict": lambda model, guide, x: predict(model, guide, x, num_samples=2),
    "parallel": lambda model, guide, x: predict(model, guide, x, num_samples=2, parallel=True),
    "evaluate": lambda model, guide, x: evaluate(model, guide, x, x, num_samples=2),
    "density": lambda model, guide, x: log_predictive_density(model, guide, x, x, num_samples=2),
    "arviz": lambda model, guide, x: to_arviz(model, guide, x, x, num_samples=2),
}


@pytest.mark.parametrize("call", CALLS)
def test_rows_that_nobody_has_named_are_refused(call):
    plates = {"create_plates": lambda x, y=None: pyro.plate("d", SIZE, subsample_size=len(x))}
    guides = [make(kind) for kind in ("implicit", "normal", "chains")]
    guides += [make("implicit", **plates), make("point", **plates)]
    for guide in guides:
        with pytest.raises((ShapeError, SiteError), match=r"4.*at random.*subsample=rows"):
            CALLS[call](minibatch, guide, LEVELS[:4])
        with pytest.raises(ShapeError, match=r"has 6 rows in plate 'd'.*plate has 9. For rows"):
            CALLS[call](minibatch, guide, torch.arange(9.0))
        CALLS[call](minibatch, guide, LEVELS)


@pytest.mark.parametrize("kind", ["implicit", "normal", "chains"])
@pytest.mark.parametrize("rows", [ROWS, ALL], ids=["some", "all"])
def test_rows_that_the_model_names_are_found(kind, rows):
    """In another order, too: a density at another row's level would be -50 and less."""
    plates = {"create_plates": lambda rows, y=None: pyro.plate("d", SIZE, subsample=rows)}
    for options in [{}] if kind == "chains" else [{}, plates]:
        found = run_all(named, make(kind, named, **options), rows, LEVELS[rows])
        for name in ("predict", "parallel", "level"):
            torch.testing.assert_close(found[name].float(), LEVELS[rows], atol=0.4, rtol=0)
        for name in ("evaluate", "density", "arviz"):
            assert found[name].shape == rows.shape
            assert (found[name] > 0).all(), name


def test_rows_of_a_guide_that_looks_at_the_arguments_are_theirs():
    """An encoder's latents belong to the rows passed, whatever numbers a plate draws."""

    def encoder(x, y=None):
        with pyro.plate("d", SIZE, subsample_size=len(x)):
            pyro.sample("level", dist.Delta(x))

    found = run_all(minibatch, encoder, ROWS.float(), ROWS.float())
    torch.testing.assert_close(found["level"].float(), ROWS.float())


def test_latents_of_all_rows_go_on_to_more_of_them():
    """A plate of the training set is smaller than a test set: its rows are counted on."""

    def shared(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("d", 2, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(w + x, 1.0), obs=y)

    def guide(*_):
        pyro.sample("w", dist.Delta(torch.tensor(0.0)))

    expected = dist.Normal(0.0, 1.0).log_prob(torch.zeros(SIZE))
    found = log_predictive_density(shared, guide, LEVELS, LEVELS, num_samples=1)
    torch.testing.assert_close(found, expected)
    data = to_arviz(shared, guide, LEVELS, LEVELS, num_samples=1)
    found = torch.as_tensor(data["log_likelihood"]["y"].values)[0, 0]
    torch.testing.assert_close(found, expected.double())


def test_rows_of_the_guide_can_be_left_to_the_prior():
    def two(x, y=None):
        pyro.sample("mean", dist.Normal(0.0, 1.0))
        minibatch(x, y)

    guide = HyperNetworkGuide(two, init_from=None)
    guide(LEVELS, LEVELS)
    hidden = poutine.block(guide, hide=["level"])
    with pytest.warns(UserWarning, match=r"does not draw \['level'\]"):
        evaluate(two, hidden, LEVELS[:4], LEVELS[:4], num_samples=2)


def test_draws_of_a_guide_that_would_choose_rows_are_refused():
    def plates(x, y=None):
        return pyro.plate("d", SIZE, subsample_size=len(x))

    guide = make("normal", create_plates=plates)
    with pytest.raises(ShapeError, match="parameter 'AutoNormal.locs.level' of the guide has 6"):
        posterior_draws(guide, 2, LEVELS[:4])
    assert posterior_draws(guide, 2, LEVELS)["level"].shape == (2, SIZE)


def test_a_batch_size_is_refused_for_named_rows():
    with pytest.raises(ArgumentError, match="latent site 'level' has a value for each"):
        to_arviz(named, make("implicit", named), ROWS, LEVELS[ROWS], num_samples=2, batch_size=2)


def test_stacked_draws_are_cut_alike():
    draws = {"a": torch.arange(12.0).reshape(2, 6), "b": torch.ones(2)}
    found = at_rows(draws, {"a": [(-1, ROWS)]})
    assert torch.equal(found["a"], draws["a"][:, ROWS])
    assert found["b"] is draws["b"]
