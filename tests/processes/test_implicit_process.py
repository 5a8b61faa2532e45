"""ImplicitProcess: its density, draws and posterior against dense Gaussians and known processes."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn

from pyro_implicit import BayesianModule, HyperNetworkGuide, ImplicitProcess, evaluate, predict
from pyro_implicit.exceptions import ArgumentError, DensityError, NonFiniteError, ShapeError

NOISE = 0.5


def linear(x: Tensor, num_functions: int) -> Tensor:
    """Linear functions with standard normal coefficients."""
    return torch.randn(num_functions, x.shape[1], dtype=x.dtype) @ x.mT


def inputs(n: int = 50, features: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, features, generator=generator, dtype=torch.float64)


def exact(x: Tensor, noise: float = NOISE) -> dist.MultivariateNormal:
    covariance = x @ x.mT + noise**2 * torch.eye(len(x), dtype=x.dtype)
    return dist.MultivariateNormal(torch.zeros(len(x), dtype=x.dtype), covariance)


# ---- density


def test_the_density_tends_to_the_exact_marginal_likelihood() -> None:
    pyro.set_rng_seed(0)
    x = inputs()
    y = exact(x).sample()
    truth = exact(x).log_prob(y)

    def errors(num_functions: int) -> Tensor:
        values = [ImplicitProcess(linear, x, num_functions, NOISE).log_prob(y) for _ in range(20)]
        return (torch.stack(values) - truth).abs()

    few, many = errors(100), errors(1000)
    assert many.max() < 0.6
    assert 2 < few.mean() / many.mean() < 8  # falls as the square root: about 3.2


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 12),
    num_functions=st.integers(2, 30),
    noise=st.floats(0.05, 3.0),
    psi=st.none() | st.floats(0.01, 2.0),
)
def test_the_density_is_that_of_the_dense_gaussian(
    n: int, num_functions: int, noise: float, psi: float | None
) -> None:
    x, y = inputs(n, 3), inputs(n, 1, seed=1)[:, 0]
    process = ImplicitProcess(linear, x, num_functions, noise, psi=psi, seed=0)
    values = process.functions
    centred = values - values.mean(0)
    covariance = centred.mT @ centred / (num_functions - (psi is not None))
    covariance = covariance + (noise**2 + (psi or 0) / (num_functions - 1)) * torch.eye(n).double()
    dense = dist.MultivariateNormal(values.mean(0), covariance)
    torch.testing.assert_close(process.log_prob(y), dense.log_prob(y), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(process.covariance, covariance, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(process.variance, covariance.diagonal(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(process.mean, values.mean(0))


def test_no_matrix_of_all_pairs_is_formed() -> None:
    x = torch.randn(100_000, 2)
    process = ImplicitProcess(linear, x, 10, NOISE)
    assert process.log_prob(torch.randn(100_000)).isfinite()  # all pairs would take 80 GB


def test_float32_agrees_with_float64() -> None:
    x, y = inputs(), inputs(50, 1, seed=1)[:, 0]
    weights = torch.randn(30, 6, dtype=torch.float64)

    def fixed(x: Tensor, _: int) -> Tensor:
        return weights.to(x) @ x.mT

    wide = ImplicitProcess(fixed, x, 30, 0.05).log_prob(y)
    narrow = ImplicitProcess(fixed, x.float(), 30, 0.05).log_prob(y.float())
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), wide, rtol=1e-4, atol=0.0)


def test_gradients_reach_the_prior_and_the_noise() -> None:
    scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    noise = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    x, y = inputs(8), inputs(8, 1, seed=1)[:, 0]

    def log_prob(scale: Tensor, noise: Tensor) -> Tensor:
        prior = lambda x, n: scale * linear(x, n)  # noqa: E731
        return ImplicitProcess(prior, x, 5, noise, seed=0).log_prob(y)

    assert torch.autograd.gradcheck(log_prob, (scale, noise))


# ---- the posterior


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 12), num_functions=st.integers(2, 20), psi=st.none() | st.floats(0.01, 2.0))
def test_both_forms_of_the_posterior_agree(n: int, num_functions: int, psi: float | None) -> None:
    x, new, y = inputs(n, 3), inputs(4, 3, seed=2), inputs(n, 1, seed=1)[:, 0]
    process = ImplicitProcess(linear, x, num_functions, NOISE, psi=psi, seed=0)
    a, b = (process.condition(y, new, method=method) for method in ("weights", "functions"))
    torch.testing.assert_close(a.mean, b.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(a.covariance_matrix, b.covariance_matrix, rtol=1e-8, atol=1e-8)


def test_the_posterior_is_that_of_bayesian_linear_regression() -> None:
    pyro.set_rng_seed(0)
    x, new = inputs(30, 2), inputs(3, 2, seed=2)
    y = exact(x).sample()
    precision = torch.eye(2) + x.mT @ x / NOISE**2
    mean = torch.linalg.solve(precision, x.mT @ y / NOISE**2)
    process = ImplicitProcess(linear, x, 20_000, NOISE, seed=0)
    latent, observed = (process.condition(y, new, observed=which) for which in (False, True))
    torch.testing.assert_close(latent.mean, new @ mean, rtol=0.0, atol=0.02)
    variance = (new @ torch.linalg.inv(precision) @ new.mT).diagonal()
    torch.testing.assert_close(latent.variance, variance, rtol=0.05, atol=1e-4)
    torch.testing.assert_close(observed.variance - latent.variance, torch.full((3,), 0.25).double())


def test_the_posterior_at_the_own_inputs_is_the_default() -> None:
    x, y = inputs(5, 2), inputs(5, 1, seed=1)[:, 0]
    process = ImplicitProcess(linear, x, 10, NOISE, seed=0)
    torch.testing.assert_close(process.condition(y).mean, process.condition(y, x).mean)


# ---- draws and functions


def test_draws_are_of_the_process_and_not_of_its_gaussian() -> None:
    pyro.set_rng_seed(0)

    def signs(x: Tensor, n: int) -> Tensor:
        return torch.randn(n, 1, dtype=x.dtype).sign().expand(n, len(x))

    process = ImplicitProcess(signs, inputs(3), 10)
    draws = process.rsample((2000,))
    assert draws.shape == (2000, 3)
    assert bool((draws.abs() == 1).all())
    noisy = ImplicitProcess(signs, inputs(3), 10, 0.1).rsample((2000,))
    assert (noisy.abs() - 1).std() == pytest.approx(0.1, rel=0.05)


def test_a_seed_freezes_functions_at_all_inputs() -> None:
    x, new = inputs(5), inputs(3, seed=2)
    frozen = ImplicitProcess(linear, x, 4, NOISE, seed=7).functions
    joint = ImplicitProcess(linear, torch.cat([x, new]), 4, NOISE, seed=7).functions
    torch.testing.assert_close(joint[:, :5], frozen)
    other = ImplicitProcess(linear, x, 4, NOISE, seed=8).functions
    fresh = [ImplicitProcess(linear, x, 4, NOISE).functions for _ in range(2)]
    assert not torch.allclose(other, frozen)
    assert not torch.allclose(*fresh)


def test_a_seed_leaves_the_random_streams_alone() -> None:
    def streams() -> list[float]:
        return [torch.rand(1).item(), random.random(), np.random.rand()]

    pyro.set_rng_seed(0)
    expected = streams()
    pyro.set_rng_seed(0)
    ImplicitProcess(linear, inputs(5), 4, NOISE, seed=7)
    assert streams() == expected


def test_a_seed_freezes_every_source_of_randomness() -> None:
    def prior(x: Tensor, n: int) -> Tensor:
        shift = random.random() + np.random.rand()
        return torch.randn(n, 1).expand(n, len(x)) + shift

    first = ImplicitProcess(prior, inputs(5), 4, NOISE, seed=7).functions
    torch.testing.assert_close(ImplicitProcess(prior, inputs(5), 4, NOISE, seed=7).functions, first)
    pyro.set_rng_seed(7)
    torch.testing.assert_close(prior(inputs(5), 4), first)


def network(outputs: int = 1) -> BayesianModule:
    layers = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, outputs))
    return BayesianModule(layers, prior=dist.Normal(0.0, 1.0)).double()


@pytest.mark.parametrize("outputs, batch", [(1, ()), (3, (3,))])
def test_a_bayesian_network_is_a_prior(outputs: int, batch: tuple[int, ...]) -> None:
    process = ImplicitProcess(network(outputs), inputs(5), 10, NOISE)
    assert process.batch_shape == batch
    assert process.event_shape == (5,)
    assert process.log_prob(torch.zeros(*batch, 5)).shape == batch
    assert process.rsample((2,)).shape == (2, *batch, 5)


def test_a_prior_of_a_network_leaves_no_sites_in_a_model() -> None:
    net, x = network(), inputs(5)

    def model() -> None:
        pyro.sample("y", ImplicitProcess(net, x, 10, NOISE))

    assert list(pyro.poutine.trace(model).get_trace().stochastic_nodes) == ["y"]


def test_outputs_as_one_event_share_their_functions() -> None:
    x, y = inputs(5), inputs(2, 5, seed=1)
    process = ImplicitProcess(network(2), x, 8, NOISE, seed=0, event_dim=2)
    assert (process.batch_shape, process.event_shape) == ((), (2, 5))
    flat = process.functions.flatten(1)
    centred = flat - flat.mean(0)
    dense = dist.MultivariateNormal(
        flat.mean(0), centred.mT @ centred / 8 + NOISE**2 * torch.eye(10)
    )
    torch.testing.assert_close(process.log_prob(y), dense.log_prob(y.flatten()))
    assert process.variance.shape == (2, 5)


def test_expanding_keeps_density_and_draws_anew() -> None:
    pyro.set_rng_seed(0)
    process = ImplicitProcess(linear, inputs(5), 10, NOISE)
    wide = process.expand((3,))
    y = inputs(5, 1, seed=1)[:, 0]
    torch.testing.assert_close(wide.log_prob(y), process.log_prob(y).expand(3))
    draws = wide.rsample((2,))
    assert draws.shape == (2, 3, 5)
    assert not torch.allclose(draws[0, 0], draws[0, 1], atol=1.0)


# ---- in models


@pytest.mark.long
def test_in_a_model_beside_another_latent() -> None:
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    x = inputs(200, 2)
    y = exact(x, 0.3).sample()

    def model(y: Tensor | None = None) -> Any:
        noise = pyro.sample("noise", dist.LogNormal(x.new_tensor(0.0), 1.0))
        return pyro.sample("y", ImplicitProcess(linear, x, 20, noise, seed=0), obs=y)

    guide = AutoNormal(model)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), Trace_ELBO())
    for _ in range(200):
        svi.step(y)
    assert guide.median()["noise"].item() == pytest.approx(0.3, rel=0.2)


def test_noise_may_have_a_value_for_each_input_or_batch() -> None:
    x, y = inputs(5), inputs(5, 1, seed=1)[:, 0]
    each = torch.linspace(0.1, 1.0, 5, dtype=torch.float64)
    process = ImplicitProcess(linear, x, 3, each, seed=0)
    dense = dist.MultivariateNormal(process.mean, process.covariance)
    torch.testing.assert_close(process.covariance.diagonal(), process.variance)
    torch.testing.assert_close(process.log_prob(y), dense.log_prob(y))
    batch = torch.tensor([[0.1], [0.7]], dtype=torch.float64)
    many = ImplicitProcess(linear, x, 3, batch, seed=0)
    assert many.batch_shape == (2,)
    for index, noise in enumerate((0.1, 0.7)):
        one = ImplicitProcess(linear, x, 3, noise, seed=0)
        torch.testing.assert_close(many.log_prob(y)[index], one.log_prob(y))


# ---- degenerate input


@pytest.mark.parametrize("n, num_functions", [(1, 5), (4, 50), (50, 2)])
def test_few_data_and_many_functions(n: int, num_functions: int) -> None:
    x = inputs(n, 2)
    process = ImplicitProcess(linear, x, num_functions, NOISE)
    y = torch.zeros(n, dtype=torch.float64)
    assert process.log_prob(y).isfinite()
    assert process.condition(y).mean.isfinite().all()


def test_duplicate_inputs_and_constant_functions() -> None:
    x = torch.ones(6, 2, dtype=torch.float64)
    y = torch.zeros(6, dtype=torch.float64)
    constant = lambda x, n: torch.ones(n, len(x), dtype=x.dtype)  # noqa: E731
    for prior in (linear, constant):
        process = ImplicitProcess(prior, x, 10, NOISE)
        assert process.log_prob(y).isfinite()
        assert process.condition(y, x[:2]).variance.isfinite().all()


def test_functions_that_are_not_finite_are_refused() -> None:
    x = inputs(3)
    x[1, 0] = math.nan
    with pytest.raises(NonFiniteError, match="NaN in the inputs"):
        ImplicitProcess(linear, x, 10, NOISE)


def test_no_density_without_noise_unless_functions_suffice() -> None:
    x, y = inputs(4, 6), torch.zeros(4, dtype=torch.float64)
    with pytest.raises(DensityError, match="too few directions"):
        ImplicitProcess(linear, x, 4).log_prob(y)
    assert ImplicitProcess(linear, x, 20).log_prob(y).isfinite()
    assert ImplicitProcess(linear, x, 4, psi=0.1).log_prob(y).isfinite()
    with pytest.raises(ArgumentError, match="a posterior needs noise"):
        ImplicitProcess(linear, x, 20).condition(y)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"num_functions": 1}, "num_functions=1"),
        ({"num_functions": 2.5}, "num_functions=2.5"),
        ({"noise_scale": -1.0}, "noise_scale=-1.0"),
        ({"psi": -1.0}, "psi=-1.0"),
        ({"event_dim": 3}, "event_dim=3"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ImplicitProcess(linear, inputs(3), **settings)


@pytest.mark.parametrize(
    "prior, message",
    [
        (lambda x, n: 1.0, "returned float"),
        (lambda x, n: torch.zeros(n), r"returned shape \(20,\)"),
        (lambda x, n: torch.zeros(len(x), n), r"returned shape \(3, 20\)"),
    ],
)
def test_bad_priors(prior: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        ImplicitProcess(prior, inputs(3), 20)


def test_bad_networks_and_events() -> None:
    image = BayesianModule(nn.Conv2d(1, 2, 1), prior=dist.Normal(0.0, 1.0))
    with pytest.raises(ShapeError, match="the network returned shape"):
        ImplicitProcess(image, torch.zeros(3, 1, 4, 4), 5)
    with pytest.raises(ShapeError, match="too few dims for event_dim=2"):
        ImplicitProcess(linear, inputs(3), 5, event_dim=2)


def test_bad_posteriors() -> None:
    x, y = inputs(3), torch.zeros(3, dtype=torch.float64)
    with pytest.raises(ArgumentError, match="method='exact'"):
        ImplicitProcess(linear, x, 5, NOISE).condition(y, method="exact")
    both = ImplicitProcess(network(2), x, 5, NOISE, event_dim=2)
    with pytest.raises(ArgumentError, match="event_dim=1 only"):
        both.condition(torch.zeros(2, 3))


@pytest.mark.parametrize("use", [predict, evaluate])
def test_draws_of_the_process_itself_are_told_from_predictions(use):
    """They know nothing of the data that the guide was fitted to."""

    def functions(inputs, count):
        return torch.randn(count, 1) * inputs[:, 0]

    def model(x, y=None):
        noise = pyro.sample("noise", dist.LogNormal(-1.0, 0.1))
        return pyro.sample("y", ImplicitProcess(functions, x, noise_scale=noise), obs=y)

    x = torch.linspace(-1, 1, 6)[:, None]
    guide = HyperNetworkGuide(model).setup(x, x[:, 0])
    data = (x,) if use is predict else (x, x[:, 0])
    with pytest.warns(UserWarning, match=r"\['y'\].* no predictions.*process.condition") as caught:
        use(model, guide, *data, num_samples=3)
    assert caught[0].filename == __file__


def test_inputs_of_other_columns_than_the_network_are_named() -> None:
    net = BayesianModule(nn.Linear(3, 1), prior=dist.Normal(0.0, 1.0))
    with pytest.raises(ShapeError, match=r"argument 0 has shape \(20, 2\).*columns"):
        ImplicitProcess(net, torch.randn(20, 2)).mean  # noqa: B018
