"""How much the copies of a Gaussian add to its bound, against the mixture of all of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit.guides.initialization.copies import Copies, find_copies
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.log_joint import LogJoint

UNITS = 3
DATA = torch.linspace(-1, 1, 4)[:, None], torch.zeros(4)


def network(x: Tensor, y: Tensor, phi: Any = torch.tanh) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([1, UNITS]).to_event(2))
    u = pyro.sample("u", dist.Normal(0.0, 1.0).expand([UNITS, UNITS]).to_event(2))
    v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([UNITS, 1]).to_event(2))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal((phi(phi(x @ w) @ u) @ v)[..., 0], 1.0), obs=y)


NUM_LATENTS = UNITS * (UNITS + 2)


def _sites(model: Any, *args: Any, **kwargs: Any) -> list[LatentSite]:
    trace = poutine.trace(model).get_trace(*args, **kwargs)
    return [
        LatentSite.from_trace(trace.nodes[name], False)
        for name in trace.stochastic_nodes
        if name != "data"
    ]


def _copies(phi: Any = torch.tanh) -> Copies:
    sites = _sites(network, *DATA)
    points = [torch.randn(NUM_LATENTS) for _ in range(3)]
    return find_copies(LogJoint(network, sites, DATA, {"phi": phi}), sites, points, points[0])


def _gain_of_mixture(loc: Tensor, factor: Tensor, odd: bool) -> float:
    """Of all orders of the units of both layers, and of all of their signs, by draws."""
    parts = torch.arange(NUM_LATENTS).split([UNITS, UNITS * UNITS, UNITS])
    w, u, v = parts[0], parts[1].reshape(UNITS, UNITS), parts[2]
    flips = list(itertools.product([1.0, -1.0], repeat=UNITS)) if odd else [(1.0,) * UNITS]
    signs = [
        torch.cat([a, (a[:, None] * b).flatten(), b])
        for a in map(torch.tensor, flips)
        for b in map(torch.tensor, flips)
    ]
    places = [
        torch.cat([w[p], u[p][:, q].flatten(), v[q]])
        for p in map(torch.tensor, itertools.permutations(range(UNITS)))
        for q in map(torch.tensor, itertools.permutations(range(UNITS)))
    ]
    root = factor if factor.dim() == 2 else factor.diag()
    gaussian = dist.MultivariateNormal(loc.double(), scale_tril=_lower(root.double()))
    draws = gaussian.sample((300,))
    images = torch.stack([draws[:, place] * sign for place in places for sign in signs])
    mixture = gaussian.log_prob(images).logsumexp(0) - math.log(len(images))
    return float((gaussian.log_prob(draws) - mixture).mean())


def _lower(root: Tensor) -> Tensor:
    return torch.linalg.cholesky(root @ root.mT)


@pytest.mark.parametrize("phi", [torch.tanh, torch.relu])
def test_units_that_differ_are_worth_all_their_orders_and_signs(phi: Any) -> None:
    torch.manual_seed(0)
    loc, scale = 3 * torch.randn(NUM_LATENTS), torch.full((NUM_LATENTS,), 0.05)
    expected = 2 * math.log(math.factorial(UNITS)) + 2 * UNITS * math.log(2) * (phi == torch.tanh)
    assert _copies(phi).nats(loc, scale) == pytest.approx(expected, abs=0.01)


def test_what_was_given_up_to_the_prior_gains_nothing() -> None:
    loc, scale = torch.zeros(NUM_LATENTS), torch.ones(NUM_LATENTS)
    assert _copies().nats(loc, scale) == pytest.approx(0.0, abs=1e-6)
    assert _copies().nats(loc, scale.diag()) == pytest.approx(0.0, abs=1e-6)


def test_what_has_no_copies_is_not_credited() -> None:
    """As the scale of the noise, however far from the prior."""

    def noisy(x: Tensor, y: Tensor) -> None:
        sigma = pyro.sample("sigma", dist.LogNormal(0.0, 1.0))
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([1, UNITS]).to_event(2))
        v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([UNITS, 1]).to_event(2))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(((x @ w).tanh() @ v)[..., 0], sigma), obs=y)

    sites = _sites(noisy, *DATA)
    points = [torch.randn(1 + 2 * UNITS) for _ in range(3)]
    copies = find_copies(LogJoint(noisy, sites, DATA, {}), sites, points, points[0])
    loc, scale = torch.zeros(1 + 2 * UNITS), torch.ones(1 + 2 * UNITS)
    loc[0], scale[0] = -6.0, 0.01
    assert len(copies.groups) == 1 and copies.nats(loc, scale) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("correlated", [False, True])
@pytest.mark.parametrize("phi", [torch.tanh, torch.relu])
def test_it_is_near_what_the_mixture_gains(correlated: bool, phi: Any) -> None:
    """Units that differ more or less, and of which some may be given up."""
    errors = []
    for seed in range(20):
        torch.manual_seed(seed)
        spread, known = float(2.5 * torch.rand(())), float(0.05 + 0.95 * torch.rand(()))
        loc, factor = spread * torch.randn(NUM_LATENTS), known ** torch.rand(NUM_LATENTS)
        if correlated:
            factor = factor.diag() + 0.1 * torch.randn(NUM_LATENTS, NUM_LATENTS).tril(-1)
        gain = _gain_of_mixture(loc, factor, phi is torch.tanh)
        errors.append(abs(_copies(phi).nats(loc, factor) - gain))
    assert max(errors) < 4.0 and sum(errors) / len(errors) < 0.8


@pytest.mark.long
def test_of_many_units_some_pairs_tell() -> None:
    """Two kinds of 40 units each."""
    n = 80

    def wide(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([1, n]).to_event(2))
        v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([n, 1]).to_event(2))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(((x @ w).relu() @ v)[..., 0], 1.0), obs=y)

    sites = _sites(wide, *DATA)
    points = [torch.randn(2 * n) for _ in range(3)]
    copies = find_copies(LogJoint(wide, sites, DATA, {}), sites, points, points[0])
    kind = torch.randperm(n) % 2
    loc = torch.cat([3.0 * kind, -2.0 * kind])
    expected = math.lgamma(n + 1) - 2 * math.lgamma(n // 2 + 1)
    found = copies.nats(loc, torch.full((2 * n,), 0.1))
    assert found == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("fails", ["raises", "has no density", "is random", "takes no doubles"])
def test_models_that_cannot_be_looked_at_have_none_or_are_looked_at_in_single(fails: str) -> None:
    weights = torch.eye(UNITS)

    def model(x: Tensor, y: Tensor) -> None:
        network(x, y)
        if fails == "raises":
            raise KeyError("of a model's own")
        if fails == "has no density":
            pyro.factor("nothing", torch.tensor(-math.inf))
        if fails == "is random":
            pyro.factor("noise", torch.randn(()))
        if fails == "takes no doubles":
            pyro.factor("single", torch.zeros(UNITS) @ weights @ torch.zeros(UNITS).to(x))

    sites = _sites(network, *DATA)
    points = [torch.randn(NUM_LATENTS) for _ in range(3)]
    found = find_copies(LogJoint(model, sites, DATA, {}), sites, points, points[0])
    assert len(found.groups) == 2 * (fails == "takes no doubles")


def test_where_no_draw_has_a_density_it_is_looked_for_near_the_location() -> None:
    sites, nowhere = _sites(network, *DATA), torch.full((NUM_LATENTS,), math.inf)
    joint = LogJoint(network, sites, DATA, {})
    assert find_copies(joint, sites, [nowhere], torch.zeros(NUM_LATENTS)).groups
    assert not find_copies(joint, sites, [nowhere], nowhere).groups
