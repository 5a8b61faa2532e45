"""Processes on each other: one layer is the weight-space form, two have a bound, mixtures score."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from benchmarks.papers.vip import vip_deep
from benchmarks.papers.vip._deep import (
    Layer,
    Layered,
    coverage_of_mixture,
    mixture_nll,
    principal_axes,
)
from benchmarks.papers.vip._vip_fits import Weights, train
from benchmarks.shared.uci import Split


def net(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs))


def two_layers(spread: float = 0.1, alpha: float = 0.0) -> Layered:
    layers = [Layer(net(3, 2), 2, 6, 1, spread), Layer(net(2, 1), 1, 6, 0, 1.0)]
    return Layered(layers, [torch.eye(3)[:, :2]], 0.3, alpha)


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_one_layer_is_the_weight_space_form(alpha: float) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 3), torch.randn(12)
    network = net(3, 1)
    one = Layered([Layer(network, 1, 6, 0, 1.0)], [], 0.3, alpha)
    other = Weights(one.layers[0].prior, 0.3, 6, alpha)
    with torch.no_grad():
        one.layers[0].loc.normal_()
        one.layers[0].factor.normal_()
        other.loc.copy_(one.layers[0].loc)
        other.factor.copy_(one.layers[0].factor)
    torch.testing.assert_close(one.loss(x, y, 40), other.loss(x, y, 40))
    mean, scale = one.mixture(x, 7, 1.5)
    assert mean.shape == (1, 12)
    expected = other.predict(x, y, x, 1.5)
    torch.testing.assert_close((mean[0], scale[0]), tuple(v.double() for v in expected))


def test_a_first_layer_without_spread_hands_its_mean_on() -> None:
    torch.manual_seed(0)
    x, fit = torch.randn(9, 3), two_layers(spread=1e-8)
    with torch.no_grad():
        expected = x[:, :2] + fit.layers[0].process(x).functions.mean(0).mT
        torch.testing.assert_close(fit.hidden(x), expected)
        mean, _ = fit.mixture(x, 4)
    torch.testing.assert_close(mean, mean[:1].expand(4, -1))


@pytest.mark.long
def test_the_loss_is_a_bound_on_the_evidence() -> None:
    torch.manual_seed(0)
    x, y, fit = torch.randn(4, 3), torch.randn(4), two_layers(spread=1.0)
    with torch.no_grad():
        bound = -len(x) * torch.stack([fit.loss(x, y, len(x)) for _ in range(30)]).mean()
        logs = []  # of the likelihood at joint draws of all rows from the prior
        for _ in range(200):
            first, last = fit.layers[0].process(x), fit.layers[1]
            hidden = x[:, :2] + first.weighted(torch.randn(2, 1, 6)).mT.float()
            f = last.process(hidden).weighted(torch.randn(6))
            logs.append(torch.distributions.Normal(f, 0.3).log_prob(y).sum())
        evidence = torch.stack(logs).logsumexp(0) - math.log(len(logs))
    assert bound < evidence


def test_divergences_add_up() -> None:
    fit = two_layers(spread=1.0)
    assert [layer.kl().item() for layer in fit.layers] == pytest.approx([0.0, 0.0], abs=1e-5)
    with torch.no_grad():
        fit.layers[0].loc.fill_(1.0)
    assert fit.layers[0].kl().item() == pytest.approx(6.0)  # half of 2 x 6 ones


@pytest.mark.long
def test_two_layers_learn() -> None:
    torch.manual_seed(0)
    x = torch.randn(80, 3)
    y = torch.sin(2 * x[:, 0]) + 0.05 * torch.randn(80)
    fit = two_layers()
    with torch.no_grad():
        before = mixture_nll(y.double(), fit.mixture(x, 5))
    train(fit, (x, y), range(60), rate=0.05)
    with torch.no_grad():
        after = mixture_nll(y.double(), fit.mixture(x, 5))
    assert after < before - 0.3
    assert all(parameter.grad is not None for parameter in fit.parameters())


def test_mixtures_of_equal_parts_are_one_normal() -> None:
    torch.manual_seed(0)
    mean, scale, y = torch.randn(50), torch.rand(50) + 0.5, torch.randn(50)
    same: tuple[Tensor, Tensor] = (mean.expand(3, -1), scale.expand(3, -1))
    normal = torch.distributions.Normal(mean, scale)
    assert mixture_nll(y, same) == pytest.approx(-normal.log_prob(y).mean().item(), rel=1e-5)
    inside = ((y - mean).abs() <= 1.6448536 * scale).double().mean().item()
    assert coverage_of_mixture(y, same) == inside
    apart = (torch.tensor([[-9.0], [9.0]]), torch.ones(2, 1))
    assert coverage_of_mixture(torch.zeros(1), apart) == 1.0  # the interval is of quantiles
    assert coverage_of_mixture(torch.tensor([12.0]), apart) == 0.0


def test_axes_keep_what_they_can() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 2) @ torch.randn(2, 5)
    assert torch.equal(principal_axes(x, 5), torch.eye(5))
    axes = principal_axes(x, 2)
    torch.testing.assert_close(axes.mT @ axes, torch.eye(2), atol=1e-5, rtol=1e-5)
    centred = x - x.mean(0)
    torch.testing.assert_close(centred @ axes @ axes.mT, centred, atol=1e-4, rtol=1e-4)


def test_layers_that_are_named() -> None:
    split = Split(torch.randn(20, 13), torch.randn(20), torch.randn(5, 13), torch.randn(5), 2.0)
    counts = {name: len(vip_deep.make(name, split).layers) for name in vip_deep.METHODS[:3]}
    assert counts == {"one layer": 1, "one layer, 40 functions": 1, "two layers": 2}
    deep = vip_deep.make("two layers", split)
    assert deep.map0.shape == (13, 10) and deep.layers[0].loc.shape == (10, 20)
    assert vip_deep.make("one layer, 40 functions", split).layers[0].loc.shape == (40,)


def test_tables_are_by_set_and_method() -> None:
    scores = {"rmse": 1.0, "coverage": 0.9, "steps": 50, "cpu_seconds": 3.0, "seed": 0}
    rows = [
        {"set": "boston", "method": method, "split": split, "nll": level + split, **scores}
        for split in (0, 1)
        for method, level in (("one layer", 2.0), ("two layers", 1.5))
    ]
    one, two = vip_deep.table(rows).splitlines()[2:]
    assert "| one layer " in one and "2.50 ± 0.50" in one and "| two layers | " in two
    (line,) = vip_deep.differences(rows).splitlines()[2:]
    assert "-0.50 ± 0.00" in line and "2 of 2" in line
