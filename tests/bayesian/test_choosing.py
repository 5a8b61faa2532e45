"""What of a network is random: by kind of layer, last layer, biases, adapters; and how wide."""

from __future__ import annotations

import copy
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import nn

from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO
from pyro_implicit.bayesian import (
    fan_in_prior,
    hierarchical_prior,
    last_layer,
    priors_by_type,
    with_adapters,
)
from pyro_implicit.bayesian.adapters import AdaptedLinear
from pyro_implicit.exceptions import ArgumentError, LayerError

NORMAL = dist.Normal(0.0, 1.0)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2))


def sites(prior: Any, module: nn.Module | None = None) -> tuple[str, ...]:
    return BayesianModule(module or network(), prior=prior).site_names


def test_by_type() -> None:
    linear = ("0.weight", "0.bias", "3.weight", "3.bias")
    assert sites(priors_by_type(network(), {nn.Linear: NORMAL})) == linear
    assert sites(priors_by_type(network(), {nn.LayerNorm: None, nn.Module: NORMAL})) == linear
    assert sites(priors_by_type(network(), {nn.LayerNorm: NORMAL})) == ("1.weight", "1.bias")
    frozen = network()
    frozen[0].requires_grad_(False)
    assert sites(priors_by_type(frozen, {nn.Linear: NORMAL}), frozen) == linear[2:]
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    assert sites(priors_by_type(tied, {nn.Linear: NORMAL}), tied) == (
        "0.weight",
        "0.bias",
        "1.bias",
    )
    with pytest.raises(ArgumentError, match="no trainable parameter: the network has layers of"):
        priors_by_type(network(), {nn.Conv2d: NORMAL})
    with pytest.raises(ArgumentError, match="priors has the key 'Linear'"):
        priors_by_type(network(), {"Linear": NORMAL})  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match=r"priors\[Linear\] is 3"):
        priors_by_type(network(), {nn.Linear: 3})


def test_last_layer_and_biases() -> None:
    assert sites(last_layer(network(), NORMAL)) == ("3.weight", "3.bias")
    assert sites(last_layer(nn.Linear(2, 1), NORMAL), nn.Linear(2, 1)) == ("weight", "bias")
    assert sites({r".*bias": NORMAL}) == ("0.bias", "1.bias", "3.bias")
    with pytest.raises(ArgumentError, match="module has no trainable parameter"):
        last_layer(network().requires_grad_(False), NORMAL)
    for bad in (None, "x", 3):
        with pytest.raises(
            ArgumentError, match="prior is .*expected an instance of a distribution"
        ):
            last_layer(network(), bad)


def test_widths_by_fan_in() -> None:
    net = BayesianModule(nn.Conv2d(3, 2, 5), prior=fan_in_prior(2.0, 0.5))
    trace = poutine.trace(net).get_trace(torch.zeros(1, 3, 5, 5))
    widths = {n: trace.nodes[n]["fn"].base_dist.scale.unique() for n in ("weight", "bias")}
    torch.testing.assert_close(widths["weight"], torch.tensor([2.0 / math.sqrt(75.0)]))
    torch.testing.assert_close(widths["bias"], torch.tensor([0.5]))
    with pytest.raises(ArgumentError, match="scale=0"):
        fan_in_prior(0.0)


@pytest.mark.parametrize(
    "by, names",
    [
        ("tensor", {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}),
        ("layer", {"0", "1", "3"}),
        ("network", {"weights"}),
    ],
)
@pytest.mark.parametrize("vectorised", [False, True])
def test_widths_that_are_learned(by: str, names: set[str], vectorised: bool) -> None:
    net = BayesianModule(network(), prior=hierarchical_prior(by=by, name="net"), name="net")

    def model() -> None:
        f = net(torch.ones(5, 3))
        with pyro.plate("data", 5):
            pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=torch.zeros(5, 2))

    guide = HyperNetworkGuide(model, init_from=None).setup()
    found = {site.name for site in guide.sites if site.name.endswith("_scale")}
    assert found == {f"net.{name}_scale" for name in names}
    LinearisedELBO(3, vectorize_particles=vectorised).loss_and_grads(model, guide)
    trace = poutine.trace(model).get_trace()
    width = trace.nodes[f"net.{'0.weight' if by == 'tensor' else min(names)}_scale"]["value"]
    torch.testing.assert_close(
        trace.nodes["net.0.weight"]["fn"].base_dist.scale, width.expand(4, 3)
    )


def test_widths_that_cannot_be() -> None:
    discrete = (dist.Poisson(3.0), dist.Geometric(0.5), dist.Binomial(3, 0.5))
    negative = (dist.Normal(0.0, 1.0), dist.Uniform(-1.0, 1.0))
    vectors = (dist.HalfNormal(torch.ones(2)), dist.Dirichlet(torch.ones(2)))
    for scale in (*discrete, *negative, *vectors):
        with pytest.raises(ArgumentError, match="expected a distribution of one positive number"):
            hierarchical_prior(scale)
    hierarchical_prior(dist.Uniform(0.5, 2.0))
    with pytest.raises(ArgumentError, match="by='row'"):
        hierarchical_prior(by="row")
    linear = nn.Linear(1, 1)
    model = BayesianModule(linear, prior=hierarchical_prior(dist.Gamma(2.0, 2.0), by="layer"))
    assert "module_scale" in poutine.trace(model).get_trace(torch.ones(1, 1)).nodes


# ---- adapters


def test_an_adapted_network_begins_as_it_was() -> None:
    original, x = network(), torch.randn(6, 3)
    before = {name: value.clone() for name, value in original.state_dict().items()}
    adapted = with_adapters(original, rank=3)
    assert torch.equal(adapted(x), original(x))
    trained = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert trained == ["0.down", "0.up", "3.down", "3.up"]
    assert adapted[3].up.shape == (2, 2)  # no more than the layer's sizes
    assert all(p.requires_grad for p in original.parameters())
    assert all(torch.equal(before[n], v) for n, v in original.state_dict().items())
    only = with_adapters(original, layers="3", train_down=False)
    assert [name for name, p in only.named_parameters() if p.requires_grad] == ["3.up"]


def test_what_an_adapter_adds() -> None:
    layer = nn.Linear(5, 4)
    adapted = AdaptedLinear(layer, rank=2, alpha=3.0)
    nn.init.normal_(adapted.up)
    x = torch.randn(7, 2, 5)
    weight = layer.weight + 1.5 * adapted.up @ adapted.down
    torch.testing.assert_close(adapted(x), nn.functional.linear(x, weight, layer.bias))
    with pytest.raises(ArgumentError, match=r"rank=5; expected .*<= 4 \(of the layer\)"):
        AdaptedLinear(layer, rank=5)


@pytest.mark.parametrize("vectorised", [False, True])
def test_adapters_are_the_only_latents(vectorised: bool) -> None:
    net = BayesianModule(with_adapters(network(), rank=1), prior=dist.Normal(0.0, 0.1))

    def model() -> None:
        f = net(torch.ones(5, 3))
        with pyro.plate("data", 5):
            pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=torch.zeros(5, 2))

    guide = HyperNetworkGuide(model, init_from=None, init_loc_fn=net.init_to_module).setup()
    assert [site.name for site in guide.sites] == list(net.site_names)
    assert guide.latent_dim == (3 + 4) + (4 + 2)
    LinearisedELBO(2, vectorize_particles=vectorised).loss_and_grads(model, guide)


def test_a_shared_layer_has_one_adapter_wherever_it_is_used() -> None:
    class Parent(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    layer, x = nn.Linear(2, 2), torch.randn(5, 2)
    block = nn.Sequential(layer, nn.Tanh(), layer, Parent(layer), Parent(layer))
    for shared in (block, nn.Sequential(block, block)):
        for layers in (".*", r"(.*\.)?3\.inner"):  # one of its names is enough
            adapted = with_adapters(shared, 1, layers=layers)
            assert torch.equal(adapted(x), shared(x))
            (down, up) = (p for p in adapted.parameters() if p.requires_grad)
            nn.init.normal_(up)
            changed = copy.deepcopy(shared)
            with torch.no_grad():
                next(changed.parameters()).add_(up @ down)
            torch.testing.assert_close(adapted(x), changed(x))
            assert len(sites(dist.Normal(0.0, 1.0), adapted)) == 2


def test_layers_that_cannot_be_adapted() -> None:
    with pytest.raises(ArgumentError, match="layers='head' matches no nn.Linear"):
        with_adapters(network(), layers="head")
    with pytest.raises(ArgumentError, match="is no regular expression"):
        with_adapters(network(), layers="(")
    attention = nn.Sequential(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))
    with pytest.raises(LayerError, match="'0.linear1' is within a TransformerEncoderLayer"):
        with_adapters(attention)
