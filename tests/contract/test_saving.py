"""Every guide survives saving, loading in a new process, pickle, deepcopy and ``.to``."""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.infer.autoguide import AutoGuideList, AutoNormal

import pyro_implicit
from tests.contract.registry import GUIDES, MODELS, OBJECTIVES

SEED = 11

#: knows nothing of models or data; a guide is its class and its state_dict
LOADER = """
import sys, pathlib, torch, pyro, pyro_implicit
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.pt")):
    saved = torch.load(path, weights_only=True)
    guide = getattr(pyro_implicit, saved["class"]).from_state_dict(saved["state"])
    pyro.set_rng_seed(int(sys.argv[2]))
    drawn = {"sample": guide.sample(3), "call": guide()}
    torch.save({k: {n: v.detach() for n, v in d.items()} for k, d in drawn.items()},
               path.with_suffix(".drawn"))
"""


def draws(guide, *args):
    pyro.set_rng_seed(SEED)
    return guide.sample(3), guide(*args)


def assert_same_draws(guide, other, *args):
    for mine, theirs in zip(draws(guide, *args), draws(other, *args), strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            assert torch.equal(value, theirs[name])


def round_trip(state):
    """The state as it comes back from a file that holds nothing but plain values and tensors."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def never(*args, **kwargs):
    raise AssertionError("the model was called")


def changed(guide):
    """Moves every parameter away from its start, as training does."""
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter += 0.01 * torch.randn_like(parameter)
    return guide


@pytest.mark.long
@pytest.mark.parametrize(
    "turn", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 5))]
)
def test_a_new_process_draws_the_same_without_model_or_data(turn, tmp_path):
    """All guides, each on a model; in five turns each on every model."""
    expected = {}
    for g, (name, make_guide) in enumerate(GUIDES.items()):
        case = list(MODELS.values())[(g + turn) % len(MODELS)]
        pyro.set_rng_seed(SEED)
        guide = changed(make_guide(case.make()).setup(*case.data()))
        saved = {"class": type(guide).__name__, "state": guide.state_dict()}
        torch.save(saved, tmp_path / f"{name}.pt")
        sample, call = draws(guide)
        expected[name] = {"sample": sample, "call": call}
    root = str(Path(pyro_implicit.__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path), str(SEED)],
        check=True,
        env={**os.environ, "PYTHONPATH": root},
        timeout=300,
    )
    for name, kinds in expected.items():
        drawn = torch.load(tmp_path / f"{name}.drawn", weights_only=True)
        for kind, values in kinds.items():
            assert values.keys() == drawn[kind].keys()
            for site, value in values.items():
                assert torch.equal(value, drawn[kind][site]), (name, kind, site)


@pytest.mark.turn(2, of=5)
def test_a_state_loads_into_a_guide_of_the_same_model_which_then_trains(make_guide, case):
    model, data = case.make(), case.data()
    guide = changed(make_guide(model).setup(*data))
    state = round_trip(guide.state_dict())
    other = make_guide(never)
    other.load_state_dict(state)
    assert_same_draws(guide, other, *data)
    again = make_guide(model)
    again.load_state_dict(state)
    objective = OBJECTIVES["linearised"]()
    svi = SVI(model, again, pyro.optim.Adam({"lr": 0.01}), objective)
    before = {name: p.detach().clone() for name, p in again.named_parameters()}
    svi.step(*data)
    assert not [name for name, p in again.named_parameters() if torch.equal(p, before[name])]


def test_a_state_loads_into_a_guide_that_is_built(make_guide):
    case = MODELS["plain"]
    guide = changed(make_guide(case.make()).setup(*case.data()))
    other = make_guide(case.make()).setup(*case.data())
    other.load_state_dict(round_trip(guide.state_dict()))
    assert_same_draws(guide, other)


@pytest.mark.parametrize("beside", ["AutoNormal", "another of the same kind"])
def test_within_a_list(make_guide, beside):
    case = MODELS["regression"]
    model, data = case.make(), case.data()

    def both():
        guide = AutoGuideList(model)
        guide.append(make_guide(poutine.block(model, hide=["scale"]), init_from=None))
        rest = poutine.block(model, expose=["scale"])
        guide.append(
            AutoNormal(rest) if beside == "AutoNormal" else make_guide(rest, init_from=None)
        )
        return guide

    guide, other = both(), both()
    guide(*data)
    changed(guide)
    if beside == "AutoNormal":
        other(*data)  # Pyro's own guides need a call before they can be loaded
    other.load_state_dict(round_trip(guide.state_dict()))
    values = []
    for each in (guide, other):
        each(*data)  # the list itself runs the model at its first call
        pyro.set_rng_seed(SEED)
        values.append(each(*data))
    for name, value in values[0].items():
        assert torch.equal(value, values[1][name])


def test_the_state_of_a_guide_before_it_is_built(make_guide):
    case = MODELS["regression"]
    guide = make_guide(case.make())
    state = round_trip(guide.state_dict())
    other = make_guide(case.make())
    other.load_state_dict(state)
    other.setup(*case.data())
    assert other.sample(2).keys() == case.sites.keys()


def copies(guide):
    return {
        "pickle": pickle.loads(pickle.dumps(guide)),
        "deepcopy": copy.deepcopy(guide),
    }


@pytest.mark.turn(3, of=5)
@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_copies_draw_the_same_and_leave_the_guide_usable(make_guide, case, how):
    model, data = case.make(), case.data()
    guide = changed(make_guide(model).setup(*data))
    kept = guide.model
    other = copies(guide)[how]
    assert guide.model is kept
    assert_same_draws(guide, other, *data)
    changed(other)
    assert not {p.data_ptr() for p in guide.parameters()} & {
        p.data_ptr() for p in other.parameters()
    }
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), OBJECTIVES["linearised"]())
    svi.step(*data)
    assert copies(guide)[how] is not None  # after training, too
    guide.setup(*data)


@pytest.mark.parametrize("how", ["pickle", "deepcopy"])
def test_a_copy_trains_on(make_guide, how):
    case = MODELS["regression"]
    model, data = case.make(), case.data()
    other = copies(make_guide(model).setup(*data))[how]
    svi = SVI(model, other, pyro.optim.Adam({"lr": 0.01}), OBJECTIVES["linearised"]())
    before = {name: p.detach().clone() for name, p in other.named_parameters()}
    svi.step(*data)
    assert not [name for name, p in other.named_parameters() if torch.equal(p, before[name])]


def test_a_deepcopy_of_a_guide_that_is_not_built_can_be_built(make_guide):
    case = MODELS["regression"]
    other = copy.deepcopy(make_guide(case.make()))
    assert other(*case.data()).keys() == case.sites.keys()


@pytest.mark.long
@pytest.mark.turn(0, of=5)
def test_to_float64(request, make_guide, case, float64):
    """By default every other objective meets a guide, each of them four guides."""
    model, data = case.make(torch.float64), case.data(dtype=torch.float64)
    guide = make_guide(model)
    if float64 == "before building":
        guide.to(torch.float64).setup(*data)
    elif float64 == "after building":
        guide.setup(*data).to(torch.float64)
    else:
        built = make_guide(model).setup(*data).float()
        guide.to(torch.float64).load_state_dict(built.state_dict())
    assert {p.dtype for p in guide.parameters()} == {torch.float64}
    for drawn in (guide(*data), guide.sample(2)):
        assert {value.dtype for value in drawn.values()} == {torch.float64}
    objectives = list(OBJECTIVES.values())
    if not request.node.get_closest_marker("slow"):
        objectives = objectives[list(GUIDES.values()).index(make_guide) % 2 :: 2]
    for make_objective in objectives:
        scaled = guide
        if make_objective.guide_options:
            scaled = make_guide(model, **make_objective.guide_options).setup(*data).double()
        with make_objective.allowed(make_guide, case):
            loss = make_objective().differentiable_loss(model, scaled, *data)
            assert loss.dtype == torch.float64
            assert loss.isfinite()
    restored = type(guide).from_state_dict(round_trip(guide.state_dict()))
    assert_same_draws(guide, restored, *data)


@pytest.mark.long
@pytest.mark.turn(2, of=8)
def test_copies_of_an_objective_go_on_where_it_was_and_do_not_share(
    make_guide, make_objective, copied
):
    case = MODELS["regression"]
    model, data, objective = case.make(), case.data(), make_objective(max_plate_nesting=1)
    guide = make_guide(model).setup(*data)

    def losses(each):
        pyro.set_rng_seed(SEED)
        return [each.differentiable_loss(model, guide, *data).item() for _ in range(3)]

    assert copied(objective).settings == objective.settings  # before the first evaluation
    losses(objective)
    other = copied(objective)
    third = copied(other)
    assert repr(other) == repr(objective)
    assert losses(other) == losses(third)  # what one learned the other has not seen
    assert losses(copied(objective)) == losses(objective)
