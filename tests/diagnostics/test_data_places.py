"""Other data in the places of a call where its data are, whatever form they have there."""

from __future__ import annotations

from typing import NamedTuple

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit.diagnostics._data_places import find_places

OLD, NEW = torch.arange(3.0), torch.tensor([7.0, 8.0, 9.0])


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def observing(read):
    """A model that observes what ``read`` finds in its arguments."""

    def model(*args, **kwargs):
        pyro.sample("y", dist.Normal(0.0, 1.0).expand([3]).to_event(1), obs=read(*args, **kwargs))

    return model


def table():
    return torch.arange(12.0).reshape(3, 4)


FORMS = {
    "as it is": (lambda x, y: y, (torch.zeros(3), OLD)),
    "column": (lambda t: t[:, -1], (table(),)),
    "row of a transpose": (lambda t: t[1], (table().T,)),
    "reshape": (lambda y: y.reshape(3), (OLD[:, None],)),
    "part": (lambda y: y[1:4], (torch.arange(6.0),)),
    "in a dictionary": (lambda batch: batch["data"][0], ({"data": [OLD], "x": 3},)),
    "in a named tuple": (lambda pair: pair.y, (Pair(torch.zeros(3), OLD),)),
    "copy": (lambda y: y.clone(), (OLD,)),
    "other type": (lambda y: y.double(), (OLD,)),
    "integers": (lambda y: y.float(), (OLD.long(),)),
    "among equals": (lambda x, y: y.clone(), (OLD, OLD.clone())),
    "argument that is a view": (lambda y: y, (table()[:, 2],)),
}


@pytest.mark.parametrize("form", FORMS)
def test_places_are_found(form):
    read, args = FORMS[form]
    before = read(*args).clone()
    places = find_places(observing(read), args, {}, {"y": NEW})
    assert not places.lost
    other = NEW.flip(0)
    new_args, new_kwargs = places.fill({"y": other})
    assert torch.equal(read(*new_args).float(), other) and not new_kwargs
    assert torch.equal(read(*args), before)
    assert type(new_args[0]) is type(args[0])
    if form == "column":  # the other columns are the caller's
        assert torch.equal(new_args[0][:, :-1], args[0][:, :-1])


def test_arguments_that_share_their_data_stay_together():
    data = torch.zeros(3)
    places = find_places(observing(lambda x, y: y), (data[:2], data), {}, {"y": NEW})
    (x, y), _ = places.fill({"y": NEW})
    assert torch.equal(x, NEW[:2]) and torch.equal(y, NEW)


LOST = {
    "function": (lambda y: 2 * y, (OLD,)),
    "function of zeros": (lambda y: 2 * y, (torch.zeros(3),)),
    "one number for all": (lambda y: y.expand(3), (torch.ones(()),)),
    "rounded": (lambda y: y.float(), (OLD.long(),)),
    "closed over": (lambda x: OLD, (torch.zeros(2),)),
    "array": (torch.as_tensor, (OLD.numpy(),)),
    "sparse": (lambda y: y.to_dense(), (OLD.to_sparse(),)),
}


@pytest.mark.parametrize("form", LOST)
def test_places_that_cannot_be_found_are_told(form):
    read, args = LOST[form]
    places = find_places(observing(read), args, {}, {"y": NEW + 0.25})
    assert places.lost == ("y",) and not places.views


def test_two_sites_of_one_tensor():
    def model(y):
        pyro.sample("a", dist.Normal(0.0, 1.0).expand([3]).to_event(1), obs=y)
        pyro.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1), obs=y)

    assert find_places(model, (OLD,), {}, {"a": NEW, "b": NEW + 1}).lost == ("a", "b")


def test_two_columns_of_one_table():
    def model(t):
        for n, name in enumerate("ab"):
            pyro.sample(name, dist.Normal(0.0, 1.0).expand([3]).to_event(1), obs=t[:, n])

    places = find_places(model, (table(),), {}, {"a": NEW, "b": NEW + 1})
    ((filled,), _) = places.fill({"a": NEW, "b": NEW + 1})
    assert torch.equal(filled[:, :2], torch.stack([NEW, NEW + 1], 1))
    assert torch.equal(filled[:, 2:], table()[:, 2:])


@pytest.mark.parametrize("args", [(), (3, 0.5, None, "text", [True])])
def test_nothing_is_lost_where_the_arguments_hold_no_data(args):
    assert find_places(observing(lambda *args: OLD), args, {}, {"y": NEW}).lost == ()


def test_a_parameter_of_another_meaning_is_left_alone():
    def model(x, y=None):  # here y is not what the site of that name observes
        pyro.sample("y", dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    assert find_places(model, (OLD,), {}, {"y": NEW}).names == {}


def test_parameters_that_cannot_be_named():
    def only_position(x, y=None, /):
        pyro.sample("y", dist.Normal(0.0, 1.0).expand([3]).to_event(1), obs=y)

    assert find_places(only_position, (OLD,), {}, {"y": NEW}).names == {}
    assert find_places(only_position, (OLD, None), {}, {"y": NEW}).names == {"y": 1}
    hidden = observing(lambda *args, **kwargs: kwargs.get("y"))
    assert find_places(hidden, (OLD,), {}, {"y": NEW}).names == {}
