"""PosteriorPredictiveLoss against the likelihood, brute force and exact predictive densities."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer import SVI
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, PosteriorPredictiveLoss
from pyro_implicit.distributions.diagonal_mixture import DiagonalMixture
from pyro_implicit.exceptions import ArgumentError

FORMS = ("per_datum", "expected", "per_batch")
DATA = torch.tensor([0.3, -0.4, 1.1, 0.8], dtype=torch.float64)
NOISE = 0.7


def model(y: Tensor = DATA, size: int | None = None) -> None:
    loc = pyro.sample("loc", dist.Normal(y.new_tensor(0.0), 1.0))
    with pyro.plate("data", size or len(y), subsample_size=len(y)):
        pyro.sample("y", dist.Normal(loc, NOISE), obs=y)


def trained(num_samples: int, form: str, **options: Any) -> tuple[float, list[Tensor]]:
    """Loss and gradients of a small implicit guide at a fixed seed."""
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(model, hidden_dims=(4,)).setup().double()
    objective = PosteriorPredictiveLoss(num_samples, form=form, **options)
    pyro.set_rng_seed(1)
    loss = objective.loss_and_grads(model, guide)
    return loss, [p.grad for p in guide.parameters() if p.grad is not None]


@pytest.mark.parametrize("form", FORMS)
def test_one_draw_is_the_negative_log_likelihood_and_its_gradient(form: str) -> None:
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(model, hidden_dims=(4,)).setup().double()
    pyro.set_rng_seed(1)
    loc = poutine.trace(guide).get_trace().nodes["loc"]["value"]
    expected = -dist.Normal(loc, NOISE).log_prob(DATA).sum()
    expected.backward()
    theirs = [p.grad for p in guide.parameters() if p.grad is not None]
    loss, gradients = trained(1, form)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for mine, other in zip(gradients, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def brute_force(form: str, loc: Tensor, y: Tensor, size: int) -> Tensor:
    """The three readings, from the definitions, in ordinary densities."""
    weight = size / len(y)
    density = dist.Normal(loc[:, None], NOISE).log_prob(y).exp()  # draws, data
    if form == "expected":
        return -weight * density.log().sum(1).mean()
    if form == "per_datum":
        return -weight * density.mean(0).log().sum()
    return -weight * density.prod(1).mean().log()


@pytest.mark.long
@settings(max_examples=15)
@given(
    form=st.sampled_from(FORMS),
    vectorised=st.booleans(),
    num_samples=st.integers(1, 6),
    rows=st.integers(1, 4),
)
def test_the_forms_are_their_definitions(
    form: str, vectorised: bool, num_samples: int, rows: int
) -> None:
    y, size = DATA[:rows], 12
    pyro.set_rng_seed(num_samples)
    guide = HyperNetworkGuide(model, hidden_dims=(4,), init_scale=0.7).setup().double()
    objective = PosteriorPredictiveLoss(
        num_samples, form=form, vectorize_particles=vectorised, max_plate_nesting=1
    )
    pyro.set_rng_seed(1)
    loss = objective.loss(model, guide, y, size)
    pyro.set_rng_seed(1)
    if vectorised and num_samples > 1:
        with pyro.plate("particles", num_samples, dim=-2):
            loc = guide(y, size)["loc"].flatten()
    else:
        runs = []
        for index in range(num_samples):
            runs.append(guide(y, size)["loc"].flatten())
            if index > 0 and form != "expected":
                continue  # the rows of the first are those of all
            poutine.trace(poutine.condition(model, {"loc": runs[-1][0]})).get_trace(y, size)
        loc = torch.cat(runs)
    assert loss == pytest.approx(brute_force(form, loc, y, size).item(), rel=1e-10)


@pytest.mark.long
def test_with_many_draws_it_is_the_exact_predictive_density() -> None:
    """The guide is the exact posterior of a conjugate model."""
    precision = 1 + len(DATA) / NOISE**2
    mean, scale = DATA.sum().item() / NOISE**2 / precision, precision**-0.5

    def posterior(y: Tensor) -> None:
        pyro.sample("loc", dist.Normal(DATA.new_tensor(mean), scale))

    new = torch.tensor([-1.0, 0.0, 0.5, 2.0], dtype=torch.float64)
    exact = -dist.Normal(mean, math.hypot(scale, NOISE)).log_prob(new).sum().item()
    errors = []
    for num_samples in (10, 1000, 100_000):
        objective = PosteriorPredictiveLoss(
            num_samples, vectorize_particles=True, max_plate_nesting=1
        )
        pyro.set_rng_seed(0)
        losses = [objective.loss(model, posterior, new) for _ in range(20)]
        errors.append(abs(sum(losses) / len(losses) - exact))
    assert errors[2] < 2e-3
    assert errors[2] < errors[1] < errors[0]
    # Jensen: the estimate is biased upwards, by at most the variance over 2 L of each datum
    assert errors[0] < 0.5


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("kind", ["l1", "hinge"])
def test_a_pseudo_likelihood_by_factor(kind: str, vectorised: bool) -> None:
    x = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64)
    y = torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)

    def loss(f: Tensor) -> Tensor:
        return (y - f).abs() if kind == "l1" else (1 - y * f).clamp(min=0.0)

    def pseudo() -> None:
        w = pyro.sample("w", dist.Normal(x.new_tensor(0.0), 1.0))
        with pyro.plate("data", 3):
            pyro.factor("loss", -loss(w * x))

    def guide() -> None:
        pyro.sample("w", dist.Normal(x.new_tensor(1.0), 0.5))

    objective = PosteriorPredictiveLoss(4, vectorize_particles=vectorised, max_plate_nesting=1)
    pyro.set_rng_seed(0)
    value = objective.loss(pseudo, guide)
    pyro.set_rng_seed(0)
    w = x.new_tensor(1.0) + 0.5 * torch.randn(4, 1, dtype=torch.float64)
    if not vectorised:
        pyro.set_rng_seed(0)
        w = torch.stack([poutine.trace(guide).get_trace().nodes["w"]["value"] for _ in range(4)])
        w = w[:, None]
    expected = -(-loss(w * x)).exp().mean(0).log().sum()
    assert value == pytest.approx(expected.item(), rel=1e-10)


def test_the_prior_is_evaluated_only_with_a_weight() -> None:
    def improper(y: Tensor = DATA) -> None:
        loc = pyro.sample("loc", dist.ImproperUniform(constraints.real, (), ()))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc, NOISE), obs=y)

    guide = HyperNetworkGuide(improper).setup()
    terms = PosteriorPredictiveLoss(3).terms(improper, guide)
    assert list(terms) == ["log_predictive"]

    class Forbidden(dist.Normal):
        def log_prob(self, value: Tensor) -> Tensor:
            raise AssertionError("the prior was evaluated")

    def forbidden(y: Tensor = DATA) -> None:
        loc = pyro.sample("loc", Forbidden(y.new_tensor(0.0), 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc, NOISE), obs=y)

    explicit = AutoNormal(model)
    explicit()
    for guide in (HyperNetworkGuide(model).setup(), explicit):
        PosteriorPredictiveLoss(3).loss(forbidden, guide)
        with pytest.raises(AssertionError, match="prior was evaluated"):
            PosteriorPredictiveLoss(3, prior_weight=0.1).loss(forbidden, guide)


def test_the_prior_weight_is_the_regulariser_of_appendix_f() -> None:
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(model).setup().double()
    objective = PosteriorPredictiveLoss(5, form="expected", prior_weight=0.3)
    pyro.set_rng_seed(1)
    terms = objective.terms(model, guide)
    pyro.set_rng_seed(1)
    draws = torch.stack([guide()["loc"] for _ in range(5)])
    expected = 0.3 * (-0.5 * draws**2 - 0.5 * math.log(2 * math.pi)).mean()
    torch.testing.assert_close(terms["log_prior"], expected, rtol=1e-6, atol=1e-9)
    assert set(terms) == {"log_likelihood", "log_prior"}


CLUSTERS = torch.cat([-torch.ones(20), torch.ones(20)])


def clusters() -> None:
    loc = pyro.sample("loc", dist.Normal(torch.zeros(()), 10.0))
    with pyro.plate("data", len(CLUSTERS)):
        pyro.sample("y", dist.Normal(loc, 0.3), obs=CLUSTERS)


@pytest.mark.long
def test_expected_collapses_and_per_datum_keeps_the_spread() -> None:
    """Two clusters of data and one location: appendix C, and what Eq. 3 does instead."""
    spreads = torch.tensor([0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.3, 2.0])
    # of guides N(0, spread^2): minus the squares of data and spread; a normal that is wider
    constant = 0.5 * math.log(2 * math.pi)
    log_p = {
        "expected": -0.5 * (1 + spreads**2) / 0.09 - math.log(0.3) - constant,
        "per_datum": dist.Normal(0.0, (spreads**2 + 0.09).sqrt()).log_prob(torch.tensor(1.0)),
    }
    found: dict[str, list[float]] = {}
    for form in log_p:
        objective = PosteriorPredictiveLoss(20_000, form=form, vectorize_particles=True)
        for spread in spreads:
            pyro.set_rng_seed(0)
            law = dist.Normal(0.0, spread)
            loss = objective.loss(clusters, partial(pyro.sample, "loc", law))
            found.setdefault(form, []).append(loss / 40)
    for form, values in found.items():
        keep = spreads > (0 if form == "expected" else 0.2)  # else no draw is near the data
        torch.testing.assert_close(
            torch.tensor(values)[keep], -log_p[form][keep], rtol=0.03, atol=0.02
        )
    assert found["expected"] == sorted(found["expected"])
    assert spreads[torch.tensor(found["per_datum"]).argmin()].item() == pytest.approx(0.9)


@pytest.mark.slow
def test_training_by_expected_collapses_and_by_per_datum_keeps_the_spread() -> None:
    """Two clusters of data and one location: appendix C, and what Eq. 3 does instead."""
    spread = {}
    for form in ("expected", "per_datum"):
        pyro.set_rng_seed(0)
        pyro.clear_param_store()
        guide = HyperNetworkGuide(clusters, hidden_dims=(8,), init_scale=0.5)
        objective = PosteriorPredictiveLoss(10, form=form, vectorize_particles=True)
        svi = SVI(clusters, guide, pyro.optim.Adam({"lr": 0.02}), objective)
        for _ in range(400):
            svi.step()
        spread[form] = guide.sample(500)["loc"].std().item()
    assert spread["expected"] < 0.1
    assert 0.7 < spread["per_datum"] < 1.3


@pytest.mark.parametrize(
    ("noise", "few", "many"), [(0.3, 1.2, 1.0), (0.2, 1.4, 1.0), (0.1, 1.4, 1.2)]
)
def test_few_draws_want_too_wide_a_guide(noise: float, few: float, many: float) -> None:
    pyro.set_rng_seed(0)
    y = math.sqrt(1 + noise**2) * torch.randn(1000)

    def rows() -> None:
        with pyro.plate("data", 1000):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, noise), obs=y)

    def best(num_particles: int, repeats: int) -> float:
        objective = PosteriorPredictiveLoss(
            num_particles, vectorize_particles=True, max_plate_nesting=1
        )

        def loss(spread: float) -> float:
            def guide() -> None:
                with pyro.plate("data", 1000):
                    pyro.sample("z", dist.Normal(0.0, spread))

            pyro.set_rng_seed(1)
            return sum(objective.loss(rows, guide) for _ in range(repeats))

        return min((0.8, 1.0, 1.2, 1.4, 1.7), key=loss)

    assert best(10, 60) == few
    assert best(1000, 2) == many


def test_no_bound_and_settings_that_say_what_it_is() -> None:
    objective = PosteriorPredictiveLoss(7, form="expected")
    assert not objective.is_bound
    assert objective.settings == {
        "objective": "PosteriorPredictiveLoss",
        "num_particles": 7,
        "vectorize_particles": False,
        "prior_weight": 0.0,
        "is_bound": False,
        "form": "expected",
    }
    assert "form='expected'" in repr(objective)


def test_a_model_without_data_has_no_loss() -> None:
    def nothing() -> None:
        pyro.sample("loc", dist.Normal(torch.zeros(()), 1.0))

    guide = HyperNetworkGuide(nothing).setup()
    for form in FORMS:
        assert PosteriorPredictiveLoss(2, form=form).loss(nothing, guide) == 0.0


@pytest.mark.parametrize("form", ["raw", "density", "eq4", "mean"])
def test_equation_4_as_printed_is_refused_with_the_reason(form: str) -> None:
    with pytest.raises(ArgumentError, match="underflows.*form='per_datum'"):
        PosteriorPredictiveLoss(form=form)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="expected 'per_datum', 'expected' or"):
        PosteriorPredictiveLoss(form="per_row")
    with pytest.raises(ArgumentError, match="got kl_weight, likelihood; it has no entropy"):
        PosteriorPredictiveLoss(kl_weight=0.5, likelihood="expected")
    with pytest.raises(ArgumentError, match="prior_weight=-1"):
        PosteriorPredictiveLoss(prior_weight=-1)


def test_others_still_need_an_implicit_site() -> None:
    guide = AutoNormal(model)
    guide()
    with pytest.raises(ValueError, match="no implicit site"):
        LinearisedELBO().loss(model, guide)
    assert math.isfinite(PosteriorPredictiveLoss(2).loss(model, guide))


@pytest.mark.parametrize("form", FORMS)
def test_data_outside_of_every_plate_are_one_datum_by_vectorised_draws_too(form: str) -> None:
    def whole() -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(loc.unsqueeze(-1) + torch.zeros(3), 1.0).to_event(1), obs=y)

    y = torch.tensor([0.3, -1.0, 2.0])
    values = []

    def guide() -> None:
        loc = pyro.sample("loc", dist.Normal(torch.tensor(0.2), 0.5))
        values.append(loc.detach())

    loss = PosteriorPredictiveLoss(
        4, form=form, vectorize_particles=True, max_plate_nesting=0
    ).loss(whole, guide)
    each = dist.Normal(values[-1][:, None], 1.0).log_prob(y).sum(-1)
    expected = each.mean() if form == "expected" else each.logsumexp(0) - math.log(4)
    assert loss == pytest.approx(-float(expected), rel=1e-5)


def mixture_gradient(size: int, num_samples: int, form: str, vectorised: bool) -> Tensor:
    """With respect to the weights of a mixture: draws with weights, whose value is 1."""

    def rows() -> None:
        with pyro.plate("data", size, subsample_size=1):
            z = pyro.sample("z", dist.Normal(DATA.new_zeros(2), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(z.sum(-1), NOISE), obs=DATA[2])

    logits = torch.tensor([[0.3, -0.2, 0.1]], dtype=torch.float64, requires_grad=True)
    loc = torch.linspace(-1.0, 2.0, 6, dtype=torch.float64).reshape(1, 3, 2)

    def guide() -> None:
        with pyro.plate("data", size, subsample_size=1):
            pyro.sample("z", DiagonalMixture(loc, 0.1 + 0 * loc, logits))

    pyro.set_rng_seed(0)
    objective = PosteriorPredictiveLoss(num_samples, form=form, vectorize_particles=vectorised)
    loss = objective.differentiable_loss(rows, guide)
    return torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("size", [1, 10])
def test_one_row_has_the_same_gradient_by_datum_and_by_batch(size: int, vectorised: bool) -> None:
    by_datum = mixture_gradient(size, 5, "per_datum", vectorised)
    assert by_datum.abs().max() > 1e-3
    torch.testing.assert_close(mixture_gradient(size, 5, "per_batch", vectorised), by_datum)


@pytest.mark.parametrize("form", ["per_datum", "per_batch"])
def test_one_draw_teaches_the_weights_of_a_mixture_as_its_likelihood_does(form: str) -> None:
    expected = mixture_gradient(10, 1, "expected", False)
    torch.testing.assert_close(mixture_gradient(10, 1, form, False), expected)
