"""The first learning rate follows the generators."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal
from pyro.nn import PyroModule, PyroParam
from pyro.poutine import block

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    LinearisedELBO,
    MMNNGuide,
    fit,
)
from pyro_implicit.generators import MLPGenerator


def model() -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))


def single() -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))


def several() -> AutoGuideList:
    guide = AutoGuideList(model)
    guide.append(HyperNetworkGuide(block(model, expose=["w"])))
    return guide


@pytest.mark.long
@pytest.mark.parametrize(
    "objective", [None, pytest.param(LinearisedELBO(), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    ("guide", "rate"),
    [
        (HyperNetworkGuide(model), 0.002),
        (several(), 0.002),
        (HyperNetworkGuide(model, generator=lambda size: MLPGenerator(size, 3)), 0.005),
        (MMNNGuide(model), 0.005),
        (AutoNormal(model), 0.005),
    ],
)
def test_the_rate_is_that_of_the_kind(guide: Any, rate: float, objective: Any) -> None:
    if isinstance(guide, AutoNormal) and objective is not None:
        objective = pyro.infer.Trace_ELBO()
    result = fit(model, guide, objective=objective, num_steps=3, progress=False, seed=0)
    assert result.rates[0] == rate
    assert fit(model, guide, num_steps=3, lr=0.01, progress=False).rates[0] == 0.01


def test_a_single_latent_takes_longer_steps() -> None:
    result = fit(single, HyperNetworkGuide(single), num_steps=3, progress=False, seed=0)
    assert result.rates[0] == 0.02
    parts = HyperNetworkGuide(model, factorized=lambda name: name)
    assert fit(model, parts, num_steps=3, progress=False, seed=0).rates[0] == 0.002


def test_a_function_has_the_usual_one() -> None:
    def guide() -> None:
        pyro.sample(
            "w", dist.Normal(pyro.param("at", torch.zeros(())), 1.0).expand([3]).to_event(1)
        )

    result = fit(model, guide, num_steps=3, progress=False, seed=0)
    assert result.rates[0] == 0.005


@pytest.mark.long
def test_pyros_guides_in_a_list_and_the_model_go_at_their_own_rate() -> None:
    """By Adam's first step, whose length is the rate whatever the gradient."""

    def wide() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        pyro.sample("b", dist.Normal(w.sum(-1), 1.0))
        pyro.sample("c", dist.LogNormal(w.sum(-1), 1.0))
        pyro.param("theta", torch.tensor(0.0))
        pyro.factor("far", 3 * pyro.param("theta"))

    def build() -> AutoGuideList:
        guide = AutoGuideList(wide)
        guide.append(HyperNetworkGuide(block(wide, expose=["w"])))
        guide.append(AutoNormal(block(wide, expose=["b"])))
        guide.append(AutoDelta(block(wide, expose=["c"])))
        return guide

    def moved(**options: Any) -> dict[str, float]:
        pyro.clear_param_store()
        guide = build()
        guide()
        before = {n: p.detach().clone() for n, p in guide.named_parameters()}
        theta = float(pyro.param("theta").detach())
        fit(wide, guide, num_steps=1, progress=False, seed=0, **options)
        gone = {n: float((p.detach() - before[n]).abs().max()) for n, p in guide.named_parameters()}
        return gone | {"theta": abs(float(pyro.param("theta").detach()) - theta)}

    for options, own in (({}, 0.005), ({"lr": 0.003}, 0.003)):
        gone = moved(**options)
        theirs = [v for name, v in gone.items() if not name.startswith("0.")]
        assert len(theirs) == 4  # of the model, too
        assert theirs == pytest.approx([own] * 4, rel=1e-3)
        ours = max(v for name, v in gone.items() if name.startswith("0."))
        assert ours == pytest.approx(options.get("lr", 0.002), rel=1e-3)


def test_beside_one_latent_pyros_guides_are_not_driven_by_its_rate() -> None:
    def both() -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        pyro.sample("w", dist.Normal(torch.zeros(3), scale).to_event(1))

    guide = AutoGuideList(both)
    guide.append(HyperNetworkGuide(block(both, expose=["scale"])))
    guide.append(AutoNormal(block(both, expose=["w"])))
    guide()
    before = {n: p.detach().clone() for n, p in guide.named_parameters()}
    fit(both, guide, num_steps=1, progress=False, seed=0)
    gone = {n: float((p.detach() - before[n]).abs().max()) for n, p in guide.named_parameters()}
    theirs = [v for name, v in gone.items() if name.startswith("1.")]
    assert theirs == pytest.approx([0.005, 0.005], rel=1e-3)
    ours = max(v for name, v in gone.items() if name.startswith("0."))
    assert ours == pytest.approx(0.02, rel=1e-3)


class Decoder(PyroModule):
    """A model with a network of its own, and a plain parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.net = PyroModule[torch.nn.Linear](3, 1)
        self.offset = PyroParam(torch.tensor(1.0), torch.distributions.constraints.positive)

    def forward(self) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        pyro.sample("y", dist.Normal(self.net(w) + self.offset, 1.0), obs=torch.tensor([9.0]))


def test_networks_of_the_model_go_at_the_rate_that_they_have_with_pyros_guides() -> None:
    decoder = Decoder()
    guide = HyperNetworkGuide(decoder)
    guide()
    before = {n: p.detach().clone() for n, p in decoder.named_parameters()}
    fit(decoder, guide, num_steps=1, progress=False, seed=0)
    gone = [float((p.detach() - before[n]).abs().max()) for n, p in decoder.named_parameters()]
    assert gone == pytest.approx([0.005] * 3, rel=1e-3)


def test_a_decoder_has_the_rate_that_it_has_beside_an_encoder_of_pyro() -> None:
    y = torch.randn(12, 3)
    decoder = torch.nn.Linear(2, 3)

    def local(y: torch.Tensor) -> None:
        pyro.module("decoder", decoder)
        with pyro.plate("rows", 12, subsample_size=len(y)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(decoder(z), 1.0).to_event(1), obs=y)

    before = decoder.weight.detach().clone()
    guide = ConditionalHyperNetworkGuide(local)
    rate = fit(local, guide, y, num_steps=1, progress=False, seed=0).rates[0]
    gone = float((decoder.weight.detach() - before).abs().max())
    assert rate == 0.002 and gone == pytest.approx(0.005, rel=1e-3)
