"""Every guide trains with every objective, however Pyro or torch is asked to do it."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.infer.autoguide import AutoGuideList, AutoNormal

from pyro_implicit.exceptions import GuideError
from pyro_implicit.objectives import LinearisedELBO
from pyro_implicit.objectives.kernel_objective import KernelObjective
from pyro_implicit.ops.logdet import is_zero
from pyro_implicit.testing.objective import check_gradients, check_values
from tests.contract.registry import GUIDES, MODELS, OBJECTIVES

STEPS = 10


@pytest.fixture(autouse=True)
def store(request):
    """The store that the test's ``local_params``, if it has them, says."""
    callspec = getattr(request.node, "callspec", None)
    local_params = callspec is not None and callspec.params.get("local_params", False)
    with pyro.settings.context(module_local_params=local_params):
        yield


def parameters(guide):
    return {name: p.detach().clone() for name, p in guide.named_parameters()}


def unmoved(guide, before):
    return [name for name, p in guide.named_parameters() if torch.equal(p, before[name])]


def mean_loss(objective, model, guide, data):
    """
    With the same noise before training and after it.

    The few draws of a step make products of scores that are no value to compare: estimates of a
    squared discrepancy, now of thousands and now below zero. Those objectives have to raise the
    evidence bound.
    """
    pyro.set_rng_seed(0)
    if isinstance(objective, KernelObjective):
        bound = LinearisedELBO(160, watch_folds=0, vectorize_particles=True)
        return bound.loss(model, guide, *data)
    return sum(objective.loss(model, guide, *data) for _ in range(8)) / 8


def test_the_loss_and_all_gradients_are_finite_and_none_is_zero(make_guide, make_objective, case):
    with make_objective.allowed(make_guide, case):
        check_gradients(make_objective(), make_guide, case)


@pytest.mark.long
@pytest.mark.turn(0, of=8)
def test_loss_differentiable_loss_and_loss_and_grads_agree(make_guide, make_objective):
    check_values(make_objective(max_plate_nesting=1), make_guide, MODELS["regression"])


@pytest.mark.long
@pytest.mark.turn(1, of=8)
def test_svi_reduces_the_loss(make_guide, make_objective, local_params):
    case = MODELS["regression"]
    model, (x, y), objective = case.make(), case.data(), make_objective()
    guide = make_guide(model).setup(x, y)
    data = (x, y + 2.0)  # so that a guide that starts at the posterior has something to learn
    before, first = parameters(guide), mean_loss(objective, model, guide, data)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.03}), objective)
    for _ in range(STEPS):
        assert math.isfinite(svi.step(*data))
    assert mean_loss(objective, model, guide, data) < first
    assert not unmoved(guide, before)
    assert (len(pyro.get_param_store()) == 0) == local_params


@pytest.mark.long
@pytest.mark.turn(2, of=8)
def test_a_plain_torch_loop_reduces_the_loss(make_guide, make_objective):
    case = MODELS["network"]
    model, (x, y), objective = case.make(), case.data(), make_objective()
    guide = make_guide(model).setup(x, y)
    data = (x, y + 2.0)
    loss_of = objective(model, guide)
    optimiser = torch.optim.Adam(loss_of.parameters(), lr=0.03)
    before, first = parameters(guide), mean_loss(objective, model, guide, data)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss_of(*data).backward()
        optimiser.step()
    assert mean_loss(objective, model, guide, data) < first
    assert not unmoved(guide, before)


@pytest.mark.turn(3, of=8)
def test_one_call_of_the_loss_builds_the_guide(make_guide, make_objective):
    case = MODELS["plain"]
    model, data = case.make(), case.data()
    guide = make_guide(model)
    loss_of = make_objective()(model, guide)
    assert not list(guide.parameters())
    with make_objective.allowed(make_guide, case):
        loss_of(*data)
        others = set(loss_of.parameters()) - set(guide.parameters())
        assert bool(others) == make_objective.trains
    assert list(guide.parameters())
    assert set(guide.parameters()) <= set(loss_of.parameters())


@pytest.mark.long
def test_two_guides_of_one_class_in_one_store_train_and_do_not_share(make_guide, local_params):
    case = MODELS["regression"]
    model, data = case.make(), case.data()
    guides = [make_guide(model).setup(*data) for _ in range(2)]
    for turn in (0, 1, 0):  # and back again
        before = [parameters(guide) for guide in guides]
        svi = SVI(model, guides[turn], pyro.optim.Adam({"lr": 0.01}), OBJECTIVES["linearised"]())
        for _ in range(3):
            svi.step(*data)
        assert not unmoved(guides[turn], before[turn])
        other = 1 - turn
        assert len(unmoved(guides[other], before[other])) == len(before[other])
    mine, theirs = ({p.data_ptr() for p in guide.parameters()} for guide in guides)
    assert not mine & theirs


@pytest.mark.long
@pytest.mark.turn(4, of=8)
def test_in_a_list_beside_autonormal(make_guide, make_objective, local_params):
    case = MODELS["regression"]
    model, data = case.make(), case.data()
    guide = AutoGuideList(model)
    # a mode cannot be found for half of a model, whose other half is drawn at random
    guide.append(make_guide(poutine.block(model, hide=["scale"]), init_from=None))
    guide.append(AutoNormal(poutine.block(model, expose=["scale"])))
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), make_objective())
    if make_objective.whole_guide:
        with pytest.raises(GuideError, match="guide site 'scale_unconstrained' is an ordinary one"):
            svi.step(*data)
        return
    svi.step(*data)
    before = parameters(guide)
    assert any(name.startswith("0.") for name in before)
    assert any(name.startswith("1.") for name in before)
    for _ in range(3):
        assert math.isfinite(svi.step(*data))
    assert not unmoved(guide, before)
    assert guide(*data).keys() == case.sites.keys()
    assert guide.median(*data).keys() == case.sites.keys()
    assert guide.quantiles([0.25, 0.75], *data)["w"][1].shape == (2,)


@pytest.mark.parametrize("name", [name for name, made in OBJECTIVES.items() if made.trains])
def test_an_objective_that_learns_does_so_with_gradients_only(make_guide, name):
    case = MODELS["regression"]
    model, data, objective = case.make(), case.data(), OBJECTIVES[name]()
    guide = make_guide(model).setup(*data)
    loss_of = objective(model, guide)
    loss_of(*data)
    names = [n for n, p in loss_of.named_parameters() if p not in set(guide.parameters())]

    def own():
        everything = dict(loss_of.named_parameters())
        return [everything[name].detach().clone() for name in names]

    before = own()
    objective.loss(model, guide, *data)
    SVI(model, guide, pyro.optim.Adam({}), objective).evaluate_loss(*data)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(before, own(), strict=True))
    loss_of(*data).backward()
    assert not any(torch.equal(mine, theirs) for mine, theirs in zip(before, own(), strict=True))
    for name in names:
        assert dict(loss_of.named_parameters())[name].grad is None  # nothing for an outer optimiser


NOISY = [name for name, made in OBJECTIVES.items() if "scale" in made.guide_options]


@pytest.mark.parametrize("guide_name", GUIDES)  # as they are, without that option
@pytest.mark.parametrize("name", NOISY)
def test_an_objective_that_needs_output_noise_refuses_a_guide_without(name, guide_name):
    case = MODELS["regression"]
    model, data = case.make(), case.data()
    guide = GUIDES[guide_name](model).setup(*data)
    if is_zero(guide.samplers[0].scale):
        with pytest.raises(GuideError, match=r"_latent' has scale 0: .*scale=0\.05"):
            OBJECTIVES[name]().loss(model, guide, *data)
    else:
        assert math.isfinite(OBJECTIVES[name]().loss(model, guide, *data))
