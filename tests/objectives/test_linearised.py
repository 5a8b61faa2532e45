"""What the linearised entropy is exact for, what it learns, and where it is no bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import SVI
from torch import Tensor, nn

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    ImplicitDistribution,
    LinearisedELBO,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import GuideError
from pyro_implicit.generators import (
    AutoregressiveGenerator,
    Generator,
    MLPGenerator,
    ModuleGenerator,
)
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.scaled_site import entropy_constant

LOG_2PI = math.log(2 * math.pi)


def _normal(mean: Tensor, covariance: Tensor) -> Callable[[], None]:
    """A model without data whose posterior is that normal; its log-evidence is 0."""

    def model() -> None:
        pyro.sample("theta", dist.MultivariateNormal(mean, covariance))

    return model


def _guide(generator: Generator, **options: Any) -> Callable[[], None]:
    def guide() -> None:
        sample_implicit("theta", ImplicitDistribution(generator, **options))

    return guide


# ---- a linear generator: exact


def _linear(route: str, d: int, m: int) -> tuple[Generator, Callable[[], Tensor]]:
    """A linear generator of one of the kinds, and its matrix as a function of its parameters."""
    if route == "module":
        layer = nn.Linear(d, m)
        return ModuleGenerator(layer, (d,), m), lambda: layer.weight
    mlp = MLPGenerator(d, m, (4, 3), activation="identity", skip=route == "skip")

    def matrix() -> Tensor:
        product = mlp.weight_out @ mlp.weights[1] @ mlp.weights[0]
        return product if mlp.skip is None else product + mlp.skip

    return mlp, matrix


@pytest.mark.long
@settings(max_examples=60)
@given(
    st.sampled_from(["module", "mlp", "skip"]),
    st.integers(1, 6),
    st.integers(1, 6),
    st.floats(-3, 0.5),
    st.sampled_from(["number", "scalar", "diagonal"]),
    st.booleans(),
    st.sampled_from([(1, False), (3, False), (3, True)]),
    st.integers(0, 2**20),
)
def test_entropy_of_a_linear_generator_is_the_gaussian_one(
    route: str,
    d: int,
    m: int,
    log_sigma: float,
    kind: str,
    whitened: bool,
    particles: tuple[int, bool],
    seed: int,
) -> None:
    torch.manual_seed(seed)
    generator, matrix = _linear(route, d, m)
    generator = generator.double()
    sigma: Any = 10**log_sigma
    if kind != "number":
        sigma = sigma * torch.rand(() if kind == "scalar" else (m,), dtype=torch.float64).add(0.5)
        sigma.requires_grad_()
    factor = torch.eye(m).double() + 0.3 * torch.randn(m, m).double() if whitened else None
    preconditioner = Preconditioner(torch.randn(m).double(), factor)
    guide = _guide(generator, scale=sigma, preconditioner=preconditioner)
    model = _normal(torch.zeros(m).double(), torch.eye(m).double())
    num, vectorised = particles
    objective = LinearisedELBO(num, vectorize_particles=vectorised, max_plate_nesting=0)

    entropy = objective.terms(model, guide)["entropy"]
    noise = torch.as_tensor(sigma, dtype=torch.float64).expand(m) ** 2
    covariance = matrix() @ matrix().mT + torch.diag(noise)
    if factor is not None:
        covariance = factor @ covariance @ factor.mT
    exact = 0.5 * (m * (1 + LOG_2PI) + torch.linalg.slogdet(covariance).logabsdet)
    torch.testing.assert_close(entropy, exact, rtol=1e-6, atol=1e-6)

    wrt = [p for n, p in generator.named_parameters() if "bias" not in n]
    wrt += [sigma] if isinstance(sigma, Tensor) else []
    mine, theirs = torch.autograd.grad(entropy, wrt), torch.autograd.grad(exact, wrt)
    for gradient, expected in zip(mine, theirs, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("m", [2, 5])
def test_whole_objective_of_a_linear_generator_is_unbiased_for_the_exact_elbo(m: int) -> None:
    matrix, sigma = torch.randn(m, 3).double(), 0.3
    layer = nn.Linear(3, m).double()
    with torch.no_grad():
        layer.weight.copy_(matrix)
    target = torch.randn(m, m).double()
    target = target @ target.mT + torch.eye(m)
    q = dist.MultivariateNormal(layer.bias, matrix @ matrix.mT + sigma**2 * torch.eye(m).double())
    p = dist.MultivariateNormal(torch.ones(m).double(), target)
    exact = -torch.distributions.kl_divergence(q, p).item()
    model = _normal(p.loc, target)
    guide = _guide(ModuleGenerator(layer, (3,), m), scale=sigma)
    count = 40_000
    objective = LinearisedELBO(count, vectorize_particles=True, max_plate_nesting=0)
    draws = q.sample((count,))
    spread = p.log_prob(draws).std().item() / math.sqrt(count)
    assert abs(-objective.loss(model, guide) - exact) < 5 * spread


# ---- the learned output noise


class _Plain(nn.Module):
    """``A z + b`` with ``A`` of shape (m, d), for the expected loss in closed form."""

    def __init__(self, d: int, m: int) -> None:
        super().__init__()
        self.linear = nn.Linear(d, m)

    def forward(self, z: Tensor) -> Tensor:
        return self.linear(z)


@pytest.mark.long
@pytest.mark.parametrize("d", [1, 2, 3])
def test_learned_sigma_is_the_harmonic_mean_of_what_is_left_out(d: int) -> None:
    m = 5
    eigenvalues = torch.tensor([4.0, 2.0, 0.3, 0.1, 0.05], dtype=torch.float64)
    axes = torch.linalg.qr(torch.randn(m, m, dtype=torch.float64)).Q
    covariance = axes @ torch.diag(eigenvalues) @ axes.mT
    covariance = 0.5 * (covariance + covariance.mT)
    model = _normal(torch.zeros(m).double(), covariance)
    guide = HyperNetworkGuide(
        model, noise_dim=d, generator=_Plain(d, m), scale=0.5, learn_scale="scalar"
    )
    guide.setup().double()
    sampler: Any = guide.samplers[0]
    objective = LinearisedELBO(4, vectorize_particles=True, max_plate_nesting=0)
    optimiser = torch.optim.LBFGS(
        guide.parameters(), max_iter=500, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        """The entropy is the objective's own; the prior's expectation is exact for a linear map."""
        optimiser.zero_grad()
        entropy = objective.terms(model, guide)["entropy"]
        weight, sigma = sampler.generator.module.linear.weight, sampler.scale
        second = weight @ weight.mT + sigma**2 * torch.eye(m).double()
        mean = sampler.generator.module.linear.bias
        cross = 0.5 * (torch.trace(torch.linalg.solve(covariance, second)))
        value = cross + 0.5 * mean @ torch.linalg.solve(covariance, mean) - entropy
        value.backward()
        return value

    optimiser.step(loss)
    harmonic = 1 / (1 / eigenvalues[d:]).mean()
    assert sampler.scale.item() ** 2 == pytest.approx(harmonic.item(), rel=0.03)


@pytest.mark.slow
def test_learned_sigma_is_the_harmonic_mean_under_svi_too() -> None:
    m, d = 4, 2
    eigenvalues = torch.tensor([4.0, 1.0, 0.3, 0.1])
    model = _normal(torch.zeros(m), torch.diag(eigenvalues))
    guide = HyperNetworkGuide(
        model, noise_dim=d, generator=_Plain(d, m), scale=0.5, learn_scale="scalar"
    )
    _train(model, guide, steps=2000, particles=64, rate=0.02)
    found = guide.samplers[0].scale.item() ** 2  # type: ignore[union-attr,operator]
    assert found == pytest.approx((1 / (1 / eigenvalues[d:]).mean()).item(), rel=0.03)


# ---- a conjugate model


def _train(model: Any, guide: Any, steps: int, particles: int, rate: float) -> None:
    """Adam with a cosine decay to a thousandth of the learning rate."""
    optimiser = pyro.optim.LambdaLR(
        {
            "optimizer": torch.optim.Adam,
            "optim_args": {"lr": rate, "betas": (0.9, 0.99)},
            "lr_lambda": lambda step: 0.001 + 0.4995 * (1 + math.cos(math.pi * step / steps)),
        }
    )
    objective = LinearisedELBO(particles, vectorize_particles=True)
    svi = SVI(model, guide, optimiser, objective)
    for _ in range(steps):
        svi.step()
        optimiser.step()


def _regression(sizes: Sequence[float]) -> tuple[Callable[[], None], Tensor, Tensor, float]:
    """Linear regression on correlated inputs of those sizes: model, inputs, targets and noise."""
    torch.manual_seed(1)
    count, noise = 60, 0.5
    scales = torch.tensor(sizes, dtype=torch.float64)
    x = torch.randn(count, 4).double() * scales
    x[:, 1] += 0.9 * x[:, 0] * sizes[1] / sizes[0]
    effects = torch.tensor([0.6, -0.9, 1.0, 0.05], dtype=torch.float64)
    y = x @ (effects / scales) + noise * torch.randn(count).double()

    def model() -> None:
        loc = torch.zeros(4, dtype=torch.float64)
        w = pyro.sample("w", dist.Normal(loc, 1.0).to_event(1))
        with pyro.plate("data", count):
            pyro.sample("y", dist.Normal((w * x).sum(-1), noise), obs=y)

    return model, x, y, noise


def _posterior(x: Tensor, y: Tensor, noise: float) -> tuple[Tensor, Tensor, float]:
    precision = x.mT @ x / noise**2 + torch.eye(x.shape[1]).double()
    covariance = torch.linalg.inv(precision)
    mean = covariance @ x.mT @ y / noise**2
    marginal = x @ x.mT + noise**2 * torch.eye(len(y)).double()
    evidence = dist.MultivariateNormal(torch.zeros_like(y), marginal).log_prob(y).item()
    return mean, covariance, evidence


def _kl(draws: Tensor, mean: Tensor, covariance: Tensor) -> float:
    q = dist.MultivariateNormal(draws.mean(0), draws.mT.cov())
    p = dist.MultivariateNormal(mean, covariance)
    return torch.distributions.kl_divergence(q, p).item()


def _check_fit(guide: Any, model: Any, x: Tensor, y: Tensor, noise: float) -> None:
    mean, covariance, evidence = _posterior(x, y, noise)
    assert _kl(guide.sample(100_000)["w"], mean, covariance) < 0.01
    objective = LinearisedELBO(10_000, vectorize_particles=True)
    assert -objective.loss(model, guide) == pytest.approx(evidence, abs=0.05)


#: posterior deviations from 0.003 to 0.5, a condition number of 35 000
HARD = (30.0, 3.0, 1.0, 0.1)
#: posterior deviations from 0.03 to 0.5
MILD = (3.0, 1.0, 0.3, 0.1)


@pytest.mark.slow
def test_ill_conditioned_regression_from_the_laplace_start() -> None:
    model, x, y, noise = _regression(HARD)
    guide = HyperNetworkGuide(model, init_from="laplace")
    _train(model, guide, steps=200, particles=16, rate=5e-3)
    _check_fit(guide, model, x, y, noise)


@pytest.mark.slow
def test_ill_conditioned_regression_from_a_plain_start() -> None:
    """A linear map: the default network needs 15 000 such steps here if nothing whitens it."""
    model, x, y, noise = _regression(HARD)
    guide = HyperNetworkGuide(model, init_scale=0.01, activation="identity")
    _train(model, guide, steps=4000, particles=64, rate=3e-3)
    _check_fit(guide, model, x, y, noise)


@pytest.mark.slow
def test_regression_from_a_plain_start() -> None:
    model, x, y, noise = _regression(MILD)
    guide = HyperNetworkGuide(model)
    _train(model, guide, steps=6000, particles=64, rate=4e-3)
    _check_fit(guide, model, x, y, noise)


# ---- a nonlinear generator: no bound


class _Folded(Generator):
    """``theta = |z|``: every value is reached twice, and the linearisation counts it twice."""

    def forward(self, z: Tensor) -> Tensor:
        return z.abs()


def test_a_folding_generator_exceeds_the_evidence() -> None:
    # q is exactly the model's half-normal, so a bound would be at most the evidence, 0
    def model() -> None:
        pyro.sample("theta", dist.HalfNormal(torch.ones(1).double()).to_event(1))

    def guide() -> None:
        base = dist.Normal(torch.zeros(1).double(), 1.0).to_event(1)
        sample_implicit("theta", ImplicitDistribution(_Folded((1,), 1), base_dist=base))

    objective = LinearisedELBO(20_000, vectorize_particles=True, max_plate_nesting=0)
    value = -objective.loss(model, guide)
    assert value == pytest.approx(math.log(2), abs=0.02)  # the fold, to the nat


@pytest.mark.parametrize("vectorised", [False, True])
def test_of_the_posterior_itself_each_draw_tells_the_evidence(vectorised: bool) -> None:
    """The entropy of increasing functions is taken at the draw: nothing is left to vary."""
    generator = AutoregressiveGenerator(2).double()
    with torch.no_grad():
        for block in generator.blocks:
            block.weight_out.zero_()
            block.bias_out.zero_()
            block.bias_out[-4:] = -100.0  # no steps
        at = torch.zeros(2).double()
        jacobian, mean = generator.jacobian(at), generator(at[None])[0]
    model = _normal(mean, jacobian @ jacobian.mT)
    objective = LinearisedELBO(1, vectorize_particles=vectorised, max_plate_nesting=0)
    for _ in range(5):
        assert objective.loss(model, _guide(generator)) == pytest.approx(0.0, abs=1e-6)


def test_docstring_says_that_it_is_no_bound() -> None:
    text = " ".join((LinearisedELBO.__doc__ or "").split())
    assert "objective, not a lower bound" in text and "exceed the log-evidence" in text


# ---- other noise


def _site(base: Any, d: int, m: int) -> ImplicitSite:
    fn = ImplicitDistribution(MLPGenerator(d, m), base_dist=base, scale=0.1)
    z = fn.base_dist.sample((3,))
    return ImplicitSite("w", fn.given(z), torch.zeros(3, m), ("w",))


def test_constant_of_other_noise_is_its_entropy_and_that_of_the_rest() -> None:
    base = dist.Normal(torch.zeros(2), 3.0).to_event(1)
    site = _site(base, 2, 5)
    expected = -base.log_prob(site.distribution.noise) + 1.5 * (1 + LOG_2PI)
    torch.testing.assert_close(entropy_constant(site), expected)


@pytest.mark.parametrize("d", [2, 5, 8])
def test_constant_of_standard_noise_does_not_depend_on_its_dimension(d: int) -> None:
    assert entropy_constant(_site(None, d, 5)) == pytest.approx(2.5 * (1 + LOG_2PI))


def test_other_noise_with_more_dimensions_than_outputs_is_refused() -> None:
    base = dist.Normal(torch.zeros(4), 3.0).to_event(1)
    with pytest.raises(
        GuideError, match="'w' has 4 noise dimensions for 3 outputs.*at most as many"
    ):
        LinearisedELBO().estimate(_site(base, 4, 3))


def test_losses_of_a_conditional_guide_at_the_posterior_do_not_vary() -> None:
    """The entropy is that of the draw, as of other bijections, and not its mean."""

    def model(x: Tensor) -> None:
        with pyro.plate("rows", len(x)):
            pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    x = torch.zeros(30, 1)
    guide = ConditionalHyperNetworkGuide(model, init_from=None, init_scale=1.0).setup(x)
    objective = LinearisedELBO(1, max_plate_nesting=1)
    with torch.no_grad():
        losses = torch.tensor([objective.loss(model, guide, x) for _ in range(100)])
    assert float(losses.std()) < 0.25 * 60**0.5  # with the mean: 0.7 of the root
