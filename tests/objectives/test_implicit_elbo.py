"""What every objective for implicit guides adds up, and how its weights act."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.distributions import biject_to

from pyro_implicit import (
    HyperNetworkGuide,
    ImplicitDistribution,
    ImplicitELBO,
    LinearisedELBO,
    SemiImplicitELBO,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import ArgumentError, StateError
from pyro_implicit.generators import MLPGenerator, ResidualGenerator

pytestmark = pytest.mark.usefixtures("double")
LOG_2PI = math.log(2 * math.pi)
Parts = Callable[..., dict[str, float]]


# ---- weights and terms


@pytest.mark.parametrize("vectorised", [False, True])
def test_weights_scale_only_what_they_say(
    vectorised: bool, mixed: SimpleNamespace, parts: Parts
) -> None:
    guide, draws = mixed.guide, mixed.draws(2)

    def value(**options: Any) -> dict[str, float]:
        given = mixed.given(draws, 1 if vectorised else None)
        objective = LinearisedELBO(
            2, vectorize_particles=vectorised, max_plate_nesting=1, **options
        )
        return parts(objective, mixed.model, given(guide))

    plain = value()
    assert list(plain) == ["log_likelihood", "log_prior", "entropy"]
    weighted = value(kl_weight=0.3, prior_weight=0.2)
    assert weighted["log_likelihood"] == pytest.approx(plain["log_likelihood"], rel=1e-12)
    assert weighted["log_prior"] == pytest.approx(0.06 * plain["log_prior"], rel=1e-12)
    assert weighted["entropy"] == pytest.approx(0.3 * plain["entropy"], rel=1e-12)
    none = value(kl_weight=0.0)
    assert none["log_prior"] == none["entropy"] == 0.0


def test_terms_are_what_they_say_by_hand(mixed: SimpleNamespace, parts: Parts) -> None:
    guide, draws = mixed.guide, mixed.draws(1)
    found = parts(LinearisedELBO(), mixed.model, mixed.given(draws)(guide))
    w, c, z = draws["w"][0], draws["c"][0], draws["z"][0]
    mean = mixed.x @ w + z[:, 0]
    v = dist.StudentT(4.0, mean, 1.0).log_prob(mixed.y + 1)
    likelihood = dist.Normal(mean, c).log_prob(mixed.y).sum() + 0.5 * v[mixed.mask].sum()
    prior = dist.Normal(0.0, 1.0).log_prob(w).sum() + dist.LogNormal(0.0, 1.0).log_prob(c)
    prior = prior + dist.Normal(0.0, 2.0).log_prob(z).sum()
    entropy = guide.first.half_log_det(draws["w_noise"][0], 0.3) + 1.5 * (1 + LOG_2PI)
    entropy = entropy + guide.local.half_log_det(draws["z_noise"][0]).sum() + 2.5 * (1 + LOG_2PI)
    entropy = entropy - dist.LogNormal(0.3, 0.5).log_prob(c)
    assert found["log_likelihood"] == pytest.approx(likelihood.item(), rel=1e-10)
    assert found["log_prior"] == pytest.approx(prior.item(), rel=1e-10)
    assert found["entropy"] == pytest.approx(entropy.item(), rel=1e-10)


def test_scale_and_mask_reach_the_entropy(mixed: SimpleNamespace, parts: Parts) -> None:
    guide, draws = mixed.guide, mixed.draws(1)
    plain = parts(LinearisedELBO(), mixed.model, mixed.given(draws)(guide))
    halved = parts(
        LinearisedELBO(),
        poutine.scale(mixed.model, scale=0.5),
        mixed.given(draws)(poutine.scale(guide, scale=0.5)),
    )
    for name, value in plain.items():
        assert halved[name] == pytest.approx(0.5 * value, rel=1e-12)
    hidden = LinearisedELBO().terms(
        poutine.mask(mixed.model, mask=False), mixed.given(draws)(poutine.mask(guide, mask=False))
    )
    assert all(value.item() == 0.0 for value in hidden.values())


@pytest.mark.parametrize("vectorised", [False, True])
def test_masked_rows_have_no_entropy(
    vectorised: bool, mixed: SimpleNamespace, parts: Parts
) -> None:
    generator = ResidualGenerator(1, 2)

    def program(latent: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            with pyro.plate("data", 5), poutine.mask(mask=mixed.mask):
                latent()

        return run

    prior = dist.Normal(torch.zeros(1), 1.0).to_event(1)
    model = program(lambda: pyro.sample("z", prior))
    guide = program(lambda: sample_implicit("z", ImplicitDistribution(generator)))
    noise, z = torch.randn(3, 5, 1), torch.randn(3, 5, 1)
    objective = LinearisedELBO(3, vectorize_particles=vectorised, max_plate_nesting=1)
    given = mixed.given({"z_noise": noise, "z": z}, 1 if vectorised else None)
    found = parts(objective, model, given(guide))
    per_row = generator.half_log_det(noise) + 0.5 * (1 + LOG_2PI)
    assert found["entropy"] == pytest.approx(per_row[:, mixed.mask].sum().item() / 3, rel=1e-10)
    expected = dist.Normal(0.0, 1.0).log_prob(z[:, mixed.mask]).sum().item() / 3
    assert found["log_prior"] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    "prior",
    [
        dist.LogNormal(0.5, 2.0),
        dist.Uniform(1.0, 3.0),
        dist.Beta(2.0, 3.0),
        dist.Gamma(2.0, 1.0),
        dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])),
        dist.LKJCholesky(3, torch.tensor(1.5)),
    ],
    ids=lambda prior: type(prior).__name__,
)
def test_log_jacobian_of_a_constraint_is_counted(prior: Any, parts: Parts) -> None:
    def model() -> None:
        pyro.sample("s", prior)

    guide = HyperNetworkGuide(model).setup().double()
    transform = biject_to(prior.support)
    trace = poutine.trace(guide).get_trace()
    flat = next(v for k, v in trace.nodes.items() if k.endswith("_latent"))
    found = parts(LinearisedELBO(), model, poutine.replay(guide, trace=trace))
    u, s = flat["value"].reshape(transform.inv(trace.nodes["s"]["value"]).shape), None
    s = transform(u)
    jacobian = transform.log_abs_det_jacobian(u, s).sum()
    noise = dist.Normal(0.0, 1.0).log_prob(flat["fn"].noise).sum()
    entropy = flat["fn"].half_log_det() - noise + jacobian
    torch.testing.assert_close(s, trace.nodes["s"]["value"])
    assert found["log_prior"] == pytest.approx(prior.log_prob(s).item(), rel=1e-9)
    assert found["entropy"] == pytest.approx(entropy.item(), rel=1e-9)
    assert found["log_likelihood"] == 0.0


def test_loss_of_a_lognormal_guide_is_the_closed_form() -> None:
    def model() -> None:
        pyro.sample("s", dist.LogNormal(0.5, 2.0))

    generator = MLPGenerator(1, 1, (2,), activation="identity", skip=True)
    guide = HyperNetworkGuide(model, generator=generator).setup().double()
    count = 40_000
    objective = LinearisedELBO(count, vectorize_particles=True, max_plate_nesting=0)
    loss = objective.loss(model, guide)
    u = guide.sample(200_000)["s"].log()
    q = dist.Normal(u.mean(), u.std())
    p = dist.Normal(0.5, 2.0)
    kl = torch.distributions.kl_divergence(q, p).item()
    assert loss == pytest.approx(kl, abs=0.05)


# ---- settings


def test_settings_are_plain_and_complete() -> None:
    objective = LinearisedELBO(
        4, vectorize_particles=True, kl_weight=2, prior_weight=0, num_entropy_particles=3
    )
    assert objective.settings == {
        "objective": "LinearisedELBO",
        "num_particles": 4,
        "vectorize_particles": True,
        "num_entropy_particles": 3,
        "kl_weight": 2.0,
        "prior_weight": 0.0,
        "likelihood": "expected",
        "is_bound": False,
        "watch_folds": 100,
        "path_gradient": True,
    }
    assert repr(objective).startswith("LinearisedELBO(num_particles=4, vectorize_particles=True")
    assert "kl_weight=2.0" in repr(objective) and "objective" not in repr(objective)


def test_what_goes_without_saying_is_left_out_of_the_short_form() -> None:
    assert str(LinearisedELBO()) == "LinearisedELBO()"
    short = "LinearisedELBO(num_particles=4, vectorize_particles='vmap', kl_weight=2.0)"
    objective = LinearisedELBO(4, vectorize_particles="vmap", kl_weight=2.0)
    assert str(objective) == short and eval(short).settings == objective.settings
    assert str(LinearisedELBO(4, num_entropy_particles=2)).endswith("num_entropy_particles=2)")


@pytest.mark.parametrize(
    ("options", "is_bound"),
    [
        ({}, True),
        ({"kl_weight": 1.5}, True),
        ({"kl_weight": 0.5}, False),
        ({"prior_weight": 0.5}, False),
        ({"prior_weight": 2.0}, False),
        ({"likelihood": "per_datum"}, False),
    ],
)
def test_weights_that_leave_a_bound(options: dict[str, Any], is_bound: bool) -> None:
    assert SemiImplicitELBO(**options).is_bound is is_bound
    assert not LinearisedELBO(**options).is_bound


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_particles": 0}, "num_particles=0; expected an integer >= 1"),
        ({"num_particles": 2.0}, "num_particles=2.0"),
        ({"num_particles": True}, "num_particles=True"),
        ({"num_particles": 2, "num_entropy_particles": 3}, r"=3; .* <= 2 \(num_particles\)"),
        ({"num_entropy_particles": 0}, "num_entropy_particles=0"),
        ({"kl_weight": -1.0}, "kl_weight=-1.0; expected a finite number >= 0"),
        ({"kl_weight": math.nan}, "kl_weight=nan"),
        ({"prior_weight": math.inf}, "prior_weight=inf"),
        ({"likelihood": "per-datum"}, "likelihood='per-datum'; expected 'expected' or 'per_datum'"),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LinearisedELBO(**options)


def test_the_hook_must_be_filled() -> None:
    with pytest.raises(TypeError, match="estimate"):
        ImplicitELBO()  # type: ignore[abstract]


# ---- what is kept


def test_the_terms_of_the_latest_loss_are_kept(mixed: SimpleNamespace) -> None:
    objective = LinearisedELBO(2)
    assert objective.last_terms == {}
    loss = objective.differentiable_loss(mixed.model, mixed.guide)
    assert not any(term.requires_grad for term in objective.last_terms.values())
    total = sum(float(term) for term in objective.last_terms.values())
    assert total == pytest.approx(-loss.item(), rel=1e-12)


def test_an_objective_without_memory_has_an_empty_state() -> None:
    objective = LinearisedELBO()
    assert objective.state_dict() == {}
    objective.load_state_dict({})
    with pytest.raises(StateError, match=r"has no state to load; found the entries \['turns'\]"):
        objective.load_state_dict({"turns": [1]})


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize(("asked", "few"), [(None, 1), (None, 3), (2, 1), (2, 3)])
def test_another_number_of_draws_is_that_of_a_new_objective(
    vectorize: bool, asked: int | None, few: int
) -> None:
    """Pyro's objectives read ``num_particles`` at each call."""
    options: dict[str, Any] = {"vectorize_particles": vectorize, "max_plate_nesting": 1}

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    guide = HyperNetworkGuide(model, init_from=None)
    guide()
    changed = LinearisedELBO(4, num_entropy_particles=asked, **options)
    changed.num_particles = few
    fresh = LinearisedELBO(few, num_entropy_particles=asked and min(asked, few), **options)
    values = []
    for objective in (changed, fresh):
        pyro.set_rng_seed(0)
        objective.loss(model, guide)
        values.append({name: float(term) for name, term in objective.last_terms.items()})
    assert values[0] == pytest.approx(values[1])


def test_the_entropys_own_number_can_be_set_again() -> None:
    objective = LinearisedELBO(4)
    objective.num_entropy_particles = 3
    assert objective.settings["num_entropy_particles"] == 3
    with pytest.raises(ArgumentError, match=r"num_entropy_particles=5; .* <= 4 \(num_particles\)"):
        objective.num_entropy_particles = 5
    objective.num_entropy_particles = None
    objective.num_particles = 6
    assert objective.num_entropy_particles == 6
