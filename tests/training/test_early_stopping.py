"""EarlyStopping: when it stops, what it keeps, and that it gives it back whole or not at all."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn

from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, StateError
from pyro_implicit.training import EarlyStopping

scores = st.lists(st.floats(-5, 5), min_size=1, max_size=30)


@given(scores=scores, patience=st.integers(1, 5), sign=st.sampled_from([1, -1]))
def test_it_stops_after_patience_scores_without_a_better_one(
    scores: list[float], patience: int, sign: int
) -> None:
    stopping = EarlyStopping(patience, mode="min" if sign == 1 else "max")
    for index, score in enumerate(scores):
        stop = stopping.step(sign * score)
        past = scores[: index + 1]
        best = past.index(min(past))
        assert (stopping.best_score, stopping.best_step) == (sign * past[best], best)
        assert stop == (index - best >= patience)
    assert stopping.num_steps == len(scores)


def test_a_small_gain_is_no_improvement() -> None:
    stopping = EarlyStopping(2, min_delta=0.5)
    assert [stopping.step(value) for value in (3.0, 2.6, 2.5)] == [False, False, True]
    assert stopping.best_score == 3.0
    assert not stopping.step(2.4)
    assert stopping.best_step == 3


def test_it_brings_back_the_best_parameters_in_place() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    scale = pyro.param("scale", torch.tensor(2.0), constraint=dist.constraints.positive)
    stored = pyro.get_param_store().get_state()["params"]["scale"]
    before = {name: value.clone() for name, value in net.state_dict().items()}
    weight = net[0].weight
    stopping = EarlyStopping()
    stopping.step(torch.tensor(1.0), net)
    with torch.no_grad():
        stored.add_(1.0)
        for parameter in net.parameters():
            parameter.add_(1.0)
    net(torch.randn(4, 2))  # changes buffers
    stopping.step(2.0, net)
    for _ in range(2):  # more than once
        stopping.restore(net)
        assert pyro.param("scale").item() == pytest.approx(2.0)
        for name, value in net.state_dict().items():
            torch.testing.assert_close(value, before[name])
        with torch.no_grad():
            weight.mul_(3.0)  # must not reach the copy
    assert net[0].weight is weight
    assert pyro.get_param_store().get_state()["params"]["scale"] is stored
    assert scale.item() == pytest.approx(2.0)


def model() -> None:
    pyro.sample("x", dist.Normal(3.0, 0.5))


@pytest.mark.parametrize("kind", [AutoNormal, HyperNetworkGuide])
@pytest.mark.parametrize("local", [False, True])
def test_with_svi_and_any_guide(kind: Any, local: bool) -> None:
    with pyro.settings.context(module_local_params=local):
        guide = kind(model)
        objective = Trace_ELBO() if kind is AutoNormal else LinearisedELBO()
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), objective)
        svi.step()
        stopping = EarlyStopping(3, mode="max")
        stopping.step(1.0, guide)
        kept = {n: p.detach().clone() for n, p in guide.named_parameters()}
        for _ in range(3):
            svi.step()
            stop = stopping.step(0.0, guide)
        assert stop
        changed = [n for n, p in guide.named_parameters() if not torch.equal(p, kept[n])]
        assert changed
        stopping.restore(guide)
        for name, parameter in guide.named_parameters():
            torch.testing.assert_close(parameter.detach(), kept[name])
        svi.step()  # goes on with the same tensors


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_refused(score: float) -> None:
    stopping = EarlyStopping()
    with pytest.raises(NonFiniteError, match="score 0 is"):
        stopping.step(score)
    stopping.step(1.5)
    with pytest.raises(NonFiniteError, match=r"best so far is 1\.5"):
        stopping.step(torch.tensor(score))
    assert (stopping.num_steps, stopping.best_score) == (1, 1.5)


def test_nothing_is_restored_if_something_does_not_fit() -> None:
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    pyro.param("a", torch.zeros(3))
    stopping = EarlyStopping()
    with pytest.raises(StateError, match="no state to restore"):
        stopping.restore()
    stopping.step(1.0, net, other)
    with torch.no_grad():
        pyro.param("a").add_(1.0)
    with pytest.raises(StateError, match="given 1 modules, and step 2"):
        stopping.restore(net)
    with pytest.raises(StateError, match=r"Linear had other entries .* \['bias'\]"):
        stopping.restore(net, nn.Linear(2, 2, bias=False))
    with pytest.raises(StateError, match=r"'weight' of Linear has shape \(2, 3\); .* \(2, 2\)"):
        stopping.restore(net, nn.Linear(3, 2))
    assert pyro.param("a").tolist() == [1.0] * 3
    pyro.param("b", torch.zeros(1))
    with pytest.raises(StateError, match=r"parameter store had other entries .* \['b'\]"):
        stopping.restore(net, other)
    assert pyro.param("a").tolist() == [1.0] * 3


@pytest.mark.parametrize(
    "options, message",
    [
        ({"patience": 0}, "patience=0"),
        ({"patience": True}, "patience=True"),
        ({"patience": 2.0}, "patience=2.0"),
        ({"min_delta": -1.0}, "min_delta=-1.0"),
        ({"min_delta": math.nan}, "min_delta=nan"),
        ({"mode": "auto"}, "mode='auto'"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        EarlyStopping(**options)


def test_a_guide_of_another_structure_changes_nothing():
    def make(scale):
        prior = dist.Normal(0.0, 1.0)
        return HyperNetworkGuide(lambda: pyro.sample("w", prior), scale=scale).setup()

    stopping, other = EarlyStopping(), make(0.5)
    stopping.step(1.0, make(0.1))
    pyro.param("p", torch.zeros(()))
    stopping._state.params["p"] = torch.ones(())
    with pytest.raises(StateError, match=r"another structure than its best state: .*scale is 0.5"):
        stopping.restore(other)
    assert pyro.param("p") == 0.0


def test_it_goes_on_from_its_state() -> None:
    net = nn.Linear(2, 2)
    stopping, other = EarlyStopping(2, mode="max"), EarlyStopping(2, mode="max")
    other.load_state_dict(stopping.state_dict())  # nothing yet
    assert other.best_step is None and not other.is_over
    best = {name: value.clone() for name, value in net.state_dict().items()}
    stopping.step(1.0, net)
    stopping.step(0.0, net)
    other.load_state_dict(stopping.state_dict())
    assert (other.best_score, other.best_step, other.num_steps) == (1.0, 0, 2)
    with torch.no_grad():
        net.weight.add_(1.0)
    assert other.step(0.5, net) and other.is_over
    other.restore(net)
    assert all(value.equal(best[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("state", [3, {}, {"best": 3}])
def test_what_is_no_state_changes_nothing(state: Any) -> None:
    stopping = EarlyStopping()
    stopping.step(1.0)
    with pytest.raises(StateError, match="not a state of EarlyStopping"):
        stopping.load_state_dict(state)
    assert (stopping.best_score, stopping.num_steps) == (1.0, 1)
