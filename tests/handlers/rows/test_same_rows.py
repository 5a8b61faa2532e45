"""Latents of rows that are carried on: a prior of others is told of other rows."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_value
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.handlers.rows.same_rows import SameRows, are_other_rows, fingerprint
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
def test_the_same_rows_in_another_order_are_told(kind: str) -> None:
    today = PRIORS[kind](_built(model, X))(model)
    with pytest.warns(UserWarning, match="or in another order"):
        today(X.flip(0), X)


def numbered(x: Tensor, rows: Tensor, y: Tensor | None = None) -> Tensor:
    with pyro.plate("data", 6, subsample=rows):
        z: Tensor = pyro.sample("z", dist.Normal(0.0, 3.0))
        pyro.sample("y", dist.Normal(z, 0.1), obs=y)
        return z


def plate_of_rows(x: Tensor, rows: Tensor, y: Tensor | None = None) -> Any:
    return pyro.plate("data", 6, subsample=rows)


@pytest.mark.long
@pytest.mark.parametrize("rows", [range(6), [5, 4, 3, 2, 1, 0], [3, 0, 4, 1, 5, 2], [5, 2]])
@pytest.mark.parametrize("kind", ["itself", "diagonal", "Pyro's"])
def test_rows_that_are_named_get_what_was_learned_of_them(rows: Any, kind: str) -> None:
    """As ``subsample=`` says; the values of rows once went by their places."""
    rows = torch.tensor(rows)
    guide: Any = HyperNetworkGuide(numbered, init_from="laplace", create_plates=plate_of_rows)
    if kind == "Pyro's":
        guide = AutoNormal(numbered, init_loc_fn=init_to_value(values={"z": X}), init_scale=0.01)
    guide(X, torch.arange(6), X)
    prior = GuidePrior(guide) if kind == "itself" else prior_from(guide, X, torch.arange(6), X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = torch.stack([prior(numbered)(X[rows], rows) for _ in range(20)])
    assert torch.allclose(draws.mean(0), X[rows], atol=0.2)


@pytest.mark.parametrize("kind", PRIORS)
def test_what_all_rows_share_is_carried_on_without_a_word(kind: str) -> None:
    today = PRIORS[kind](_built(shared, X))(shared)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        today(X + 1, X)
        today(X[:3], X[:3])


@pytest.mark.long
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


def test_a_guide_that_was_loaded_knows_its_rows() -> None:
    guide = HyperNetworkGuide(model, init_from=None)
    guide.load_state_dict(_built(model, X).state_dict())
    with pytest.warns(UserWarning, match="these are 6 other ones"):
        GuidePrior(guide)(model)(X + 1, X)


def test_a_guide_of_an_older_state_knows_nothing_of_rows() -> None:
    guide, state = HyperNetworkGuide(model, init_from=None), _built(model, X).state_dict()
    del state["_extra_state"]["first_call"]
    guide.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GuidePrior(guide)(model)(X + 1, X)


def test_numbers_of_rows_and_unknown_rows() -> None:
    seen = fingerprint((X,))
    assert SameRows(seen, [("a", (6,)), ("b", (3, 6)), ("c", (3,)), ("d", ())]).names == ["a", "b"]
    assert SameRows(None, [("a", (6,))]).names == []
    watch = SameRows(None, [("a", (6,))]).watch
    assert watch(model) is model


def test_an_order_that_is_told_is_no_other_one() -> None:
    seen, order = fingerprint((X,)), torch.tensor([3, 0, 4, 1, 5, 2])
    mixed = X[order]
    assert are_other_rows(seen, (mixed,), {})
    assert not are_other_rows(seen, (mixed, order), {}) and not are_other_rows(seen, (X,), {})
    assert not are_other_rows(seen, (mixed,), {"rows": order})
    for other in (order.double(), order[:5], order.clamp(max=4), [3, 0, 4, 1, 5, 2]):
        assert are_other_rows(seen, (mixed, other), {})
    x, many = torch.randn(1000, 3), torch.randperm(1000)
    x = (x - x.mean(0)) / x.std(0)  # sums that are rounding alone
    assert not are_other_rows(fingerprint((x,)), (x[many], many), {})
    assert are_other_rows(seen, (mixed + 1, order), {})  # rows that it has not seen
    assert not are_other_rows(seen, (X[:3],), {}) and not are_other_rows(None, (mixed,), {})


@pytest.mark.parametrize("rows", [1000, 200_000])
def test_sums_in_another_order_are_the_same_rows_and_swapped_rows_are_not(rows: int) -> None:
    """Another number of threads, or another device, adds up in another order."""
    x = torch.randn(rows, 3)
    count, total, squares, placed = fingerprint((x,))
    noise = 1e-16 * math.sqrt(rows)
    other = (count, total + noise, squares * (1 + noise), placed + noise * rows)
    assert other != fingerprint((x,)) and not are_other_rows(other, (x,), {})
    swapped = x.clone()
    swapped[:2] = x[[1, 0]]
    assert are_other_rows(other, (swapped,), {})
