"""k-hat: the known tail of a Gaussian of the wrong scale, ArviZ on exact ratios, and refusals."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoGuideList, AutoNormal

from pyro_implicit import EnsembleGuide, HyperNetworkGuide, refine
from pyro_implicit.arviz.compatibility import psis_khat
from pyro_implicit.diagnostics import khat, stein_discrepancy
from pyro_implicit.diagnostics._density import GuideDensity
from pyro_implicit.diagnostics.khat import KHat
from pyro_implicit.exceptions import (
    ArgumentError,
    DensityError,
    GuideError,
    NonFiniteError,
    ShapeError,
    SiteError,
)
from tests.diagnostics.known import affine_guide, normal_model


def one_normal():
    pyro.sample("w", dist.Normal(0.0, 1.0))


@pytest.mark.long
def test_the_tail_of_a_narrow_gaussian():
    """Ratios of N(0, 1) to N(0, sd^2) have a Pareto tail of shape 1 - sd^2."""
    sd = 0.5
    guide = affine_guide(one_normal, [[sd]], [0.0])
    found = khat(one_normal, guide, num_samples=1500, num_starts=1)
    assert found.value == pytest.approx(1 - sd**2, abs=0.2)
    assert found.density_error == found.density_gap == 0.0
    assert float(found) == found.value


@pytest.mark.long
def test_a_latent_that_the_model_lacks_is_named():
    guide = affine_guide(normal_model, [[0.6, 0.0], [0.2, 0.7]], [0.1, 0.0])
    with pytest.raises(
        SiteError, match="the guide draws latent '.*', and the model samples no site"
    ):
        khat(lambda: None, guide)


def test_the_wrong_order_is_named():
    guide = affine_guide(one_normal, [[1.0]], [0.0])
    with pytest.raises(ArgumentError, match="model and guide are swapped"):
        khat(guide, one_normal)


@pytest.mark.long
def test_a_wide_gaussian_and_the_right_one():
    for sd in (1.3, 1.0001):
        guide = affine_guide(one_normal, [[sd]], [0.0])
        found = khat(one_normal, guide, num_samples=400, num_starts=1)
        assert found.value < 0.3 and found.is_good
        assert found.log_evidence == pytest.approx(0.0, abs=0.05)


@pytest.mark.long
@pytest.mark.parametrize("sd", [1.0, 1.5])
def test_what_draws_of_a_gaussian_are_worth(sd: float) -> None:
    """The mean of squared weights of N(0, v) for N(0, 1) is v / sqrt(2 v - 1)."""
    guide = affine_guide(one_normal, [[sd]], [0.0])
    found = khat(one_normal, guide, num_samples=4000, num_starts=1)
    expected = math.sqrt(2 * sd**2 - 1) / sd**2
    assert found.effective_samples / 4000 == pytest.approx(expected, abs=0.02)


@pytest.mark.long
def test_arviz_on_exact_ratios():
    guide = affine_guide(normal_model, [[0.6, 0.0], [0.2, 0.7]], [0.1, 0.0])
    pyro.set_rng_seed(3)
    found = khat(normal_model, guide, num_samples=500)
    pyro.set_rng_seed(3)
    (u,), _ = GuideDensity(guide, 500, 8).of_own_draws(500)
    matrix = torch.tensor([[0.6, 0.0], [0.2, 0.7]]).double()
    q = dist.MultivariateNormal(torch.tensor([0.1, 0.0]).double(), matrix @ matrix.T)
    ratios = dist.Normal(0.0, 1.0).log_prob(u).sum(-1) - q.log_prob(u)
    assert found.value == pytest.approx(psis_khat(ratios.numpy()), abs=1e-3)
    assert found.log_evidence == pytest.approx(ratios.exp().mean().log().item(), abs=1e-3)


@pytest.mark.long
def test_with_output_noise_and_a_constrained_site():
    def model(y):
        pyro.sample("w", dist.Normal(0.0, 1.0))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(torch.zeros(()) * scale, 1.0), obs=y)

    y = torch.tensor([0.5, -1.0])
    guide = affine_guide(model, [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], scale=0.1, args=(y,))
    found = khat(model, guide, y, num_samples=300)
    exact = dist.Normal(0.0, 1.0).log_prob(y).sum().item()
    assert found.is_good
    assert found.log_evidence == pytest.approx(exact, abs=0.05)
    assert 0 < found.density_error < 0.1


def test_the_threshold_grows_with_the_draws():
    assert KHat(0.6, 100, 0.0, 0.0, 0.0, 50.0).threshold == pytest.approx(0.5)
    assert KHat(0.6, 3000, 0.0, 0.0, 0.0, 50.0).threshold == pytest.approx(0.7)
    assert KHat(0.6, 3000, 0.0, 0.0, 0.0, 50.0).is_good
    assert not KHat(0.6, 100, 0.0, 0.0, 0.0, 50.0).is_good
    assert str(KHat(0.6, 3000, 0.0, 0.0, 0.0, 50.0)).startswith(
        "k-hat 0.60, below the threshold 0.70 of"
    )
    assert "above the threshold 0.50 of 100 draws, which are worth 50: the guide is too" in str(
        KHat(0.6, 100, 0.0, 0.0, 0.0, 50.0)
    )
    assert str(KHat(0.5004, 100, 0.0, 0.0, 0.0, 50.0)).startswith(
        "k-hat 0.5004, above the threshold 0.5000 of 100"
    )
    told = str(KHat(2.0, 100, 0.0, 0.0, 0.0, 99.0))
    assert told.endswith(
        "worth 99: a long tail of weights that are nearly equal, of a guide that is close"
    )


@pytest.mark.long
def test_refused_where_the_density_is_not_known():
    guide = affine_guide(normal_model, [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], folded=True)
    with pytest.raises(DensityError, match=r"k-hat is refused: .*Try num_inner=.*stein_discrepanc"):
        khat(normal_model, guide, num_samples=100, num_starts=1)
    assert khat(normal_model, guide, num_samples=100, num_starts=16).value < 0.5
    noisy = affine_guide(normal_model, [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0], scale=0.5)
    with pytest.raises(DensityError, match="k-hat is refused"):
        khat(normal_model, noisy, num_samples=100, num_inner=2)


def test_other_guides_and_numbers_are_refused():
    with pytest.raises(GuideError, match="khat needs an implicit guide"):
        khat(normal_model, AutoNormal(normal_model))
    one = affine_guide(normal_model, [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    two = EnsembleGuide([one, one])
    with pytest.raises(GuideError, match="EnsembleGuide is made of several, .*for one in guide.gu"):
        khat(normal_model, two)
    parts = AutoGuideList(normal_model)
    parts.append(one)
    with pytest.raises(GuideError, match="an AutoGuideList draws each part's by itself"):
        khat(normal_model, parts)
    with pytest.raises(GuideError, match="khat needs a guide with a density, and these are chains"):
        chains = refine(normal_model, 2, num_steps=20, seed=0, progress=False)
        khat(normal_model, chains)
    guide = affine_guide(one_normal, [[1.0]], [0.0])
    with pytest.raises(ArgumentError, match="num_samples=50; expected an integer >= 100"):
        khat(one_normal, guide, num_samples=50)
    with pytest.raises(ArgumentError, match="num_inner=0"):
        khat(one_normal, guide, num_inner=0)
    with pytest.raises(ArgumentError, match="num_starts=70"):
        khat(one_normal, guide, num_starts=70)


def test_a_model_that_draws_by_itself():
    def model():
        one_normal()
        pyro.sample("other", dist.Normal(0.0, 1.0))

    guide = affine_guide(one_normal, [[1.0]], [0.0])
    with pytest.raises(SiteError, match=r"two evaluations of .* It draws \['other'\] by itself"):
        khat(model, guide, num_samples=100)


@pytest.mark.long
def test_a_density_that_is_not_finite():
    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("wall", torch.where(w > 1, -torch.inf, 0.0))

    guide = affine_guide(one_normal, [[1.0]], [0.0])
    with pytest.raises(NonFiniteError, match="not finite at .* of 200 draws"):
        khat(model, guide, num_samples=200)


def test_a_lack_of_observations_is_named():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    x = torch.randn(5)
    guide = HyperNetworkGuide(model, init_from=None).setup(x, x)
    with pytest.raises(SiteError, match=r"It draws \['y'\] by itself: hand over the observations"):
        khat(model, guide, x, num_samples=100)


@pytest.mark.parametrize("diagnose", [khat, stein_discrepancy])
def test_data_without_rows_are_refused(diagnose):
    def model(y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup(torch.ones(3))
    with pytest.raises(ShapeError, match=r"of shape \(0,\), has no rows"):
        diagnose(model, guide, torch.ones(0))
