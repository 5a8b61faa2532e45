"""What objectives that compare draws share: arguments, warnings, weights, sites and priors."""

from __future__ import annotations

import math
import pickle
import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from torch import Tensor, nn

from pyro_implicit import (
    AdversarialELBO,
    HyperNetworkGuide,
    ImplicitDistribution,
    KernelDensityRatioELBO,
    LinearisedELBO,
    SemiImplicitELBO,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import (
    ArgumentError,
    DensityError,
    NonFiniteError,
    ShapeError,
    SiteError,
)
from pyro_implicit.generators import Generator, MLPGenerator, ModuleGenerator, ResidualGenerator
from pyro_implicit.objectives.contrastive import ContrastiveELBO, _farthest
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.ops.moments import standardise
from tests.turns import in_turns

KINDS = [KernelDensityRatioELBO, AdversarialELBO]
CONTRASTS = pytest.mark.parametrize("contrast", ["adaptive", "prior"])


class Told(ContrastiveELBO):
    """Reports a given number per site, and keeps what it was shown."""

    def __init__(self, values: dict[str, float], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.values, self.shown = values, {}  # type: ignore[var-annotated]

    def divergence(self, name: str, q: Tensor, p: Tensor) -> Tensor:
        self.shown[name] = (q, p)
        return q.new_tensor(self.values.get(name, 0.0)) + 0 * q.sum()


def two_sites() -> None:
    pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("b", dist.Normal(torch.zeros(3), 2.0).to_event(1))


# ---- arguments


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contrast": "self"}, "contrast='self'; expected 'adaptive' or 'prior'"),
        ({"covariance": "low"}, "covariance='low'; expected 'auto', 'diagonal' or 'full'"),
        ({"num_samples": 1}, "num_samples=1; expected an integer >= 2"),
        ({"num_samples": 2.5}, "num_samples=2.5; expected an integer >= 2"),
        ({"num_entropy_particles": 1}, "takes its draws by num_samples=200"),
        ({"contrast": "prior", "prior_weight": 0.5}, "prior_weight=0.5 with contrast='prior'"),
    ],
)
def test_other_arguments_are_refused(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        kind(**options)


@pytest.mark.parametrize("kind", KINDS)
def test_settings(kind: Any) -> None:
    objective = kind(3, contrast="adaptive", covariance="full", num_samples=50, prior_weight=0.5)
    told = {"covariance": "full", "num_samples": 50, "contrast": "adaptive", "is_bound": False}
    assert objective.settings.items() >= told.items()
    assert "num_entropy_particles" not in objective.settings
    assert "num_samples=50" in repr(objective)
    assert pickle.loads(pickle.dumps(objective)).settings == objective.settings


# ---- what is compared


@pytest.mark.parametrize("vectorised", [False, True])
def test_adaptive_contrast_compares_standardised_draws_with_a_standard_normal(
    vectorised: bool,
) -> None:
    guide = HyperNetworkGuide(two_sites).setup()
    objective = Told({}, 3, num_samples=4000, vectorize_particles=vectorised, max_plate_nesting=0)
    terms = objective.terms(two_sites, guide)
    ((q, p),) = objective.shown.values()
    assert q.shape == p.shape == (4000, 4) and q.requires_grad and not p.requires_grad
    torch.testing.assert_close(q.mT.cov(), torch.eye(4), atol=1e-3, rtol=0)
    torch.testing.assert_close(p.mT.cov(), torch.eye(4), atol=0.1, rtol=0)
    assert set(terms) == {"log_likelihood", "log_prior", "entropy"}
    draws = guide.sample(20_000)
    flat = torch.cat([draws["a"][:, None], draws["b"]], -1)
    entropy = dist.MultivariateNormal(flat.mean(0), flat.mT.cov()).entropy()
    assert terms["entropy"].item() == pytest.approx(entropy.item(), abs=0.1)


@pytest.mark.long
@pytest.mark.parametrize("vectorised", [False, True])
def test_prior_contrast_compares_draws_with_those_of_the_prior(vectorised: bool) -> None:
    guide = HyperNetworkGuide(two_sites).setup()
    objective = Told(
        {},
        3,
        contrast="prior",
        num_samples=2000,
        vectorize_particles=vectorised,
        max_plate_nesting=0,
    )
    terms = objective.terms(two_sites, guide)
    ((q, p),) = objective.shown.values()
    assert q.shape == p.shape == (2000, 4) and q.requires_grad and not p.requires_grad
    torch.testing.assert_close(p.std(0), torch.tensor([1.0, 2, 2, 2]), rtol=0.1, atol=0)
    draws = guide.sample(20_000)
    flat = torch.cat([draws["a"][:, None], draws["b"]], -1)
    torch.testing.assert_close(q.std(0), flat.std(0), rtol=0.1, atol=0)
    assert set(terms) == {"log_likelihood", "log_prior", "entropy", "negative_kl"}
    assert terms["log_prior"] == terms["entropy"] == 0


def test_covariance_of_the_moments() -> None:
    guide = HyperNetworkGuide(two_sites).setup()

    def is_full(**options: Any) -> bool:
        objective = Told({}, **options)
        objective.loss(two_sites, guide)
        ((q, _),) = objective.shown.values()
        return bool((q.mT.cov() - torch.eye(4)).abs().max() < 1e-3)

    assert is_full(num_samples=200) and is_full(covariance="full", num_samples=5)
    assert not is_full(num_samples=10) and not is_full(covariance="diagonal", num_samples=200)
    with pytest.raises(ShapeError, match="_latent' has 4 entries: a full.*num_samples=4 draws"):
        is_full(covariance="full", num_samples=4)


@CONTRASTS
def test_a_factorised_guide_has_the_sum_over_its_sites(contrast: str) -> None:
    guide = HyperNetworkGuide(two_sites, factorized=True).setup()
    names = [name for name, _, _ in guide._groups()]
    values = dict(zip(names, (1.0, 10.0), strict=True))
    objective = Told(values, 2, contrast=contrast, kl_weight=0.5)
    pyro.set_rng_seed(0)
    found = objective.terms(two_sites, guide)
    assert {n: q.shape[1] for n, (q, _) in objective.shown.items()} == dict(
        zip(names, (1, 3), strict=True)
    )
    if contrast == "prior":
        assert found["negative_kl"].item() == pytest.approx(-0.5 * 11)
        return
    pyro.set_rng_seed(0)
    nothing = Told({}, 2, contrast=contrast, kl_weight=0.5).terms(two_sites, guide)
    assert (nothing["entropy"] - found["entropy"]).item() == pytest.approx(0.5 * 11, abs=1e-4)


def test_half_precision_draws_are_compared_in_single() -> None:
    objective = Told({})
    fn = ImplicitDistribution(ResidualGenerator(2, 3))
    site = ImplicitSite("w", fn.given(torch.randn(2, 2)), torch.zeros(2, 2), ("w",))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = objective.estimate(site)
    assert value.dtype == objective.shown["w"][0].dtype == torch.float32


# ---- weights


@CONTRASTS
@pytest.mark.parametrize("vectorised", [False, True])
def test_one_scale_or_mask_around_an_implicit_site_weighs_its_term(
    contrast: str, vectorised: bool
) -> None:
    generator = ResidualGenerator(2, 3)

    def weighed(**how: Any) -> Tensor:
        handler = poutine.scale(**how) if "scale" in how else poutine.mask(**how)

        def model() -> None:
            with handler:
                pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))

        def guide() -> None:
            with handler:
                sample_implicit("w", ImplicitDistribution(generator))

        objective = KernelDensityRatioELBO(
            2, contrast=contrast, vectorize_particles=vectorised, max_plate_nesting=0
        )
        pyro.set_rng_seed(0)
        return objective.terms(model, guide)["negative_kl" if contrast == "prior" else "entropy"]

    once = weighed(scale=1.0)
    assert once.item() != 0
    torch.testing.assert_close(weighed(scale=2.0), 2 * once)
    torch.testing.assert_close(weighed(scale=torch.tensor(3.0)), 3 * once)
    assert weighed(mask=torch.tensor(False)).item() == 0
    torch.testing.assert_close(weighed(mask=torch.tensor(True)), once)
    torch.testing.assert_close(weighed(mask=True), once)


@CONTRASTS
@pytest.mark.parametrize("kind", ["scale", "mask"])
def test_weights_that_differ_between_entries_are_refused(contrast: str, kind: str) -> None:
    generator = ResidualGenerator(1, 2)
    weights = torch.tensor([1.0, 2.0, 1.0])
    handler: Any = (
        poutine.scale(scale=weights) if kind == "scale" else poutine.mask(mask=weights > 1)
    )

    def model() -> None:
        with pyro.plate("rows", 3), handler:
            pyro.sample("w", dist.Normal(torch.zeros(1), 1.0).to_event(1))

    def guide() -> None:
        with pyro.plate("rows", 3), handler:
            sample_implicit("w", ImplicitDistribution(generator))

    with pytest.raises(SiteError, match="'w' has a scale or mask that differs between its entries"):
        KernelDensityRatioELBO(contrast=contrast).loss(model, guide)
    assert math.isfinite(LinearisedELBO().loss(model, guide))


# ---- warnings


@CONTRASTS
@pytest.mark.parametrize("make", [lambda: MLPGenerator(1, 2), lambda: MLPGenerator(3, 2, (1,))])
def test_draws_on_a_surface_are_told_once(contrast: str, make: Any) -> None:
    generator = make()

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    def guide(scale: float = 0.0) -> None:
        sample_implicit("w", ImplicitDistribution(generator, scale=scale))

    objective = Told({}, contrast=contrast, covariance="diagonal")
    with pytest.warns(UserWarning, match=r"'w': draws .* fill 1 of 2 dimensions.*Shown once"):
        objective.loss(model, guide)
    objective.loss(model, guide)  # warnings are errors here
    Told({}, contrast=contrast, covariance="diagonal").loss(model, lambda: guide(0.1))
    with pyro.validation_enabled(False):
        Told({}, contrast=contrast, covariance="diagonal").loss(model, guide)


def test_the_rank_of_a_large_generator_is_told_by_its_sizes() -> None:
    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(600), 1.0).to_event(1))

    def run(d: int) -> None:
        generator = MLPGenerator(d, 600, (2,))

        def guide() -> None:
            sample_implicit("w", ImplicitDistribution(generator))

        Told({}, num_samples=3).loss(model, guide)

    with pytest.warns(UserWarning, match="fill 5 of 600 dimensions"):
        run(5)
    run(600)  # would need a Jacobian: not looked at


# ---- implicit priors


def implicit_prior(scale: float = 0.0) -> tuple[Any, Any]:
    """A model whose prior is a fixed generator's, and a guide with one that can equal it."""
    torch.manual_seed(3)
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    with torch.no_grad():
        layers[0].weight.copy_(torch.tensor([[1.0, 0.5], [0.0, 0.7]]))
    prior, mine = (ModuleGenerator(layer, (2,), 2) for layer in layers)

    def model() -> None:
        pyro.sample("w", ImplicitDistribution(prior, scale=scale))

    def guide() -> None:
        sample_implicit("w", ImplicitDistribution(mine, scale=0.0))

    guide.generator = mine  # type: ignore[attr-defined]
    return model, guide


@pytest.mark.long
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_guide_learns_an_implicit_prior_from_its_draws(vectorised: bool) -> None:
    model, guide = implicit_prior()
    layer = guide.generator.module
    objective = KernelDensityRatioELBO(
        2 if vectorised else 1,
        contrast="prior",
        bandwidth=1.0,
        vectorize_particles=vectorised,
        max_plate_nesting=0,
        num_samples=200 if vectorised else 50,
    )
    before = sum(objective.loss(model, guide) for _ in range(10)) / 10
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(150 if vectorised else 60):
        optimiser.zero_grad()
        objective.differentiable_loss(model, guide).backward()
        optimiser.step()
    after = sum(objective.loss(model, guide) for _ in range(10)) / 10
    assert after < 0.5 * before
    if vectorised:
        expected = torch.tensor([[1.25, 0.35], [0.35, 0.49]])
        covariance = (layer.weight @ layer.weight.mT).detach()
        torch.testing.assert_close(covariance, expected, rtol=0, atol=0.2)
        assert after == pytest.approx(0, abs=0.2)


@pytest.mark.long
def test_an_implicit_prior_equal_to_the_guide_is_at_no_divergence() -> None:
    model, guide = implicit_prior()
    prior = poutine.trace(model).get_trace().nodes["w"]["fn"].generator
    guide.generator.load_state_dict(prior.state_dict())
    for kind in KINDS:
        objective = kind(2, contrast="prior", vectorize_particles=True, max_plate_nesting=0)
        values = [objective.differentiable_loss(model, guide).item() for _ in range(20)]
        assert sum(values) / 20 == pytest.approx(0, abs=0.15)


def test_objectives_that_need_its_density_refuse_an_implicit_prior() -> None:
    model, guide = implicit_prior()
    message = r"prior of site 'w' is itself implicit.*KernelDensityRatioELBO\(contrast='prior'\)"
    for objective in (LinearisedELBO(), KernelDensityRatioELBO(), AdversarialELBO()):
        with pytest.raises(DensityError, match=message):
            objective.loss(model, guide)
    with pytest.raises(DensityError, match="cannot be evaluated, so Trace_ELBO"):
        Trace_ELBO().loss(model, guide)
    with pytest.raises(DensityError, match="scale 0: it has no density"):
        SemiImplicitELBO().loss(model, lambda: sample_implicit_scaled(guide))


def sample_implicit_scaled(guide: Any) -> None:
    sample_implicit("w", ImplicitDistribution(guide.generator, scale=0.1))


def test_draws_on_a_surface_are_compared_by_a_diagonal_unless_told_otherwise() -> None:
    class Surface(Generator):
        def forward(self, z: Tensor) -> Tensor:
            return torch.cat([z, torch.zeros_like(z)], -1)

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    def guide() -> None:
        sample_implicit("w", ImplicitDistribution(Surface((1,), 2)))

    with pytest.warns(UserWarning, match="fill 1 of 2 dimensions"):
        assert math.isfinite(KernelDensityRatioELBO().loss(model, guide))
    with pytest.warns(UserWarning), pytest.raises(NonFiniteError, match="lie on a surface"):
        KernelDensityRatioELBO(covariance="full").loss(model, guide)


# ---- heavy tails


class Ratio(Generator):
    """A ratio of two normal numbers to some power: the larger it is, the heavier the tails."""

    def __init__(self, size: int, power: float) -> None:
        super().__init__((2 * size,), size)
        self.scale = nn.Parameter(torch.ones(()))
        self.power = power

    def forward(self, z: Tensor) -> Tensor:
        above, below = z.chunk(2, -1)
        return self.scale * above / below.abs().clamp(min=1e-6) ** self.power


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "kind"),
    in_turns(
        [(1.0, 1, 100, True), (1.0, 3, 100, True), (0.0, 3, 100, False), (0.0, 10, 8, False)],
        KINDS,
    ),
)
def test_heavy_tails_are_told(kind: Any, case: tuple[float, int, int, bool]) -> None:
    power, size, num_samples, heavy = case
    pyro.set_rng_seed(0)

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(size), 1.0).to_event(1))

    guide = HyperNetworkGuide(model, generator=lambda m: Ratio(m, power), scale=0.0, init_from=None)
    objective = kind(1, num_samples=num_samples)
    with warnings.catch_warnings(record=True) as told, pyro.validation_enabled(True):
        warnings.simplefilter("always")
        for _ in range(70):
            objective.loss(model, guide)
    texts = [
        str(one.message) for one in told if "of the spread in its direction" in str(one.message)
    ]
    assert len(texts) == heavy  # once
    assert all("one of 100 draws" in text and "Use LinearisedELBO" in text for text in texts)


@pytest.mark.parametrize("m", [1, 5, 25])
def test_normal_draws_have_no_far_one(m: int) -> None:
    """At the fewest draws that a full covariance takes, and by diagonals."""
    torch.manual_seed(0)
    for _ in range(50):
        for form in ("full", "diagonal"):
            u, _ = standardise(torch.randn(max(4 * m, 50), m), form)
            assert _farthest(u, form) < 0.4


@pytest.mark.parametrize("form", ["full", "diagonal"])
def test_a_draw_that_is_all_of_a_direction(form: str) -> None:
    q = torch.randn(100, 4)
    q[7] = 1e5 * torch.tensor([1.0, -1.0, 1.0, 1.0])
    u, _ = standardise(q, form)
    assert _farthest(u, form) > 0.9
