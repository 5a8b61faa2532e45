"""Looped particles that are reduced together see the same minibatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import (
    AdversarialELBO,
    AlphaEnergy,
    HyperNetworkGuide,
    KernelDensityRatioELBO,
    LinearisedELBO,
    PosteriorPredictiveLoss,
)
from pyro_implicit.exceptions import SiteError

pytestmark = pytest.mark.usefixtures("double")
Make = Callable[..., Any]
N = 12
Y = torch.linspace(-5, 5, N, dtype=torch.float64)
POOLED: dict[str, Make] = {
    "per_datum": lambda n: PosteriorPredictiveLoss(n),
    "per_batch": lambda n: PosteriorPredictiveLoss(n, form="per_batch"),
    "elbo": lambda n: LinearisedELBO(n, likelihood="per_datum"),
    "alpha": lambda n: AlphaEnergy(n, alpha=0.5),
    "kernel": lambda n: KernelDensityRatioELBO(n, num_samples=20),
    "kernel-prior": lambda n: KernelDensityRatioELBO(n, num_samples=20, contrast="prior"),
    "critic": lambda n: AdversarialELBO(n, num_samples=20, num_critic_steps=1),
}


class Program:
    """A model that remembers which rows each of its runs was shown."""

    def __init__(self, choose: Callable[[], Tensor] | None = None) -> None:
        self.choose = choose
        self.shown: list[list[int]] = []

    def __call__(self, size: int | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        subsample = self.choose() if self.choose and size else None
        own = {"subsample": subsample} if subsample is not None else {"subsample_size": size}
        with pyro.plate("data", N, **own) as rows:
            pyro.sample("y", dist.Normal(w, 1.0), obs=Y[rows])
        for i in pyro.plate("loop", N, subsample_size=size and 2):
            pyro.sample(f"z_{i}", dist.Normal(w, 1.0), obs=Y[i])
        self.shown.append(rows.tolist())


@pytest.mark.parametrize("name", POOLED)
def test_all_particles_see_the_rows_of_the_first(name: str) -> None:
    program = Program()
    guide = HyperNetworkGuide(program, scale=0.1).setup()
    for _ in range(2):
        program.shown.clear()
        POOLED[name](4).loss(program, guide, 3)
        first, *later = program.shown[:4]
        assert later == [first] * 3
        assert len(set(first)) == 3
    chosen = set()
    for _ in range(5):  # of each evaluation anew
        program.shown.clear()
        POOLED[name](2).loss(program, guide, 3)
        chosen.add(tuple(program.shown[0]))
    assert len(chosen) > 1


@pytest.mark.parametrize("name", ["per_datum", "per_batch", "elbo", "alpha"])
def test_the_likelihood_of_a_point_is_that_of_its_rows(name: str) -> None:
    """A guide without spread: every form is the sum over data of their log-density."""
    program = Program()
    guide = HyperNetworkGuide(program, init_scale=1e-6).setup().double()
    w = guide.median()["w"]
    each = dist.Normal(w, 1.0).log_prob(Y)
    values = []
    for size in (None, 3):
        program.shown.clear()
        terms = POOLED[name](5).terms(program, guide, size)
        values.append(terms["log_predictive"].item())
    full, some = values
    assert full == pytest.approx(2 * each.sum().item(), rel=1e-4)
    rows = torch.tensor(program.shown[0])
    looped = some - 4 * each[rows].sum().item()  # what the loop added: two rows, six times each
    pairs = 6 * (each[:, None] + each[None])
    assert (pairs - looped).abs().min() < 1e-3 * abs(looped)


def test_expected_likelihoods_keep_rows_of_their_own() -> None:
    """They are unbiased either way, with less variance so."""
    program = Program()
    guide = HyperNetworkGuide(program).setup()
    program.shown.clear()
    LinearisedELBO(6).loss(program, guide, 3)
    assert len({tuple(rows) for rows in program.shown}) > 1


def test_rows_that_the_guide_shares_are_those_of_all_particles() -> None:
    shown = []

    def plate(size: int) -> Any:
        return pyro.plate("data", N, subsample_size=size)

    def model(size: int) -> None:
        with plate(size) as rows:
            shown.append(rows.tolist())
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=Y[rows])

    guide = HyperNetworkGuide(model, create_plates=plate).setup(3)
    shown.clear()
    LinearisedELBO(4, likelihood="per_datum").loss(model, guide, 3)
    assert shown == [shown[0]] * 4


def test_rows_given_by_the_caller_are_left_alone() -> None:
    rows = torch.tensor([7, 2, 5])
    program = Program(lambda: rows)
    guide = HyperNetworkGuide(program).setup()
    program.shown.clear()
    PosteriorPredictiveLoss(3).loss(program, guide, 3)
    assert program.shown == [[7, 2, 5]] * 3
    program = Program(lambda: torch.tensor([7, 2, 5]))  # equal, not the same
    PosteriorPredictiveLoss(3).loss(program, guide, 3)


@pytest.mark.parametrize("name", POOLED)
def test_rows_that_the_model_draws_by_itself_are_refused(name: str) -> None:
    program = Program(lambda: torch.randperm(N)[:3])
    guide = HyperNetworkGuide(program, scale=0.1).setup()
    with pytest.raises(SiteError, match="plate 'data' shows each particle other rows.*subsample_s"):
        POOLED[name](4).loss(program, guide, 3)
    assert LinearisedELBO(4).loss(program, guide, 3) < float("inf")
