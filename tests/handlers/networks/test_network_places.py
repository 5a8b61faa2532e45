"""Whatever is put into a network, or taken out of it, is seen at one of its places."""

from __future__ import annotations

from collections.abc import Callable

import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.distributions import constraints
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import nn

from pyro_implicit.handlers.looks.python_state import python_state
from pyro_implicit.handlers.networks.network_places import network_places


class Held(PyroModule):
    """Something of each kind that a network holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.weight = nn.Parameter(torch.ones(1))
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.scale = PyroParam(torch.ones(1), constraint=constraints.positive)
        self.latent = PyroSample(dist.Normal(0.0, 1.0))
        self.register_parameter("none", None)
        self.register_buffer("buffer", torch.ones(1))
        self.register_buffer("no_buffer", None)
        self.number, self.tensor = 1.0, torch.ones(1)


NAMES = (
    "layer",
    "weight",
    "frozen",
    "scale",
    "none",
    "buffer",
    "no_buffer",
    "number",
    "tensor",
    "new",
)
OTHERS: dict[str, Callable[[], object]] = {
    "number": lambda: 2.0,
    "tensor": lambda: torch.zeros(1),
    "parameter": lambda: nn.Parameter(torch.zeros(1)),
    "Pyro's parameter": lambda: PyroParam(torch.ones(1), constraint=constraints.positive),
    "prior": lambda: PyroSample(dist.Normal(0.0, 1.0)),
    "layer": nn.Tanh,
}


def entries_of(model: nn.Module) -> dict[tuple[str, str], object]:
    """What lies where, by itself; values that are written in place change nothing of it."""
    held = vars(model)
    own = {"attributes": held, "priors": held["_pyro_samples"]}
    tables = own | {kind: held[kind] for kind in ("_parameters", "_buffers", "_modules")}
    return {(kind, name): one for kind, table in tables.items() for name, one in table.items()}


@pytest.mark.long
@given(name=st.sampled_from(NAMES), kind=st.sampled_from(sorted(OTHERS)))
def test_whatever_is_assigned_is_seen(name: str, kind: str) -> None:
    model = Held()
    state, before = python_state(model), entries_of(model)
    assert not state.replaced()
    try:
        setattr(model, name, OTHERS[kind]())
    except (TypeError, KeyError):  # as PyTorch has it, of what is there
        return
    after = entries_of(model)
    same = before.keys() == after.keys() and all(before[key] is after[key] for key in before)
    assert bool(state.replaced()) != same
    assert not same or (name, kind) == ("scale", "tensor")  # Pyro writes its values


@pytest.mark.parametrize("name", ["layer", "weight", "frozen", "buffer", "number", "tensor"])
def test_what_is_deleted_is_seen(name: str) -> None:
    model = Held()
    state = python_state(model)
    delattr(model, name)
    assert state.replaced()


@pytest.mark.parametrize("name", ["weight", "frozen"])
def test_the_same_parameter_elsewhere_is_seen(name: str) -> None:
    model = Held()
    state = python_state(model)
    model._parameters["other"] = model._parameters.pop(name)
    assert state.replaced()


@given(frozen=st.lists(st.booleans(), min_size=2, max_size=2), place=st.integers(0, 1))
def test_who_frees_a_parameter_is_seen_and_whose_values_change_is_not(
    frozen: list[bool], place: int
) -> None:
    layer = nn.Linear(1, 1)
    params = [layer.weight, layer.bias]
    for param, flag in zip(params, frozen, strict=True):
        param.requires_grad_(not flag)
    state = python_state(layer)
    with torch.no_grad():
        params[place].add_(1.0)
    assert not state.replaced()
    params[place].requires_grad_(True)
    assert bool(state.replaced()) == frozen[place]  # of those that are trained Pyro's store knows


def test_each_place_has_what_it_tells() -> None:
    places = list(network_places(Held(), "held"))
    assert not any(place.is_replaced() for place in places)
    assert len({(id(place.container), place.key) for place in places}) == len(places)


def test_a_tensor_that_asks_for_its_gradient_is_seen() -> None:
    held = torch.ones(1)
    state = python_state(lambda: held)
    held.requires_grad_(True)
    assert state.replaced() == "held.requires_grad"


def test_a_new_attribute_that_hides_a_method_is_seen() -> None:
    class Model:
        def helper(self) -> float:
            return 1.0

        def __call__(self) -> float:
            return self.helper()

    model = Model()
    state = python_state(model)
    model.helper = lambda: 2.0  # type: ignore[method-assign]
    assert state.replaced()
