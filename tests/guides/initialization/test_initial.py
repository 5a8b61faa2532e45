"""The start of networks: weights by their fan-in, everything else at its prior mean."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer.autoguide import init_to_mean, init_to_median

from pyro_implicit import ConditionalHyperNetworkGuide, HyperNetworkGuide, MMNNGuide
from pyro_implicit.exceptions import SiteError
from pyro_implicit.guides.initialization.initial import fan_in_scale, init_to_fan_in
from pyro_implicit.guides.latent_site import LatentSite


def _node(fn: dist.TorchDistribution) -> dict:
    return poutine.trace(lambda: pyro.sample("x", fn)).get_trace().nodes["x"]


def _site(fn: dist.TorchDistribution) -> LatentSite:
    return LatentSite.from_trace(_node(fn), allow_subsample=False)


@pytest.mark.parametrize("shape", [(400, 25), (40, 10, 5, 5), (200, 300)])
def test_weights_have_variance_two_over_fan_in(shape: tuple[int, ...]) -> None:
    start = init_to_fan_in(_node(dist.Normal(3.0, 5.0).expand(shape).to_event()))
    assert start.shape == shape
    fan_in = math.prod(shape[1:])
    assert start.std() == pytest.approx(math.sqrt(2 / fan_in), rel=0.1)
    assert start.mean().abs() < 0.1


@pytest.mark.parametrize("fn", [dist.Normal(3.0, 5.0), dist.Normal(3.0, 5.0).expand([4])])
def test_other_sites_start_at_their_prior_mean(fn: dist.Normal) -> None:
    fn = fn.to_event()
    assert torch.equal(init_to_fan_in(_node(fn)), fn.mean)


@pytest.mark.parametrize(
    "fn",
    [
        dist.HalfNormal(1.0).expand([3, 4]).to_event(),
        dist.Dirichlet(torch.ones(2, 5)).to_event(1),
    ],
)
def test_weights_with_another_support_start_at_their_prior_mean(fn: dist.TorchDistribution) -> None:
    start = init_to_fan_in(_node(fn))
    assert fn.support.check(start).all()
    torch.testing.assert_close(start, fn.mean)


def test_a_matrix_that_is_one_draw_of_a_matrix_family_is_left_to_its_prior() -> None:
    fn = dist.LKJCholesky(3)
    assert fn.support.check(init_to_fan_in(_node(fn))).all()


def test_a_prior_that_cannot_be_drawn_from_serves_weights() -> None:
    fn = dist.ImproperUniform(constraints.independent(constraints.real, 2), (), (50, 40))
    assert init_to_fan_in({"fn": fn}).std() == pytest.approx(math.sqrt(2 / 40), rel=0.1)


def test_dtype_is_that_of_the_site() -> None:
    node = _node(dist.Normal(torch.zeros(3, 2, dtype=torch.float64), 1.0).to_event(2))
    assert init_to_fan_in(node).dtype == torch.float64


def test_starts_differ_from_call_to_call() -> None:
    node = _node(dist.Normal(0.0, 1.0).expand([3, 4]).to_event())
    assert not torch.equal(init_to_fan_in(node), init_to_fan_in(node))


@pytest.mark.parametrize(
    ("shape", "scale"), [((), 1.0), ((7,), 1.0), ((7, 4), 0.5), ((2, 4, 2, 2), 0.25)]
)
def test_scale_of_a_site(shape: tuple[int, ...], scale: float) -> None:
    assert fan_in_scale(_site(dist.Normal(0.0, 1.0).expand(shape).to_event())) == scale


def test_scale_leaves_plates_out() -> None:
    def model() -> None:
        with pyro.plate("many", 5):
            pyro.sample("x", dist.Normal(torch.zeros(3, 4), 1.0).to_event(2))

    node = poutine.trace(model).get_trace().nodes["x"]
    assert fan_in_scale(LatentSite.from_trace(node, allow_subsample=False)) == 0.5


@pytest.mark.parametrize(
    "fn", [dist.HalfCauchy(1.0), dist.Pareto(0.5, 0.9), dist.InverseGamma(0.8, 1.0)]
)
def test_an_infinite_prior_mean_is_no_start(fn: dist.TorchDistribution) -> None:
    """Pyro's init_to_mean looks for NaN only."""

    def model(x: torch.Tensor) -> None:
        with pyro.plate("data", len(x)):
            scale = pyro.sample("scale", fn)
            pyro.sample("y", dist.Normal(0.0, scale), obs=x[:, 0])

    x = torch.ones(3, 1)
    guides = (
        ConditionalHyperNetworkGuide(model),
        MMNNGuide(model),
        HyperNetworkGuide(model, init_loc_fn=init_to_mean),
    )
    for guide in guides:
        scale = guide(x)["scale"]
        assert scale.isfinite().all() and fn.support.check(scale).all()


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_start_that_is_not_finite_is_refused(value: float) -> None:
    def start(site: dict) -> torch.Tensor:
        return torch.tensor(value) if site["name"] == "b" else init_to_median(site)

    def model() -> None:
        pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("b", dist.Normal(0.0, 1.0))

    with pytest.raises(SiteError, match="start for latent site 'b' that is not finite"):
        HyperNetworkGuide(model, init_loc_fn=start).setup()
