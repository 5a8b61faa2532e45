"""How a guide and a model are paired, and which pairs are refused."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions.testing.rejection_gamma import RejectionGamma
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, ImplicitDistribution, LinearisedELBO
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import DensityError, GuideError, NonFiniteError, SiteError
from pyro_implicit.generators import MLPGenerator, ResidualGenerator
from pyro_implicit.objectives.particles.draw_particle import draw_particle, plate_nesting
from pyro_implicit.objectives.particles.particle import Reads, sample_nodes

INF = float("inf")
Y = torch.randn(5)


def global_model() -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", 5):
        pyro.sample("y", dist.Normal(w.sum(-1, keepdim=True), 1.0), obs=Y)


def global_guide(extra: Any = None) -> Any:
    generator = MLPGenerator(2, 2, skip=True)

    def guide(*args: Any) -> None:
        sample_implicit("w", ImplicitDistribution(generator))
        if extra is not None:
            extra()

    return guide


def local_model(rows: Any = None) -> None:
    with pyro.plate("data", 5, subsample=rows) as shown:
        z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(z[..., 0], 1.0), obs=Y[shown])


def local_guide(size: int = 5) -> Any:
    generator = ResidualGenerator(1, 2)

    def guide(rows: Any = None) -> None:
        with pyro.plate("data", size):
            sample_implicit("z", ImplicitDistribution(generator))

    return guide


# ---- pairing


def test_a_particle_has_the_sites_of_both() -> None:
    guide = global_guide(lambda: pyro.sample("extra", dist.Normal(0.0, 1.0)))

    def model() -> None:
        global_model()
        pyro.sample("extra", dist.Normal(0.0, 2.0))

    particle = draw_particle(model, guide, (), {}, INF)
    assert list(particle.implicit) == ["w"]
    site = particle.implicit["w"]
    torch.testing.assert_close(site.value, particle.model.nodes["w"]["value"])
    torch.testing.assert_close(site.distribution.noise, particle.guide.nodes["w_noise"]["value"])
    assert site.latents == ("w",)
    assert list(particle.guide_nodes) == ["extra"]
    assert "log_prob_sum" not in particle.guide.nodes["w"]
    assert "log_prob_sum" in particle.model.nodes["w"]
    assert "data" not in sample_nodes(particle.model)


def test_a_site_is_weighed_by_its_scale_and_mask() -> None:
    mask = torch.tensor([True, False, True, True, False])

    def program(latent: Any) -> Any:
        def run() -> None:
            with pyro.plate("data", 5), poutine.scale(scale=0.5), poutine.mask(mask=mask):
                latent()

        return run

    generator = ResidualGenerator(1, 2)
    guide = program(lambda: sample_implicit("z", ImplicitDistribution(generator)))
    model = program(lambda: pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1)))
    particle = draw_particle(model, guide, (), {}, INF)
    assert particle.weigh("z", torch.arange(5.0)).item() == 0.5 * (0 + 2 + 3)


def test_the_latents_of_one_flat_site_are_told() -> None:
    def model() -> None:
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))

    particle = draw_particle(model, HyperNetworkGuide(model).setup(), (), {}, INF)
    (site,) = particle.implicit.values()
    assert site.latents == ("a", "b")
    assert set(particle.guide_nodes) == {"a", "b"}


@pytest.mark.parametrize("vectorised", [False, True])
def test_fresh_draws_keep_the_plates_and_have_noise_of_their_own(vectorised: bool) -> None:
    plate = pyro.plate("particles", 4, dim=-2)
    guide = local_guide()
    particle = draw_particle(plate(local_model), plate(guide), (), {}, INF)
    site = particle.implicit["z"]
    draws = site.fresh(2000 if vectorised else 3)
    assert draws.shape[1:] == (5, 1) and draws.requires_grad
    assert len(draws.reshape(-1).unique()) > 0.99 * draws.numel()
    if vectorised:  # the law is that of the site itself
        fn = site.distribution
        unconditional = ImplicitDistribution(fn.generator, scale=fn.scale, base_dist=fn.base_dist)
        direct = unconditional.rsample((20_000,)).detach()
        torch.testing.assert_close(draws.mean().item(), direct.mean().item(), rtol=0, atol=0.1)
        torch.testing.assert_close(draws.std().item(), direct.std().item(), rtol=0.1, atol=0)


def test_the_one_weight_of_a_site() -> None:
    def weight(*handlers: Any) -> Any:
        model, guide = global_model, global_guide()
        for handler in handlers:
            model, guide = handler(model), handler(guide)
        return draw_particle(model, guide, (), {}, INF).weight("w")

    assert weight() == 1
    assert weight(poutine.scale(scale=2.0), poutine.scale(scale=1.5)) == 3
    assert weight(poutine.scale(scale=2.0), poutine.mask(mask=False)) == 0
    assert weight(poutine.scale(scale=torch.tensor([0.5])), poutine.mask(mask=True)) == 0.5


def test_densities_of_implicit_latents_are_left_out_on_request() -> None:
    def model() -> None:
        pyro.sample("a", dist.LogNormal(0.0, 1.0))
        pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))

    guide = HyperNetworkGuide(model).setup()
    for needs_prior in (True, False):
        particle = draw_particle(model, guide, (), {}, INF, Reads(prior=needs_prior))
        assert ("log_prob" in particle.model.nodes["a"]) == needs_prior
        assert ("log_prob" in particle.guide.nodes["a"]) == needs_prior  # the log-Jacobian
        assert "log_prob" in particle.model.nodes["y"]


def test_an_implicit_prior_needs_a_function_for_its_density() -> None:
    generator = MLPGenerator(2, 2, skip=True)

    def model() -> None:
        with poutine.scale(scale=2.0):
            pyro.sample("w", ImplicitDistribution(generator))

    guide = poutine.scale(global_guide(), scale=2.0)
    with pytest.raises(DensityError, match="'w' is itself implicit.*SemiImplicitELBO"):
        draw_particle(model, guide, (), {}, INF)
    draw_particle(model, guide, (), {}, INF, Reads(prior=False))
    particle = draw_particle(model, guide, (), {}, INF, Reads(), lambda fn, value: value.sum(-1))
    value = particle.implicit["w"].value.sum()
    torch.testing.assert_close(particle.model.nodes["w"]["log_prob_sum"], 2 * value)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_plate_nesting_is_that_of_model_and_guide(depth: int) -> None:
    def model() -> None:
        global_latent()
        if depth:
            with pyro.plate("data", 4, dim=-depth):
                pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.zeros((4,) + (1,) * (depth - 1)))

    def global_latent() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    assert plate_nesting(model, global_guide(), (), {}) == depth


def test_plate_nesting_counts_the_guides_plates_and_no_loops() -> None:
    def model() -> None:
        for i in pyro.plate("loop", 2):
            pyro.sample(f"y_{i}", dist.Normal(0.0, 1.0), obs=torch.tensor(0.0))
        with pyro.plate("rows", 3, dim=-2):
            pyro.sample("w", dist.Normal(torch.zeros(3, 1, 2), 1.0).to_event(1))

    def guide() -> None:
        with pyro.plate("rows", 3, dim=-2):
            sample_implicit("w", ImplicitDistribution(MLPGenerator(2, 2, skip=True)))

    assert plate_nesting(model, guide, (), {}) == 2


def test_plate_nesting_leaves_no_trace_and_no_setting() -> None:
    guide = HyperNetworkGuide(global_model).setup()
    with poutine.trace() as tracer:
        plate_nesting(global_model, guide, (), {})
    assert not sample_nodes(tracer.trace)


@pytest.mark.parametrize("size", [None, 2])
def test_a_guide_without_plates_leaves_the_rows_to_the_model(size: int | None) -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 5, subsample_size=size) as shown:
            pyro.sample("y", dist.Normal(w.sum(-1, keepdim=True), 1.0), obs=Y[shown])

    particle = draw_particle(model, global_guide(), (), {}, INF)
    assert particle.model.nodes["y"]["log_prob"].shape == (size or 5,)


def test_a_guide_that_shows_all_rows_of_a_plate_leaves_them_to_the_model() -> None:
    """A plate may stand around an explicit site of the guide without local latents of the model."""

    def guide() -> None:
        global_guide()()
        with pyro.plate("data", 5):
            pass

    for seed in range(3):
        pyro.set_rng_seed(seed)
        particle = draw_particle(global_model, guide, (), {}, INF)
        assert particle.model.nodes["y"]["value"].equal(Y)


def test_a_shared_subsample_is_the_same_rows() -> None:
    generator = ResidualGenerator(1, 2)

    def model() -> None:
        with pyro.plate("data", 5, subsample_size=2) as shown:
            z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(z[..., 0], 1.0), obs=Y[shown])

    def guide() -> None:
        with pyro.plate("data", 5, subsample_size=2) as shown:
            rows.append(shown)
            sample_implicit("z", ImplicitDistribution(generator))

    rows: list[Tensor] = []
    particle = draw_particle(model, guide, (), {}, INF)
    torch.testing.assert_close(particle.model.nodes["y"]["value"], Y[rows[-1]])


def test_rows_that_the_guide_names_are_the_models() -> None:
    """A plate of the guide that was handed its rows shows some of them, as one that draws them."""
    generator, rows = ResidualGenerator(1, 2), torch.tensor([3, 1])

    def model() -> None:
        with pyro.plate("data", 5) as shown:
            z = pyro.sample("z", dist.Normal(torch.zeros(1), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(z[..., 0], 1.0), obs=Y[shown])

    def guide() -> None:
        with pyro.plate("data", 5, subsample=rows):
            sample_implicit("z", ImplicitDistribution(generator))

    particle = draw_particle(model, guide, (), {}, INF)
    torch.testing.assert_close(particle.model.nodes["y"]["value"], Y[rows])


# ---- refused


@pytest.mark.parametrize(
    "rows", [torch.tensor([0, 3]), torch.tensor([2]), torch.tensor([4, 3, 2, 1, 0])]
)
@pytest.mark.parametrize("own_guide", [False, True])
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_plate_that_shows_other_rows_in_the_guide(
    rows: Tensor, own_guide: bool, vectorised: bool
) -> None:
    guide: Any = HyperNetworkGuide(local_model).setup() if own_guide else local_guide()
    objective = LinearisedELBO(2, vectorize_particles=vectorised, max_plate_nesting=1)
    found = f"{len(rows)} rows in the model and 5 in the guide"
    if len(rows) == 5:  # each would have the latent of another one
        found = "its rows in another order in the model than in the guide"
    message = f"plate 'data' has {found}.*create_plates"
    with pytest.raises(SiteError, match=message):
        objective.loss(local_model, guide, rows)


@pytest.mark.parametrize("likelihood", ["expected", "per_datum"])
@pytest.mark.parametrize("make", [lambda: AutoNormal(global_model), lambda: lambda: None])
def test_a_guide_without_an_implicit_site(make: Any, likelihood: str) -> None:
    guide = make()
    objective = LinearisedELBO(likelihood=likelihood)
    for way in (objective.loss, objective.loss_and_grads, objective.terms):
        with pytest.raises(
            GuideError, match=r"no implicit site.*Trace_ELBO\(\).*HyperNetworkGuide"
        ):
            way(global_model, guide)


def test_a_guide_site_that_is_not_reparameterised() -> None:
    def model() -> None:
        global_model()
        pyro.sample("count", dist.Poisson(2.0))

    guide = global_guide(lambda: pyro.sample("count", dist.Poisson(3.0)))
    with pytest.raises(SiteError, match=r"'count' \(Poisson\) is not reparameterised"):
        LinearisedELBO().loss(model, guide)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda fn: fn,
        lambda fn: fn.mask(True).expand((3,)).to_event(1),
        lambda fn: dist.TransformedDistribution(fn, [dist.transforms.ExpTransform().inv]),
    ],
    ids=["bare", "wrapped", "transformed"],
)
def test_a_guide_site_that_is_reparameterised_in_part(wrapped: Any) -> None:
    fn = wrapped(RejectionGamma(torch.tensor(2.0), torch.tensor(1.0)))
    full = wrapped(dist.Gamma(torch.tensor(2.0), torch.tensor(1.0)))

    def model() -> None:
        global_model()
        pyro.sample("rate", full)

    LinearisedELBO().loss(model, global_guide(lambda: pyro.sample("rate", full)))
    with pytest.raises(SiteError, match=r"'rate' \(.*\) is drawn by rejection.*Trace_ELBO"):
        LinearisedELBO().loss(model, global_guide(lambda: pyro.sample("rate", fn)))


@pytest.mark.parametrize("how", ["parallel", "sequential"])
def test_a_guide_that_relies_on_enumeration_of_its_own(how: str) -> None:
    def choose() -> None:
        value = pyro.sample("choice", dist.Bernoulli(0.5), infer={"enumerate": how})
        assert value.shape == (2,), "as TraceEnum_ELBO makes it"

    def model() -> None:
        global_model()
        pyro.sample("choice", dist.Bernoulli(0.5))

    with pytest.raises(
        SiteError, match=f"'choice'.*'{how}'.*TraceEnum_ELBO.*AssertionError: as TraceEnum"
    ) as told:
        LinearisedELBO().loss(model, global_guide(choose))
    assert isinstance(told.value.__cause__, AssertionError)


def test_other_errors_of_a_guide_are_its_own() -> None:
    def fail() -> None:
        pyro.sample("unmarked", dist.Bernoulli(0.5))
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        LinearisedELBO().loss(global_model, global_guide(fail))


def test_draws_that_are_not_finite_blame_the_guide() -> None:
    guide = HyperNetworkGuide(global_model).setup()
    with torch.no_grad():
        next(guide.parameters()).fill_(float("nan"))
    message = r"implicit site '\w*_latent' \(for w\) are not finite: its generator has diverged"
    for vectorised in (False, True):
        with pytest.raises(NonFiniteError, match=message):
            LinearisedELBO(2, vectorize_particles=vectorised).loss(global_model, guide)
    with pyro.validation_enabled(False):  # a step then waits for no number
        assert math.isnan(LinearisedELBO().loss(global_model, guide))


def test_draws_whose_sum_is_too_large_are_finite() -> None:
    def model() -> None:
        pyro.sample("w", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))

    guide = HyperNetworkGuide(model, init_from=None).setup()
    guide.samplers[0].preconditioner.loc.fill_(2e38)  # type: ignore[union-attr,operator]
    found = guide()["w"]
    assert bool(found.isfinite().all()) and not bool(found.sum().isfinite())
    assert math.isfinite(LinearisedELBO().loss(model, guide))


def test_pyros_own_checks_are_kept() -> None:
    def more() -> None:
        global_model()
        pyro.sample("elsewhere", dist.Normal(0.0, 1.0))

    with pytest.warns(UserWarning, match="vars in model but not guide: {'elsewhere'}"):
        LinearisedELBO().loss(more, global_guide())

    def forgotten() -> None:  # no plate, no to_event
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(torch.zeros(5), 1.0), obs=Y)

    with pytest.raises(ValueError, match='at site "y", invalid log_prob shape'):
        LinearisedELBO().loss(forgotten, global_guide())
    with pyro.validation_enabled(False):
        assert LinearisedELBO().loss(forgotten, global_guide()) > 0


def test_an_explicit_site_of_the_guide_must_fit_its_plates_too() -> None:
    def model() -> None:
        global_model()
        pyro.sample("extra", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    guide = global_guide(lambda: pyro.sample("extra", dist.Normal(torch.zeros(3), 1.0)))
    with pytest.raises(ValueError, match="extra"):
        LinearisedELBO().loss(model, guide)


def test_log_densities_in_half_precision_are_scaled_and_summed_in_float32() -> None:
    """As they come under autocast: in bfloat16 the sum of these would be off by some ten nats."""
    y = torch.linspace(-2.0, 2.0, 700)

    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 7000, subsample_size=700):
            mean = (w.sum(-1, keepdim=True) + y).bfloat16()
            pyro.sample("y", dist.Normal(mean, torch.ones_like(mean)), obs=y.bfloat16())

    particle = draw_particle(model, global_guide(), (), {}, 1)
    node = particle.model.nodes["y"]
    each = node["fn"].log_prob(node["value"])
    assert each.dtype == torch.bfloat16
    assert node["log_prob"].dtype == node["log_prob_sum"].dtype == torch.float32
    expected = 10 * each.double().sum()
    torch.testing.assert_close(node["log_prob_sum"].double(), expected, rtol=1e-6, atol=0)
    assert (10 * each).sum().double() != expected
