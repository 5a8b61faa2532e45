"""Every guide draws every model's latents: shapes, supports, plates, quantiles, predictions."""

from __future__ import annotations

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive
from torch.distributions import biject_to

from pyro_implicit import LinearisedELBO, predict
from tests.contract.registry import ROWS


def test_one_call_gives_one_constrained_draw_of_each_site(make_guide, case):
    guide = make_guide(case.make())
    draw = guide(*case.data())
    assert {name: tuple(v.shape) for name, v in draw.items()} == case.sites
    trace = poutine.trace(guide).get_trace(*case.data())
    for site in guide.sites:
        assert trace.nodes[site.name]["fn"].support.check(trace.nodes[site.name]["value"]).all()
        assert site.support.check(trace.nodes[site.name]["value"]).all()


def test_a_trace_of_the_guide_fits_the_model(make_guide, case):
    guide, data = make_guide(case.make()), case.data()
    guide_trace = poutine.trace(guide).get_trace(*data)
    model_trace = poutine.trace(poutine.replay(guide.model, trace=guide_trace)).get_trace(*data)
    model_trace.compute_log_prob()
    for name in case.sites:
        mine, theirs = guide_trace.nodes[name], model_trace.nodes[name]
        assert mine["value"] is theirs["value"]
        plates = [{f.name: (f.dim, f.size) for f in n["cond_indep_stack"]} for n in (mine, theirs)]
        assert plates[0] == plates[1]
        assert mine["fn"].batch_shape == theirs["fn"].batch_shape


@pytest.mark.turn(0, of=5)
def test_replaying_a_trace_repeats_the_draw(make_guide, case):
    guide, data = make_guide(case.make()), case.data()
    trace = poutine.trace(guide).get_trace(*data)
    with poutine.replay(trace=trace):
        again = guide(*data)
    for name, value in again.items():
        assert torch.equal(value, trace.nodes[name]["value"])


def test_sample_stacks_constrained_draws_without_gradients(make_guide, case):
    guide = make_guide(case.make()).setup(*case.data())
    draws = guide.sample(5)
    assert {k: tuple(v.shape) for k, v in draws.items()} == {
        k: (5, *s) for k, s in case.sites.items()
    }
    for site in guide.sites:
        assert site.support.check(draws[site.name]).all()
        assert not draws[site.name].requires_grad
        assert not torch.equal(draws[site.name][0], draws[site.name][1])
    assert guide.latent_dim == sum(
        biject_to(site.support).inv(draws[site.name][0]).numel() for site in guide.sites
    )


@pytest.mark.turn(1, of=5)
def test_the_same_seed_gives_the_same_draws(make_guide, case):
    guide = make_guide(case.make()).setup(*case.data())
    draws = []
    for seed in (3, 3, 4):
        pyro.set_rng_seed(seed)
        draws.append((guide(*case.data()), guide.sample(3)))
    for name in case.sites:
        for one, same, other in zip(*draws, strict=True):
            assert torch.equal(one[name], same[name])
            assert not torch.equal(one[name], other[name])


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
    guide, data = make_guide(case.make()), case.data()
    with pyro.plate("particles", 3, dim=-3):
        draw = guide(*data)
    for name, shape in case.sites.items():
        value = draw[name]
        event = next(s.event_dim for s in guide.sites if s.name == name)
        batch = torch.Size((1, 1)) + torch.Size(shape[: len(shape) - event])
        assert value.shape == (3, *batch[len(batch) - 2 :], *shape[len(shape) - event :])
        assert value.std(0).min() > 0


@pytest.mark.turn(0, of=5)
def test_a_first_call_inside_of_a_particle_plate_does_not_record_it(make_guide, case):
    guide, data = make_guide(case.make()), case.data()
    elbo = LinearisedELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=2)
    elbo.differentiable_loss(guide.model, guide, *data)
    assert {s.name: tuple(s.shape) for s in guide.sites} == case.sites
    assert {f.name for s in guide.sites for f in s.frames} <= {"data", "groups"}
    elbo.differentiable_loss(guide.model, guide, *data)
    assert {name: tuple(v.shape) for name, v in guide(*data).items()} == case.sites
