"""Every guide draws every model's latents: shapes, supports, plates, quantiles, predictions."""

from __future__ import annotations

import pytest
import torch
from pyro.infer import Predictive

from pyro_implicit import LinearisedELBO, predict
from pyro_implicit.testing.guide import (
    check_draw,
    check_replay,
    check_sample,
    check_seeds,
    check_trace,
    check_vectorised,
)
from tests.contract.registry import ROWS


def test_one_call_gives_one_constrained_draw_of_each_site(make_guide, case):
    check_draw(make_guide(case.make()), case)


def test_a_trace_of_the_guide_fits_the_model(make_guide, case):
    check_trace(make_guide(case.make()), case)


@pytest.mark.turn(0, of=5)
def test_replaying_a_trace_repeats_the_draw(make_guide, case):
    check_replay(make_guide(case.make()), case)


def test_sample_stacks_constrained_draws_without_gradients(make_guide, case):
    check_sample(make_guide(case.make()).setup(*case.data()), case)


@pytest.mark.turn(1, of=5)
def test_the_same_seed_gives_the_same_draws(make_guide, case):
    check_seeds(make_guide(case.make()).setup(*case.data()), case)


@pytest.mark.turn(2, of=5)
def test_median_and_quantiles_are_those_of_the_draws(make_guide, case):
    guide = make_guide(case.make()).setup(*case.data())
    median = guide.median(num_samples=400)
    quantiles = guide.quantiles([0.1, 0.5, 0.9], *case.data(), num_samples=400)
    draws = guide.sample(400)
    for name, shape in case.sites.items():
        assert tuple(median[name].shape) == shape
        low, mid, high = quantiles[name]
        assert (low < mid).all() and (mid < high).all()
        assert (low < median[name]).all() and (median[name] < high).all()
        share = (draws[name] < low).float().mean(0)
        assert ((share - 0.1).abs() < 0.09).all()  # 4 standard errors of both estimates


@pytest.mark.turn(3, of=5)
@pytest.mark.parametrize("parallel", [False, True])
def test_predictive(make_guide, case, parallel):
    model, x = case.make(), case.data()[0]
    guide = make_guide(model).setup(*case.data())
    if case.improper:  # Pyro draws from the prior to learn shapes; guide.model knows better
        with pytest.raises(NotImplementedError, match="ImproperUniform"):
            Predictive(model, guide=guide, num_samples=4, parallel=parallel)(x)
        model = guide.model
    samples = Predictive(model, guide=guide, num_samples=4, parallel=parallel)(x)
    assert samples["y"].reshape(4, -1).shape == (4, ROWS)
    assert samples["y"].std(0).min() > 0
    for name, shape in case.sites.items():
        assert samples[name].reshape(4, -1).shape == (4, torch.Size(shape).numel())
        assert samples[name].reshape(4, -1).std(0).min() > 0


@pytest.mark.turn(4, of=5)
@pytest.mark.parametrize("parallel", [False, True])
def test_predict(make_guide, case, parallel):
    guide, (x, y) = make_guide(case.make()).setup(*case.data()), case.data()
    draws = predict(guide.model, guide, x, num_samples=4, parallel=parallel)
    assert draws.keys() == {"y"}
    assert draws["y"].reshape(4, -1).shape == (4, ROWS)
    assert draws["y"].std(0).min() > 0
    again = predict(guide.model, guide, x, y, num_samples=4, parallel=parallel)
    assert again["y"].std(0).min() > 0  # observations are ignored


def test_vectorised_particles_draw_each_site_with_the_particles_in_front(make_guide, case):
    check_vectorised(make_guide(case.make()), case)


@pytest.mark.turn(0, of=5)
def test_a_first_call_inside_of_a_particle_plate_does_not_record_it(make_guide, case):
    guide, data = make_guide(case.make()), case.data()
    elbo = LinearisedELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=2)
    elbo.differentiable_loss(guide.model, guide, *data)
    assert {s.name: tuple(s.shape) for s in guide.sites} == case.sites
    assert {f.name for s in guide.sites for f in s.frames} <= {"data", "groups"}
    elbo.differentiable_loss(guide.model, guide, *data)
    assert {name: tuple(v.shape) for name, v in guide(*data).items()} == case.sites
