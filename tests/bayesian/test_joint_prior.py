"""One Gaussian prior over several sites: its density, its draws, and what it refuses."""

from __future__ import annotations

import copy
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from torch import Tensor, nn
from torch.distributions import biject_to

from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO
from pyro_implicit.bayesian.joint_prior import JointPrior
from pyro_implicit.bayesian.joint_site import JointSite
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError

A = JointSite("a", torch.Size([2, 2]), 2, constraints.independent(constraints.real, 2))
B = JointSite("b", torch.Size([]), 0, constraints.positive)
C = JointSite("c", torch.Size([3]), 1, constraints.simplex)
SITES = [A, B, C]  # 4 + 1 + 2 entries


def model(order: str = "abc") -> None:
    for name in order:
        if name == "a":
            pyro.sample("a", dist.Normal(torch.zeros(2, 2), 1.0).to_event(2))
        if name == "b":
            pyro.sample("b", dist.LogNormal(0.0, 1.0))
        if name == "c":
            pyro.sample("c", dist.Dirichlet(torch.ones(3)))


def numbers() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(7), 0.5 + torch.rand(7), torch.randn(7, 2)


def made(form: str) -> tuple[JointPrior, Tensor]:
    """A prior and its covariance."""
    loc, scale, factor = numbers()
    diagonal = torch.diag(scale.square())
    if form == "diagonal":
        return JointPrior(SITES, loc, scale), diagonal
    covariance = diagonal + factor @ factor.mT
    if form == "low rank":
        return JointPrior(SITES, loc, scale, factor), covariance
    return JointPrior(SITES, loc, covariance=covariance), covariance


FORMS = ["diagonal", "low rank", "full"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("particles", [None, 5])
def test_the_density_of_all_sites_together(form: str, particles: int | None) -> None:
    prior, covariance = made(form)
    replaced = prior(model)
    if particles:
        replaced = pyro.plate("particles", particles, dim=-1)(replaced)
    trace = poutine.trace(replaced).get_trace()
    trace.compute_log_prob()
    nodes = [trace.nodes[site.name] for site in SITES]
    total = sum(node["log_prob"] for node in nodes)
    u = torch.cat([s.flat(n["value"]) for s, n in zip(SITES, nodes, strict=True)], -1)
    expected = dist.MultivariateNormal(prior.loc, covariance).log_prob(u)
    expected = expected - biject_to(B.support).log_abs_det_jacobian(u[..., 4], u[..., 4].exp())
    transform = biject_to(C.support)
    expected = expected - transform.log_abs_det_jacobian(u[..., 5:], transform(u[..., 5:]))
    assert u.shape == ((particles, 7) if particles else (7,))
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_moments_of_draws(form: str) -> None:
    prior, covariance = made(form)
    torch.manual_seed(1)
    with pyro.plate("draws", 20_000):
        trace = poutine.trace(prior(model)).get_trace()
    u = torch.cat([site.flat(trace.nodes[site.name]["value"]) for site in SITES], -1)
    spread = covariance.diagonal().sqrt()
    assert ((u.mean(0) - prior.loc).abs() / spread).max() < 0.035  # 5 standard errors
    assert ((u.mT.cov() - covariance).abs() / spread.outer(spread)).max() < 0.06


@pytest.mark.parametrize("form", FORMS)
def test_a_part_is_the_marginal(form: str) -> None:
    prior, covariance = made(form)
    part = prior.restricted(["c", "a"])
    where = torch.tensor([0, 1, 2, 3, 5, 6])
    kept = covariance[where][:, where]
    assert part.names == ("a", "c") and prior.restricted(["a", "b", "c"]) is prior
    found = torch.zeros(6, 6)
    if part.root is not None:
        found = part.root @ part.root.mT
    elif part.scale is not None:
        found = torch.diag(part.scale.square())
        found = found if part.factor is None else found + part.factor @ part.factor.mT
    torch.testing.assert_close(found, kept)
    poutine.trace(part(model)).get_trace()


def test_it_is_a_module_of_buffers() -> None:
    prior, _ = made("low rank")
    assert not list(prior.parameters()) and set(prior.state_dict()) == {"loc", "scale", "factor"}
    assert repr(prior) == "JointPrior(3 sites with 7 entries, low rank (2))"
    wide = copy.deepcopy(prior).double()
    assert wide.loc.dtype == torch.float64 and prior.loc.dtype == torch.float32
    trace = poutine.trace(wide(model)).get_trace()
    assert trace.nodes["c"]["value"].dtype == torch.float64


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_guides_and_objectives_take_it(form: str, vectorised: bool) -> None:
    prior, _ = made(form)
    replaced: Any = prior(model)
    guide = HyperNetworkGuide(replaced)
    objective = LinearisedELBO(3, vectorize_particles=vectorised)
    for _ in range(2):
        objective.loss_and_grads(replaced, guide)


@pytest.mark.long
def test_without_data_the_posterior_is_the_prior() -> None:
    """A Gaussian of unconstrained values, which a start by curvature finds."""
    replaced: Any = made("full")[0](model)
    guide = HyperNetworkGuide(replaced, init_from="laplace")
    assert abs(LinearisedELBO(500, vectorize_particles=True).loss(replaced, guide)) < 0.3


# ---- a network


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1))


@pytest.mark.parametrize("form", FORMS)
def test_a_network_takes_its_part(form: str) -> None:
    net = BayesianModule(network(), prior=dist.Normal(0.0, 1.0), name="net")

    def regression() -> None:
        pyro.sample("sigma", dist.LogNormal(0.0, 1.0))
        net(torch.ones(3, 1))

    trace = poutine.trace(regression).get_trace()
    sites = [
        JointSite(n, x["value"].shape, x["fn"].event_dim, x["fn"].support)
        for n, x in trace.nodes.items()
        if x["type"] == "sample"
    ]
    m = sum(site.numel for site in sites)
    more = {
        "diagonal": {"scale": torch.ones(m)},
        "low rank": {"scale": torch.ones(m), "factor": torch.randn(m, 2)},
        "full": {"covariance": torch.eye(m) + 0.5},
    }
    prior = JointPrior(sites, torch.randn(m), **more[form])
    again = BayesianModule(network(), prior=prior, name="net")
    assert again.site_names == net.site_names
    with pyro.plate("particles", 4, dim=-2):
        assert again(torch.ones(3, 1)).shape == (4, 3, 1)
    assert again.joint_prior is not None and "joint_prior.loc" in again.state_dict()
    if form == "diagonal":
        fn = poutine.trace(again).get_trace(torch.ones(3, 1)).nodes["net.0.bias"]["fn"]
        torch.testing.assert_close(fn.base_dist.loc, prior.loc[3:5])


def test_a_network_that_it_does_not_know() -> None:
    site = JointSite("0.weight", torch.Size([2, 1]), 2, constraints.real)
    prior = JointPrior([site], torch.zeros(2), torch.ones(2))
    assert BayesianModule(network(), prior=prior).site_names == ("0.weight",)
    with pytest.raises(ArgumentError, match="it selects none.*the name that it had"):
        BayesianModule(network(), prior=prior, name="other")
    with pytest.raises(ShapeError, match=r"'0.weight' of shape \(2, 1\).* has shape \(3, 1\)"):
        BayesianModule(nn.Sequential(nn.Linear(1, 3)), prior=prior)


# ---- what is refused


def test_sites_that_the_model_does_not_sample() -> None:
    prior, _ = made("diagonal")

    def other() -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))

    with pytest.raises(SiteError, match=r"\['a', 'b', 'c'\], and the model samples none of them"):
        prior(other)()
    replaced = prior(model)
    with pytest.warns(UserWarning, match=r"\['c'\], which .*restricted\(\['a', 'b'\]\)") as told:
        replaced("ab")
    assert told[0].filename == __file__
    replaced("a")  # said once
    prior.restricted(["a", "b"])(model)("ab")
    with prior.replacing():  # a part of a model may have no site of it
        other()


def test_sites_that_are_not_those_of_the_prior() -> None:
    prior, _ = made("full")
    with pytest.raises(SiteError, match="samples 'b' where the joint prior expects 'a'"):
        prior(model)("bac")
    made("diagonal")[0](model)("cba")  # independent: in any order

    def wider() -> None:
        pyro.sample("a", dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))

    with pytest.raises(SiteError, match=r"'a' has batch shape \(\) and event shape \(3, 2\)"):
        prior(wider)()

    def in_plate() -> None:
        with pyro.plate("rows", 2):
            pyro.sample("p", dist.Normal(0.0, 1.0))

    site = JointSite("p", torch.Size([2]), 0, constraints.real)
    independent = JointPrior([site], torch.zeros(2), torch.ones(2))
    assert poutine.trace(independent(in_plate)).get_trace().nodes["p"]["value"].shape == (2,)
    with pytest.raises(SiteError, match="'p' is in a plate of the model, whose rows"):
        JointPrior([site], torch.zeros(2), covariance=torch.eye(2))(in_plate)()


def test_numbers_that_do_not_fit() -> None:
    loc, scale, factor = numbers()
    with pytest.raises(ArgumentError, match=r"names \['a', 'a'\]"):
        JointPrior([A, A], loc, scale)
    with pytest.raises(ArgumentError, match="expected a sequence of JointSite"):
        JointPrior("abc", loc, scale)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"names=\['d'\]; expected some of the sites \['a'"):
        made("full")[0].restricted(["d"])
    with pytest.raises(ArgumentError, match="loc is a float|loc is 1.0"):
        JointPrior(SITES, 1.0, scale)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="either scale, with a factor or without, or covar"):
        JointPrior(SITES, loc)
    with pytest.raises(ArgumentError, match="either scale"):
        JointPrior(SITES, loc, None, factor)
    with pytest.raises(ArgumentError, match="either scale"):
        JointPrior(SITES, loc, scale, covariance=torch.eye(7))
    with pytest.raises(ShapeError, match=r"loc has shape \(6,\).* 7 unconstrained"):
        JointPrior(SITES, loc[:6], scale)
    with pytest.raises(ShapeError, match=r"factor has shape \(2, 7\).*expected \(7, 7\)"):
        JointPrior(SITES, loc, scale, factor.mT)
    with pytest.raises(ArgumentError, match="scale has entries that are not positive"):
        JointPrior(SITES, loc, -scale)
    with pytest.raises(ArgumentError, match="covariance is not positive definite"):
        JointPrior(SITES, loc, covariance=factor @ factor.mT)
    asymmetric = made("full")[1].tril()
    with pytest.raises(ArgumentError, match=r"covariance is not symmetric: entry \[\d, \d\] is"):
        JointPrior(SITES, loc, covariance=asymmetric)
    whole = asymmetric + asymmetric.tril(-1).mT  # as the message says
    rounded = whole * (1.0 + 1e-6 * torch.randn(7, 7))
    root = JointPrior(SITES, loc, covariance=rounded).root
    assert root is not None
    torch.testing.assert_close(root @ root.mT, whole)


def test_numbers_of_other_types() -> None:
    loc, scale, factor = numbers()
    ones = torch.ones(7, dtype=torch.int64)
    with pytest.raises(ArgumentError, match=r"loc is of type torch.int64.*loc.float\(\)"):
        JointPrior(SITES, ones, ones)
    with pytest.raises(ArgumentError, match="scale is of type torch.int64"):
        JointPrior(SITES, loc, ones)
    with pytest.raises(ArgumentError, match=r"factor is of type torch.float64 and loc of.*\.to\("):
        JointPrior(SITES, loc, scale, factor.double())
    with pytest.raises(ArgumentError, match="covariance is of type torch.float64"):
        JointPrior(SITES, loc, covariance=torch.eye(7).double())


def test_a_site_on_another_support_is_refused() -> None:
    site = JointSite("s", torch.Size(()), 0, constraints.positive)
    prior = JointPrior([site], torch.zeros(1), torch.ones(1))
    prior(lambda: pyro.sample("s", dist.LogNormal(0.0, 1.0)))()
    with pytest.raises(SiteError, match="'s' has the support .* joint prior is for"):
        prior(lambda: pyro.sample("s", dist.Uniform(0.0, 1.0)))()
