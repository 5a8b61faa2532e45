"""A module keeps its parameters, and SVI trains them, whatever the global store holds."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Trace_ELBO
from torch import nn

from pyro_implicit._params import emit_params


@pytest.fixture(params=[False, True], ids=["global", "local"])
def local(request: pytest.FixtureRequest) -> Iterator[bool]:
    with pyro.settings.context(module_local_params=request.param):
        yield request.param


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 1)
        self.free = nn.Parameter(torch.zeros(3))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("buffer", torch.ones(2))


def _svi(module: nn.Module, rate: float = 0.1) -> SVI:
    """Pulls every parameter towards 5."""

    def model() -> None:
        pyro.sample("x", dist.Normal(0.0, 1.0))

    def guide() -> None:
        emit_params("net", module)
        pyro.sample("x", dist.Normal(0.0, 1.0))
        for index, p in enumerate(module.parameters()):
            if p.requires_grad:
                pyro.factor(f"f{index}", ((p - 5) ** 2).sum(), has_rsample=True)

    return SVI(
        poutine.block(model, hide_types=["param"]),
        guide,
        pyro.optim.Adam({"lr": rate}),
        Trace_ELBO(),
    )


def _train(module: nn.Module) -> list[torch.Tensor]:
    before = [p.detach().clone() for p in module.parameters()]
    _svi(module).step()
    return [after - start for after, start in zip(module.parameters(), before, strict=True)]


def test_svi_trains_what_is_trainable(local: bool) -> None:
    net = _Net()
    frozen = net.frozen.clone()
    changes = dict(zip([n for n, _ in net.named_parameters()], _train(net), strict=True))
    assert changes.pop("frozen").abs().max() == 0 and net.frozen.equal(frozen)
    assert all(change.abs().min() > 0 for change in changes.values())


def test_the_store_mirrors_the_parameters_or_holds_nothing(local: bool) -> None:
    net = _Net()
    emit_params("net", net)
    store = dict(pyro.get_param_store().named_parameters())
    if local:
        assert not store
    else:
        assert sorted(store) == ["net.free", "net.inner.bias", "net.inner.weight"]
        assert all(store[f"net.{n}"] is p for n, p in net.named_parameters() if p.requires_grad)


def test_statements_are_recorded_with_values_that_lead_back(local: bool) -> None:
    net = _Net()
    with poutine.trace(param_only=True) as tracer:
        emit_params("net", net)
    nodes = tracer.trace.nodes
    assert [n for n in nodes if nodes[n]["type"] == "param"] == [
        f"net.{n}" for n, p in net.named_parameters() if p.requires_grad
    ]
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            assert nodes[f"net.{name}"]["value"].unconstrained() is parameter
            torch.testing.assert_close(nodes[f"net.{name}"]["value"], parameter.detach())


def test_a_second_module_of_the_same_name_takes_over(local: bool) -> None:
    first, second = _Net(), _Net()
    _train(first)
    kept = [p.detach().clone() for p in first.parameters()]
    changes = _train(second)
    assert changes[0].abs().min() > 0
    for parameter, value in zip(first.parameters(), kept, strict=True):
        assert parameter.equal(value)


def test_a_parameter_that_was_replaced_is_trained(local: bool) -> None:
    net = _Net()
    _train(net)
    net.free = nn.Parameter(torch.zeros(4))  # another shape, too
    _train(net)
    assert net.free.abs().min() > 0


def test_clearing_the_store_does_not_stop_the_training(local: bool) -> None:
    net = _Net()
    svi = _svi(net)
    svi.step()
    pyro.clear_param_store()
    before = net.free.detach().clone()
    svi.step()
    assert (net.free != before).all()


def test_a_parameter_that_is_not_contiguous_is_trained(local: bool) -> None:
    net = nn.Module()
    net.weight = nn.Parameter(torch.zeros(3, 2).mT)
    assert not net.weight.is_contiguous()
    (change,) = _train(net)
    assert change.abs().min() > 0


def test_a_module_can_be_pickled_and_copied_afterwards(local: bool) -> None:
    net = _Net()
    _train(net)
    for clone in (pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        for mine, theirs in zip(clone.parameters(), net.parameters(), strict=True):
            assert mine.equal(theirs) and mine is not theirs
        before = net.free.detach().clone()
        _train(clone)
        assert net.free.equal(before) and not clone.free.equal(before)


def test_moving_to_float64_keeps_the_training(local: bool) -> None:
    net = _Net()
    _train(net)
    net.double()
    changes = _train(net)
    assert changes[0].dtype == torch.float64 and changes[0].abs().min() > 0


def test_saved_optimiser_state_finds_its_parameters(local: bool) -> None:
    net = _Net()
    svi = _svi(net)
    svi.step()
    state = svi.optim.get_state()
    if not local:  # without names, Pyro's optimisers cannot tell states apart
        assert sorted(state) == ["net.free", "net.inner.bias", "net.inner.weight"]
