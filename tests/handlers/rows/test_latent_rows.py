"""Latents with a value for each row: the right rows, or a clear error."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal
from torch.utils.data import DataLoader, TensorDataset

from pyro_implicit import (
    HyperNetworkGuide,
    LinearisedELBO,
    evaluate,
    fit,
    log_predictive_density,
    posterior_draws,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.diagnostics import khat, stein_discrepancy
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError
from pyro_implicit.handlers.rows.latent_rows import at_rows
from pyro_implicit.inference import NeuTraReparam
from pyro_implicit.inference.neutra import NOISE_SITE

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


def noisy(x, rows, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("d", SIZE, subsample=rows):
        level = pyro.sample("level", dist.Normal(0.0, 3.0))
        pyro.sample("y", dist.Normal(w * x + level, 0.5), obs=y)


def plate_of(x, rows, y=None):
    return pyro.plate("d", SIZE, subsample=rows)


X, Y = torch.tensor([0.5, -1.0, 0.3, 2.0, -0.7, 1.1]), 3 * LEVELS - 8
IN_ORDER, IN_ANOTHER = (X, torch.arange(SIZE), Y), (X[ALL], ALL, Y[ALL])


def exact():
    """Evidence, and the mean of the latents, of ``noisy``."""
    rows = torch.cat([X[:, None], 3 * torch.eye(SIZE)], 1)
    covariance = 0.25 * torch.eye(SIZE) + rows @ rows.mT
    evidence = dist.MultivariateNormal(torch.zeros(SIZE), covariance).log_prob(Y)
    mean = rows.mT @ torch.linalg.solve(covariance, Y)
    return float(evidence), 3 * mean[1:]


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"create_plates": plate_of}])
def test_densities_of_rows_in_another_order_are_those_of_the_same_rows(options):
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(noisy, init_from="laplace", **options)
    guide.setup(*IN_ANOTHER)
    evidence, _ = exact()
    for data in (IN_ORDER, IN_ANOTHER):
        assert khat(noisy, guide, *data).log_evidence == pytest.approx(evidence, abs=0.02)
        assert stein_discrepancy(noisy, guide, *data).p_value > 0.05
        groups = ("posterior", "sample_stats")
        stats = to_arviz(noisy, guide, *data, num_samples=100, groups=groups).sample_stats
        ratio = (stats["lp"] - stats["log_q"]).values
        assert ratio.mean() == pytest.approx(evidence, abs=0.05)
        neutra = poutine.trace(NeuTraReparam(guide).reparam(noisy)).get_trace(*data)
        noise = float(dist.Normal(0, 1).log_prob(neutra.nodes[NOISE_SITE]["value"]).sum())
        assert float(neutra.log_prob_sum()) == pytest.approx(evidence + noise, abs=0.6)


@pytest.mark.long
def test_chains_of_rows_in_another_order_have_them_by_number():
    _, mean = exact()
    options = {"kernel": "hmc", "num_steps": 600, "seed": 0, "progress": False}
    chains = refine(noisy, 4, *IN_ANOTHER, **options)
    torch.testing.assert_close(chains.sample(300)["level"].mean(0), mean, atol=0.2, rtol=0)
    scores = [evaluate(noisy, chains, *data, seed=0).log_density for data in (IN_ORDER, IN_ANOTHER)]
    assert scores[0].value == pytest.approx(scores[1].value, abs=0.05)


@pytest.mark.long
def test_rows_that_are_named_twice_have_no_density_of_all_latents():
    guide = HyperNetworkGuide(noisy, init_from=None).setup(*IN_ORDER)
    twice = torch.tensor([4, 1, 3, 0, 4, 2])
    with pytest.raises(ShapeError, match="names some of them twice and leaves out 1"):
        khat(noisy, guide, X[twice], twice, Y[twice])


@pytest.mark.long
def test_a_support_by_row_is_not_read_in_another_order():
    def bounded(x, rows, y=None):
        with pyro.plate("d", SIZE, subsample=rows):
            level = pyro.sample("level", dist.Uniform(x - 1.0, x + 1.0))
            pyro.sample("y", dist.Normal(level, 0.1), obs=y)

    with pytest.raises(SiteError, match="differs between rows"):
        refine(bounded, 1, X[ALL], ALL, X[ALL], num_steps=0, progress=False)
    refine(bounded, 1, *IN_ORDER[:2], X, num_steps=0, progress=False)


@pytest.mark.long
@pytest.mark.parametrize("kind", [AutoNormal, HyperNetworkGuide])
def test_objectives_give_parameters_of_rows_to_the_rows_that_are_shown(kind):
    """Pyro leaves them in the order of their numbers where a plate shows all of its rows."""

    def made():
        pyro.clear_param_store()
        both = AutoGuideList(noisy, create_plates=plate_of)
        both.append(HyperNetworkGuide(poutine.block(noisy, expose=["w"]), init_scale=0.01))
        levels = 3 * LEVELS - 8
        options = {"init_loc_fn": lambda site: levels.clone(), "init_scale": 0.01}
        both.append(kind(poutine.block(noisy, expose=["level"]), **options))
        both(*IN_ORDER)
        return both

    guide, loss = made(), LinearisedELBO(200)
    pyro.set_rng_seed(0)
    expected = loss.loss(noisy, guide, *IN_ORDER)
    found = loss.loss(noisy, guide, *IN_ANOTHER)
    assert found == pytest.approx(expected, rel=0.05)
    loss.loss_and_grads(noisy, guide, *IN_ANOTHER)
    assert all(param.grad is not None for param in guide[1].parameters())


@pytest.mark.long
def test_a_fit_by_an_objective_of_pyros_follows_rows_in_another_order():
    guide = AutoNormal(noisy, create_plates=plate_of)
    batches = DataLoader(TensorDataset(*IN_ORDER), batch_size=SIZE, shuffle=True)
    fit(noisy, guide, batches=batches, num_steps=300, lr=0.1, seed=0, progress=False)
    torch.testing.assert_close(guide.median(*IN_ORDER)["level"], exact()[1], atol=0.5, rtol=0)


@pytest.mark.parametrize("parallel", [False, True])
def test_values_held_for_rows_in_another_order_are_refused(parallel):
    """Of more rows than one unit of predictions too."""
    size = 80

    def model(rows, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("d", size, subsample=rows):
            level = pyro.sample("level", dist.Normal(0.0, 10.0))
            pyro.sample("y", dist.Normal(w + level, 0.1), obs=y)

    def guide(rows, y=None):
        pyro.sample("w", dist.Normal(0.0, 1e-3))

    held = poutine.condition(model, data={"level": torch.arange(float(size))})
    options = {"num_samples": 3, "parallel": parallel}
    found = predict(held, guide, torch.arange(size), **options)["y"].mean(0)
    torch.testing.assert_close(found, torch.arange(float(size)), atol=0.5, rtol=0)
    with pytest.raises(ShapeError, match="may be in either"):
        predict(held, guide, torch.arange(size).flip(0), **options)
