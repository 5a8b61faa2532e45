"""The recorded log-density has the bits of the model's, and of its first derivatives."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.guides.initialization import auto
from pyro_implicit.guides.initialization.recorded_density import RecordedAtDraws, RecordedDensity
from pyro_implicit.handlers.log_joint import LogJoint

Y = torch.tensor([0.3, -1.2, 2.0])


def smooth(y: Tensor) -> None:
    scale = pyro.sample("scale", dist.HalfNormal(1.0))
    mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 3.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.StudentT(4.0, mean.sum(-1), scale), obs=y)


#: with checks of its own, as one made while validation was on
PRIOR = dist.LogNormal(torch.zeros(3), 1.0, validate_args=True).to_event(1)


def checked(y: Tensor) -> None:
    scale = pyro.sample("scale", PRIOR).sum()
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(0.0, scale), obs=y)


def branching(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(torch.zeros(3), 3.0).to_event(1))
    scale = 1.0 if mean[0] > 0 else 2.0
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean[1], scale), obs=y)


def _densities(model: Any) -> tuple[LogJoint, RecordedDensity]:
    guide = HyperNetworkGuide(model, init_from=None).setup(Y)
    joint = LogJoint(model, guide.sites, (Y,), {})
    return joint, RecordedDensity(joint, torch.full((3,), 0.1))


@pytest.mark.parametrize(
    ("model", "is_recorded"), [(smooth, True), (checked, True), (branching, False)]
)
def test_values_and_gradients_are_those_of_the_model(model: Any, is_recorded: bool) -> None:
    joint, recorded = _densities(model)
    assert recorded.is_recorded is is_recorded
    for point in 3 * torch.randn(5, 3, generator=torch.Generator().manual_seed(0)):
        u = point.requires_grad_(True)
        value, expected = recorded(u), joint(u)
        assert torch.equal(value, expected)
        grads = [torch.autograd.grad(2 * v, u)[0] for v in (value, expected)]
        assert torch.equal(*grads)


def test_where_there_is_no_density_it_is_nan() -> None:
    def model() -> None:
        u = pyro.sample("u", dist.Normal(1.0, 0.01))
        pyro.sample("y", dist.Normal(0.0, u), obs=torch.tensor(0.5))

    guide = HyperNetworkGuide(model, init_from=None).setup()
    recorded = RecordedDensity(LogJoint(model, guide.sites, (), {}), torch.ones(1))
    assert recorded.is_recorded
    assert bool(recorded(torch.tensor([-1.0])).isnan())


@pytest.mark.long
@pytest.mark.automatic_start
def test_a_fit_that_left_the_domain_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bernoulli cuts probabilities above 1 where nobody checks them."""

    def model() -> None:
        p = pyro.sample("p", dist.Normal(0.5, 1.0))
        with pyro.plate("data", 20):
            pyro.sample("y", dist.Bernoulli(p), obs=torch.ones(20))

    fits = []

    def noted(density: Any, *args: Any) -> Any:
        fits.append(original(density, *args))
        return fits[-1]

    original = auto.fit_mean_field
    monkeypatch.setattr(auto, "fit_mean_field", noted)
    torch.manual_seed(0)
    with pyro.validation_enabled(True):
        HyperNetworkGuide(model).setup()
    assert len(fits) > 2  # two are asked for


@pytest.mark.parametrize("model", [smooth, checked])
def test_several_draws_at_once_are_what_they_are_alone(model: Any) -> None:
    joint, _ = _densities(model)
    example = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    together = RecordedAtDraws(joint, example)
    for points in (example, 2 * example + 0.1):
        u = points.clone().requires_grad_(True)
        values = together(u)
        (found,) = torch.autograd.grad((values * torch.arange(4.0)).sum(), u)
        for index, point in enumerate(points):
            alone = point.clone().requires_grad_(True)
            value = joint(alone)
            (slope,) = torch.autograd.grad(value, alone)
            assert values[index].item() == pytest.approx(value.item(), abs=1e-4)
            assert torch.allclose(found[index], index * slope, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model", [branching])
def test_a_model_that_does_not_vectorise_has_none_of_several(model: Any) -> None:
    joint, _ = _densities(model)
    with pytest.raises((RuntimeError, ValueError)):
        RecordedAtDraws(joint, torch.linspace(-1, 1, 12).reshape(4, 3))


def test_another_value_among_several_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    joint, _ = _densities(smooth)
    monkeypatch.setattr(
        RecordedAtDraws, "_pair", lambda self, u: (u.sum().expand(len(u)), torch.zeros_like(u))
    )
    with pytest.raises(ValueError, match="the value at one draw is another among several"):
        RecordedAtDraws(joint, torch.zeros(4, 3))
