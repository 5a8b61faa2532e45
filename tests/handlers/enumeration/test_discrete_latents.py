"""Discrete latents that are summed out: against Pyro's TraceEnum_ELBO, and by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import TraceEnum_ELBO, config_enumerate, infer_discrete
from pyro.ops.indexing import Vindex
from torch import Tensor

from pyro_implicit import (
    AlphaEnergy,
    HyperNetworkGuide,
    KernelDensityRatioELBO,
    LinearisedELBO,
    ParticleObjective,
    PosteriorPredictiveLoss,
)
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.objectives import ParticleBatch, Terms
from pyro_implicit.objectives.likelihood import log_predictive
from tests.handlers.enumerable_models import MODELS, Y, mixture, prior_of_a_choice, two_scales

Model = Callable[..., Any]


class Seen(ParticleObjective):
    """Keeps the draws that it was given."""

    pools = True

    def terms_of(self, batch: ParticleBatch) -> Terms:
        self.batch = batch
        return {"log_joint": batch.log_joint.mean()}


def bare(model: Model) -> HyperNetworkGuide:
    pyro.set_rng_seed(0)
    return HyperNetworkGuide(model, init_from=None, init_scale=0.5).setup()


def seen(model: Model, vectorised: bool, num_particles: int = 3) -> ParticleBatch:
    objective = Seen(num_particles, vectorize_particles=vectorised)
    objective.loss(model, bare(model))
    return objective.batch


def at_draw(batch: ParticleBatch, index: int) -> Callable[[], None]:
    """A guide of point masses at one of the draws."""
    particle = batch.particles[0 if batch.vectorised else index]
    nodes = {name: particle.guide_nodes[name] for name in particle.implicit_latents}

    def guide() -> None:
        for name, node in nodes.items():
            frames = [f for f in node["cond_indep_stack"] if f.name != "num_particles_vectorized"]
            value, event_dim = node["value"], node["fn"].event_dim
            if batch.vectorised:
                value, depth = value[index], max([-f.dim for f in frames], default=0)
                value = value.reshape(value.shape[value.dim() - event_dim - depth :])
            with ExitStack() as stack:
                for f in frames:
                    stack.enter_context(pyro.plate(f.name, f.full_size, f.size, dim=f.dim))
                pyro.sample(name, dist.Delta(value, event_dim=event_dim))

    return guide


@pytest.mark.long
@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_density_at_each_draw_is_that_of_pyro(name: str, vectorised: bool) -> None:
    batch = seen(MODELS[name], vectorised)
    log_joint = batch.log_likelihood + batch.log_density_of_latents()
    for index in range(3):
        reference = TraceEnum_ELBO(max_plate_nesting=2)
        expected = -reference.loss(MODELS[name], at_draw(batch, index))
        assert math.isclose(float(log_joint[index]), expected, rel_tol=1e-5)


@pytest.mark.parametrize("name", ["mixture", "minibatch", "chain", "prior of a choice"])
def test_loss_and_gradients_are_those_of_trace_enum_elbo(name: str) -> None:
    """With a guide that has a density, which both take at the draw."""
    model, guide = MODELS[name], bare(MODELS[name])
    found = []
    for objective in (LinearisedELBO(path_gradient=False), TraceEnum_ELBO(max_plate_nesting=1)):
        guide.zero_grad()
        pyro.set_rng_seed(1)
        loss = objective.differentiable_loss(model, guide)
        loss.backward()
        grads = torch.cat([p.grad.flatten() for p in guide.parameters() if p.grad is not None])
        found.append((loss.detach(), grads))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def by_hand(weights: Tensor, locs: Tensor, y: Tensor = Y) -> Tensor:
    """The densities of the rows of a mixture, shape ``(rows,)``."""
    log_probs = dist.Normal(locs, 0.5).log_prob(y.unsqueeze(-1))
    return torch.logsumexp(weights.log() + log_probs, -1)


@pytest.mark.parametrize("vectorised", [False, True])
def test_each_row_is_a_datum(vectorised: bool) -> None:
    batch = seen(mixture, vectorised)
    nodes = [p.guide_nodes for p in batch.particles]
    draws = [
        tuple(
            (n["weights"]["value"], n["locs"]["value"])
            if not vectorised
            else (n["weights"]["value"][s, 0], n["locs"]["value"][s, 0])
        )
        for s in range(3)
        for n in [nodes[0 if vectorised else s]]
    ]
    rows = torch.stack([by_hand(*draw) for draw in draws])
    expected = (torch.logsumexp(rows, 0) - math.log(3.0)).sum()
    torch.testing.assert_close(log_predictive(batch), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(batch.log_likelihood, rows.sum(1), rtol=1e-5, atol=1e-5)


def test_groups_of_latents_may_have_scales_of_their_own() -> None:
    batch = seen(two_scales, False, 1)
    nodes = batch.particles[0].guide_nodes
    weights, locs = nodes["weights"]["value"], nodes["locs"]["value"]
    expected = by_hand(weights, locs, torch.tensor([0.3])).sum() + 4 * by_hand(weights, locs).sum()
    torch.testing.assert_close(batch.log_likelihood[0], expected, rtol=1e-5, atol=1e-5)


def test_a_prior_that_is_a_mixture_is_a_prior() -> None:
    batch = seen(prior_of_a_choice, False, 1)
    w = batch.particles[0].guide_nodes["w"]["value"]
    z = torch.arange(3.0)
    log_probs = torch.tensor([0.2, 0.3, 0.5]).log() + dist.Normal(z, 1 + z).log_prob(w)
    torch.testing.assert_close(batch.log_prior[0], log_probs.logsumexp(0))
    torch.testing.assert_close(batch.log_likelihood[0], dist.Normal(w, 1.0).log_prob(Y).sum())


@pytest.mark.parametrize("contrast", ["adaptive", "prior"])
def test_objectives_that_compare_draws_take_it(contrast: str) -> None:
    objective = KernelDensityRatioELBO(
        4, vectorize_particles=True, num_samples=30, contrast=contrast
    )
    for model in (mixture, prior_of_a_choice):
        assert math.isfinite(objective.loss_and_grads(model, bare(model)))


def test_one_objective_for_models_with_and_without() -> None:
    def plain() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 5):
            pyro.sample("y", dist.Normal(w, 1.0), obs=Y)

    objective = LinearisedELBO()
    values = []
    for model in (plain, mixture, plain, mixture):
        guide = bare(model)
        pyro.set_rng_seed(3)
        objective.loss(model, guide)
        pyro.set_rng_seed(3)
        values.append(objective.loss(model, guide))
    assert values[0] == values[2] and values[1] == values[3]


def test_infer_discrete_afterwards() -> None:
    """The assignments at a draw of the guide, most probable ones by hand."""
    guide = bare(mixture)
    trace = poutine.trace(guide).get_trace()
    classify = infer_discrete(poutine.replay(mixture, trace), -2, temperature=0)
    z = poutine.trace(classify).get_trace().nodes["z"]["value"]
    weights, locs = (trace.nodes[name]["value"] for name in ("weights", "locs"))
    expected = weights.log() + dist.Normal(locs, 0.5).log_prob(Y.unsqueeze(-1))
    assert torch.equal(z, expected.argmax(-1))


def test_the_density_that_starts_and_chains_use() -> None:
    guide = HyperNetworkGuide(mixture).setup()
    assert {site.name for site in guide.sites} == {"weights", "locs"}
    assert "random" not in str(guide.start_report)
    u = torch.randn(guide.latent_dim)
    log_joint = LogJoint(mixture, guide.sites, (), {})
    values, correction = log_joint.values(u)
    prior = dist.Dirichlet(torch.full((3,), 2.0)).log_prob(values["weights"])
    prior = prior + dist.Normal(0.0, 1.0).log_prob(values["locs"]).sum()
    expected = by_hand(values["weights"], values["locs"]).sum() + prior + correction
    torch.testing.assert_close(log_joint(u), expected)


# ---- what is refused


def marked(infer: Any, choice: Any = None, locate: Any = None) -> Model:
    def model() -> None:
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 5):
            z = pyro.sample("z", choice or dist.Categorical(torch.ones(2)), infer=infer)
            loc = locate(locs, z) if locate else Vindex(locs)[..., z.long().clamp(max=1)]
            pyro.sample("y", dist.Normal(loc, 1.0), obs=Y)

    return model


def guide_of_locs() -> HyperNetworkGuide:
    return bare(poutine.block(marked({}), hide=["z"]))


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize(
    "infer, choice, told",
    [
        ({"enumerate": "sequential"}, None, "'sequential'"),
        ({"enumerate": "parallel", "num_samples": 5}, None, "'num_samples': 5"),
        ({"enumerate": "parallel"}, dist.Poisson(1.0), "on a Poisson, whose values cannot be"),
    ],
)
def test_marks_that_cannot_be_followed(
    infer: Any, choice: Any, told: str, vectorised: bool
) -> None:
    model, guide = marked(infer, choice), guide_of_locs()
    objective = LinearisedELBO(2, vectorize_particles=vectorised)
    instead = "MixtureSameFamily" if choice is None else r"Categorical\(logits=dist.Poisson"
    message = rf"'z' of the model is to be enumerated .*{told}.*dist\.{instead}"
    for _ in range(2):
        for validate in (True, False):
            with pyro.validation_enabled(validate), pytest.raises(SiteError, match=message):
                objective.loss_and_grads(model, guide)
        objective.loss(mixture, bare(mixture))  # it then knows of enumeration
    with pytest.raises(SiteError, match=told):
        bare(model)


def test_a_dimension_that_nothing_declares() -> None:
    """Pyro would take the five columns for values of the latent, or pack nothing."""

    def flat(locs: Tensor, z: Tensor) -> Tensor:  # two values where three rows belong
        return locs.sum() + torch.zeros(3, 5)

    with pyro.validation_enabled(False), pytest.raises(SiteError, match=r"dimension -2 \(size 3\)"):
        LinearisedELBO().loss(marked({"enumerate": "parallel"}, locate=flat), guide_of_locs())
    wide = marked(
        {"enumerate": "parallel"},
        locate=lambda locs, z: Vindex(locs)[..., z] + torch.zeros(5, 1, 1),
    )
    with pyro.validation_enabled(False), pytest.raises(SiteError, match=r"dimension -3 \(size 5\)"):
        LinearisedELBO().loss(wide, guide_of_locs())


def test_scales_that_differ_within_a_sum() -> None:
    @config_enumerate
    def model(weight: Any = None) -> None:
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        z = pyro.sample("z", dist.Categorical(torch.ones(2)))
        with pyro.plate("data", 20, subsample_size=5), poutine.scale(scale=weight or 1.0):
            pyro.sample("y", dist.Normal(Vindex(locs)[..., z], 1.0), obs=Y)

    with pytest.raises(SiteError, match=r"different scales \('z': 1, 'y': 4\)"):
        LinearisedELBO().loss(model, bare(model))

    @config_enumerate
    def by_row() -> None:
        locs = pyro.sample("locs", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 5), poutine.scale(scale=torch.arange(1.0, 6.0)):
            z = pyro.sample("z", dist.Categorical(torch.ones(2)))
            pyro.sample("y", dist.Normal(Vindex(locs)[..., z], 1.0), obs=Y)

    with pytest.raises(SiteError, match=r"scale of shape \(5,\)"):
        LinearisedELBO().loss(by_row, bare(by_row))


def test_plates_that_are_not_nested() -> None:
    @config_enumerate
    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        a, b = pyro.plate("a", 2, dim=-1), pyro.plate("b", 3, dim=-2)
        with a:
            x = pyro.sample("x", dist.Bernoulli(0.5))
        with b:
            z = pyro.sample("z", dist.Bernoulli(0.5))
        with a, b:
            pyro.sample("y", dist.Normal(w + x * z, 1.0), obs=torch.zeros(3, 2))

    with pytest.raises(SiteError, match="z, x cannot be summed out: the plates of what depends"):
        LinearisedELBO(max_plate_nesting=2).loss(model, bare(model))


def test_a_prior_within_the_sum_cannot_be_weighed_alone() -> None:
    @config_enumerate
    def model() -> None:
        z = pyro.sample("z", dist.Bernoulli(0.4))
        w = pyro.sample("w", dist.Normal(z, 1.0))
        with pyro.plate("data", 5):
            pyro.sample("y", dist.Normal(w + z, 1.0), obs=Y)

    guide = bare(model)
    assert math.isfinite(LinearisedELBO().loss(model, guide))
    for objective in (
        LinearisedELBO(kl_weight=0.5),
        LinearisedELBO(likelihood="per_datum"),
        AlphaEnergy(2, alpha=0.5),
        PosteriorPredictiveLoss(2),
        PosteriorPredictiveLoss(2, prior_weight=1.0),
        KernelDensityRatioELBO(2, num_samples=20, contrast="prior"),
    ):
        with pytest.raises(SiteError, match="the prior of w depends on discrete latents"):
            objective.loss(model, guide)
