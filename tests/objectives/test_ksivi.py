"""The kernel Stein discrepancy of Gaussians, its gradients, and what it refuses."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoNormal
from torch import Tensor

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import ArgumentError, GuideError, SiteError
from pyro_implicit.objectives import KPG, KSIVI, AmortisedSVGD
from tests.objectives.gaussian_case import DEVIATION, KERNELS, MEAN, GaussianCase, close, model
from tests.turns import in_turns

WIDTH = 0.6


def exact(case: GaussianCase, kernel: Any) -> tuple[Tensor, Tensor]:
    """The discrepancy and its gradient, by quadrature over the noise of two draws."""
    loc, deviation, log_scale = (p.detach().clone().requires_grad_() for p in case.parameters)
    variance = deviation**2 + (2 * log_scale).exp()
    white = torch.linspace(-6, 6, 601).double()
    weights = (-0.5 * white**2).softmax(0)
    x = loc + variance.sqrt() * white
    delta = weights * (-white / variance.sqrt() + (x - MEAN) / DEVIATION**2)
    value = delta @ kernel(x[:, None] - x) @ delta
    grads = torch.autograd.grad(value, [loc, deviation, log_scale])
    return value.detach(), torch.stack(grads)


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "estimator"), in_turns(KERNELS, ["u-statistic", "two batches"]))
def test_value_and_gradients_are_without_bias(kernel: str, estimator: str) -> None:
    case = GaussianCase()
    options: Any = {"vectorize_particles": True, "max_plate_nesting": 0}
    value, slope = exact(case, KERNELS[kernel](WIDTH))
    for count, repeats in ((2, 200), (80, 60)):
        objective = KSIVI(count, kernel=kernel, estimator=estimator, width=WIDTH, **options)
        losses, found = case.gradients(objective, repeats)
        close(losses, value)
        close(found, slope)


@pytest.mark.long
def test_loops_and_vectorised_draws_agree() -> None:
    case = GaussianCase()
    value, slope = exact(case, KERNELS["gaussian"](WIDTH))
    losses, found = case.gradients(KSIVI(8, width=WIDTH), 60)
    close(losses, value)
    close(found, slope)


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["gaussian", "imq", "riesz"])
def test_it_is_zero_at_the_posterior_alone(kernel: str) -> None:
    objective = KSIVI(80, kernel=kernel, vectorize_particles=True, max_plate_nesting=0)
    right = GaussianCase(MEAN, (DEVIATION**2 - 0.3**2) ** 0.5, 0.3)
    close(right.gradients(objective, 50)[0], torch.zeros(()).double())
    for wrong in (GaussianCase(0.9), GaussianCase(MEAN, 1.2), GaussianCase(MEAN, 0.3)):
        losses, _ = wrong.gradients(objective, 50)
        assert losses.mean() > 4 * losses.std() / 50**0.5


def regression(weight: float = 1.0, learned: bool = False) -> None:
    slope = pyro.param("slope", torch.tensor(1.0)) if learned else 1.0
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(slope * w[..., 0], s), obs=torch.tensor([0.1, 1.0, 2.0]))


def test_an_ordinary_site_is_refused_and_others_train_it() -> None:
    guide = AutoGuideList(regression)
    guide.append(HyperNetworkGuide(poutine.block(regression, hide=["s"]), scale=0.1))
    guide.append(AutoNormal(poutine.block(regression, expose=["s"])))
    with pytest.raises(GuideError, match=r"guide site 's\w*' is an ordinary one"):
        KSIVI(4).loss(regression, guide)
    for make in (KPG, AmortisedSVGD):
        guide.zero_grad()
        make(4).loss_and_grads(regression, guide)
        assert all(p.grad is not None and p.grad.any() for p in guide.parameters())
    guide[1] = AutoDelta(poutine.block(regression, expose=["s"]))
    with pytest.raises(GuideError, match=r"guide site 's\w*' is an ordinary one"):
        KSIVI(4).loss(regression, guide)


def test_parameters_of_the_model_are_refused_and_others_train_them() -> None:
    guide = HyperNetworkGuide(regression, scale=0.1, init_from=None)
    with pytest.raises(SiteError, match="the model learns parameter 'slope'"):
        KSIVI(4).loss(regression, guide, learned=True)
    slope = pyro.param("slope")
    for make in (KPG, AmortisedSVGD):
        loss = make(4).differentiable_loss(regression, guide, learned=True)
        (grad,) = torch.autograd.grad(loss, slope.unconstrained())
        assert grad.abs() > 1e-3
    slope.unconstrained().requires_grad_(False)
    assert torch.isfinite(torch.tensor(KSIVI(4).loss(regression, guide, learned=True)))
    slope.unconstrained().requires_grad_(True)


def test_the_gradient_of_a_parameter_of_the_model_is_that_of_the_evidence_bound() -> None:
    pyro.clear_param_store()
    guide = HyperNetworkGuide(regression, scale=0.1, init_from=None).setup()
    data = torch.tensor([0.1, 1.0, 2.0])
    pyro.set_rng_seed(3)
    loss = KPG(6).differentiable_loss(regression, guide, learned=True)
    (found,) = torch.autograd.grad(loss, pyro.param("slope").unconstrained())
    pyro.set_rng_seed(3)
    draws = [guide() for _ in range(6)]
    w = torch.stack([draw["w"][0] for draw in draws])[:, None]
    s = torch.stack([draw["s"] for draw in draws])[:, None]
    expected = -((data - w) * w / s**2).sum(1).mean()  # minus the slope of the log-likelihood
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_weight_of_the_guide_is_refused() -> None:
    case = GaussianCase()
    for make in (KSIVI, KPG, AmortisedSVGD):
        scaled = [poutine.scale(program, scale=2.0) for program in (model, case.guide)]
        with pytest.raises(SiteError, match=f"'x' has weight 2, and {make.__name__}"):
            make(4).loss(*scaled)


def test_scale_0_is_refused() -> None:
    with pytest.raises(GuideError, match="'x' has scale 0"):
        KSIVI(4).loss(model, GaussianCase(scale=0.0).guide)


@pytest.mark.long
def test_distances_are_in_the_units_of_the_guide() -> None:
    """The loss does not depend on the units of the latents where the guide knows them."""

    def scaled(unit: float) -> Any:
        return lambda: pyro.sample("x", dist.Normal(torch.zeros(2), unit).to_event(1))

    found = []
    for unit in (1.0, 100.0):
        program = scaled(unit)
        pyro.set_rng_seed(0)
        guide = HyperNetworkGuide(program, init_from="laplace", scale=0.3).setup()
        pyro.set_rng_seed(1)
        for parameter in guide.parameters():
            parameter.data += 0.2 * torch.randn_like(parameter)
        pyro.set_rng_seed(2)
        found.append([make(20, width=1.0).loss(program, guide) for make in (KSIVI, KPG)])
    assert found[1] == pytest.approx(found[0], rel=1e-3)


def test_arguments() -> None:
    for options in (
        {"num_particles": 1},
        {"num_particles": 5, "estimator": "two batches"},
        {"estimator": "v-statistic"},
        {"kernel": "linear"},
        {"bandwidth": 0.0},
        {"width": 0.0},
    ):
        with pytest.raises(ArgumentError, match=f"{next(iter(options))}="):
            KSIVI(**options)  # type: ignore[arg-type]
    told = KSIVI(4, kernel="riesz").settings
    assert told["kernel"] == "riesz" and told["estimator"] == "u-statistic"
