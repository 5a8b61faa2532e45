"""stein_discrepancy: flags the wrong, passes the right, needs nothing but draws."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

from pyro_implicit import posterior_draws
from pyro_implicit.diagnostics import stein_discrepancy
from pyro_implicit.exceptions import (
    ArgumentError,
    NonFiniteError,
    ShapeError,
    SiteError,
    StateError,
)
from pyro_implicit.ops.stein import stein_matrix, stein_u_statistic
from tests.diagnostics.known import affine_guide, normal_model


def positive_model(y):
    scale = pyro.sample("scale", dist.LogNormal(0.0, 0.5))
    loc = pyro.sample("loc", dist.Normal(torch.zeros(2), 3.0).to_event(1))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc.sum(), scale), obs=y)


@pytest.mark.long
def test_the_right_guide_passes_and_wrong_ones_do_not():
    right = affine_guide(normal_model, [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0])
    found = stein_discrepancy(normal_model, right)
    assert found.p_value > 0.05 and str(found).endswith("nothing found against the guide")
    narrow = affine_guide(normal_model, [[0.6, 0.0], [0.0, 0.6]], [0.0, 0.0])
    biased = affine_guide(normal_model, [[1.0, 0.0], [0.0, 1.0]], [0.5, 0.0])
    for guide in (narrow, biased):
        found = stein_discrepancy(normal_model, guide, num_samples=300)
        assert found.p_value < 0.01 and found.squared > 0.01
        assert float(found) == found.squared
        assert "of 300 draws, p-value" in str(found) and "not the posterior's" in str(found)


@pytest.mark.long
def test_units_change_nothing():
    def model(unit):
        pyro.sample("w", dist.Normal(0.0, unit))

    draws = {"w": 0.6 * torch.randn(300).double()}
    pyro.set_rng_seed(1)
    one = stein_discrepancy(model, draws, torch.tensor(1.0).double(), num_samples=300)
    pyro.set_rng_seed(1)
    scaled = {"w": 1e3 * draws["w"]}
    other = stein_discrepancy(model, scaled, torch.tensor(1e3).double(), num_samples=300)
    assert other.squared == pytest.approx(one.squared)
    assert other.p_value == one.p_value


@pytest.mark.long
def test_scores_are_those_of_the_unconstrained_density():
    y = torch.tensor([1.0, 2.0, 0.5]).double()
    torch.set_default_dtype(torch.float64)
    try:
        u = torch.randn(40, 3)
        draws = {"scale": u[:, 0].exp(), "loc": u[:, 1:]}
        found = stein_discrepancy(positive_model, draws, y, num_samples=40, length=1.5, beta=-0.3)

        def log_density(row):
            scale, loc = row[0].exp(), row[1:]
            prior = dist.LogNormal(0.0, 0.5).log_prob(scale) + row[0]
            prior = prior + dist.Normal(0.0, 3.0).log_prob(loc).sum()
            return prior + dist.Normal(loc.sum(), scale).log_prob(y).sum()

        scores = torch.stack([torch.autograd.functional.jacobian(log_density, row) for row in u])
    finally:
        torch.set_default_dtype(torch.float32)
    spread = u.std(0)
    matrix = stein_matrix(u / spread, scores * spread, 1.5, -0.3)
    assert found.squared == pytest.approx(stein_u_statistic(matrix).item(), rel=1e-6)


@pytest.mark.long
def test_any_guide_and_any_draws():
    y = torch.randn(5)
    guide = AutoNormal(positive_model)
    guide(y)
    assert stein_discrepancy(positive_model, guide, y, num_samples=50).num_samples == 50
    draws = posterior_draws(guide, 120, y)
    assert stein_discrepancy(positive_model, draws, y, num_samples=50, length=2.0).length == 2.0


def test_a_latent_that_never_moves():
    found = stein_discrepancy(normal_model, {"w": torch.zeros(20, 2)}, num_samples=20)
    assert found.squared > 0  # all draws at the mode: what is left is the trace of the kernel


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_samples": 1}, "num_samples=1; expected an integer >= 2"),
        ({"num_bootstrap": 0}, "num_bootstrap=0"),
        ({"beta": 0.5}, "beta=0.5; expected a finite number > -1 and < 0"),
        ({"beta": -1}, "beta=-1; expected"),
        ({"length": 0.0}, "length=0.0; expected a finite number > 0, or 'median'"),
        ({"length": "mean"}, "length='mean'; expected"),
    ],
)
def test_values_are_checked(options, message):
    with pytest.raises(ArgumentError, match=message):
        stein_discrepancy(normal_model, {"w": torch.zeros(10, 2)}, **options)


def test_draws_are_checked():
    with pytest.raises(ArgumentError, match="cannot be called; expected a guide, or draws by site"):
        stein_discrepancy(normal_model, "guide")
    with pytest.raises(ShapeError, match="expected at least num_samples=500"):
        stein_discrepancy(normal_model, {"w": torch.zeros(10, 2)})
    with pytest.raises(ShapeError, match="as many for every site"):
        draws = {"w": torch.zeros(10, 2), "v": torch.zeros(9)}
        stein_discrepancy(normal_model, draws, num_samples=5)
    with pytest.raises(SiteError, match=r"sites \['v'\], which the model does not have"):
        draws = {"w": torch.zeros(10, 2), "v": torch.zeros(10)}
        stein_discrepancy(normal_model, draws, num_samples=5)


def test_gradients_are_checked():
    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("root", w.sqrt())

    with pytest.raises(NonFiniteError, match="gradient .* is not finite at 1 of 2 draws"):
        stein_discrepancy(model, {"w": torch.tensor([1.0, 0.0])}, num_samples=2)


def test_a_latent_that_is_not_drawn():
    with pytest.raises(SiteError, match="a latent site of the model is not among the draws"):
        draws = {"loc": torch.zeros(5, 2)}
        stein_discrepancy(positive_model, draws, torch.randn(5), num_samples=5)


def test_the_wrong_order_is_named() -> None:
    guide = AutoNormal(_normal_model)
    guide()
    with pytest.raises(ArgumentError, match="model and guide are swapped"):
        stein_discrepancy(guide, _normal_model)
    with pytest.raises(ArgumentError, match="the guide is the model itself"):
        stein_discrepancy(_normal_model, _normal_model)


def _normal_model() -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))


def test_within_inference_mode_it_is_refused():
    with torch.inference_mode(), pytest.raises(StateError, match="stein_discrepancy was called"):
        stein_discrepancy(normal_model, {"w": torch.zeros(2)})


@pytest.mark.parametrize("high", [lambda a: a, lambda a: 2.0 - a])
def test_a_support_that_depends_on_another_latent_is_refused(high):
    """Draws would be mapped by the bounds of the first."""

    def model():
        a = pyro.sample("a", dist.Beta(2.0, 2.0))
        with pyro.plate("two", 2):
            pyro.sample("b", dist.Uniform(torch.zeros(2), high(a)))

    a = torch.rand(50)
    draws = {"a": a, "b": high(a)[:, None] * torch.rand(50, 2)}
    with pytest.raises(SiteError, match="latent site 'b' has the support .* at another of the"):
        stein_discrepancy(model, draws, num_samples=50)
