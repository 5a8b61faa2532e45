"""What looks at networks in training mode leaves their running statistics where they were."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.handlers.networks.still_statistics import still_statistics

X = torch.linspace(-1.0, 2.0, 24).reshape(12, 2)


def test_buffers_come_back_and_modes_stay() -> None:
    inner, quiet = nn.Sequential(nn.BatchNorm1d(2)), nn.BatchNorm1d(2).eval()
    before = copy.deepcopy(inner.state_dict())
    with pytest.raises(RuntimeError, match="on purpose"), still_statistics():
        seen = quiet(inner(X)) if inner.training else None
        assert seen is not None and int(inner[0].num_batches_tracked) == 1
        raise RuntimeError("on purpose")
    for name, value in inner.state_dict().items():
        assert torch.equal(value, before[name])
    assert inner.training and not quiet.training
    assert not nn.modules.module._global_forward_pre_hooks
    inner(X)
    assert int(inner[0].num_batches_tracked) == 1


STEPS = 130  # of which the first hundred, up to the first score, come before the interruption


def interrupted_at(count: int) -> tuple[Any, HyperNetworkGuide, nn.Module, Any]:
    """A fit whose validation has as many scores: model, guide, network, result."""
    pyro.clear_param_store()
    pyro.set_rng_seed(1)
    norm = nn.BatchNorm1d(2, affine=False)

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            mean = (norm(x) * w.unsqueeze(-2)).sum(-1)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=x.sum(-1))

    guide, scores = HyperNetworkGuide(model, init_from=None), iter([0.0] * count)

    def score() -> float:
        if (found := next(scores, None)) is None:
            raise KeyboardInterrupt
        return found

    options: Any = {"num_steps": STEPS, "seed": 0, "progress": False}
    return model, guide, norm, fit(model, guide, X, validation=score, **options)


@cache
def whole_fit() -> tuple[nn.Module, Any]:
    """One that nothing interrupts."""
    *_, norm, result = interrupted_at(100)
    return norm, result


@pytest.mark.long
@pytest.mark.parametrize("what", ["same", "result", "guide", "both"])
def test_statistics_of_a_fit_that_goes_on_are_those_of_one_fit(what: str) -> None:
    """Objectives that have not met the guide yet look at the model in training mode."""
    whole_norm, whole = whole_fit()
    model, guide, norm, first = interrupted_at(0)
    assert first.num_steps < whole.num_steps
    if what in ("result", "both"):
        first = pickle.loads(pickle.dumps(first))
    if what in ("guide", "both"):
        guide = copy.deepcopy(guide)
    options: Any = {"num_steps": STEPS, "progress": False, "validation": lambda: 0.0}
    result = fit(model, guide, X, resume=first, **options)
    assert result.history == whole.history
    for name, value in norm.state_dict().items():
        assert torch.equal(value, whole_norm.state_dict()[name]), name


def test_networks_whose_weights_are_mapped_are_looked_at_as_they_are() -> None:
    """Latents stand in the place of a network's own tensors there."""
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    own = {name: value.detach() for name, value in net.named_parameters()}

    def of_one(scale: Tensor) -> Tensor:
        scaled = {name: scale * value for name, value in own.items()}
        return torch.func.functional_call(net, scaled, (X,)).sum()

    before = net[1].running_mean.clone()
    with still_statistics():
        one = of_one(torch.ones((), requires_grad=True))
    one.backward()
    assert torch.equal(net[1].running_mean, before)
    net[1] = nn.Identity()
    own = {name: value.detach() for name, value in net.named_parameters()}
    with still_statistics():
        torch.func.vmap(of_one)(torch.ones(3))


def test_a_step_that_is_looked_at_between_its_passes_goes_backwards() -> None:
    norm = nn.BatchNorm1d(2)
    loss = norm(X).square().sum()
    with still_statistics(), torch.no_grad():
        norm(X + 1)
    loss.backward()
    assert int(norm.num_batches_tracked) == 1


def test_a_buffer_that_a_call_replaces_is_the_one_of_before() -> None:
    class Replacing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self) -> None:
            self.count = self.count + 1

    counter = Replacing()
    before = counter.count
    with still_statistics():
        counter()
        counter()
    assert counter.count is before and float(before) == 0.0
