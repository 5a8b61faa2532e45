"""Latents of rows that are carried on: a prior of others is told of other rows."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.handlers.same_rows import SameRows, fingerprint
from pyro_implicit.inference import GuidePrior, prior_from

X = torch.arange(6.0)


def model(x: Tensor, y: Tensor | None = None) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        z = pyro.sample("z", dist.Normal(mean + x, 1.0))
        pyro.sample("y", dist.Normal(z, 0.1), obs=y)


def shared(x: Tensor, y: Tensor | None = None) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean + x, 0.1), obs=y)


def _built(program: Any, x: Tensor) -> HyperNetworkGuide:
    guide = HyperNetworkGuide(program, init_from=None)
    guide(x, x)
    return guide


PRIORS = {"itself": GuidePrior, "diagonal": lambda guide: prior_from(guide, X, X)}


@pytest.mark.parametrize("kind", PRIORS)
def test_other_rows_are_told(kind: str) -> None:
    today = PRIORS[kind](_built(model, X))(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        today(X, X)  # the same units again
    with pytest.warns(UserWarning, match=r"a value of \['z'\] for each of the 6 rows .* another"):
        today(X + 1, X)


@pytest.mark.parametrize("kind", PRIORS)
def test_what_all_rows_share_is_carried_on_without_a_word(kind: str) -> None:
    today = PRIORS[kind](_built(shared, X))(shared)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        today(X + 1, X)
        today(X[:3], X[:3])


def test_a_fit_tells() -> None:
    today = GuidePrior(_built(model, X))(model)
    with pytest.warns(UserWarning, match="these are 6 other ones"):
        fit(today, HyperNetworkGuide(today), X + 1, X, num_steps=2, progress=False, seed=0)


def test_new_units_under_another_name_keep_their_prior() -> None:
    """What the warning advises."""

    def renamed(x: Tensor, y: Tensor | None = None) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z_today", dist.Normal(mean + x, 1.0))
            pyro.sample("y", dist.Normal(z, 0.1), obs=y)

    both = prior_from(_built(model, X), X, X)
    with pytest.warns(UserWarning, match="other ones"):
        both.restricted(["z"])(model)(X + 1, X)
    prior = both.restricted(["mean"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prior(renamed)(X[:4] + 1, X[:4])


def test_a_guide_that_was_loaded_knows_nothing_of_rows() -> None:
    guide = HyperNetworkGuide(model, init_from=None)
    guide.load_state_dict(_built(model, X).state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GuidePrior(guide)(model)(X + 1, X)


def test_numbers_of_rows_and_unknown_rows() -> None:
    seen = fingerprint((X,))
    assert SameRows(seen, [("a", (6,)), ("b", (3, 6)), ("c", (3,)), ("d", ())]).names == ["a", "b"]
    assert SameRows(None, [("a", (6,))]).names == []
    watch = SameRows(None, [("a", (6,))]).watch
    assert watch(model) is model
