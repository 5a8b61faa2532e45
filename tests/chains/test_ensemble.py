"""Several guides as one: shares of draws, weights of stacking, and what is refused."""

from __future__ import annotations

import warnings
from functools import partial

import arviz
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal, init_to_value

from pyro_implicit import (
    EnsembleGuide,
    HyperNetworkGuide,
    MMNNGuide,
    evaluate,
    log_predictive_density,
    posterior_draws,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.exceptions import ArgumentError, GuideError, NonFiniteError, SiteError
from tests.chains.models import ROWS, X, Y, line


def at(loc, deviation=0.0):
    def guide(*args):
        w = pyro.sample("w", dist.Normal(torch.tensor([0.5, loc]), deviation + 1e-12).to_event(1))
        sigma = pyro.sample("sigma", dist.LogNormal(-1.2, 0.05 + 0 * w[0].detach()))
        return {"w": w, "sigma": sigma}

    return guide


def slope(values):
    return values["w"][:, 1].round()


@pytest.mark.long
@given(seed=st.integers(0, 40), num_samples=st.integers(1, 30), count=st.integers(1, 4))
def test_each_guide_has_its_share_of_draws(seed, num_samples, count):
    torch.manual_seed(seed)
    weights = torch.rand(count).tolist()
    ensemble = EnsembleGuide([at(float(k)) for k in range(count)], weights)
    found = slope(ensemble.sample(num_samples))
    for k in range(count):
        share = num_samples * weights[k] / sum(weights)
        assert abs(float((found == k).sum()) - share) < 1 + 1e-6


def test_runs_pick_by_weight():
    ensemble = EnsembleGuide([at(0.0), at(1.0)], [1, 3])
    found = torch.stack([ensemble()["w"][1].round() for _ in range(200)])
    assert abs(float(found.mean()) - 0.75) < 0.12
    torch.testing.assert_close(ensemble.weights, torch.tensor([0.25, 0.75], dtype=torch.float64))


@pytest.mark.parametrize("make", [torch.tensor, np.array, tuple])
def test_weights_may_be_those_of_another_ensemble(make) -> None:
    guides = [at(0.0), at(1.0)]
    ensemble = EnsembleGuide(guides, make([1.0, 3.0]))
    again = EnsembleGuide(guides, ensemble.weights)
    torch.testing.assert_close(again.weights, torch.tensor([0.25, 0.75], dtype=torch.float64))
    for wrong in (make([1.0, 2.0, 3.0]), make([1.0, -1.0]), make([])):
        with pytest.raises(ArgumentError, match="weights"):
            EnsembleGuide(guides, wrong)


def test_it_serves_all_that_draws():
    ensemble = EnsembleGuide([at(2.0, 0.1), at(1.8, 0.1)])
    assert predict(line, ensemble, X, num_samples=7)["y"].shape == (7, 12)
    assert posterior_draws(ensemble, 5, X, Y)["w"].shape == (5, 2)
    assert log_predictive_density(line, ensemble, X, Y, num_samples=8).shape == (12,)
    assert evaluate(line, ensemble, X, Y, num_samples=20, seed=0).log_density.value > -2
    assert to_arviz(line, ensemble, X, Y, num_samples=5).posterior.sizes["draw"] == 5


def test_guides_that_need_the_arguments_get_them():
    def amortised(x):
        pyro.sample("w", dist.Delta(x.mean().expand(2), event_dim=1))
        pyro.sample("sigma", dist.Delta(x.max()))

    found = posterior_draws(EnsembleGuide([amortised, amortised]), 3, X)
    torch.testing.assert_close(found["sigma"], X.max().expand(3))


@pytest.mark.long
def test_modes_are_a_deep_ensemble():
    modes = refine(line, 3, X, Y, num_chains=3, num_steps=0, seed=0, progress=False).split()
    ensemble = EnsembleGuide(
        modes, "stacking", model=line, data=(X, Y), held_out=True, num_samples=9
    )
    assert ensemble.sample(6)["sigma"].shape == (6,)
    assert abs(float(ensemble.weights.sum()) - 1) < 1e-9


@pytest.mark.long
def test_stacking_is_that_of_arviz():
    guides = [at(2.0, 0.3), at(1.2, 0.3), at(3.0, 0.3)]
    torch.manual_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ's, of the tails of so few draws
        ensemble = EnsembleGuide(guides, "stacking", model=line, data=(X, Y), num_samples=100)
        torch.manual_seed(1)
        groups = ("posterior", "log_likelihood")
        exported = {
            str(k): to_arviz(line, guide, X, Y, num_samples=100, groups=groups)
            for k, guide in enumerate(guides)
        }
        expected = arviz.compare(exported, method="stacking")["weight"]
    for k in range(3):
        assert float(ensemble.weights[k]) == pytest.approx(expected[str(k)], abs=0.01)


def test_held_out_stacking_prefers_the_guide_that_is_right():
    ensemble = EnsembleGuide(
        [at(2.0, 0.1), at(-1.0, 0.1)],
        "stacking",
        model=line,
        data=(X, Y),
        held_out=True,
        num_samples=9,
    )
    assert float(ensemble.weights[0]) > 0.95


def test_it_prints_its_size_and_weights():
    assert str(EnsembleGuide([at(0.0), at(1.0)], [1, 3])) == (
        "EnsembleGuide(2 guides, weights 0.25, 0.75)"
    )
    assert "20 guides, weights 0.05, 0.05" in repr(EnsembleGuide([at(0.0)] * 20))
    assert len(repr(EnsembleGuide([at(0.0)] * 20))) < 100


# ---- what is refused


def within(x, y):
    """Nothing further than 1 from a line has a density."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 3.0).to_event(1))
    pyro.sample("sigma", dist.LogNormal(-1.0, 0.5))
    with pyro.plate("data", len(x)):
        mean = w[0] + w[1] * x
        pyro.sample("y", dist.Uniform(mean - 1, mean + 1, validate_args=False), obs=y)


def test_held_out_data_that_rank_no_guide():
    guides = [at(2.0, 0.1), at(1.5, 0.1)]
    options = {"model": within, "held_out": True, "num_samples": 3}
    far, gap = Y.clone(), Y.clone()
    far[3], gap[5] = 50.0, float("nan")
    with pytest.warns(UserWarning, match="1 of 12 data have a density of 0 under every") as caught:
        found = EnsembleGuide(guides, "stacking", data=(X, far), **options)
    assert caught[0].filename == __file__
    assert bool(found.weights.isfinite().all())
    with pytest.raises(NonFiniteError, match="all 12 data have a density of 0"):
        EnsembleGuide(guides, "stacking", data=(X, Y + 50), **options)
    options["model"] = line
    with pyro.validation_enabled(False):
        with pytest.raises(NonFiniteError, match="'y' observes 1 NaN among its 12 numbers"):
            EnsembleGuide(guides, "stacking", data=(X, gap), **options)
        lost = [at(float("nan"), 0.1), *guides]
        with pytest.raises(NonFiniteError, match=r"12 of 12 data are NaN .* under component 0"):
            EnsembleGuide(lost, "stacking", data=(X, Y), **options)


def two_observed(x):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    pyro.sample("a", dist.Normal(w, 1.0), obs=x)
    pyro.sample("b", dist.Normal(w, 1.0), obs=x)


def only_w():
    pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))


def test_bad_arguments():
    one = at(0.0)
    for bad, text in (
        (lambda: EnsembleGuide([]), "guides is empty"),
        (lambda: EnsembleGuide(one), "a list of fitted guides"),
        (lambda: EnsembleGuide([one, 3]), r"guides\[1\]"),
        (lambda: EnsembleGuide([AutoNormal]), "is the class AutoNormal"),
        (lambda: EnsembleGuide([one], [0.5, 0.5]), "equal ones, 'stacking', or 1"),
        (lambda: EnsembleGuide([one], "elbo"), "expected None for equal ones"),
        (lambda: EnsembleGuide([one], [-1.0]), r"weights\[0\]"),
        (lambda: EnsembleGuide([one], [0.0]), "one at least that is not 0"),
        (lambda: EnsembleGuide([one], "stacking"), "needs the model and data"),
        (lambda: EnsembleGuide([one], held_out=1), "held_out"),
        (lambda: EnsembleGuide([one], num_samples=0), "num_samples"),
        (lambda: EnsembleGuide([one]).sample(0), "num_samples"),
        (partial(EnsembleGuide, [one], "stacking", model=line, data=X), "a tuple of the model's"),
    ):
        with pytest.raises(ArgumentError, match=text):
            bad()


def test_points_have_no_leave_one_out():
    values = {"w": torch.tensor([0.5, 2.0]), "sigma": torch.tensor(0.3)}
    point = AutoDelta(line, init_loc_fn=init_to_value(values=values))
    point(X, Y)
    with pytest.raises(ArgumentError, match="all draws of guide 0 are the same.*held_out=True"):
        EnsembleGuide([point], "stacking", model=line, data=(X, Y), num_samples=10)


def test_two_observed_sites_are_ambiguous():
    with pytest.raises(ArgumentError, match=r"observes \['a', 'b'\].*held_out=True"):
        EnsembleGuide(
            [AutoNormal(two_observed)],
            "stacking",
            model=two_observed,
            data=(torch.ones(()),),
            num_samples=20,
        )


def test_other_sites_and_plates_are_refused():
    with pytest.raises(SiteError, match=r"draw different sites: \['sigma', 'w'\] and \['w'\]"):
        EnsembleGuide([at(0.0), only_w]).sample(4)

    def wide():
        pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    with pytest.raises(SiteError, match=r"draw site 'w' in shapes \(2,\) and \(3,\)"):
        EnsembleGuide([only_w, wide]).sample(4)
    with pytest.raises(GuideError, match="picks one guide for each run, and plate 'particles'"):
        with pyro.plate("particles", 3):
            EnsembleGuide([at(0.0)])()


def test_a_run_has_all_sites_of_the_guide_that_is_picked():
    """Noise and joint latents carry its density, which objectives of Pyro's read."""
    implicit = HyperNetworkGuide(line, init_from=None).setup(X, Y)
    for guide in (implicit, AutoNormal(line), AutoMultivariateNormal(line)):
        guide(X, Y)
        found = poutine.trace(EnsembleGuide([guide, guide])).get_trace(X, Y)
        expected = poutine.trace(guide).get_trace(X, Y)
        assert found.nodes.keys() == expected.nodes.keys()
        replayed = poutine.trace(poutine.replay(guide, trace=found)).get_trace(X, Y)
        torch.testing.assert_close(found.log_prob_sum(), replayed.log_prob_sum())


def test_predict_takes_guides_of_different_kinds():
    guides = [MMNNGuide(line), HyperNetworkGuide(line, init_from=None), at(1.0)]
    for guide in guides[:2]:
        guide.setup(X, Y)
    found = predict(line, EnsembleGuide(guides), X, num_samples=20)
    assert found["y"].shape == (20, ROWS)
