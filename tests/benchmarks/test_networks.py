"""The image networks: their sizes, their start, and draws of them by vmap and in a loop."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.infer import SVI, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from benchmarks.networks import LeNet, NBeats, WideResNet
from pyro_implicit import BayesianModule
from pyro_implicit.exceptions import ArgumentError

NETWORKS = {"lenet": (LeNet, (1, 28, 28)), "wideresnet": (lambda: WideResNet(10, 1), (3, 8, 8))}


def _count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def _images(name: str, rows: int = 4) -> Tensor:
    return torch.randn(rows, *NETWORKS[name][1])


def _model(net: BayesianModule) -> Any:
    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        logits = net(x)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return model


# ---- sizes


def test_lenet_has_the_44426_weights_of_the_papers() -> None:
    assert _count(LeNet()) == 44_426


@pytest.mark.parametrize(
    ("depth", "factor", "classes", "millions"),
    [(16, 4, 10, 2.7), (28, 10, 10, 36.5), (28, 10, 100, 36.5)],
)
def test_wide_resnets_have_the_millions_of_the_papers(
    depth: int, factor: int, classes: int, millions: float
) -> None:
    with torch.device("meta"):
        net = WideResNet(depth, factor, classes)
    assert _count(net) == pytest.approx(millions * 1e6, rel=0.02)


@pytest.mark.long
@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 12), st.sampled_from([4, 5, 16]))
def test_wide_resnet_gives_logits_at_any_size(
    blocks: int, factor: int, classes: int, side: int
) -> None:
    net = WideResNet(6 * blocks + 4, factor, classes)
    convolutions = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d)]
    skips = 3 if factor > 1 else 2
    assert len(convolutions) == 6 * blocks + 1 + skips
    assert net(torch.randn(2, 3, side, side)).shape == (2, classes)


def test_lenet_gives_logits() -> None:
    assert LeNet(7)(torch.randn(2, 1, 28, 28)).shape == (2, 7)


@pytest.mark.parametrize("depth", [4, 9, 17, -2])
def test_wide_resnet_refuses_other_depths(depth: int) -> None:
    with pytest.raises(ArgumentError, match=rf"depth={depth}; expected .*6 n \+ 4"):
        WideResNet(depth, 1)


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="widen_factor=0"):
        WideResNet(10, 0)
    for make in (LeNet, lambda n: WideResNet(10, 1, n)):
        with pytest.raises(ArgumentError, match="num_classes=0"):
            make(0)


# ---- normalisation


def test_normalisation_keeps_nothing_and_has_no_weights() -> None:
    net = WideResNet(10, 1)
    norms = [layer for layer in net.modules() if isinstance(layer, nn.GroupNorm)]
    assert len(norms) == 7
    assert all(_count(norm) == 0 and norm.num_groups == 8 for norm in norms)
    assert not list(net.buffers())


def test_an_image_does_not_see_the_others_and_training_is_prediction() -> None:
    net = WideResNet(10, 1).double()
    x = torch.randn(3, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(net(x)[:1], net(x[:1]))
    torch.testing.assert_close(net(x), net.eval()(x))


def test_every_weight_and_bias_matters() -> None:
    """Biases before a normalisation too: groups have several channels, which share one mean."""
    for name, (make, _) in NETWORKS.items():
        net = make()
        net(_images(name)).square().sum().backward()
        for label, parameter in net.named_parameters():
            assert parameter.grad.abs().max() > 1e-6, label


@pytest.mark.parametrize("depth", [10, 28])
def test_activations_keep_their_variance_under_he_weights(depth: int) -> None:
    net = WideResNet(depth, 1)
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            fan_in = layer.weight[0].numel()
            nn.init.normal_(layer.weight, std=math.sqrt(2 / fan_in))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    with torch.no_grad():
        logits = net(torch.randn(16, 3, 32, 32))
    assert 0.1 < logits.std() < 4


# ---- many draws


@pytest.mark.parametrize("name", NETWORKS)
def test_loop_and_vmap_agree(name: str) -> None:
    make, _ = NETWORKS[name]
    x = _images(name).double()
    outputs = []
    for how in ("loop", "vmap"):
        pyro.set_rng_seed(1)
        net = BayesianModule(make().double(), dist.Normal(0.0, 0.1), vectorize=how)
        with pyro.plate("draws", 3, dim=-2):
            outputs.append(net(x))
    assert outputs[0].shape == (3, 4, 10)
    torch.testing.assert_close(outputs[0], outputs[1])


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("vectorised", [False, True])
def test_trains_and_predicts_in_training_mode(name: str, vectorised: bool) -> None:
    make, _ = NETWORKS[name]
    net = BayesianModule(make(), dist.Normal(0.0, 1.0)).train()
    model, x, y = _model(net), _images(name), torch.arange(4)
    guide = AutoNormal(model, init_loc_fn=net.init_to_module, init_scale=0.01)
    elbo = Trace_ELBO(2, vectorize_particles=vectorised, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), elbo)
    assert all(math.isfinite(svi.step(x, y)) for _ in range(2))
    draws = Predictive(model, guide=guide, num_samples=3, parallel=vectorised)(x)["y"]
    assert draws.shape == (3, 4)


# ---- N-BEATS


def n_beats_by_hand(net: NBeats, x: Tensor, num_blocks: int, shared: bool) -> Tensor:
    """The recursion of the paper: residuals of backcasts, sum of forecasts."""
    total: Any = 0.0
    for k in range(num_blocks):
        block = net.blocks[0 if shared else k]
        hidden = x
        for layer in block.layers:
            hidden = torch.relu(hidden @ layer.weight.T + layer.bias)
        back = hidden @ block.theta_backcast.weight.T @ block.backcast.weight.T
        fore = hidden @ block.theta_forecast.weight.T @ block.forecast.weight.T
        x = x - back - block.backcast.bias
        total = total + fore + block.forecast.bias
    return total


@pytest.mark.parametrize("shared", [True, False])
def test_n_beats_explains_what_is_left(shared: bool) -> None:
    net = NBeats(6, 3, num_blocks=3, theta_dim=4, hidden_dim=5, share_weights=shared).double()
    x = torch.randn(7, 6, dtype=torch.float64)
    torch.testing.assert_close(net(x), n_beats_by_hand(net, x, 3, shared))
    assert len(net.blocks) == (1 if shared else 3)


def test_n_beats_of_the_forecasting_table() -> None:
    """Input 24, horizon 12, one stack of 3 shared blocks, theta 32, width 64."""
    net = NBeats(24, 12)
    layers = 24 * 64 + 64 + 3 * (64 * 64 + 64)
    heads = 2 * 64 * 32 + 32 * 24 + 24 + 32 * 12 + 12
    assert sum(p.numel() for p in net.parameters()) == layers + heads
    assert net(torch.zeros(5, 24)).shape == (5, 12)


def test_n_beats_refuses_sizes_below_one() -> None:
    with pytest.raises(ArgumentError, match="horizon=0; expected an integer >= 1"):
        NBeats(6, 0)
