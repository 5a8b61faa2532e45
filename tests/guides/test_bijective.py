"""Guides of generators that cannot fold: a density, a bound, and Pyro's own objectives."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import RenyiELBO, Trace_ELBO

from pyro_implicit import HyperNetworkGuide, ImplicitDistribution, LinearisedELBO, entropy_report
from pyro_implicit.diagnostics import khat, log_density
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import DensityError, ShapeError, SiteError
from pyro_implicit.generators.autoregressive import AutoregressiveGenerator
from pyro_implicit.generators.bijective import BijectiveGenerator
from pyro_implicit.objectives.singular_value import SingularValueELBO
from tests.generators.test_residual import jolted

KINDS = [
    partial(BijectiveGenerator, hidden_dim=6, num_blocks=2, init_scale=0.2),
    partial(AutoregressiveGenerator, hidden_dim=6, num_blocks=2, init_scale=0.2),
]


def model(y: Any = 0.7) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    with pyro.plate("rows", 3):
        share = pyro.sample("share", dist.Beta(2.0, 2.0))
        pyro.sample("y", dist.Normal(mean + share, scale), obs=torch.tensor([0.1, 0.4, y]))


def _guide(kind: Any, size: float = 0.3, **options: Any) -> HyperNetworkGuide:
    torch.manual_seed(0)
    guide = HyperNetworkGuide(model, generator=kind, **options).double().setup()
    for sampler in guide.samplers:
        jolted(sampler.generator, size)
    return guide


@pytest.mark.parametrize("factorized", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_density_is_that_of_the_trace(kind: Any, factorized: bool) -> None:
    guide = _guide(kind, factorized=factorized)
    assert guide.is_bijective
    trace = poutine.trace(guide).get_trace()
    values = {name: trace.nodes[name]["value"][None] for name in ("mean", "scale", "share")}
    theirs = trace.log_prob_sum()
    torch.testing.assert_close(guide.log_density(values), theirs[None])
    found = log_density(guide, values)
    torch.testing.assert_close(found.value, theirs[None].detach())
    assert found.standard_error.abs().max() == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_pyros_objectives_agree_with_the_linearised_one(kind: Any) -> None:
    guide = _guide(kind, 0.05)
    options: Any = {"vectorize_particles": True, "max_plate_nesting": 1}

    def value(objective: Any) -> float:
        pyro.set_rng_seed(1)
        with torch.no_grad():
            return float(objective.loss(model, guide))

    linearised = value(LinearisedELBO(20_000, vectorize_particles=True))
    traced = value(Trace_ELBO(20_000, **options))
    assert linearised == pytest.approx(traced, abs=0.05)
    assert value(RenyiELBO(0.0, 20_000, **options)) < traced  # the higher, tighter bound


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_trace_elbo_are_those_of_the_linearised_one(kind: Any) -> None:
    """Per draw they differ by what the noise's own density adds, which no parameter moves."""
    guide = _guide(kind)
    parameters = list(guide.parameters())

    def gradient(objective: Any) -> list[torch.Tensor]:
        pyro.set_rng_seed(3)
        loss = objective.differentiable_loss(model, guide)
        return list(torch.autograd.grad(loss, parameters))

    mine = gradient(LinearisedELBO(path_gradient=False))
    theirs = gradient(Trace_ELBO())
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_claim_never_exceeds_the_evidence(kind: Any) -> None:
    """The evidence of a conjugate model, and a guide as it comes and after a short fit."""

    def conjugate() -> None:
        x = pyro.sample("x", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(x.sum(-1), 0.5), obs=torch.tensor(1.0))

    evidence = float(dist.Normal(0.0, (2 + 0.25) ** 0.5).log_prob(torch.tensor(1.0)))
    guide = HyperNetworkGuide(conjugate, generator=kind).setup()
    jolted(guide.samplers[0].generator).float()
    objective = LinearisedELBO(64, vectorize_particles=True)
    svi = pyro.infer.SVI(conjugate, guide, pyro.optim.Adam({"lr": 1e-2}), objective)
    wide = LinearisedELBO(5000, vectorize_particles=True)
    for num_steps in (0, 60, 60):
        for _ in range(num_steps):
            svi.step()
        with torch.no_grad():
            claims = torch.tensor([-wide.loss(conjugate, guide) for _ in range(4)])
        assert claims.mean() < evidence + 4 * claims.std() / 2 + 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_says_that_it_is_a_bound(kind: Any) -> None:
    guide = _guide(kind)
    folding = HyperNetworkGuide(model, hidden_dims=(4,)).setup()
    assert LinearisedELBO().is_bound_for(guide) and not LinearisedELBO().is_bound_for(folding)
    assert not LinearisedELBO().is_bound
    assert not LinearisedELBO(kl_weight=0.5).is_bound_for(guide)
    assert not LinearisedELBO(2, likelihood="per_datum").is_bound_for(guide)
    assert not SingularValueELBO().is_bound_for(guide)
    noisy = HyperNetworkGuide(model, generator=kind, scale=0.1).setup()
    assert not LinearisedELBO().is_bound_for(noisy)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_diagnostics_are_exact(kind: Any) -> None:
    guide = _guide(kind)
    report = entropy_report(guide, num_samples=100)
    assert report.upper == pytest.approx(report.lower) and not report.folds
    assert report.linearised == pytest.approx(report.upper, abs=1.0)
    found = khat(model, guide, num_samples=200)
    assert found.density_error == 0 and found.density_gap == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_that_the_noise_does_not_lead_to_is_refused(kind: Any) -> None:
    guide = _guide(kind)
    trace = poutine.trace(guide).get_trace()
    latent = next(name for name in trace.nodes if name.endswith("_latent"))
    changed = poutine.condition(guide, {latent: trace.nodes[latent]["value"] + 1})
    with pytest.raises(DensityError, match="not the draw that belongs to the fixed noise"):
        poutine.trace(changed).get_trace().compute_log_prob()
    with pytest.raises(ShapeError):
        trace.nodes[latent]["fn"].log_prob(torch.zeros(2, dtype=torch.float64))


def test_other_guides_have_no_density() -> None:
    guide = HyperNetworkGuide(model, hidden_dims=(4,)).setup()
    assert not guide.is_bijective
    with pytest.raises(DensityError, match="cannot be evaluated"):
        guide.log_density(guide.sample(2))
    with pytest.raises(DensityError, match="cannot be evaluated"):
        Trace_ELBO().loss(model, guide)


def test_values_are_checked() -> None:
    guide = _guide(KINDS[1])
    draws = guide.sample(2)
    with pytest.raises(SiteError, match="values are given for sites"):
        guide.log_density({"mean": draws["mean"]})
    with pytest.raises(SiteError, match="outside of its support"):
        guide.log_density(draws | {"scale": -draws["scale"]})
    with pytest.raises(ShapeError, match="expected"):
        guide.log_density(draws | {"share": draws["share"][:, :2]})


@pytest.mark.parametrize("kind", KINDS)
def test_it_survives_saving(kind: Any) -> None:
    guide = _guide(kind)
    again = HyperNetworkGuide.from_state_dict(guide.state_dict())
    values = guide.sample(3)
    torch.testing.assert_close(again.log_density(values), guide.log_density(values))


def test_rows_that_share_a_noise_have_no_density() -> None:
    fn = ImplicitDistribution(AutoregressiveGenerator(2, 3))

    def guide() -> None:
        plate = pyro.plate("rows", 4)
        sample_implicit("x", fn, shared_over=plate)

    trace = poutine.trace(guide).get_trace()
    with pytest.raises(DensityError, match="cannot be evaluated"):
        trace.compute_log_prob()
