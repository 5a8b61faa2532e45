"""How many copies of a Gaussian a network has, against the mixture of all of them."""

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

from pyro_implicit.guides.initialization.copies import Copies, hidden_widths, is_deep
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.log_joint import LogJoint

UNITS = 3


def network(x: Tensor, y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([1, UNITS]).to_event(2))
    v = pyro.sample("v", dist.Normal(0.0, 1.0).expand([UNITS, 1]).to_event(2))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(((x @ w).tanh() @ v)[..., 0], 1.0), obs=y)


def _sites(model: Any, *args: Any) -> list[LatentSite]:
    trace = poutine.trace(model).get_trace(*args)
    return [
        LatentSite.from_trace(trace.nodes[name], False)
        for name in trace.stochastic_nodes
        if name != "data"
    ]


def _copies() -> Copies:
    data = torch.linspace(-1, 1, 4)[:, None], torch.zeros(4)
    sites = _sites(network, *data)
    return Copies(LogJoint(network, sites, data, {}), sites)


def _divergence_of_mixture(loc: Tensor, scale: Tensor) -> float:
    """From the prior, of all orders of the units together, by draws."""
    prior = dist.Normal(torch.zeros(2 * UNITS), 1.0).to_event(1)
    orders = list(itertools.permutations(range(UNITS)))
    places = [[*order, *(UNITS + unit for unit in order)] for order in orders]
    parts = [dist.Normal(loc[place], scale[place]).to_event(1) for place in places]
    draws = parts[0].sample((20_000,))  # those of any copy have the same density
    density = torch.stack([part.log_prob(draws) for part in parts]).logsumexp(0)
    return float((density - math.log(len(parts)) - prior.log_prob(draws)).mean())


def _divergence(loc: Tensor, scale: Tensor) -> float:
    prior = dist.Normal(torch.zeros(2 * UNITS), 1.0)
    return float(torch.distributions.kl_divergence(dist.Normal(loc, scale), prior).sum())


def test_units_that_differ_are_worth_all_their_orders() -> None:
    torch.manual_seed(0)
    loc, scale = 3 * torch.randn(2 * UNITS), torch.full((2 * UNITS,), 0.05)
    gain = _divergence(loc, scale) - _divergence_of_mixture(loc, scale)
    assert gain == pytest.approx(math.log(math.factorial(UNITS)), abs=0.02)
    assert _copies().nats(loc, scale) == pytest.approx(gain, abs=0.02)


def test_what_was_given_up_to_the_prior_gains_nothing() -> None:
    loc, scale = torch.zeros(2 * UNITS), torch.ones(2 * UNITS)
    assert _divergence_of_mixture(loc, scale) == pytest.approx(0.0, abs=1e-4)
    assert _copies().nats(loc, scale) == pytest.approx(0.0, abs=1e-4)


def test_it_is_no_more_than_the_divergence() -> None:
    """Which the mixture's is not below zero."""
    loc, scale = torch.full((2 * UNITS,), 0.3), torch.full((2 * UNITS,), 0.9)
    found = _copies().nats(loc, scale)
    assert 0 < found < math.log(math.factorial(UNITS))
    assert found == pytest.approx(_divergence(loc, scale), rel=0.5)  # by a few draws


@pytest.mark.parametrize(
    ("shapes", "widths"),
    [
        ([(8, 3), (8,), (8, 8), (8,), (1, 8), (1,)], [8, 8]),  # torch's layers
        ([(3, 8), (8, 5), (5, 1)], [8, 5]),
        ([(3, 8)], []),
        ([(3, 8), (5, 1)], []),
        ([(6, 1, 3, 3), (16, 6, 3, 3), (10, 16)], [6, 16]),
    ],
)
def test_widths_are_read_off_the_weights(shapes: Any, widths: list[int]) -> None:
    def model() -> None:
        for index, shape in enumerate(shapes):
            pyro.sample(f"w{index}", dist.Normal(torch.zeros(shape), 1.0).to_event(len(shape)))

    assert hidden_widths(_sites(model)) == widths


def test_one_hidden_layer_is_not_deep() -> None:
    def model(*widths: int) -> None:
        for index, shape in enumerate(itertools.pairwise(widths)):
            pyro.sample(f"w{index}", dist.Normal(torch.zeros(shape), 1.0).to_event(2))

    assert not is_deep(_sites(model, 3, 8, 1)) and is_deep(_sites(model, 3, 8, 8, 1))
