"""Observations at the edge of a support are told by name, where they have no likelihood."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, config_enumerate
from pyro.optim import Adam

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, evaluate, fit, refine
from pyro_implicit.exceptions import NonFiniteError

KINDS: dict[str, Any] = {
    "Gamma": lambda w: dist.Gamma(w.exp() + 1.5, 1.0),
    "Beta": lambda w: dist.Beta(w.exp() + 1.5, 2.0),
}


def fitted(likelihood: Any, y: torch.Tensor, **around: Any) -> None:
    def model(y: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)), pyro.poutine.mask(mask=around.get("mask", True)):
            pyro.sample("y", likelihood(w), obs=y)

    fit(model, HyperNetworkGuide(model, init_from=None), y, num_steps=2, progress=False, seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_are_named(kind: str) -> None:
    y = torch.tensor([0.0, 0.5, 0.25, 0.0])
    with pytest.raises(NonFiniteError, match=f"'y' observes 2 values at the edge .* {kind} .*0"):
        fitted(KINDS[kind], y)


def test_rows_that_are_masked_do_not_count() -> None:
    y = torch.tensor([0.0, 0.5, 0.25])
    fitted(KINDS["Gamma"], y, mask=torch.tensor([False, True, True]))


def test_an_exponential_by_its_gamma_has_zeros() -> None:
    fitted(lambda w: dist.Gamma(torch.ones(()), w.exp()), torch.tensor([0.0, 0.5, 0.25]))


SHARES: dict[str, Any] = {
    "Chi2": (lambda w: dist.Chi2(w.exp() + 3.0), torch.tensor([0.0, 0.5])),
    "Kumaraswamy": (
        lambda w: dist.Kumaraswamy(w.exp() + 1.5, torch.full((), 2.0)),
        torch.tensor([0.0, 0.5]),
    ),
    "Dirichlet": (
        lambda w: dist.Dirichlet(w.exp() + 1.5 * torch.ones(2, 3)),
        torch.tensor([[0.0, 0.5, 0.5], [0.2, 0.3, 0.5]]),
    ),
}


@pytest.mark.parametrize("kind", SHARES)
def test_the_edges_of_their_kin_are_named_too(kind: str) -> None:
    likelihood, y = SHARES[kind]
    with pytest.raises(NonFiniteError, match=f"'y' observes 1 values at the edge .* {kind} .*0"):
        fitted(likelihood, y)


@config_enumerate
def summed_out(y: torch.Tensor) -> None:
    rate = pyro.sample("r", dist.Gamma(2.0, 1.0))
    with pyro.plate("data", len(y)):
        k = pyro.sample("k", dist.Bernoulli(0.5))
        pyro.sample("y", dist.Gamma(1 + 2 * k, rate), obs=y)


def test_a_density_at_one_value_of_what_is_summed_out_is_enough() -> None:
    guide = HyperNetworkGuide(summed_out, init_from=None)
    fit(summed_out, guide, torch.tensor([0.0, 0.5]), num_steps=2, progress=False, seed=0)


def some(y: torch.Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Gamma(w.exp() + 1.5, 1.0), obs=y)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Encountered ")  # Pyro's
def test_a_later_batch_a_step_and_chains_tell_it() -> None:
    good, bad = torch.tensor([0.5, 1.0]), torch.tensor([0.0, 1.0])
    guide = HyperNetworkGuide(some, init_from=None)
    with pytest.warns(UserWarning, match="each batch counts as if it were all data"):
        result = fit(some, guide, batches=[(good,), (bad,)], num_steps=4, progress=False, seed=0)
    [told] = [one for one in result.warnings if "steps were skipped" in one]
    assert "at the edge of the" in told
    step = SVI(some, guide, Adam({"lr": 0.01}), LinearisedELBO(2)).step
    for y in (bad, torch.tensor([float("inf"), 1.0])):
        with pytest.raises(NonFiniteError, match="at the edge of the|observes infinite values"):
            step(y)
    with pytest.raises(NonFiniteError, match="at the edge of the"):
        refine(some, 2, bad, num_steps=20, progress=False)


def test_an_infinite_score_is_noted() -> None:
    def model(y: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(-3.0, 0.1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Gamma(w.exp(), 1.0), obs=y)

    guide = HyperNetworkGuide(model, init_from=None)
    guide(torch.tensor([0.5, 1.0]))
    report = evaluate(model, guide, torch.tensor([0.0, 1.0]), num_samples=5)
    assert any("1 data have an infinite density" in note for note in report.notes)


@pytest.mark.long
def test_edges_of_all_components_are_named_once_steps_have_failed() -> None:
    @config_enumerate
    def mixture(y: torch.Tensor) -> None:
        shape = pyro.sample("shape", dist.LogNormal(1.0, 0.1).expand([2]).to_event(1))
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Gamma(1 + shape[..., z.long()], 1.0), obs=y)

    guide = HyperNetworkGuide(mixture, init_from=None)
    y = torch.tensor([0.0, 0.5, 0.0])
    with pytest.raises(NonFiniteError, match="'y' observes 2 values at the edge of .* Gamma"):
        fit(mixture, guide, y, num_steps=30, progress=False, seed=0)


def test_infinite_values_are_masked_as_told() -> None:
    def model(y: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        known = y.isfinite()
        with pyro.plate("data", len(y)), pyro.poutine.mask(mask=known):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y.where(known, 0.0))

    guide = HyperNetworkGuide(model, init_from=None)
    fit(model, guide, torch.tensor([0.5, float("inf")]), num_steps=2, progress=False, seed=0)
