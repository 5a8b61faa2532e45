"""ImplicitProcess in weight space: its functions, and the energy that trains their coefficients."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor, nn
from torch.distributions import kl_divergence

from pyro_implicit import AlphaEnergy, BayesianModule, ImplicitProcess
from pyro_implicit.exceptions import ArgumentError, ShapeError

NOISE = 0.5
S = 8


def linear(x: Tensor, num_functions: int) -> Tensor:
    """Linear functions with standard normal coefficients."""
    return torch.randn(num_functions, x.shape[1], dtype=x.dtype) @ x.mT


def inputs(n: int = 50, features: int = 6, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, features, generator=generator, dtype=torch.float64)


def network(outputs: int = 1) -> BayesianModule:
    layers = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, outputs))
    return BayesianModule(layers, prior=dist.Normal(0.0, 1.0)).double()


def posterior(size: int = S, scale: float = 0.3) -> dist.MultivariateNormal:
    half = scale * inputs(size, size, seed=3)
    covariance = half @ half.mT + 0.1 * scale * torch.eye(size).double()
    return dist.MultivariateNormal(inputs(size, 1, seed=4)[:, 0], covariance)


# ---- the function as a linear model


def test_weighted_functions_have_the_moments_of_the_process() -> None:
    process = ImplicitProcess(linear, inputs(5), 8, seed=0)
    rows = [process.weighted(unit) for unit in torch.eye(8).double()]
    mean = process.weighted(torch.zeros(8).double())
    torch.testing.assert_close(mean, process.mean)
    factor = torch.stack([row - mean for row in rows], -1)
    torch.testing.assert_close(factor @ factor.mT, process.covariance)


def test_weights_of_particles_go_with_rows() -> None:
    net = ImplicitProcess(network(2), inputs(5), 8, seed=0)
    weights = torch.randn(3, 1, 1, 8).double()
    assert net.weighted(weights).shape == (3, 2, 5)
    torch.testing.assert_close(net.weighted(weights)[1], net.weighted(weights[1, 0, 0]))
    one = ImplicitProcess(linear, inputs(5), 8, seed=0)
    assert one.weighted(weights[:, 0]).shape == (3, 5)


def test_outputs_share_weights_or_have_their_own() -> None:
    net = ImplicitProcess(network(2), inputs(5), 8, seed=0)
    own = torch.randn(2, 1, 8).double()
    expected = torch.stack([net.weighted(own[k, 0])[k] for k in range(2)])
    torch.testing.assert_close(net.weighted(own), expected)
    draws = torch.randn(3, 1, 8).double()
    with pytest.raises(ShapeError, match=r"outputs \(2,\).*write weights.unsqueeze\(-2\)"):
        net.weighted(draws)
    shared = torch.stack([net.weighted(one[0]) for one in draws])
    torch.testing.assert_close(net.weighted(draws.unsqueeze(-2)), shared)


@pytest.mark.parametrize("outputs", [1, 2])
def test_functions_of_a_network_are_the_same_within_plates(outputs: int) -> None:
    """Those of vectorised particles, or of any at the dimension that the functions would have."""
    prior = BayesianModule(nn.Linear(6, outputs), dist.Normal(0.0, 1.0)).double()
    expected = ImplicitProcess(prior, inputs(5), 8, seed=0).mean
    with pyro.plate("particles", 3, dim=-2), pyro.plate("more", 4, dim=-3):
        found = ImplicitProcess(prior, inputs(5), 8, seed=0).mean
    torch.testing.assert_close(found, expected)


def test_weights_of_fresh_functions_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"seed=0\) to freeze"):
        ImplicitProcess(linear, inputs(5), 8).weighted(torch.zeros(8).double())
    frozen = ImplicitProcess(linear, inputs(5), 8, seed=0)
    for shape in ((7,), (2, 8), ()):
        with pytest.raises(ShapeError, match=r"expected \(8,\) or \(\.\.\., 1, 8\)"):
            frozen.weighted(torch.zeros(shape).double())


@pytest.mark.slow
def test_trained_weights_find_the_posterior() -> None:
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    x = inputs(40, 2)
    y = x @ torch.randn(2).double() + NOISE * torch.randn(40).double()

    def model(x: Tensor, y: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(torch.zeros(4).double(), 1.0).to_event(1))
        f = ImplicitProcess(linear, x, 4, seed=0).weighted(a)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, NOISE), obs=y)

    guide = AutoMultivariateNormal(model)
    objective = AlphaEnergy(32, alpha=0.0, vectorize_particles=True)
    optimiser = pyro.optim.ClippedAdam({"lr": 0.05, "lrd": 0.02 ** (1 / 1500)})
    svi = SVI(model, guide, optimiser, objective)
    for _ in range(1500):
        svi.step(x, y)
    process = ImplicitProcess(linear, x, 4, NOISE, seed=0)
    posterior = process.condition(y)
    with torch.no_grad():
        draws = torch.stack([process.weighted(guide(x, y)["a"]) for _ in range(4000)])
    torch.testing.assert_close(draws.mean(0), posterior.mean, rtol=0.0, atol=0.05)
    torch.testing.assert_close(draws.std(0), posterior.stddev, rtol=0.15, atol=0.01)


# ---- a Gaussian posterior of the coefficients


@pytest.mark.parametrize("psi", [None, 0.3])
@pytest.mark.parametrize("outputs", [1, 2])
def test_marginals_are_those_of_weighted_functions(psi: float | None, outputs: int) -> None:
    pyro.set_rng_seed(0)
    process = ImplicitProcess(network(outputs), inputs(5), S, seed=0, psi=psi)
    q = posterior()
    found = process.marginals(q)
    draws = process.weighted(q.sample((40_000,)).reshape(-1, *[1] * outputs, S))
    assert found.batch_shape == process.batch_shape + process.event_shape
    torch.testing.assert_close(found.mean, draws.mean(0), rtol=0.0, atol=0.03)
    torch.testing.assert_close(found.stddev, draws.std(0), rtol=0.03, atol=0.0)


def test_independent_coefficients_are_a_case_of_dependent_ones() -> None:
    process = ImplicitProcess(linear, inputs(5), S, seed=0)
    scale = torch.linspace(0.1, 1.0, S).double()
    apart = dist.Normal(torch.zeros(S).double(), scale).to_event(1)
    joint = dist.MultivariateNormal(torch.zeros(S).double(), scale_tril=torch.diag(scale))
    for a, b in zip(_pair(process, apart), _pair(process, joint), strict=True):
        torch.testing.assert_close(a, b)


def _pair(process: ImplicitProcess, q: Any) -> tuple[Tensor, Tensor]:
    found = process.marginals(q)
    return found.mean, found.stddev


def test_the_prior_of_the_coefficients_gives_the_process() -> None:
    process = ImplicitProcess(linear, inputs(5), S, NOISE, seed=0, psi=0.2)
    p = dist.MultivariateNormal(torch.zeros(S).double(), torch.eye(S).double())
    found = process.marginals(p)
    torch.testing.assert_close(found.mean, process.mean)
    extra = NOISE**2 + 0.2 / (S - 1)
    torch.testing.assert_close(found.variance + extra, process.variance)


@pytest.mark.parametrize("alpha, psi", [(0.0, None), (0.2, 0.5), (0.5, None), (1.0, 0.5)])
def test_the_energy_is_what_draws_estimate(alpha: float, psi: float | None) -> None:
    pyro.set_rng_seed(0)
    x, q = inputs(5), posterior(scale=0.1)
    process = ImplicitProcess(linear, x, S, NOISE, seed=0, psi=psi)
    y = process.weighted(q.mean) + torch.linspace(-0.5, 0.5, 5)  # far off, few draws would matter
    scale = math.sqrt(NOISE**2 + (psi or 0.0) / (S - 1))

    def model() -> None:
        a = pyro.sample("a", dist.Normal(torch.zeros(S).double(), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(process.weighted(a), scale), obs=y)

    def guide() -> None:
        pyro.sample("a", q)

    options: dict[str, Any] = {"vectorize_particles": True, "max_plate_nesting": 1}
    estimate = -AlphaEnergy(100_000, alpha=alpha, **options).loss(model, guide)
    p = dist.MultivariateNormal(torch.zeros(S).double(), torch.eye(S).double())
    exact = process.alpha_energy(y, q, alpha).sum() - kl_divergence(q, p)
    assert exact.item() == pytest.approx(estimate, abs=0.05)


def test_at_0_the_best_posterior_gives_the_marginal_likelihood() -> None:
    x, y = inputs(5), inputs(5, 1, seed=1)[:, 0]
    process = ImplicitProcess(linear, x, S, NOISE, seed=0)
    q = process.weight_posterior(y)
    p = dist.MultivariateNormal(torch.zeros(S).double(), torch.eye(S).double())
    bound = process.alpha_energy(y, q, 0.0).sum() - kl_divergence(q, p)
    torch.testing.assert_close(bound, process.log_prob(y), rtol=1e-8, atol=1e-8)
    other = process.alpha_energy(y, posterior(), 0.0).sum() - kl_divergence(posterior(), p)
    assert other < bound


@pytest.mark.parametrize("n", [3, 30])
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_posterior_of_the_coefficients_is_that_of_the_process(n: int, outputs: int) -> None:
    x, new, net = inputs(n), inputs(4, seed=2), network(outputs)
    y = inputs(outputs, n, seed=1).squeeze(0)
    process = ImplicitProcess(net, x, S, NOISE, seed=0)
    found = ImplicitProcess(net, new, S, seed=0).marginals(process.weight_posterior(y))
    expected = process.condition(y, new)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)


def test_the_posterior_of_outputs_that_are_one_event() -> None:
    x, y = inputs(5), inputs(2, 5, seed=1)
    process = ImplicitProcess(network(2), x, S, NOISE, seed=0, event_dim=2)
    q = process.weight_posterior(y)
    draws = process.weighted(q.sample((4000, 1)).unsqueeze(1))
    assert q.batch_shape == ()
    torch.testing.assert_close(process.marginals(q).mean, draws.mean(0), rtol=0.0, atol=0.05)


@pytest.mark.long
def test_svi_trains_by_the_energy_on_minibatches() -> None:
    pyro.set_rng_seed(0)
    x = inputs(60, 2)
    y = x @ torch.tensor([1.0, -0.5]).double() + NOISE * torch.randn(60).double()
    zero, eye = torch.zeros(4).double(), torch.eye(4).double()

    def model(x: Tensor, y: Tensor) -> None:
        loc = pyro.param("loc", zero.clone())
        scale = pyro.param("scale", eye, constraint=dist.constraints.lower_cholesky)
        q = dist.MultivariateNormal(loc, scale_tril=scale)
        process = ImplicitProcess(linear, x, 4, NOISE, seed=0)
        with pyro.plate("data", 60, subsample_size=len(x)):
            pyro.factor("energy", process.alpha_energy(y, q, alpha=0.0))
        pyro.factor("kl", -kl_divergence(q, dist.MultivariateNormal(zero, eye)))

    optimiser = pyro.optim.ClippedAdam({"lr": 0.1, "lrd": 0.02 ** (1 / 150)})
    svi = SVI(model, lambda *_: None, optimiser, Trace_ELBO())
    for _ in range(150):
        rows = torch.randperm(60)[:30]
        svi.step(x[rows], y[rows])
    process = ImplicitProcess(linear, x, 4, NOISE, seed=0)
    best = -process.log_prob(y).item()
    assert svi.evaluate_loss(x, y) == pytest.approx(best, abs=0.3)


def test_the_energy_of_constant_functions_has_a_gradient() -> None:
    value = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    constant = lambda x, n: value * torch.ones(n, len(x), dtype=x.dtype)  # noqa: E731
    process = ImplicitProcess(constant, inputs(3), S, NOISE, seed=0)
    process.alpha_energy(torch.zeros(3).double(), posterior()).sum().backward()
    assert value.grad is not None
    assert value.grad.isfinite()


def test_bad_energies() -> None:
    x, y = inputs(3), torch.zeros(3).double()
    process = ImplicitProcess(linear, x, S, NOISE, seed=0)
    for alpha in (-0.1, 1.1, math.nan, True):
        with pytest.raises(ArgumentError, match="expected a finite number >= 0 and <= 1"):
            process.alpha_energy(y, posterior(), alpha)
    with pytest.raises(ArgumentError, match="an alpha-energy needs noise"):
        ImplicitProcess(linear, x, S, seed=0).alpha_energy(y, posterior())
    with pytest.raises(ArgumentError, match=r"seed=0\) to freeze"):
        ImplicitProcess(linear, x, S, NOISE).alpha_energy(y, posterior())
    with pytest.raises(ArgumentError, match="a posterior needs noise"):
        ImplicitProcess(linear, x, S, seed=0).weight_posterior(y)
    with pytest.raises(ArgumentError, match=r"seed=0\) to freeze"):
        ImplicitProcess(linear, x, S, NOISE).weight_posterior(y)
    with pytest.raises(ShapeError, match=r"event shape \(5,\); expected \(\) or \(\), and \(8,\)"):
        process.marginals(posterior(5))
    with pytest.raises(ArgumentError, match="of type Laplace; expected a MultivariateNormal"):
        process.marginals(dist.Laplace(torch.zeros(S), 1.0).to_event(1))


# ---- other likelihoods


@pytest.mark.long
@pytest.mark.parametrize("classes", [2, 3])
def test_classification(classes: int) -> None:
    pyro.set_rng_seed(0)
    x = inputs(80, 2)
    truth = inputs(2, classes, seed=5) * 3
    labels = (x @ truth).argmax(-1)

    def scores(x: Tensor, num_functions: int) -> Tensor:
        weights = 3 * torch.randn(num_functions, classes, 2, dtype=x.dtype)
        return weights @ x.mT

    def model(x: Tensor, labels: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(torch.zeros(20).double(), 1.0).to_event(1))
        process = ImplicitProcess(scores, x, 20, seed=0)
        logits = process.weighted(a.unsqueeze(-2)).mT  # outputs behind rows
        with pyro.plate("data", 80, subsample_size=len(x)):
            if classes == 2:
                y = labels.double()
                pyro.sample("y", dist.Bernoulli(logits=logits[..., 1] - logits[..., 0]), obs=y)
            else:
                pyro.sample("y", dist.Categorical(logits=logits), obs=labels)

    guide = AutoMultivariateNormal(model, init_scale=0.3)
    objective = AlphaEnergy(16, alpha=0.5, vectorize_particles=True, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), objective)
    for _ in range(50):
        rows = torch.randperm(80)[:40]
        svi.step(x[rows], labels[rows])
    new = inputs(500, 2, seed=9)
    with torch.no_grad():
        draws = guide.get_posterior().sample((200, 1, 1))
        logits = ImplicitProcess(scores, new, 20, seed=0).weighted(draws)  # (200, classes, 500)
    predicted = logits.softmax(1).mean(0).argmax(0)
    assert (predicted == (new @ truth).argmax(-1)).double().mean() > 0.9


def test_weights_of_the_exact_posterior_are_taken_in_the_precision_of_the_functions() -> None:
    x = inputs().float()
    process = ImplicitProcess(linear, x, S, NOISE, seed=0)
    weights = process.weight_posterior(torch.randn(50)).sample()
    assert weights.dtype == torch.float64
    values = process.weighted(weights)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, process.weighted(weights.float()))
