"""The benchmarks of the diagnostics: their guides are what they claim, and a tiny run of each."""

from __future__ import annotations

import pyro
import pytest
import torch
from scipy import stats

from benchmarks.robustness import diagnostics_power
from benchmarks.robustness._diagnostics_cases import CASES, Affine, Quantiles


@pytest.mark.parametrize("name", CASES)
def test_jacobians_are_those_of_autograd(name: str) -> None:
    pyro.set_rng_seed(0)
    case = CASES[name]()
    generator = case.generator(case.data()).double()
    z = torch.randn(5, case.dim).double()
    expected = torch.stack([_numeric(generator, row) for row in z])
    torch.testing.assert_close(generator.jacobian(z), expected, rtol=2e-2, atol=1e-4)


def _numeric(generator, z):
    step = 1e-5 * torch.eye(len(z)).double()
    return ((generator(z + step) - generator(z - step)) / 2e-5).T


@pytest.mark.parametrize("name", ["correct", "folded, draws exact", "correct, two modes"])
def test_right_guides_draw_from_the_posterior(name: str) -> None:
    pyro.set_rng_seed(1)
    case = CASES[name]()
    y = case.data()
    draws = case.draws(case.generator(y), 4000)["w"][:, 0]
    exact = case.draws(case.exact(y), 4000)["w"][:, 0]
    assert stats.ks_2samp(draws.numpy(), exact.numpy()).pvalue > 0.001


def test_the_gaussian_posterior_is_the_conjugate_one() -> None:
    pyro.set_rng_seed(2)
    case = CASES["correct"]()
    y = case.data()
    exact = case.exact(y)
    assert isinstance(exact, Affine)
    w = exact.shift.clone().requires_grad_(True)
    trace = pyro.poutine.trace(pyro.poutine.condition(case.model, {"w": w})).get_trace(y)
    gradient = torch.autograd.grad(trace.log_prob_sum(), w, create_graph=True)[0]
    assert gradient.abs().max() < 1e-3
    hessian = torch.stack([torch.autograd.grad(g, w, retain_graph=True)[0] for g in gradient])
    torch.testing.assert_close(
        torch.linalg.inv(-hessian), exact.matrix @ exact.matrix.T, rtol=1e-3, atol=1e-6
    )


def test_quantiles_of_a_normal() -> None:
    grid = torch.linspace(-7, 7, 10_001).double()
    z = torch.randn(200, 1).double()
    generator = Quantiles(grid, (-0.5 * grid.square()).exp())
    torch.testing.assert_close(generator(z), z, atol=1e-3, rtol=0)


def test_refusals_are_counted_apart() -> None:
    row = {"guide": "correct", "excess": 0.0, "k-hat": None, "stein": 0.0, "accuracy": 0.5}
    flags = dict.fromkeys(diagnostics_power.CHECKS, False) | {"k-hat": None}
    assert "0/0 (1 refused)" in diagnostics_power.table([row | {"flags": flags}])
