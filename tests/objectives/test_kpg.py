"""Kernelised path gradients are those of the smoothed difference of scores, by quadrature."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from pyro_implicit.exceptions import ArgumentError, GuideError
from pyro_implicit.objectives import KPG, AmortisedSVGD
from tests.objectives.gaussian_case import KERNELS, GaussianCase, close, model
from tests.turns import in_turns

MAKES: dict[str, Any] = {"kpg": KPG, "svgd": AmortisedSVGD}


@pytest.mark.long
@pytest.mark.parametrize(("name", "kernel", "num_particles"), in_turns(MAKES, KERNELS, [2, 60]))
def test_the_gradient_is_the_smoothed_one_for_any_number_of_draws(
    name: str, kernel: str, num_particles: int
) -> None:
    case = GaussianCase()
    objective = MAKES[name](
        num_particles, kernel=kernel, width=0.6, vectorize_particles=True, max_plate_nesting=0
    )
    _, found = case.gradients(objective, 600 // num_particles + 60)
    expected = case.path(case.smoothed(KERNELS[kernel](0.6)))
    close(found, expected)
    assert (found.std(0) / len(found) ** 0.5 < 0.1).all()


@pytest.mark.long
def test_loops_and_vectorised_draws_agree() -> None:
    case = GaussianCase()
    expected = case.path(case.smoothed(KERNELS["gaussian"](0.6)))
    close(case.gradients(KPG(10, width=0.6), 60)[1], expected)


@pytest.mark.long
@pytest.mark.parametrize("kernel", KERNELS)
def test_importance_weights_give_the_gradient_of_the_divergence(kernel: str) -> None:
    case, width = GaussianCase(), 0.4
    objective = partial(KPG, 500, kernel=kernel, width=width, vectorize_particles=True)
    _, weighed = case.gradients(objective(importance=True, max_plate_nesting=0), 30)
    exact = case.path(case.difference(case.grid))
    _, plain = case.gradients(objective(max_plate_nesting=0), 30)
    assert (plain.mean(0) - exact).norm() > 0.3 * exact.norm()  # smoothing weighs by the density
    bias = 0.05 if kernel == "gaussian" else 0.25  # heavy tails reach for draws that are rare
    assert (weighed.mean(0) - exact).norm() < bias * exact.norm() + 4 * _error(weighed)


@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_are_finite_where_the_kernel_is_0(kernel: str) -> None:
    case = GaussianCase()
    objective = KPG(5, importance=True, kernel=kernel, width=1e-6)
    losses, found = case.gradients(objective, 3)
    assert losses.isfinite().all() and found.isfinite().all()


def _error(found: torch.Tensor) -> float:
    return float((found.std(0) / len(found) ** 0.5).norm())


@pytest.mark.long
def test_a_wide_kernel_moves_the_mean_alone() -> None:
    case = GaussianCase()
    for make in MAKES.values():
        objective = make(100, width=1e5, vectorize_particles=True, max_plate_nesting=0)
        _, found = case.gradients(objective, 40)
        slope = (case.loc - 0.4) / 0.7**2  # minus the mean of the posterior's score
        close(found, torch.tensor([slope, 0.0, 0.0]).double())


@pytest.mark.parametrize("name", MAKES)
def test_nothing_moves_at_the_posterior_and_the_loss_is_zero_there(name: str) -> None:
    case = GaussianCase(0.4, (0.7**2 - 0.3**2) ** 0.5, 0.3)
    objective = MAKES[name](80, vectorize_particles=True, max_plate_nesting=0)
    losses, found = case.gradients(objective, 60)
    close(losses, torch.zeros(()).double())
    close(found, torch.zeros(3).double(), bias=0.02)  # the median width depends on the draws


@pytest.mark.long
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", MAKES)
def test_the_loss_is_the_discrepancy(name: str, kernel: str) -> None:
    case = GaussianCase()
    objective = MAKES[name](
        100, kernel=kernel, width=0.6, vectorize_particles=True, max_plate_nesting=0
    )
    losses, _ = case.gradients(objective, 60)
    smooth = case.smoothed(KERNELS[kernel](0.6))
    close(losses, (case.weights * smooth * case.difference(case.grid)).sum())


@pytest.mark.long
def test_scale_0_is_for_stein_alone() -> None:
    case = GaussianCase(scale=0.0)
    objective = AmortisedSVGD(60, width=0.6, vectorize_particles=True, max_plate_nesting=0)
    _, found = case.gradients(objective, 100)
    close(found, case.path(case.smoothed(KERNELS["gaussian"](0.6))))
    with pytest.raises(GuideError, match="'x' has scale 0.*AmortisedSVGD"):
        KPG(4).loss(model, case.guide)


@pytest.mark.parametrize("make", MAKES.values())
def test_arguments(make: Any) -> None:
    for options in (
        {"num_particles": 1},
        {"kernel": "riesz"},
        {"bandwidth": 0.0},
        {"width": -1.0},
    ):
        with pytest.raises(ArgumentError, match=f"{next(iter(options))}="):
            make(**options)
    told = make(4, kernel="imq", width=2).settings
    assert told["kernel"] == "imq" and told["width"] == 2.0
    with pytest.raises(ArgumentError, match="importance="):
        KPG(importance=1)  # type: ignore[arg-type]
