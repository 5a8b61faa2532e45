"""Chains do not stay where a model's distributions have no parameters."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from types import SimpleNamespace
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


def test_data_that_a_latent_shifts_out_of_their_support_are_refused() -> None:
    times = 2.0 + torch.linspace(0.1, 3.0, 10)

    def shifted(y: Tensor, held: bool) -> None:
        below = pyro.sample("below", dist.Gamma(1.0, 1.0)) if held else None
        dead = pyro.sample("dead", dist.Normal(1.0, 1.0)) if below is None else y.min() - below
        with pyro.plate("rows", 10):
            law = dist.Exponential(torch.tensor(1.0).to(y))
            shift = dist.transforms.AffineTransform(dead, 1.0)
            pyro.sample("y", dist.TransformedDistribution(law, [shift]), obs=y)

    options: Any = {"kernel": "hmc", "num_steps": 1000, "seed": 0, "progress": False}
    start = {"dead": torch.full((8,), 1.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(SiteError, match="to be within the support .* of the distribution Exp"):
            refine(shifted, start, times, False, **options)
        chains = refine(shifted, {"below": torch.full((8,), 0.5)}, times, True, **options)
    # a Gamma of density exp(-11 b), whose mean is 1 / 11
    assert abs(float(chains.unconstrained.exp().mean()) * 11 - 1) < 0.3


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


def topics(y: Tensor) -> None:
    """A sure event has a probability of 1 + 1e-7 here and there."""
    w = pyro.sample("w", dist.Dirichlet(torch.ones(7)))
    table = torch.stack([torch.ones(7), torch.linspace(0.1, 0.9, 7)], -1).to(w)
    with pyro.plate("rows", 2):
        pyro.sample("y", dist.Bernoulli((w[..., None] * table).sum(-2)), obs=y)


def precision(x: Tensor) -> None:
    """The inverse of a matrix is not symmetric to a rounding error."""
    w = pyro.sample("w", dist.Normal(torch.zeros(10, 2), 1.0).to_event(2))
    cov = 100 * w @ w.mT + torch.eye(10).to(w)
    with pyro.plate("rows", len(x)):
        law = dist.MultivariateNormal(torch.zeros(10).to(w), precision_matrix=torch.linalg.inv(cov))
        pyro.sample("x", law, obs=x)


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize(
    ("model", "data"),
    [(topics, torch.tensor([1.0, 0.0])), (precision, torch.randn(30, 10))],
)
def test_rounding_is_no_reason(model: Any, data: Tensor, dtype: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refine(model, 2, data, num_steps=200, seed=0, dtype=dtype, progress=False)


class Looked:
    """A program at some of whose points a parameter is refused, in double precision or not."""

    def __init__(self, num_refused: int, wide: str) -> None:
        self.num_refused, self.wide = num_refused, wide

    def density(self, sites: Any, dtype: torch.dtype) -> Any:
        def log_joint(point: Tensor) -> None:
            is_bad = float(point[0]) < self.num_refused
            if is_bad and (dtype is torch.float32 or self.wide == "refused"):
                dist.Bernoulli(torch.tensor(1.1))
            if is_bad and self.wide == "unknown":
                raise RuntimeError("expected m1 and m2 to have the same dtype")

        return SimpleNamespace(log_joint=log_joint, typed=nullcontext)


@pytest.mark.parametrize(
    ("num_refused", "wide", "is_wrong"),
    [
        (32, "taken", False),
        (3, "refused", False),
        (4, "refused", True),
        (15, "unknown", False),
        (16, "unknown", True),
    ],
)
def test_who_counts(num_refused: int, wide: str, is_wrong: bool) -> None:
    points = torch.arange(32.0)[:, None]
    looked: Any = Looked(num_refused, wide)
    if not is_wrong:
        check_domain(looked, [], points)
        return
    with pytest.raises(SiteError, match=f"at {num_refused} of 32 points"):
        check_domain(looked, [], points)
