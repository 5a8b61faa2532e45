"""Chains do not stay where a model's distributions have no parameters."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import refine
from pyro_implicit.chains.domain import check_domain
from pyro_implicit.exceptions import SiteError

X = torch.linspace(0, 1, 12)
Y = torch.tensor([0.0, 0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1])
START = {"a": torch.full((8,), 0.3), "b": torch.full((8,), 0.4)}
REFUSED = r"points of the chains .* has no density: Expected parameter probs.*logits="


def linear(x: Tensor, y: Tensor | None = None) -> None:
    a, b = pyro.sample("a", dist.Normal(0.5, 0.5)), pyro.sample("b", dist.Normal(0.0, 2.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Bernoulli(a + b * x), obs=y)


def logistic(x: Tensor, y: Tensor | None = None) -> None:
    a, b = pyro.sample("a", dist.Normal(0.5, 0.5)), pyro.sample("b", dist.Normal(0.0, 2.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=a + b * x), obs=y)


def chains_of(model: Any, **options: Any) -> Any:
    given: dict[str, Any] = {"num_chains": 8, "num_steps": 600, "seed": 0, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return refine(model, START, X, Y, **(given | options))


@pytest.mark.parametrize("options", [{}, {"dtype": torch.float64}, {"kernel": "mclmc"}])
def test_probabilities_beyond_one_are_refused(options: Any) -> None:
    with pytest.raises(SiteError, match=REFUSED):
        chains_of(linear, **options)
    chains_of(logistic, **options)


def test_a_rate_below_zero_is_refused() -> None:
    def counts(y: Tensor) -> None:
        rate = pyro.sample("rate", dist.Normal(0.3, 1.0))
        with pyro.plate("rows", 3):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    start = {"rate": torch.full((4,), 0.3)}
    with warnings.catch_warnings(), pytest.raises(SiteError, match="Expected parameter rate"):
        warnings.simplefilter("ignore")
        refine(counts, start, torch.zeros(3), kernel="hmc", num_steps=600, seed=0, progress=False)


def test_who_turns_checks_off_has_none() -> None:
    with pyro.validation_enabled(False):
        chains_of(linear)


def test_chains_that_go_on_are_looked_at_again() -> None:
    beyond = [False]

    def model(x: Tensor, y: Tensor | None = None) -> None:
        a = pyro.sample("a", dist.Normal(0.5, 0.5))
        b = pyro.sample("b", dist.Normal(0.0, 2.0))
        scale = -1.0 if beyond[0] and not torch.is_grad_enabled() else 1.0
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(a + b * x, scale), obs=y)

    chains = chains_of(model)
    beyond[0] = True
    with warnings.catch_warnings(), pytest.raises(SiteError, match="Expected parameter scale"):
        warnings.simplefilter("ignore")
        chains.run(200, progress=False)


def test_a_point_or_two_by_rounding_are_no_reason() -> None:
    chains = chains_of(logistic)
    density = chains._program.density(chains.sites, torch.float32)
    check_domain(density, chains.unconstrained)

    class OneOff:
        typed = staticmethod(nullcontext)
        calls = 0

        def log_joint(self, point: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 3:
                dist.Bernoulli(torch.tensor(1.1))
            return point.sum()

    one: Any = OneOff()
    check_domain(one, torch.zeros(100, 2))
    assert one.calls == 32
