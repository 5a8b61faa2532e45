"""Particles, minibatches and models: what may not change the value of an objective."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, ImplicitELBO, LinearisedELBO
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch

pytestmark = pytest.mark.usefixtures("double")
Parts = Callable[..., dict[str, float]]


# ---- particles


@pytest.mark.parametrize("likelihood", ["expected", "per_datum"])
@pytest.mark.parametrize("keep", [None, 2])
@pytest.mark.parametrize("own_guide", [True, False])
def test_vectorised_and_looped_particles_agree_on_the_same_draws(
    likelihood: str, keep: int | None, own_guide: bool, mixed: SimpleNamespace
) -> None:
    count = 4
    guide: Any = mixed.guide
    draws = mixed.draws(count)
    if not own_guide:
        guide = HyperNetworkGuide(mixed.model, scale=0.2, noise_dim=3).setup().double()
        name = next(n for n in poutine.trace(guide).get_trace().nodes if n.endswith("_noise"))
        flat = name.removesuffix("_noise")
        draws = {name: torch.randn(count, 3), flat: torch.randn(count, 9)}
    options: dict[str, Any] = {"likelihood": likelihood, "num_entropy_particles": keep}
    objectives = [
        LinearisedELBO(count, **options),
        LinearisedELBO(count, vectorize_particles=True, max_plate_nesting=1, **options),
    ]
    results = []
    for objective, nesting in zip(objectives, (None, 1), strict=True):
        terms = objective.terms(mixed.model, mixed.given(draws, nesting)(guide))
        parameters = list(guide.parameters())
        gradients = torch.autograd.grad(sum(terms.values()), parameters, allow_unused=True)
        results.append((terms, [g for g in gradients if g is not None]))
    (looped, looped_gradients), (vectorised, vectorised_gradients) = results
    assert looped.keys() == vectorised.keys()
    for name, value in looped.items():
        torch.testing.assert_close(vectorised[name], value, rtol=1e-10, atol=1e-10)
    assert len(looped_gradients) == len(vectorised_gradients) > 0
    for mine, theirs in zip(vectorised_gradients, looped_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.long
def test_entropy_particles_are_the_first_of_all(mixed: SimpleNamespace, parts: Parts) -> None:
    """The mean over some of the independent draws is unbiased for the mean over all."""
    guide, draws = mixed.guide, mixed.draws(6)
    each = [
        parts(
            LinearisedELBO(),
            mixed.model,
            mixed.given({k: v[i : i + 1] for k, v in draws.items()})(guide),
        )
        for i in range(6)
    ]
    implicit = []
    for index, terms in enumerate(each):
        explicit = -dist.LogNormal(0.3, 0.5).log_prob(draws["c"][index]).item()
        implicit.append((terms["entropy"] - explicit, explicit))
    for keep in (1, 2, 6):
        objective = LinearisedELBO(6, num_entropy_particles=keep)
        found = parts(objective, mixed.model, mixed.given(draws)(guide))
        expected = sum(v for v, _ in implicit[:keep]) / keep + sum(v for _, v in implicit) / 6
        assert found["entropy"] == pytest.approx(expected, rel=1e-10)
        for name in ("log_likelihood", "log_prior"):
            assert found[name] == pytest.approx(sum(t[name] for t in each) / 6, rel=1e-10)


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("likelihood", ["expected", "per_datum"])
def test_all_ways_to_the_loss_agree(
    vectorised: bool, likelihood: str, mixed: SimpleNamespace
) -> None:
    guide = mixed.guide
    objective = LinearisedELBO(
        3, vectorize_particles=vectorised, max_plate_nesting=1, likelihood=likelihood
    )
    bound = objective(mixed.model, guide)
    svi = SVI(mixed.model, guide, pyro.optim.Adam({"lr": 0.0}), objective)

    def seeded(function: Callable[..., Any], *args: Any) -> Any:
        pyro.set_rng_seed(3)
        return function(*args)

    value = seeded(objective.differentiable_loss, mixed.model, guide)
    value.backward()
    gradients = [p.grad.clone() for p in guide.parameters()]
    guide.zero_grad()
    assert seeded(objective.loss, mixed.model, guide) == pytest.approx(value.item(), rel=1e-12)
    torch.testing.assert_close(seeded(bound), value)
    assert seeded(svi.evaluate_loss) == pytest.approx(value.item(), rel=1e-12)
    total = seeded(objective.loss_and_grads, mixed.model, guide)
    assert total == pytest.approx(value.item(), rel=1e-12)
    for parameter, gradient in zip(guide.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    assert set(bound.parameters()) == set(guide.parameters())
    terms = seeded(objective.terms, mixed.model, guide)
    assert -sum(terms.values()).item() == pytest.approx(value.item(), rel=1e-12)


def test_looped_particles_release_their_graphs_one_by_one(mixed: SimpleNamespace) -> None:
    guide = mixed.guide
    sizes = []
    objective = LinearisedELBO(3)
    terms = objective.terms_of

    def spy(batch: ParticleBatch) -> Any:
        sizes.append((len(batch), batch.first))
        return terms(batch)

    objective.terms_of = spy  # type: ignore[method-assign]
    objective.loss_and_grads(mixed.model, guide)
    assert sizes == [(1, 0), (1, 1), (1, 2)]


# ---- minibatches


@pytest.mark.long
def test_minibatches_are_unbiased_for_the_whole(mixed: SimpleNamespace, parts: Parts) -> None:
    guide, draws = mixed.guide, mixed.draws(1)

    def value(rows: Tensor | None) -> dict[str, float]:
        given = dict(draws)
        if rows is not None:  # the rows of the local draws
            given |= {k: draws[k][:, rows] for k in ("z", "z_noise")}
        return parts(LinearisedELBO(), mixed.model, mixed.given(given)(guide), rows)

    whole = value(None)
    for size in (1, 2, 4):
        batches = [value(torch.tensor(c)) for c in itertools.combinations(range(5), size)]
        for name, expected in whole.items():
            mean = sum(batch[name] for batch in batches) / len(batches)
            assert mean == pytest.approx(expected, rel=1e-10), name
    # a pass over the data whose last batch is short: each batch weighs as many rows as it has
    batches = [value(torch.arange(5)[i : i + 2]) for i in (0, 2, 4)]
    for name, expected in whole.items():
        mean = sum(n * b[name] for n, b in zip((2, 2, 1), batches, strict=True)) / 5
        assert mean == pytest.approx(expected, rel=1e-10), name


@pytest.mark.long
def test_global_guide_beside_subsampled_data(mixed: SimpleNamespace) -> None:
    def model(rows: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", 5, subsample=rows) as shown:
            pyro.sample("y", dist.Normal((w * mixed.x[shown]).sum(-1), 1.0), obs=mixed.y[shown])

    guide = HyperNetworkGuide(model).setup()

    def value(*rows: Tensor) -> float:
        pyro.set_rng_seed(1)
        return LinearisedELBO(3).loss(model, guide, *rows)

    batches = [value(torch.tensor(c)) for c in itertools.combinations(range(5), 2)]
    assert sum(batches) / len(batches) == pytest.approx(value(), rel=1e-10)


# ---- one objective, several models


def _nested(depth: int) -> Callable[[], None]:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        if depth == 0:
            pyro.sample("y", dist.Normal(w.sum(-1), 1.0), obs=torch.tensor(0.5))
            return
        with (
            pyro.plate("outer", 4, dim=-depth),
            pyro.plate("inner", 3, dim=-1 if depth > 1 else -2),
        ):
            shape = (4,) + (1,) * (depth - 2) + (3,) if depth > 1 else (3, 4)
            pyro.sample("y", dist.Normal(w.sum(-1), 1.0), obs=torch.full(shape, 0.5))

    return model


@pytest.mark.long
def test_an_objective_keeps_nothing_of_the_last_model() -> None:
    reused = LinearisedELBO(3, vectorize_particles=True)
    for depth in (0, 2, 3, 0, 1):
        model = _nested(depth)
        guide = HyperNetworkGuide(model).setup().double()
        values = []
        for objective in (reused, LinearisedELBO(3, vectorize_particles=True)):
            pyro.set_rng_seed(depth)
            values.append(objective.loss(model, guide))
        assert values[0] == values[1]
        pyro.set_rng_seed(depth)
        again = reused.loss(model, guide)  # the nesting is known now, so the draws are others
        assert math.isfinite(again)


def test_an_objective_can_be_pickled_after_use() -> None:
    model = _nested(2)
    guide = HyperNetworkGuide(model).setup().double()
    objective = LinearisedELBO(3, vectorize_particles=True)
    objective.loss(model, guide)
    again = pickle.loads(pickle.dumps(objective))
    assert again.settings == objective.settings
    assert math.isfinite(again.loss(model, guide))


# ---- a joint objective


class _Joint(ImplicitELBO):
    """Sees all draws at once, and takes the mean square for a KL divergence."""

    replaces = "kl"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def estimate(self, site: ImplicitSite) -> Tensor:
        assert site.distribution.batch_shape == site.value.shape[:-1]
        self.shapes[site.name] = tuple(site.value.shape)
        return site.value.square().mean()


@pytest.mark.parametrize("vectorised", [False, True])
def test_a_joint_objective_sees_all_particles_and_replaces_the_prior(
    vectorised: bool, mixed: SimpleNamespace, parts: Parts
) -> None:
    guide, draws = mixed.guide, mixed.draws(3)
    options = {"vectorize_particles": vectorised, "max_plate_nesting": 1}
    objective = _Joint(3, kl_weight=0.5, **options)
    found = parts(objective, mixed.model, mixed.given(draws, 1 if vectorised else None)(guide))
    plain = parts(LinearisedELBO(3), mixed.model, mixed.given(draws)(guide))
    assert objective.shapes == {
        "w": (3, 1, 3) if vectorised else (3, 3),
        "z": (3, 5, 1),
    }
    squares = draws["w"].square().mean() + draws["z"].square().mean()
    explicit = dist.LogNormal(0.3, 0.5).log_prob(draws["c"]).mean()
    prior = dist.LogNormal(0.0, 1.0).log_prob(draws["c"]).mean()
    assert found["negative_kl"] == pytest.approx(-0.5 * squares.item(), rel=1e-10)
    assert found["log_prior"] == pytest.approx(0.5 * prior.item(), rel=1e-10)
    assert found["entropy"] == pytest.approx(-0.5 * explicit.item(), rel=1e-10)
    assert found["log_likelihood"] == pytest.approx(plain["log_likelihood"], rel=1e-10)
