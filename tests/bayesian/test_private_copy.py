"""The private copy that a BayesianModule makes: what is a parameter in it, and what is refused."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pyro.poutine as poutine
import pytest
import torch
from pyro.nn import PyroModule, PyroParam, PyroSample
from torch import nn

from pyro_implicit.bayesian.adapters import with_adapters
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.exceptions import ArgumentError, LayerError

NORMAL = dist.Normal(0.0, 1.0)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def test_nothing_is_a_parameter_but_the_deterministic_part() -> None:
    user = mlp()
    user[2].weight.requires_grad_(False)
    net = BayesianModule(user, {r"0\..*": NORMAL})
    assert [name for name, _ in net.named_parameters()] == ["module.2.bias"]
    assert list(net.state_dict()) == [f"module.{name}" for name in net.module.state_dict()]
    x = torch.randn(2, 3)
    names = set(poutine.trace(net).get_trace(x).nodes) - {"_INPUT", "_RETURN"}
    assert names == {"0.weight", "0.bias", "BayesianModule(0.weight).2.bias"}


class _Sparse(nn.Module):
    """A graph convolution with a compressed adjacency, as a buffer or as a mere attribute."""

    def __init__(self, layout: torch.layout, buffer: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        adjacency = torch.eye(4).to_sparse(layout=layout)
        if buffer:
            self.register_buffer("adjacency", adjacency)
        else:
            self.adjacency = adjacency

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.adjacency, self.layer(x))


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
@pytest.mark.parametrize("buffer", [True, False])
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_coo])
def test_sparse_tensors_are_copied(layout: torch.layout, buffer: bool) -> None:
    user, x = _Sparse(layout, buffer), torch.randn(4, 2)
    net = BayesianModule(user, NORMAL, vectorize="loop")
    assert net.module.adjacency is not user.adjacency
    with pyro.plate("draws", 3, dim=-2):
        trace = poutine.trace(net).get_trace(x)
    weight, bias = (trace.nodes[f"layer.{name}"]["value"][:, 0] for name in ("weight", "bias"))
    torch.testing.assert_close(trace.nodes["_RETURN"]["value"], x @ weight.mT + bias[:, None])
    adapted = with_adapters(user, rank=1)
    torch.testing.assert_close(adapted(x), user(x))


def test_frozen_parameters_keep_their_value() -> None:
    user = mlp()
    user[2].weight.requires_grad_(False)
    net = BayesianModule(user, NORMAL)
    assert "2.weight" not in net.site_names
    torch.testing.assert_close(net.module[2].weight, user[2].weight.data)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_layer_of_several_places_is_one_layer(frozen: bool) -> None:
    layer, x = nn.Linear(2, 2), torch.randn(5, 2)
    layer.weight.requires_grad_(not frozen)
    network = nn.Sequential(layer, nn.Tanh(), layer)
    net = BayesianModule(network, prior=dist.Normal(0.0, 1.0))
    assert net.site_names == (("0.bias",) if frozen else ("0.weight", "0.bias"))
    for _ in range(2):  # the second run finds the module as the first did
        with pyro.plate("draws", 3, dim=-2):
            trace = poutine.trace(net).get_trace(x)
        values = {name: trace.nodes[name]["value"] for name in net.site_names}
        for k, found in enumerate(trace.nodes["_RETURN"]["value"]):
            state = {name: value[k, 0] for name, value in values.items()}
            torch.testing.assert_close(found, torch.func.functional_call(network, state, (x,)))


def test_tied_parameters_are_one_latent() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3, bias=False)
            self.second = nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    net = BayesianModule(Tied(), NORMAL).to(torch.float64)
    weight, x = torch.randn(4, 1, 3, 3).double(), torch.randn(5, 3).double()
    assert net.site_names == ("first.weight",)
    output = poutine.condition(net, {"first.weight": weight})(x)
    torch.testing.assert_close(output, x @ weight.squeeze(1).mT @ weight.squeeze(1).mT)
    torch.testing.assert_close(net.module.second.weight, net.module.first.weight, rtol=0, atol=0)


def test_batch_norm_with_one_draw_updates_the_copy_only() -> None:
    user = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    net = BayesianModule(user, NORMAL)
    assert "1.weight" in net.site_names and "1.running_mean" not in net.site_names
    net(torch.randn(16, 3))
    assert net.module[1].num_batches_tracked == 1
    assert not torch.equal(net.module[1].running_mean, torch.zeros(4))
    assert user[1].num_batches_tracked == 0
    assert torch.equal(user[1].running_mean, torch.zeros(4))


def test_batch_norm_with_several_draws_is_refused_or_right() -> None:
    def run(user: nn.Module, training: bool = True) -> torch.Tensor:
        net = BayesianModule(user, NORMAL).train(training)
        with pyro.plate("particles", 5, dim=-2):
            return net(torch.randn(16, 3))

    layers = [nn.Linear(3, 4), nn.BatchNorm1d(4)]
    with pytest.raises(LayerError, match=r"layer '1' \(BatchNorm1d\).*eval.*GroupNorm.*track_runn"):
        run(nn.Sequential(*layers))
    assert run(nn.Sequential(*layers), training=False).shape == (5, 16, 4)
    assert run(nn.Sequential(nn.Linear(3, 4), nn.GroupNorm(2, 4))).shape == (5, 16, 4)
    free = run(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False)))
    assert free.shape == (5, 16, 4)


def test_batch_norm_per_row_is_refused() -> None:
    net = BayesianModule(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), NORMAL, local=True)
    with pytest.raises(LayerError, match="running statistics"), pyro.plate("data", 6):
        net(torch.randn(6, 3))


@pytest.mark.parametrize(
    "module, settings, match",
    [
        (mlp, {}, "module is .*type function; expected a torch.nn.Module"),
        (nn.LazyLinear(3), {}, r"\['weight', 'bias'\] are not initialised"),
        (mlp(), {"name": None}, "name is None; expected a text"),
        (mlp(), {"batch_dims": -1}, "batch_dims=-1; expected"),
        (mlp(), {"batch_dims": True}, "batch_dims=True; expected"),
        (mlp(), {"vectorize": "map"}, "vectorize='map'; expected 'auto', 'vmap' or 'loop'"),
    ],
)
def test_bad_arguments(module: Any, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        BayesianModule(module, NORMAL, **settings)


@pytest.mark.parametrize("attribute", [PyroSample(NORMAL), PyroParam(torch.ones(()))])
def test_module_that_pyro_manages_already_is_refused(attribute: Any) -> None:
    layer = PyroModule[nn.Linear](3, 4)
    layer.extra = attribute
    with pytest.raises(ArgumentError, match="submodule '0' is a PyroModule"):
        BayesianModule(nn.Sequential(layer), NORMAL)
    with pytest.raises(ArgumentError, match="the module is a PyroModule"):
        BayesianModule(layer, NORMAL)
