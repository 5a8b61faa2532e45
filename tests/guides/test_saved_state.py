"""States that do not fit a guide, or were changed: refused by name, before anything is loaded."""

from __future__ import annotations

import copy
import itertools
import math

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import CMMNNGuide, HyperNetworkGuide, MMNNGuide
from pyro_implicit.exceptions import StateError


def model():
    pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("b", dist.HalfNormal(1.0))


def positive():
    pyro.sample("a", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("b", dist.HalfNormal(1.0))


def make(model=model, kind=HyperNetworkGuide, **options):
    pyro.set_rng_seed(0)
    options = ({"hidden_dims": (4,)} if kind is HyperNetworkGuide else {}) | options
    return kind(model, **{"scale": 0.1} | options).setup()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"scale": 0.5}, r"samplers\[0\].scale is 0.5 there and 0.1 here"),
        ({"activation": "tanh"}, "generator.activation is 'tanh' there"),
        ({"learn_scale": "scalar"}, "scale is 'learned' there and 0.1 here"),
        ({"factorized": True}, "parts has 2 entries there and 1 here"),
        ({"model": positive}, r"sites\[0\].support"),
    ],
)
def test_a_guide_of_another_structure_changes_nothing(options, told):
    guide, other = make(), make(**options)
    before = copy.deepcopy(guide.state_dict())
    with pytest.raises(StateError, match=f"the state is of another HyperNetworkGuide: .*{told}"):
        guide.load_state_dict(other.state_dict())
    for name, value in guide.state_dict().items():
        assert torch.equal(value, before[name]) if torch.is_tensor(value) else value == before[name]


def site(**changes):
    return lambda extra, _: extra["sites"][0].update(changes)


def without_factor(extra, state):
    extra["samplers"][0]["preconditioner"] = "full"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (site(event_dim=5), r"sites\[0\] of the state contradicts itself"),
        (site(frames=[("rows", 1, 3)]), r"sites\[0\] of the state has the plate \('rows', 1"),
        (lambda extra, _: extra["samplers"][0].update(output_dim=4), "4 outputs, and no such tens"),
        (without_factor, r"samplers\[0\] of the state has a full factor, and no such tensor"),
    ],
)
def test_a_state_that_contradicts_itself_is_refused_before_it_is_built(change, told):
    state = dict(make().state_dict())
    change(state["_extra_state"], state)
    with pytest.raises(StateError, match=told):
        HyperNetworkGuide.from_state_dict(state)


def test_where_a_learned_scale_began_does_not_matter():
    guide = make(learn_scale="scalar", scale=0.2)
    other = make(learn_scale="scalar")
    guide.load_state_dict(other.state_dict())
    assert torch.equal(guide.samplers[0].raw_scale, other.samplers[0].raw_scale)


def leaves(value, path=()):
    """The paths of all entries, of the containers too."""
    if path:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in pairs:
        if isinstance(entry, (dict, list, tuple)):
            yield from leaves(entry, (*path, key))
        else:
            yield (*path, key)


def mutants(state, every):
    """Every entry absent, of another type, of another size; one of so many is made."""
    turns = itertools.count()
    for path in list(leaves(state)):
        for value in (None, "text", -1, 10**12, math.nan, [], {}, torch.zeros(7), "delete"):
            holder = state
            for key in path[:-1]:
                holder = holder[key]
            if isinstance(holder, tuple) or (path[-1] == "version" and value is None):
                continue
            if next(turns) % every:
                continue
            changed = copy.deepcopy(state)
            holder = changed
            for key in path[:-1]:
                holder = holder[key]
            if isinstance(value, str) and value == "delete":
                del holder[path[-1]]
            else:
                holder[path[-1]] = value
            yield path, value, changed


@pytest.mark.long
@pytest.mark.parametrize("kind", [HyperNetworkGuide, MMNNGuide, CMMNNGuide])
@pytest.mark.parametrize(
    ("built", "every"),
    [(False, 7)] + [pytest.param(built, 1, marks=pytest.mark.slow) for built in (False, True)],
)
def test_a_changed_state_is_refused_or_changes_nothing_that_draws(kind, built, every):
    """
    10**12 entries would be terabytes: nothing is allocated that no tensor justifies.

    Of every seventh change, the values (nine a path) take turns with the paths.
    """
    guide = make(kind=kind)
    state = dict(guide.state_dict())
    expected = guide.state_dict()["_samplers.0.preconditioner.loc"]
    refused = tried = 0
    for path, value, changed in mutants(state, every):
        tried += 1
        other = make(kind=kind) if built else None
        try:
            if built:
                other.load_state_dict(changed)
            else:
                other = kind.from_state_dict(changed)
        except StateError:
            refused += 1
            continue
        if other._sites is not None:
            draw = other.sample(1)  # a name, a bound or a number that any may be
            assert all(len(v) == 1 for v in draw.values()), (path, value)
            assert torch.equal(other.state_dict()["_samplers.0.preconditioner.loc"], expected)
    assert refused > max(20, tried / 3)
