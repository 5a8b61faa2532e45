"""The posterior of an implicit process against dense Gaussian algebra, down to tiny noise."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit import ImplicitProcess
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError
from pyro_implicit.processes.function_draws import frozen


def features(x: Tensor, num_functions: int) -> Tensor:
    """Functions in a space of three dimensions."""
    w = torch.randn(num_functions, 3, dtype=x.dtype)
    return w[:, :1] * x[:, 0] + w[:, 1:2] * torch.sin(2 * x[:, 0]) + w[:, 2:]


def pairs(x: Tensor, num_functions: int) -> Tensor:
    """Two outputs."""
    return torch.stack([features(x, num_functions), 2 * features(x, num_functions)], 1)


def points(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, generator=generator, dtype=torch.float64)


def dense(
    process: ImplicitProcess, y: Tensor, new: Tensor, count: int, observed: bool = False
) -> tuple[Tensor, Tensor]:
    """Mean and covariance by the joint Gaussian of observations and new values; for one batch."""
    size = len(process.inputs)
    with frozen(process.seed):
        values = process.prior(torch.cat([process.inputs, new]), count).double()
    noise = torch.as_tensor(process.noise_scale, dtype=torch.float64)
    psi = None if process.psi is None else torch.as_tensor(process.psi, dtype=torch.float64)
    centred = (values - values.mean(0)).movedim(0, -1)
    covariance = centred @ centred.mT / (count if psi is None else count - 1)
    if psi is not None:
        covariance = covariance + psi / (count - 1) * torch.eye(covariance.shape[-1]).double()
    mean = values.mean(0)
    here = covariance[..., :size, :size] + torch.diag(noise.square().expand(size))
    cross = covariance[..., size:, :size]
    gain = torch.linalg.solve(here, cross.mT).mT
    shift = gain @ (y - mean[..., :size])[..., None]
    rest = covariance[..., size:, size:] - gain @ cross.mT
    if observed:
        rest = rest + torch.diag(noise.square().expand(len(new)))
    return mean[..., size:] + shift[..., 0], rest


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 9),
    num_functions=st.integers(2, 12),
    count=st.none() | st.integers(2, 40),
    psi=st.none() | st.floats(0.01, 5.0),
    method=st.sampled_from(["auto", "weights", "functions"]),
    observed=st.booleans(),
    prior=st.sampled_from([features, pairs]),
)
@example(6, 20, 400, 5.0, "auto", False, features)
@example(6, 5, 400, 5.0, "auto", False, features)
def test_any_number_of_functions_and_both_forms(
    n: int,
    num_functions: int,
    count: int | None,
    psi: float | None,
    method: str,
    observed: bool,
    prior: Any,
) -> None:
    x, new, y = points(n), points(4, seed=2), points(n, seed=1)[:, 0]
    process = ImplicitProcess(prior, x, num_functions, 0.3, psi=psi, seed=0)
    y = y.expand(process.batch_shape + (n,))
    found = process.condition(y, new, num_functions=count, method=method, observed=observed)
    mean, covariance = dense(process, y, new, count or num_functions, observed)
    assert found.batch_shape == process.batch_shape
    torch.testing.assert_close(found.mean, mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.covariance_matrix, covariance, rtol=1e-7, atol=1e-7)


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 30),
    num_functions=st.integers(2, 60),
    k=st.integers(1, 40),
    exponent=st.floats(-6.0, 0.0),
    scale=st.sampled_from([1e-6, 1.0, 1e4]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    method=st.sampled_from(["auto", "weights", "functions"]),
)
@example(10, 20, 20, math.log10(0.03), 1.0, torch.float32, "auto")
@example(30, 50, 40, -6.0, 1.0, torch.float32, "functions")
@example(30, 50, 40, -6.0, 1.0, torch.float64, "auto")
def test_small_noise_and_more_functions_than_data(
    n: int,
    num_functions: int,
    k: int,
    exponent: float,
    scale: float,
    dtype: torch.dtype,
    method: str,
) -> None:
    x, new = points(n).to(dtype), points(k, seed=2).to(dtype)
    weights = scale * torch.randn(num_functions, 3, generator=torch.Generator().manual_seed(0))

    def prior(x: Tensor, _: int) -> Tensor:
        basis = torch.stack([x[:, 0], torch.sin(2 * x[:, 0]), torch.ones(len(x)).to(x)])
        return weights.to(x) @ basis

    noise = scale * 10**exponent
    y = prior(x, 1)[0]
    process = ImplicitProcess(prior, x, num_functions, noise, seed=0)
    found = process.condition(y, new, method=method)  # was: not positive-definite
    assert bool((found.variance > 0).all())
    assert found.sample((2,)).isfinite().all()
    # in higher precision than either form has: the coefficients of the three features. Functions
    # in float32 leave that space by rounding, and the posterior is of those.
    if dtype == torch.float64:
        basis = torch.stack([x[:, 0], torch.sin(2 * x[:, 0]), torch.ones(n).double()], 1)
        other = torch.stack([new[:, 0], torch.sin(2 * new[:, 0]), torch.ones(k).double()], 1)
        centred = weights.double() - weights.double().mean(0)
        root = torch.linalg.qr(centred / num_functions**0.5)[1]  # features x functions
        stacked = torch.cat([basis @ root.mT / noise, torch.eye(root.shape[0]).double()])
        half = other @ root.mT @ torch.linalg.pinv(torch.linalg.qr(stacked)[1])
        expected = half.square().sum(-1)
        torch.testing.assert_close(
            found.variance, expected, rtol=1e-3, atol=1e-9 * expected.max().item()
        )


def test_values_that_no_function_changes() -> None:
    through_zero = lambda x, n: torch.randn(n, 1, dtype=x.dtype) * x[:, 0]  # noqa: E731
    x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    for new in (x[:1], torch.cat([x, 1e6 * x])):
        posterior = ImplicitProcess(through_zero, x, 5, 1e-3).condition(x[:, 0], new)
        assert posterior.variance[0] < 1e-15
        assert posterior.sample().isfinite().all()


BATCHES = [
    (features, torch.tensor([[0.1], [0.7]]), None),
    (features, torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.5, 0.6, 0.7]]), None),
    (pairs, torch.tensor([[0.1], [0.7]]), 0.5),
    (pairs, torch.tensor([[[0.1]], [[0.7]], [[0.3]]]), None),
    (features, 0.3, torch.tensor([[0.2], [2.0], [5.0]])),
]


@pytest.mark.parametrize("num_functions", [3, 12])
@pytest.mark.parametrize("prior, noise, psi", BATCHES)
def test_noise_with_batch_dimensions(prior: Any, noise: Any, psi: Any, num_functions: int) -> None:
    """Density, moments, draws and posterior: entry by entry those of a process of its own."""
    x, new = points(4), points(5, seed=2)
    process = ImplicitProcess(prior, x, num_functions, noise, psi=psi, seed=0)
    shape = process.batch_shape + (4,)
    y = torch.randn(shape, dtype=torch.float64)
    posterior = process.condition(y, new)
    gaussian = process.to_gaussian()
    assert process.variance.shape == process.rsample().shape == shape
    assert process.rsample((6, 2)).shape == (6, 2, *shape)
    assert process.log_prob(y).shape == gaussian.batch_shape == process.batch_shape
    assert posterior.batch_shape == process.batch_shape
    own = process.functions.shape[1:-1]
    for index in torch.cartesian_prod(*map(torch.arange, process.batch_shape)).reshape(
        -1, len(process.batch_shape)
    ):
        at = tuple(index.tolist())

        def entry(value: Any, at: tuple[int, ...] = at) -> Any:
            if not isinstance(value, Tensor):
                return value
            wide = value.expand(process.batch_shape + value.shape[-1:])[at]
            return wide if len(wide) > 1 else wide.item()

        def one_output(x: Tensor, n: int, at: tuple[int, ...] = at) -> Tensor:
            return prior(x, n)[(slice(None), *at[len(at) - len(own) :])]

        one = ImplicitProcess(one_output, x, num_functions, entry(noise), psi=entry(psi), seed=0)
        expected = dist.MultivariateNormal(one.functions.mean(0), one.covariance)
        torch.testing.assert_close(process.covariance[at], one.covariance)
        torch.testing.assert_close(process.variance[at], one.variance)
        torch.testing.assert_close(process.mean[at], one.mean)
        torch.testing.assert_close(process.log_prob(y)[at], expected.log_prob(y[at]))
        mean, covariance = dense(one, y[at], new, num_functions)
        torch.testing.assert_close(posterior.mean[at], mean, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(
            posterior.covariance_matrix[at], covariance, rtol=1e-6, atol=1e-7
        )


def test_noise_of_each_output_of_one_event() -> None:
    x, y = points(4), points(8, seed=1).reshape(2, 4)
    noise = torch.tensor([[0.1], [0.5]], dtype=torch.float64)
    for prior in (pairs, lambda x, n: features(x, n)[:, None]):
        process = ImplicitProcess(prior, x, 30, noise, event_dim=2, seed=0)
        flat = process.functions.expand(30, 2, 4).flatten(1)
        centred = flat - flat.mean(0)
        covariance = centred.mT @ centred / 30 + torch.diag(noise.expand(2, 4).flatten() ** 2)
        expected = dist.MultivariateNormal(flat.mean(0), covariance)
        torch.testing.assert_close(process.covariance, covariance)
        torch.testing.assert_close(process.log_prob(y), expected.log_prob(y.flatten()))
        assert process.rsample((3,)).shape == (3, 2, 4)


def test_the_weights_have_the_posterior_of_each_noise() -> None:
    x, y = points(6), points(6, seed=1)[:, 0]
    noise = torch.tensor([[0.1], [0.7]], dtype=torch.float64)
    both = ImplicitProcess(features, x, 5, noise, seed=0)
    posterior = both.weight_posterior(y)
    assert posterior.batch_shape == (2,)
    for index, scale in enumerate((0.1, 0.7)):
        one = ImplicitProcess(features, x, 5, scale, seed=0)
        alone = one.weight_posterior(y)
        phi = (one.functions - one.functions.mean(0)).mT / 5**0.5
        precision = torch.eye(5).double() + phi.mT @ phi / scale**2
        torch.testing.assert_close(alone.precision_matrix, precision)
        torch.testing.assert_close(posterior.mean[index], alone.mean)
        torch.testing.assert_close(posterior.covariance_matrix[index], alone.covariance_matrix)
        for name in ("mean", "variance"):
            found = getattr(both.marginals(posterior), name)[index]
            torch.testing.assert_close(found, getattr(one.marginals(alone), name))
            torch.testing.assert_close(found, getattr(one.condition(y), name), rtol=1e-5, atol=1e-7)
        energy = both.alpha_energy(y, posterior)[index]
        torch.testing.assert_close(energy, one.alpha_energy(y, alone))


def test_weights_under_tiny_noise() -> None:
    x = points(20)
    y = features(x, 1)[0]
    for dtype in (torch.float32, torch.float64):
        process = ImplicitProcess(features, x.to(dtype), 40, 1e-6, seed=0)
        posterior = process.weight_posterior(y)
        assert posterior.sample().isfinite().all()
        assert bool((posterior.variance > 0).all())
        fitted = process.marginals(posterior).mean.double()
        torch.testing.assert_close(fitted, y, rtol=0.0, atol=1e-4)


def test_gradients_reach_the_noise_through_the_posterior() -> None:
    x, new, y = points(4), points(2, seed=2), points(4, seed=1)[:, 0]
    for method in ("weights", "functions"):

        def summary(noise: Tensor, method: str = method) -> Tensor:
            process = ImplicitProcess(features, x, 6, noise, seed=0)
            posterior = process.condition(y, new, method=method)
            return torch.cat([posterior.mean, posterior.variance])

        noise = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(summary, (noise,))


def test_what_has_no_posterior() -> None:
    x, y = points(3), torch.zeros(3, dtype=torch.float64)
    process = ImplicitProcess(features, x, 5, 0.5)
    for wrong in (y[:1], y[:2], torch.tensor(0.0), torch.zeros(3, 1)):
        for method in (process.condition, process.log_prob):
            with pytest.raises(ShapeError, match="expected .*3.*one value for each input"):
                method(wrong)
    with pytest.raises(ShapeError, match="one value for each input"):
        ImplicitProcess(features, x, 5, torch.tensor([[0.1], [0.7]])).log_prob(y.expand(3, 3))
    with pytest.raises(ArgumentError, match="expected a tensor of observations"):
        process.log_prob([0.0, 0.0, 0.0])  # type: ignore[arg-type]
    with pytest.raises(NonFiniteError, match="value has entries that are NaN"):
        process.condition(y / 0)
    with pytest.raises(ArgumentError, match="num_functions=0; expected an integer >= 2"):
        process.condition(y, num_functions=0)
    with pytest.raises(ShapeError, match=r"inputs of shape \(2, 2\); expected \(K, 1\)"):
        process.condition(y, torch.zeros(2, 2))
    with pytest.raises(ArgumentError, match="inputs is"):
        process.condition(y, "new")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="observed='no'"):
        process.condition(y, observed="no")  # type: ignore[arg-type]


def test_observations_at_new_inputs_need_a_noise_there() -> None:
    x, new, y = points(3), points(3, seed=2), torch.zeros(3, dtype=torch.float64)
    process = ImplicitProcess(features, x, 5, torch.tensor([0.1, 0.2, 0.3]).double(), seed=0)
    own = process.condition(y, x.clone(), observed=True).variance - process.condition(y, x).variance
    torch.testing.assert_close(own, torch.tensor([0.01, 0.04, 0.09]).double())
    assert process.condition(y, new).variance.shape == (3,)
    with pytest.raises(ArgumentError, match="one value for each of 3 rows, and new inputs"):
        process.condition(y, new, observed=True)
