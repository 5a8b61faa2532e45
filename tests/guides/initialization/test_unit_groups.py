"""Exchangeable units, against networks whose symmetries are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from torch import Tensor

from pyro_implicit.guides.initialization.unit_groups import UnitGroup, unit_groups
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.log_joint import LogJoint

Model = Callable[[], Any]
X, X3 = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0)).double()
X = X[:, :2]


def _normal(name: str, *shape: int, scale: Any = 1.0) -> Tensor:
    prior = dist.Normal(torch.zeros(shape).double(), scale).to_event(len(shape))
    value: Tensor = pyro.sample(name, prior)
    return value


def _seen(loc: Tensor, scale: Any = 0.3) -> None:
    pyro.sample("y", dist.Normal(loc, scale).to_event(loc.dim()), obs=torch.ones_like(loc))


def _find(model: Model, dtype: torch.dtype = torch.float64) -> tuple[list[UnitGroup], list[str]]:
    torch.manual_seed(1)
    trace = poutine.trace(model).get_trace()
    sites = [LatentSite.from_trace(trace.nodes[name], False) for name in trace.stochastic_nodes]
    joint = LogJoint(model, sites, (), {})
    points = [0.7 * torch.randn(sum(site.numel for site in sites), dtype=dtype) for _ in range(2)]
    return unit_groups(joint.value, sites, points), [site.name for site in sites]


def _told(groups: list[UnitGroup], names: list[str]) -> list[tuple[int, list[str]]]:
    """Sizes, and the names of the sites whose axes they order."""
    return [(group.size, sorted(names[axis.site] for axis in group.axes)) for group in groups]


def _two_heads() -> None:
    h = torch.relu(X @ _normal("w", 2, 3))
    _seen((h @ _normal("mean", 3, 1))[:, 0], (h @ _normal("scale", 3, 1))[:, 0].exp())


def _linear_skip() -> None:
    h = torch.relu(X3 @ _normal("w", 3, 2)) @ _normal("v", 2, 1)
    _seen((h + X3 @ _normal("skip", 3, 1))[:, 0])


def _unequal_scales() -> None:
    h = torch.relu(X @ _normal("w", 2, 3, scale=torch.tensor([0.5, 1.0, 2.0])))
    _seen((torch.relu(h @ _normal("u", 3, 3)) @ _normal("v", 3, 1))[:, 0])


def _unequal_biases() -> None:
    prior = dist.Normal(torch.tensor([-1.0, 0.0, 1.0]).double(), 0.5).to_event(1)
    h = torch.relu(X @ _normal("w", 2, 3) + pyro.sample("b", prior))
    _seen((torch.relu(h @ _normal("u", 3, 3)) @ _normal("v", 3, 1))[:, 0])


def _shared() -> None:
    w, h = _normal("w", 3, 3), X @ _normal("u", 2, 3)
    _seen((torch.relu(torch.relu(h.relu() @ w) @ w) @ _normal("v", 3, 1))[:, 0])


def _recurrent() -> None:
    u, w, h = _normal("u", 2, 3), _normal("w", 3, 3), torch.zeros(3).double()
    states = [h := torch.relu(x @ u + h @ w) for x in X]
    _seen((torch.stack(states) @ _normal("v", 3, 1))[:, 0])


def _gated() -> None:
    inputs, hidden = _normal("inputs", 6, 2), _normal("hidden", 6, 2)
    h, states = torch.zeros(2).double(), []
    for x in X:
        a, b = (inputs @ x).chunk(3), (hidden @ h).chunk(3)
        keep = (a[1] + b[1]).sigmoid()
        h = (1 - keep) * (a[2] + (a[0] + b[0]).sigmoid() * b[2]).tanh() + keep * h
        states.append(h)
    _seen(torch.stack(states) @ _normal("v", 2))


def _autoregression() -> None:
    lags = [_normal(f"A{lag}", 3, 3) for lag in range(3)]
    series = torch.randn(9, 3, generator=torch.Generator().manual_seed(3)).double()
    mean = torch.stack([series[2 - i : 8 - i] @ A for i, A in enumerate(lags)]).sum(0)
    pyro.sample("y", dist.Normal(mean, 0.3).to_event(2), obs=series[3:9])


def _factors() -> None:
    seen = torch.randn(2, 2, 2, generator=torch.Generator().manual_seed(3)).double()
    a, b, c = (_normal(name, 2, 3) for name in "abc")
    mean = torch.einsum("ir,jr,kr->ijk", a, b, c)
    pyro.sample("y", dist.Normal(mean, 0.3).to_event(3), obs=seen)


def _relevance() -> None:
    prior = dist.LogNormal(torch.zeros(3).double(), 1.0).to_event(1)
    h = torch.tanh(X @ _normal("w", 2, 3, scale=pyro.sample("s", prior)))
    _seen((torch.tanh(h @ _normal("u", 3, 3)) @ _normal("v", 3, 1))[:, 0])


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (_two_heads, [(3, ["mean", "scale", "w"])]),
        (_linear_skip, [(2, ["v", "w"])]),
        (_unequal_scales, [(3, ["u", "v"])]),
        (_unequal_biases, [(3, ["u", "v"])]),
        (_shared, [(3, ["u", "v", "w", "w"])]),
        (_recurrent, [(3, ["u", "v", "w", "w"])]),
        (_gated, [(2, ["hidden", "hidden", "inputs", "v"])]),
        (_autoregression, []),
        (_factors, [(3, ["a", "b", "c"])]),
        (_relevance, [(3, ["s", "u", "w"]), (3, ["u", "v"])]),
    ],
)
def test_groups_are_those_of_the_density(
    model: Model, expected: list[tuple[int, list[str]]]
) -> None:
    assert sorted(_told(*_find(model))) == sorted(expected)


def test_scales_of_units_keep_their_signs() -> None:
    """Weights that lead to a unit change theirs, its scale does not."""
    groups, names = _find(_relevance)
    (first,) = (group for group in groups if "s" in _told([group], names)[0][1])
    assert {names[index] for index in first.flipped} == {"u", "w"}


def _count_by_all_orders(model: Model) -> int:
    """Of all orders of the axes of all sites those that leave the density as it is."""
    torch.manual_seed(1)
    trace = poutine.trace(model).get_trace()
    values = {name: trace.nodes[name]["value"] for name in trace.stochastic_nodes}
    choices = []
    for value in values.values():
        orders = itertools.product(*(itertools.permutations(range(n)) for n in value.shape))
        choices.append(
            [value[torch.meshgrid(*map(torch.tensor, o), indexing="ij")] for o in orders]
        )

    def density(some: Any) -> float:
        data = dict(zip(values, some, strict=True))
        return float(poutine.trace(poutine.condition(model, data)).get_trace().log_prob_sum())

    base = float(trace.log_prob_sum())
    return sum(abs(density(some) - base) < 1e-9 for some in itertools.product(*choices))


@pytest.mark.parametrize("model", [_two_heads, _linear_skip, _shared])
def test_their_orders_are_all_that_there_are(model: Model) -> None:
    with pyro.validation_enabled(False):
        expected = _count_by_all_orders(model)
        found = math.prod(math.factorial(group.size) for group in _find(model)[0])
    assert found == expected


@settings(max_examples=25)
@given(
    widths=st.lists(st.integers(2, 4), min_size=1, max_size=3),
    ends=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    activation=st.sampled_from(["tanh", "relu", "softplus"]),
    transposed=st.booleans(),
    biases=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float64, torch.float32]),
    seed=st.integers(0, 2**20),
)
def test_hidden_layers_of_any_network_are_found(
    widths: list[int],
    ends: tuple[int, int],
    activation: str,
    transposed: bool,
    biases: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    sizes = [ends[0], *widths, ends[1]]
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(12, sizes[0], generator=random).to(dtype)
    y = torch.randn(12, sizes[-1], generator=random).to(dtype)
    phi = getattr(torch.nn.functional, activation)

    def model() -> None:
        h = x
        for index, (n, k) in enumerate(itertools.pairwise(sizes)):
            shape = (k, n) if transposed else (n, k)
            w = pyro.sample(f"w{index}", dist.Normal(torch.zeros(shape).to(dtype), 1.0).to_event(2))
            h = (h if index == 0 else phi(h)) @ (w.mT if transposed else w)
            if biases:
                prior = dist.Normal(torch.zeros(k).to(dtype), 1.0).to_event(1)
                h = h + pyro.sample(f"b{index}", prior)
        pyro.sample("y", dist.Normal(h, 0.5).to_event(2), obs=y)

    groups, _ = _find(model, dtype)
    found = sorted(group.size for group in groups)
    if dtype == torch.float32:  # which may miss some, and must not make any up
        assert all(found.count(size) <= widths.count(size) for size in found)
        return
    assert found == sorted(widths)
    assert all(bool(group.flipped) == (activation == "tanh") for group in groups)


def test_places_and_signs_leave_the_density_as_it_is() -> None:
    groups, _ = _find(_relevance)
    trace = poutine.trace(_relevance).get_trace()
    sites = [LatentSite.from_trace(trace.nodes[name], False) for name in trace.stochastic_nodes]
    joint = LogJoint(_relevance, sites, (), {})
    u = torch.randn(sum(site.numel for site in sites)).double()
    for group in groups:
        for order in itertools.permutations(range(group.size)):
            moved = u[group.places(torch.tensor(order))] * group.signs([0, 2])
            torch.testing.assert_close(joint(moved), joint(u))
        assert torch.equal(group.swap(0, 2), group.places(torch.tensor([2, 1, 0])))


def test_axes_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor those of which there are too many: each takes four gradients."""
    monkeypatch.setattr("pyro_implicit.guides.initialization.unit_groups._MAX_AXES", 2)
    assert _find(_two_heads)[0] == []
