"""The closed form of the alpha-energy against quadrature, its limits and its derivative."""

from __future__ import annotations

import math

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.ops.alpha_energy import MIN_POWER, log_power_mean, normal_alpha_energy


def tensors(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


cases = {
    "y": st.floats(-2, 2),
    "mean": st.floats(-2, 2),
    "variance": st.floats(0.0, 2.0),
    "noise": st.floats(0.2, 2.0),
}


@pytest.mark.long
@given(**cases, alpha=st.floats(0.01, 1.0))
def test_it_is_the_integral(
    y: float, mean: float, variance: float, noise: float, alpha: float
) -> None:
    nodes, weights = np.polynomial.hermite_e.hermegauss(150)
    f = mean + math.sqrt(variance) * torch.tensor(nodes)
    log_p = alpha * dist.Normal(f, math.sqrt(noise)).log_prob(torch.tensor(y))
    log_weights = torch.tensor(weights / math.sqrt(2 * math.pi)).log()
    expected = (log_p + log_weights).logsumexp(0) / alpha
    found = normal_alpha_energy(*tensors(y, mean, variance, noise), alpha)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)


@given(**cases)
def test_its_limits(y: float, mean: float, variance: float, noise: float) -> None:
    value, m, v, s = tensors(y, mean, variance, noise)
    expected = dist.Normal(m, s.sqrt()).log_prob(value) - v / (2 * s)
    torch.testing.assert_close(normal_alpha_energy(value, m, v, s, 0), expected)
    near = normal_alpha_energy(value, m, v, s, 1e-9)
    torch.testing.assert_close(near, expected, rtol=1e-6, atol=1e-6)
    predictive = dist.Normal(m, (v + s).sqrt()).log_prob(value)
    torch.testing.assert_close(normal_alpha_energy(value, m, v, s, 1), predictive)


@given(**cases, alpha=st.floats(0.0, 0.9))
def test_it_grows_with_alpha(
    y: float, mean: float, variance: float, noise: float, alpha: float
) -> None:
    arguments = tensors(y, mean, variance, noise)
    less = normal_alpha_energy(*arguments, alpha)
    more = normal_alpha_energy(*arguments, alpha + 0.1)
    assert more >= less - 1e-12


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_its_derivatives(alpha: float) -> None:
    arguments = [value.requires_grad_() for value in tensors(0.3, -0.4, 0.0, 0.5)]
    energy = lambda *values: normal_alpha_energy(*values, alpha)  # noqa: E731
    assert torch.autograd.gradcheck(energy, arguments)
    assert normal_alpha_energy(torch.zeros(3), *map(float32, (0.1, 0.0, 0.2)), alpha).shape == (3,)


def float32(value: float) -> torch.Tensor:
    return torch.tensor(value)


@given(
    values=st.lists(st.floats(-300, 5), min_size=1, max_size=6),
    exponent=st.floats(-18, 0),
)
def test_log_power_mean_is_exact_in_single_precision_for_any_power(
    values: list[float], exponent: float
) -> None:
    power = max(10**exponent, MIN_POWER)
    log_values = torch.tensor(values, dtype=torch.float32).requires_grad_()
    found = log_power_mean(log_values, power)
    (gradient,) = torch.autograd.grad(found, log_values)
    weights = np.longdouble(log_values.detach().numpy())
    centred = np.expm1(power * (weights - weights.max())).mean()
    expected = float(weights.max() + np.log1p(centred) / power)
    assert found.item() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    torch.testing.assert_close(gradient, (power * log_values.detach()).softmax(0))


@pytest.mark.parametrize("power", [MIN_POWER, 1e-3, 0.5, 1.0])
def test_log_power_mean_of_impossible_draws(power: float) -> None:
    log_values = torch.tensor([[-torch.inf, -1.0], [-torch.inf, -torch.inf]])
    found = log_power_mean(log_values, power)
    assert found[0] == -torch.inf
    assert found[1].item() == pytest.approx(-1.0 - math.log(2) / power, rel=1e-5)


def test_the_closed_form_at_the_least_power_is_its_limit() -> None:
    arguments = [x.float() for x in tensors(0.3, -0.2, 0.5, 0.7)]
    for alpha in (1e-46, 1e-30, 1e-10):
        found = normal_alpha_energy(*arguments, alpha)
        torch.testing.assert_close(found, normal_alpha_energy(*arguments, 0))
