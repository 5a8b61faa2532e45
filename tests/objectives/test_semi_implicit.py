"""Bounds on the true entropy: exact where it is known, on the right side where it is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, ImplicitDistribution, LinearisedELBO, SemiImplicitELBO
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import ArgumentError, DensityError, GuideError
from pyro_implicit.generators import MLPGenerator, ModuleGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.objectives.implicit_site import ImplicitSite
from tests.objectives.replayed import replayed

PROPOSALS = ("prior", "gauss-newton")
pytestmark = pytest.mark.usefixtures("double")


class Folded(Generator):
    """``theta = |z|``."""

    def __init__(self) -> None:
        super().__init__((1,), 1)

    def forward(self, z: Tensor) -> Tensor:
        return z.abs()


def linear(d: int, m: int) -> tuple[ModuleGenerator, Tensor]:
    layer = nn.Linear(d, m)
    return ModuleGenerator(layer, (d,), m), layer.weight.detach()


def site_of(fn: ImplicitDistribution, count: int) -> ImplicitSite:
    given = fn.given(fn.base_dist.sample((count,)))
    return ImplicitSite("theta", given, given.rsample(), ("theta",))


def entropy(
    fn: ImplicitDistribution, count: int, exact: Any = None, num_groups: int = 20, **options: Any
) -> tuple[float, float]:
    """
    The mean of the estimates over draws, and its standard error over groups of them. Where the
    density is known (``exact``), what the draws themselves deviate by is taken out.
    """
    objective = SemiImplicitELBO(**options)
    groups = []
    for _ in range(num_groups):
        site = site_of(fn, count // num_groups)
        found = objective.estimate(site).detach()
        if exact is not None:
            found = found + exact.log_prob(site.value) + exact.entropy()
        groups.append(found.mean())
    means = torch.stack(groups)
    return means.mean().item(), means.std().item() / math.sqrt(num_groups)


# ---- linear generators: exact


SIGMAS = (0.3, torch.tensor(0.3).double(), torch.tensor([0.2, 0.5, 0.9]).double())


@pytest.mark.long
@pytest.mark.parametrize(
    ("sigma", "d", "whitened"),
    [
        pytest.param(sigma, d, w, marks=[] if (i + j + w) % 2 == 0 else [pytest.mark.slow])
        for (i, sigma), (j, d), w in product(enumerate(SIGMAS), enumerate([1, 3, 4]), [False, True])
    ],
)
def test_gauss_newton_is_the_exact_gaussian_entropy_of_a_linear_generator(
    sigma: Any, d: int, whitened: bool
) -> None:
    generator, matrix = linear(d, 3)
    factor = torch.randn(3, 3).double() + 2 * torch.eye(3).double() if whitened else None
    preconditioner = Preconditioner(torch.randn(3).double(), factor)
    fn = ImplicitDistribution(generator, scale=sigma, preconditioner=preconditioner)
    noise = torch.as_tensor(sigma).expand(3) ** 2
    covariance = matrix @ matrix.mT + noise.diag()
    if factor is not None:
        covariance = factor @ covariance @ factor.mT
    mean = preconditioner(generator(torch.zeros(d).double())).detach()
    exact = dist.MultivariateNormal(mean, covariance)
    for bound in ("lower", "upper"):
        options = {"proposal": "gauss-newton", "bound": bound, "num_inner": 50}
        found, error = entropy(fn, 500, exact, 5, **options)
        # a tenth of the proposal is the prior: the weights of the rest still vary a little
        assert error < 0.01
        assert found == pytest.approx(exact.entropy().item(), abs=4 * error + 0.01)


def test_gauss_newton_at_each_draw_is_minus_the_exact_log_density() -> None:
    generator, matrix = linear(2, 3)
    preconditioner = Preconditioner(torch.ones(3).double(), torch.tensor([0.5, 2.0, 3.0]).double())
    fn = ImplicitDistribution(generator, scale=0.2, preconditioner=preconditioner)
    site = site_of(fn, 30)
    covariance = matrix @ matrix.mT + 0.04 * torch.eye(3).double()
    scales = preconditioner.factor
    mean = preconditioner(generator(torch.zeros(2).double())).detach()
    exact = dist.MultivariateNormal(mean, scales[:, None] * covariance * scales)
    objective = SemiImplicitELBO(num_inner=2000, proposal="gauss-newton")
    found = objective.estimate(site)
    torch.testing.assert_close(found, -exact.log_prob(site.value), rtol=0, atol=0.05)


@pytest.mark.long
@pytest.mark.parametrize("proposal", PROPOSALS)
def test_lower_and_upper_bounds_enclose_the_entropy_and_close(proposal: str) -> None:
    generator, matrix = linear(2, 2)
    fn = ImplicitDistribution(generator, scale=0.3)
    covariance = matrix @ matrix.mT + 0.09 * torch.eye(2).double()
    law = dist.MultivariateNormal(generator.module.bias.detach(), covariance)
    exact, widths = law.entropy().item(), []
    for inner in (2, 20, 200):
        low, e1 = entropy(fn, 1000, law, proposal=proposal, num_inner=inner)
        up, e2 = entropy(fn, 1000, law, proposal=proposal, num_inner=inner, bound="upper")
        assert low - 3 * e1 < exact < up + 3 * e2
        widths.append(up - low)
    if proposal == "prior":  # the other one is nearly exact from the start
        assert widths[0] > 2 * widths[1] > 4 * abs(widths[2])
    assert abs(widths[2]) < 0.1


# ---- a folding generator


def folded_entropy(sigma: float) -> float:
    """Of ``|z| + sigma eps``, whose density is a skew normal's, by numerical integration."""
    x = np.linspace(-1, 9, 200_001)
    total = math.sqrt(1 + sigma**2)
    # the integral over z > 0 of 2 N(z | 0, 1) N(x | z, sigma^2)
    density = 2 * norm.pdf(x, scale=total) * norm.cdf(x / (sigma * total))
    assert np.trapezoid(density, x) == pytest.approx(1, abs=1e-6)
    return float(np.trapezoid(-density * np.log(np.maximum(density, 1e-300)), x))


@pytest.mark.long
def test_the_entropy_of_a_folding_generator_is_between_its_bounds_and_they_close() -> None:
    exact = folded_entropy(0.1)
    assert exact == pytest.approx(0.8024, abs=1e-3)
    fn = ImplicitDistribution(Folded(), scale=0.1, base_dist=normal(1))
    for proposal in PROPOSALS:
        widths = []
        for inner in (5, 50, 500):
            low, e1 = entropy(fn, 4000, num_inner=inner, proposal=proposal)
            up, e2 = entropy(fn, 4000, num_inner=inner, proposal=proposal, bound="upper")
            assert low - 3 * e1 < exact < up + 3 * e2
            widths.append(up - low)
        assert widths[0] > 2 * widths[1] > 4 * abs(widths[2])
    assert low == pytest.approx(exact, abs=0.05) and up == pytest.approx(exact, abs=0.1)
    linearised = LinearisedELBO().estimate(site_of(fn, 5000)).mean().item()
    assert linearised > exact + 0.5  # counts every value twice


def normal(d: int) -> Any:
    return dist.Normal(torch.zeros(d).double(), 1.0).to_event(1)


@pytest.mark.long
@pytest.mark.parametrize("proposal", PROPOSALS)
@pytest.mark.parametrize("inner", [1, 30])
def test_the_lower_objective_bounds_the_evidence_for_a_folding_generator(
    proposal: str, inner: int
) -> None:
    y = torch.tensor([0.9, 1.4]).double()

    def model() -> None:
        theta = pyro.sample("theta", normal(1))
        with pyro.plate("data", 2):
            pyro.sample("y", dist.Normal(theta[..., 0], 0.7), obs=y)

    covariance = torch.ones(2, 2).double() + 0.49 * torch.eye(2).double()
    evidence = dist.MultivariateNormal(torch.zeros(2).double(), covariance).log_prob(y).item()
    generator = Folded()

    def guide() -> None:
        factor = torch.tensor([0.7]).double()
        preconditioner = Preconditioner(torch.tensor([0.3]).double(), factor)
        fn = ImplicitDistribution(
            generator, scale=0.3, preconditioner=preconditioner, base_dist=normal(1)
        )
        sample_implicit("theta", fn)

    options: dict[str, Any] = {"vectorize_particles": True, "max_plate_nesting": 1}
    objective = SemiImplicitELBO(2000, num_inner=inner, proposal=proposal, **options)
    values = torch.tensor([-objective.loss(model, guide) for _ in range(20)])
    assert values.mean() - 3 * values.std() / math.sqrt(20) < evidence
    assert LinearisedELBO(20_000, **options).loss(model, guide) < -values.mean() - 0.3


def _entropy_of(objective: Any, model: Any, guide: Any) -> tuple[Tensor, ...]:
    return (objective.terms(model, guide)["entropy"].detach(),)


@pytest.mark.long
def test_num_entropy_particles_and_looped_particles_have_the_same_mean() -> None:
    fn = ImplicitDistribution(Folded(), scale=0.3, base_dist=normal(1))

    def model() -> None:
        pyro.sample("theta", normal(1))

    def guide() -> None:
        sample_implicit("theta", fn)

    means = []
    for vectorised, keep in ((False, 3), (True, 3), (True, 1)):
        objective = SemiImplicitELBO(
            3, num_entropy_particles=keep, vectorize_particles=vectorised, max_plate_nesting=0
        )
        again = replayed(partial(_entropy_of, objective, model, guide))
        means.append(torch.stack([again()[0] for _ in range(300)]))
    for found in means[1:]:
        error = math.hypot(found.std().item(), means[0].std().item()) / math.sqrt(300)
        assert abs((found.mean() - means[0].mean()).item()) < 4 * error


def test_sites_in_a_plate_are_estimated_row_by_row() -> None:
    generator, matrix = linear(1, 2)
    fn = ImplicitDistribution(generator, scale=0.5)
    covariance = matrix @ matrix.mT + 0.25 * torch.eye(2).double()
    exact = dist.MultivariateNormal(generator.module.bias.detach(), covariance)
    for proposal in PROPOSALS:
        site = site_of(fn.expand((3,)), 4)
        assert site.value.shape == (4, 3, 2)
        found = SemiImplicitELBO(num_inner=20_000, proposal=proposal).estimate(site)
        torch.testing.assert_close(found, -exact.log_prob(site.value), rtol=0, atol=0.15)


# ---- gradients


@pytest.mark.long
def test_gradients_tend_to_those_of_the_entropy() -> None:
    generator, matrix = linear(1, 1)
    log_sigma = torch.tensor(-1.0).double().requires_grad_()
    weight = generator.module.weight
    wrt = [weight, log_sigma]
    for proposal in PROPOSALS:
        fn = ImplicitDistribution(generator, scale=log_sigma.exp())
        objective = SemiImplicitELBO(num_inner=300, proposal=proposal)
        found = torch.autograd.grad(objective.estimate(site_of(fn, 3000)).mean(), wrt)
        exact = 0.5 * (weight.square() + (2 * log_sigma).exp()).log().sum()
        expected = torch.autograd.grad(exact, wrt)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0.1, atol=0.05)


# ---- a semi-implicit prior


@pytest.mark.long
@pytest.mark.parametrize("whitened", [False, True])
def test_prior_bound_is_below_the_log_density_and_closes(whitened: bool) -> None:
    generator, matrix = linear(2, 2)
    factor = torch.tensor([[2.0, 0.0], [1.0, 0.5]]).double() if whitened else None
    preconditioner = Preconditioner(torch.ones(2).double(), factor) if whitened else None
    fn = ImplicitDistribution(generator, scale=0.3, preconditioner=preconditioner)
    mean, covariance = generator.module.bias.detach(), matrix @ matrix.mT + 0.09 * torch.eye(2)
    if factor is not None:
        mean, covariance = 1 + factor @ mean, factor @ covariance @ factor.mT
    exact = dist.MultivariateNormal(mean, covariance)
    value = exact.sample((200,))
    gaps = []
    for inner in (3, 100, 5000):
        objective = SemiImplicitELBO(num_inner=inner)
        repeats = torch.stack([objective.implicit_prior(fn, value) for _ in range(10)]).detach()
        gap = (exact.log_prob(value) - repeats).mean(-1)
        assert gap.mean() > -3 * gap.std() / math.sqrt(10)
        gaps.append(gap.mean().item())
    assert gaps[0] > gaps[1] > gaps[2]
    assert abs(gaps[2]) < 0.02


@pytest.mark.long
def test_a_model_with_a_semi_implicit_prior_has_a_lower_bound() -> None:
    prior_generator, matrix = linear(1, 1)
    guide_generator, _ = linear(1, 1)
    y = torch.tensor(0.8).double()

    def model() -> None:
        theta = sample("theta", ImplicitDistribution(prior_generator, scale=0.3))
        pyro.sample("y", dist.Normal(theta[..., 0], 0.5), obs=y)

    def guide() -> None:
        sample_implicit("theta", ImplicitDistribution(guide_generator, scale=0.4))

    sample = pyro.sample
    total = math.sqrt(matrix.item() ** 2 + 0.09 + 0.25)
    evidence = dist.Normal(prior_generator.module.bias.item(), total).log_prob(y).item()
    objective = SemiImplicitELBO(500, num_inner=200, vectorize_particles=True, max_plate_nesting=0)
    values = torch.tensor([-objective.loss(model, guide) for _ in range(20)])
    assert values.mean() - 3 * values.std() / math.sqrt(20) < evidence
    objective.loss_and_grads(model, guide)
    assert prior_generator.module.weight.grad.isfinite().all()
    assert prior_generator.module.weight.grad.abs() > 0  # priors are learned, too


# ---- refused, and told


def test_a_guide_or_a_prior_without_output_noise_is_refused() -> None:
    fn = ImplicitDistribution(Folded(), base_dist=normal(1))
    with pytest.raises(GuideError, match=r"'theta' has scale 0: .*scale=0\.05, learn_scale"):
        SemiImplicitELBO().estimate(site_of(fn, 3))
    with pytest.raises(DensityError, match="scale 0: it has no density.*contrast='prior'"):
        SemiImplicitELBO().implicit_prior(fn, torch.zeros(3, 1).double())


def test_other_noise_is_for_the_prior_proposal_only() -> None:
    base = dist.Normal(torch.ones(2).double(), 3.0).to_event(1)
    generator, matrix = linear(2, 2)
    fn = ImplicitDistribution(generator, scale=0.5, base_dist=base)
    with pytest.raises(GuideError, match="'theta' has noise.*proposal='prior'"):
        SemiImplicitELBO(proposal="gauss-newton").estimate(site_of(fn, 3))
    covariance = 9 * matrix @ matrix.mT + 0.25 * torch.eye(2).double()
    exact = dist.MultivariateNormal(torch.zeros(2).double(), covariance).entropy().item()
    found, error = entropy(fn, 4000, num_inner=2000)
    assert found == pytest.approx(exact, abs=4 * error + 0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_inner": 0}, "num_inner=0; expected an integer >= 1"),
        ({"num_inner": True}, "num_inner=True"),
        ({"bound": "both"}, "bound='both'; expected 'lower' or 'upper'"),
        ({"proposal": "laplace"}, "proposal='laplace'; expected 'prior' or 'gauss-newton'"),
    ],
)
def test_other_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        SemiImplicitELBO(**options)


def test_settings_and_is_bound() -> None:
    given = {"num_inner": 7, "bound": "upper", "proposal": "gauss-newton"}
    objective = SemiImplicitELBO(2, **given)
    assert objective.settings.items() >= given.items()
    assert "proposal='gauss-newton'" in repr(objective)
    assert not objective.is_bound and SemiImplicitELBO().is_bound
    assert not SemiImplicitELBO(prior_weight=0.5).is_bound


def test_autocast_does_not_reach_the_estimate() -> None:
    torch.set_default_dtype(torch.float32)
    generator, _ = linear(3, 4)
    for proposal in PROPOSALS:
        fn = ImplicitDistribution(generator, scale=0.01)
        site = site_of(fn, 3)
        objective = SemiImplicitELBO(num_inner=4, proposal=proposal)
        values = []
        for enabled in (False, True):
            pyro.set_rng_seed(0)
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                values.append(objective.estimate(site))
        assert values[0].dtype == values[1].dtype == torch.float32
        torch.testing.assert_close(values[0], values[1])


@pytest.mark.slow  # the default run has test_known_posterior.py
@pytest.mark.parametrize("proposal", PROPOSALS)
def test_training_finds_a_correlated_gaussian(proposal: str) -> None:
    covariance = torch.tensor([[1.0, 0.8], [0.8, 1.0]]).double()
    target = dist.MultivariateNormal(torch.tensor([1.0, -1.0]).double(), covariance)
    model: Callable[[], Any] = lambda: pyro.sample("theta", target)  # noqa: E731
    guide = HyperNetworkGuide(model, hidden_dims=(5,), scale=0.2).double().setup().double()
    objective = SemiImplicitELBO(
        16, num_inner=200, proposal=proposal, vectorize_particles=True, max_plate_nesting=0
    )
    optimiser = torch.optim.Adam(guide.parameters(), lr=0.03)
    for step in range(300):
        optimiser.param_groups[0]["lr"] = 0.03 * (1 - step / 300)
        optimiser.zero_grad()
        objective.differentiable_loss(model, guide).backward()
        optimiser.step()
    draws = guide.sample(20_000)["theta"]
    q = dist.MultivariateNormal(draws.mean(0), draws.mT.cov())
    assert torch.distributions.kl_divergence(q, target).item() < 0.05


# ---- priors that are implicit themselves, and guides made of them


def _linear_prior(d: int, m: int, sigma: float) -> tuple[ImplicitDistribution, Tensor]:
    """A prior with a linear generator, and its covariance."""
    layer = nn.Linear(d, m, bias=False)
    covariance = layer.weight @ layer.weight.mT + sigma**2 * torch.eye(m)
    return ImplicitDistribution(ModuleGenerator(layer, (d,), m), scale=sigma), covariance.detach()


@pytest.mark.long
@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("factorized", [False, True])
def test_a_guide_serves_a_model_with_an_implicit_prior(vectorised: bool, factorized: bool) -> None:
    fn, covariance = _linear_prior(2, 2, 1.5)

    def model() -> None:
        w = pyro.sample("w", fn)
        v = pyro.sample("v", dist.LogNormal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w.sum(-1) * v, 1.0), obs=torch.tensor(1.0))

    guide = HyperNetworkGuide(model, scale=0.3, factorized=factorized)
    objective = SemiImplicitELBO(20, vectorize_particles=vectorised, num_inner=2000)
    values, bounds = [], []
    bound = objective.implicit_prior

    def spy(prior: Any, value: Tensor) -> Tensor:
        values.append(value.detach())
        bounds.append(bound(prior, value))
        return bounds[-1]

    objective.implicit_prior = spy  # type: ignore[method-assign]
    terms = objective.terms(model, guide)
    assert set(terms) == {"log_likelihood", "log_prior", "entropy"}
    exact = dist.MultivariateNormal(torch.zeros(2), covariance).log_prob(torch.stack(values))
    torch.testing.assert_close(torch.stack(bounds).detach(), exact, rtol=0, atol=0.3)
    assert objective.loss_and_grads(model, guide) < math.inf


def test_the_log_jacobian_of_a_guide_counts_under_an_implicit_prior() -> None:
    """The guide's own site has a density although the model's has none."""
    fn, _ = _linear_prior(2, 2, 0.8)
    law = ImplicitDistribution(MLPGenerator(2, 2, (3,)), scale=0.3)

    def entropy_with(log_jacobian: float) -> float:
        def guide() -> None:
            flat = sample_implicit("flat", law, latents=("w",), auxiliary=True)
            density = torch.tensor(log_jacobian)
            pyro.sample("w", dist.Delta(flat, log_density=density, event_dim=1))

        pyro.set_rng_seed(0)
        return SemiImplicitELBO(5).terms(lambda: pyro.sample("w", fn), guide)["entropy"].item()

    assert entropy_with(2.5) == pytest.approx(entropy_with(0.0) - 2.5)


@pytest.mark.long
@pytest.mark.parametrize("vectorised", [False, True])
def test_an_implicit_prior_in_a_plate_is_bounded_row_by_row(vectorised: bool) -> None:
    fn, covariance = _linear_prior(2, 2, 0.8)

    def model(prior: Any) -> None:
        with pyro.plate("rows", 3):
            w = pyro.sample("w", prior)
            pyro.sample("y", dist.Normal(w.sum(-1), 1.0), obs=torch.ones(3))

    guide = HyperNetworkGuide(model, scale=0.3)
    objective = SemiImplicitELBO(20, vectorize_particles=vectorised, num_inner=1000)
    exact = dist.MultivariateNormal(torch.zeros(2), covariance)
    found = []
    for prior in (fn, exact):
        pyro.set_rng_seed(0)
        found.append(objective.terms(model, guide, prior)["log_prior"].item())
    assert found[0] == pytest.approx(found[1], abs=0.5)


def test_a_conditional_prior_is_bounded_row_by_row() -> None:
    matrix = torch.randn(2, 3)
    layer = nn.Linear(3, 2, bias=False)
    layer.weight.data.copy_(matrix)
    context = torch.tensor([[1.0], [-4.0], [9.0]])
    generator = Conditioned(ModuleGenerator(layer, (3,), 2), context)
    fn = ImplicitDistribution(generator, scale=0.8)
    covariance = matrix[:, :2] @ matrix[:, :2].mT + 0.64 * torch.eye(2)
    exact = dist.MultivariateNormal(context * matrix[:, 2], covariance)
    value = exact.sample()
    bound = SemiImplicitELBO(num_inner=10_000).implicit_prior(fn, value)
    torch.testing.assert_close(bound, exact.log_prob(value), rtol=0, atol=0.15)
