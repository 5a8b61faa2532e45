"""Path gradients by the noises that could have made a draw: those of the KL divergence."""

from __future__ import annotations

import pytest
import torch

from pyro_implicit import SemiImplicitELBO
from pyro_implicit.exceptions import ArgumentError, GuideError, StateError
from pyro_implicit.objectives import AISIVI, UIVI
from tests.objectives.gaussian_case import GaussianCase, close, model


def exact(case: GaussianCase) -> torch.Tensor:
    return case.path(case.difference(case.grid))


@pytest.mark.long
@pytest.mark.parametrize("proposal", ["gauss-newton", "prior"])
def test_weighed_noises_give_the_gradient_of_the_divergence(proposal: str) -> None:
    case = GaussianCase()
    inner = 30 if proposal == "gauss-newton" else 600
    objective = AISIVI(
        200,
        num_inner=inner,
        proposal=proposal,
        include_own=False,
        vectorize_particles=True,
        max_plate_nesting=0,
    )
    losses, found = case.gradients(objective, 40)
    close(found, exact(case), bias=0.03)
    kl = (case.weights * case.weights.log()).sum() - torch.log(case.grid[1] - case.grid[0])
    log_p = -0.5 * ((case.grid - 0.4) / 0.7) ** 2 - 0.5 * torch.log(torch.tensor(0.98 * torch.pi))
    close(losses, kl - (case.weights * log_p).sum(), bias=0.01)


@pytest.mark.long
def test_the_bias_falls_with_the_number_of_noises() -> None:
    case, errors = GaussianCase(), []
    for inner in (1, 30):
        objective = AISIVI(300, num_inner=inner, vectorize_particles=True, max_plate_nesting=0)
        _, found = case.gradients(objective, 16)
        errors.append(float((found.mean(0) - exact(case)).norm()))
    assert errors[0] > 5 * errors[1]  # with one noise the entropy has half of its slope


@pytest.mark.long
@pytest.mark.parametrize("scale", [0.1, 0.5])
def test_the_own_noise_takes_its_weight_whatever_the_output_noise(scale: float) -> None:
    """Of a linear generator: a tenth with 10 noises, of which a tenth are the prior's."""
    case = GaussianCase(scale=scale)
    objective = AISIVI(500, num_inner=10, vectorize_particles=True, max_plate_nesting=0)
    _, found = case.gradients(objective, 30)
    weight, slope = 1 / (0.9 * 10 + 1), case.deviation / case.variance
    # at its own noise a draw gives no slope to the generator, and a whole nat to the log of scale
    missing = weight * torch.tensor([0.0, slope, -case.deviation * slope]).double()
    close(found, exact(case) + missing, bias=0.02)
    assert missing[1] > 0.08


@pytest.mark.long
def test_the_score_has_less_noise_than_the_bound() -> None:
    """At the posterior the path gradient is without noise; that of the bound is not."""
    case = GaussianCase(0.4, (0.7**2 - 0.3**2) ** 0.5, 0.3)
    spreads = []
    for make in (AISIVI, SemiImplicitELBO):
        objective = make(
            50,
            num_inner=40,
            proposal="gauss-newton",
            vectorize_particles=True,
            max_plate_nesting=0,
        )
        _, found = case.gradients(objective, 16)
        close(found, torch.zeros(3).double(), bias=0.05)
        spreads.append(float(found.std(0).norm()))
    assert spreads[0] < 0.5 * spreads[1]


def test_whether_it_is_a_bound() -> None:
    assert not AISIVI(include_own=True).is_bound and not AISIVI().is_bound
    assert AISIVI(4, proposal="prior").settings["proposal"] == "prior"


@pytest.mark.long
@pytest.mark.parametrize("vectorised", [pytest.param(False, marks=pytest.mark.slow), True])
def test_chains_give_the_gradient_of_the_divergence(vectorised: bool) -> None:
    case = GaussianCase()
    count, repeats = (150, 25) if vectorised else (2, 30)
    objective = UIVI(count, num_burn_in=8, vectorize_particles=vectorised, max_plate_nesting=0)
    case.gradients(objective, 15)  # to adapt the step
    _, found = case.gradients(objective, repeats)
    close(found, exact(case), bias=0.03)
    assert objective.step_sizes["x"] > 0.1


@pytest.mark.long
def test_chains_that_stay_where_they_began_have_no_gradient_of_the_entropy() -> None:
    case = GaussianCase()
    objective = UIVI(400, num_burn_in=0, num_inner=1, vectorize_particles=True)
    objective.load_state_dict({"step_sizes": {"x": 1e-6}})
    _, found = case.gradients(objective, 30)
    cross = case.path((case.grid - 0.4) / 0.7**2)  # of minus the log-density alone
    cross[2] -= 1.0  # that of the output noise's own entropy is all that is left
    close(found, cross, bias=0.02)


@pytest.mark.long
def test_the_value_is_the_bound_with_the_entropy_of_the_output_noise() -> None:
    case = GaussianCase()
    objective = UIVI(200, num_burn_in=0, num_inner=1, vectorize_particles=True)
    losses, _ = case.gradients(objective, 30)
    noise = torch.distributions.Normal(0.0, torch.tensor(0.3).double()).entropy()
    log_p = torch.distributions.Normal(0.4, 0.7).log_prob(case.grid)
    close(losses, -(case.weights * log_p).sum() - noise)
    assert objective.is_bound


@pytest.mark.long
def test_step_sizes_are_adapted_in_training_alone_and_saved() -> None:
    case, objective = GaussianCase(), UIVI(4)
    objective.loss(model, case.guide)
    assert not objective.step_sizes
    objective.loss_and_grads(model, case.guide)
    state = objective.state_dict()
    assert state["step_sizes"].keys() == {"x"}
    other = UIVI(4)
    other.load_state_dict(state)
    assert other.step_sizes == objective.step_sizes
    for wrong in ({"step_sizes": {"x": -1.0}}, {"step_sizes": [0.1]}, {"other": {}}):
        with pytest.raises(StateError, match="not a state of UIVI"):
            other.load_state_dict(wrong)
    assert other.step_sizes == objective.step_sizes


def test_refusals() -> None:
    for make in (AISIVI, UIVI):
        with pytest.raises(GuideError, match="'x' has scale 0"):
            make(2).loss(model, GaussianCase(scale=0.0).guide)
    for name, value in (("num_inner", 0), ("proposal", "flow"), ("include_own", 1)):
        with pytest.raises(ArgumentError, match=f"{name}="):
            AISIVI(**{name: value})  # type: ignore[arg-type]
    for name, value in (("num_inner", 0), ("num_burn_in", -1), ("num_leapfrog", 0)):
        with pytest.raises(ArgumentError, match=f"{name}="):
            UIVI(**{name: value})  # type: ignore[arg-type]
    assert UIVI(num_leapfrog=3).settings["num_leapfrog"] == 3
