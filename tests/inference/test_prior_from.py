"""Yesterday's posterior as today's prior: sequential updates against all data at once."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoIAFNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from torch import Tensor

from pyro_implicit import (
    BayesianModule,
    ConditionalHyperNetworkGuide,
    EnsembleGuide,
    HyperNetworkGuide,
    posterior_draws,
    refine,
)
from pyro_implicit.exceptions import ArgumentError, SiteError, StateError
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.inference import prior_from
from tests.inference.line import DESIGN, X, Y, line


def exact(design: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the posterior of a line, in closed form."""
    precision = torch.eye(4) + design.mT @ design / 0.25
    return torch.linalg.solve(precision, design.mT @ y / 0.25), torch.linalg.inv(precision)


def fitted(rows: slice) -> AutoMultivariateNormal:
    """The exact posterior on some rows."""
    guide = AutoMultivariateNormal(line)
    guide(X[rows], Y[rows])
    loc, covariance = exact(DESIGN[rows], Y[rows])
    root = torch.linalg.cholesky(covariance)
    with torch.no_grad():
        guide.loc.copy_(loc)
    guide.scale = root.diagonal()
    guide.scale_tril = root / root.diagonal().unsqueeze(-1)
    return guide


def gaps(model: Any, loc: Tensor, covariance: Tensor) -> Tensor:
    """What the log-joint density and a Gaussian differ by at several points; equal if both are."""
    guide = HyperNetworkGuide(model, init_from=None).setup(X[20:], Y[20:])
    log_joint = LogJoint(model, guide.sites, (X[20:], Y[20:]), {})
    posterior = dist.MultivariateNormal(loc, covariance)
    points = posterior.sample((6,)) + 0.3 * torch.randn(6, 4)
    return torch.stack([log_joint(u) - posterior.log_prob(u) for u in points]).detach()


def test_an_update_with_the_rest_is_the_posterior_of_all() -> None:
    model = prior_from(fitted(slice(20)), form="full")(line)
    found = gaps(model, *exact(DESIGN, Y))
    torch.testing.assert_close(found, found[0].expand(6), rtol=1e-4, atol=1e-3)


@pytest.mark.long
def test_the_same_from_draws() -> None:
    guide = HyperNetworkGuide(line, init_from=fitted(slice(20))).setup(X[:20], Y[:20])
    draws = guide.sample(50_000)
    prior = prior_from(guide, form="full", num_samples=50_000, seed=1)
    flat = torch.cat([draws["w"], draws["b"].unsqueeze(-1)], -1)
    spread = flat.std(0)
    assert prior.root is not None
    assert ((prior.loc - flat.mean(0)).abs() / spread).max() < 0.03
    found = (prior.root @ prior.root.mT - flat.mT.cov()) / spread.outer(spread)
    assert found.abs().max() < 0.05
    again = prior_from(guide, form="full", num_samples=50_000, seed=1)
    assert torch.equal(again.loc, prior.loc)


def test_low_rank_has_the_variances_and_some_of_the_covariances() -> None:
    full = prior_from(fitted(slice(20)), form="full")
    assert full.root is not None
    covariance = full.root @ full.root.mT
    errors = []
    for rank in (1, 3):
        low = prior_from(fitted(slice(20)), form="low-rank", rank=rank)
        assert low.factor is not None and low.scale is not None
        assert low.factor.shape == (4, rank)
        found = low.factor @ low.factor.mT + torch.diag(low.scale.square())
        torch.testing.assert_close(found.diagonal(), covariance.diagonal())
        errors.append(float((found - covariance).abs().max()))
    none = float((covariance - torch.diag(covariance.diagonal())).abs().max())
    assert errors[1] < errors[0] < none


def test_independent_latents_are_updated_exactly_by_a_diagonal() -> None:
    """Means of two groups, with a mean-field guide: variational continual learning is exact."""

    def means(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(torch.zeros(2), 2.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    y = torch.randn(30, 2) + 1.0
    guide = AutoNormal(means)
    guide(y[:10])
    precision = 0.25 + 10.0
    with torch.no_grad():
        guide.locs.mean.copy_(y[:10].sum(0) / precision)
    guide.scales.mean = torch.full((2,), precision**-0.5)
    model = prior_from(guide)(means)
    trace = poutine.trace(poutine.condition(model, data={"mean": torch.zeros(2)})).get_trace(y[10:])
    prior = trace.nodes["mean"]["fn"]
    both = precision + 20.0
    loc = (prior.mean * precision + y[10:].sum(0)) / both
    torch.testing.assert_close(loc, y.sum(0) / (0.25 + 30.0))
    torch.testing.assert_close(prior.stddev, torch.full((2,), precision**-0.5))
    wider = prior_from(guide, widen=2.0)
    assert wider.scale is not None
    torch.testing.assert_close(wider.scale, 2.0 * prior.stddev)


@pytest.mark.parametrize("kind", [AutoNormal, AutoDiagonalNormal, AutoLowRankMultivariateNormal])
def test_moments_of_gaussian_guides_need_no_draws(kind: Any) -> None:
    def positive() -> None:
        pyro.sample("a", dist.LogNormal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("b", dist.Normal(0.0, 1.0))

    guide = kind(positive)
    guide()
    priors = [prior_from(guide, form=f, seed=s) for f in ("diagonal", "full") for s in (0, 1)]
    assert torch.equal(priors[0].loc, priors[1].loc)
    assert priors[0].scale is not None
    torch.manual_seed(0)
    with pyro.plate("draws", 4000):
        draws = poutine.trace(guide).get_trace().nodes["a"]["value"].log()
    torch.testing.assert_close(draws.std(0), priors[0].scale[:2], rtol=0.06, atol=0.0)
    assert [site.name for site in priors[0].sites] == ["a", "b"]


@pytest.mark.long
def test_other_guides_by_draws() -> None:
    def by_hand() -> None:
        pyro.sample("w", dist.Normal(torch.tensor([1.0, 2.0]), 0.5).to_event(1))
        pyro.sample("s", dist.LogNormal(0.0, 0.3))

    prior = prior_from(by_hand, num_samples=4000, seed=0)
    assert prior.scale is not None and prior.names == ("w", "s")
    torch.testing.assert_close(prior.loc, torch.tensor([1.0, 2.0, 0.0]), rtol=0.0, atol=0.05)
    torch.testing.assert_close(prior.scale, torch.tensor([0.5, 0.5, 0.3]), rtol=0.08, atol=0.0)
    flow = AutoIAFNormal(line)
    flow(X, Y)
    assert prior_from(flow, num_samples=50).loc.shape == (4,)


def test_a_network_carries_on() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 1))

    def regression(net: BayesianModule) -> Any:
        def model(x: Tensor, y: Tensor) -> None:
            f = net(x).squeeze(-1)
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(f, 0.5), obs=y)

        return model

    first = regression(BayesianModule(network, prior=dist.Normal(0.0, 1.0)))
    guide = HyperNetworkGuide(first, init_from=None).setup(X, Y)
    for form in ("diagonal", "low-rank", "full"):
        prior = prior_from(guide, form=form, num_samples=300)
        second = regression(BayesianModule(network, prior=prior))
        draws = HyperNetworkGuide(second, init_from=None).setup(X, Y).sample(3)
        assert draws["0.weight"].shape == (3, 2, 3)


# ---- what is refused


def test_posteriors_that_cannot_be_carried_on() -> None:
    guide = fitted(slice(20))
    with pytest.raises(ArgumentError, match="form='implicit'; expected 'diagonal', 'low-rank' or"):
        prior_from(guide, form="implicit")
    with pytest.raises(ArgumentError, match="rank=0"):
        prior_from(guide, rank=0)
    with pytest.raises(ArgumentError, match="widen=0"):
        prior_from(guide, widen=0.0)
    with pytest.raises(ArgumentError, match="num_samples=1;"):
        prior_from(guide, num_samples=1)
    by_draws = HyperNetworkGuide(line, init_from=None)
    with pytest.raises(StateError, match="not built yet"):
        prior_from(by_draws)
    by_draws.setup(X, Y)
    with pytest.raises(ArgumentError, match="num_samples=4; the covariance of 4 latents needs"):
        prior_from(by_draws, form="full", num_samples=4)
    point = AutoDelta(line)
    point(X, Y)
    with pytest.raises(SiteError, match=r"do not differ at \['w', 'b'\]: it is a point"):
        prior_from(point, num_samples=3)
    with pytest.raises(ArgumentError, match="a HyperNetworkGuide within handlers"):
        prior_from(poutine.condition(by_draws, data={"b": torch.tensor(0.0)}), X, Y)
    normal = AutoNormal(line)
    normal(X, Y)
    with pytest.raises(ArgumentError, match="a AutoNormal within handlers"):
        prior_from(poutine.block(normal, hide=["b"]), X, Y)
    with pytest.raises(SiteError, match="the guide has no latent site"):
        prior_from(lambda: None)


def test_latents_of_rows() -> None:
    def local(x: Tensor, y: Tensor) -> None:
        with plate(x):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=y)

    def plate(x: Tensor, *_: Any) -> Any:
        return pyro.plate("data", 80, subsample_size=len(x))

    some = HyperNetworkGuide(local, init_from=None, create_plates=plate).setup(X[:, 0], Y)
    with pytest.raises(SiteError, match="'z' is in plate 'data', which showed 40 of its 80 rows"):
        prior_from(some)
    with pytest.raises(ArgumentError, match="ConditionalHyperNetworkGuide, whose latents are func"):
        prior_from(ConditionalHyperNetworkGuide(local))
    both = [ConditionalHyperNetworkGuide(local), ConditionalHyperNetworkGuide(local)]
    with pytest.raises(ArgumentError, match="ConditionalHyperNetworkGuide, whose latents are func"):
        prior_from(EnsembleGuide(both))


def test_latents_that_trade_off_are_told() -> None:
    def traded(y: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", 3):
            u = pyro.sample("u", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(a + u[:1], 0.1), obs=y)

    guide = AutoMultivariateNormal(traded)
    guide(torch.zeros(5))
    with torch.no_grad():
        root = torch.eye(4)
        root[1, 0] = -2.0
        guide.scale_tril = root
    with pytest.warns(UserWarning, match="latents of 'a' and 'u' have a correlation of -0.89"):
        prior = prior_from(guide)
    with pytest.raises(SiteError, match=r"GuidePrior\(guide\); or form='diagonal'"):
        pyro.poutine.trace(prior_from(guide, form="full")(traded)).get_trace(torch.zeros(5))
    pyro.poutine.trace(prior(traded)).get_trace(torch.zeros(5))


def test_the_largest_of_many_correlations_of_few_draws_is_luck() -> None:
    def many() -> None:
        pyro.sample("b", dist.Normal(torch.zeros(300), 1.0).to_event(1))

    prior_from(many, num_samples=10, seed=0)

    def two() -> None:
        z = torch.randn(())
        pyro.sample("b", dist.Normal(z.expand(2), 0.1).to_event(1))

    with pytest.warns(UserWarning, match="latents of 'b' have a correlation of 0.9"):
        prior_from(two, num_samples=200, seed=0)


def test_a_function_without_its_arguments_is_told():
    with pytest.raises(ArgumentError, match="Hand over all that the model takes"):
        prior_from(line)


def two_latents() -> None:
    w = pyro.sample("w", dist.Normal(1.0, 0.5))
    pyro.sample("s", dist.LogNormal(0.0, 0.3))
    pyro.sample("y", dist.Normal(w, 1.0), obs=torch.zeros(()))


def kinds() -> dict[str, Any]:
    guides = [HyperNetworkGuide(two_latents, init_from=None).setup() for _ in range(2)]
    normal = AutoNormal(two_latents)
    normal()
    return {
        "ensemble": EnsembleGuide(guides),
        "ensemble of Pyro's": EnsembleGuide([normal]),
        "chains": refine(
            two_latents, guides[0], num_chains=2, num_steps=20, progress=False, seed=0
        ),
    }


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")  # chains of 20 steps are short
@pytest.mark.parametrize("kind", ["ensemble", "ensemble of Pyro's", "chains"])
def test_guides_that_pick_draws_have_moments_too(kind: str) -> None:
    guide = kinds()[kind]
    pyro.set_rng_seed(0)
    prior = prior_from(guide, num_samples=4000, seed=0)
    draws = posterior_draws(guide, 4000, seed=1)
    flat = torch.stack([draws["w"], draws["s"].log()], -1)
    pyro.set_rng_seed(0)
    told = [poutine.trace(prior(two_latents)).get_trace().nodes for _ in range(2000)]
    found = torch.stack([torch.stack([t["w"]["value"], t["s"]["value"].log()]) for t in told])
    torch.testing.assert_close(found.mean(0), flat.mean(0), atol=0.1, rtol=0.0)
    torch.testing.assert_close(found.std(0), flat.std(0), atol=0.1, rtol=0.1)
