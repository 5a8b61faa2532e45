"""One row without its dimension is told by every function that would take it for several."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import (
    EnsembleGuide,
    HyperNetworkGuide,
    evaluate,
    fit,
    log_predictive_density,
    predict,
    to_arviz,
)
from pyro_implicit.guides.argument_dims import (
    are_rows_of_the_fit,
    latents_of_other_rows,
    rows_of_first_call,
    shapes_of_arguments,
    warning_of_other_shapes,
)
from pyro_implicit.handlers.rows.same_rows import fingerprint
from pyro_implicit.inference.prior_from import prior_from

X, Y = torch.randn(5, 3), torch.randn(5)


def model(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal((x * w[..., None, :]).sum(-1), 1.0), obs=y)


@pytest.fixture(scope="module")
def guide() -> Any:
    return HyperNetworkGuide(model).setup(X, Y)


def test_it_is_told(guide: Any) -> None:
    match = r"has shape \(3,\), and had 2 dimensions .* read as 3 rows. Write x\[None\]"
    with pytest.warns(UserWarning, match=match):
        predict(model, guide, X[0], num_samples=2)
    with pytest.warns(UserWarning, match=match):
        evaluate(model, guide, X[0], Y[:3], num_samples=2)
    with pytest.warns(UserWarning, match=match):
        log_predictive_density(model, guide, X[0], Y[:3], num_samples=2)


def test_a_row_with_its_dimension_is_one(guide: Any) -> None:
    assert predict(model, guide, X[:1], num_samples=2)["y"].shape == (2, 1)


def test_nothing_is_said_of_what_nobody_knows(guide: Any) -> None:
    assert shapes_of_arguments((X, 3, None, Y)) == ((5, 3), None, None, (5,))
    assert warning_of_other_shapes(guide, (X[None],)) == []  # several networks, for example
    assert warning_of_other_shapes(guide, ()) == []
    assert warning_of_other_shapes(guide, ("x",)) == []
    assert warning_of_other_shapes(lambda x: None, (X[0],)) == []
    assert warning_of_other_shapes(HyperNetworkGuide(model), (X[0],)) == []  # not built


def _levels(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("data", len(x)):
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(level, 0.1), obs=y)


@pytest.mark.long
def test_latents_of_other_rows_are_told() -> None:
    x, y = torch.zeros(6, 1), torch.randn(6)
    guide = HyperNetworkGuide(_levels, init_from=None).setup(x, y)
    more: Any = {"num_samples": 5}
    calls = (
        lambda x: predict(_levels, guide, x, **more),
        lambda x: evaluate(_levels, guide, x, y, **more),
        lambda x: log_predictive_density(_levels, guide, x, y, **more),
        lambda x: to_arviz(_levels, guide, x, y, **more),
    )
    for call in calls:
        call(x)
        with pytest.warns(UserWarning, match=r"a value of \['level'\] for each of the 6 rows"):
            call(x + 1)


def test_a_mixture_of_guides_knows_what_its_guides_do() -> None:
    x, y = torch.zeros(6, 1), torch.randn(6)
    some = HyperNetworkGuide(_levels, init_from=None).setup(x, y)
    other = HyperNetworkGuide(_levels, init_from=None).setup(x + 1, y)
    for members, rows in (([some, some], x), ([lambda x, y=None: None, some], x)):
        guide = EnsembleGuide(members)
        assert rows_of_first_call(guide) == fingerprint((x,))
        assert are_rows_of_the_fit(guide, (rows,)) and not are_rows_of_the_fit(guide, (x + 2,))
        assert latents_of_other_rows(guide, (rows,), {}) == ([], 0)
        assert latents_of_other_rows(guide, (x + 2,), {}) == (["level"], 6)
        assert len(warning_of_other_shapes(guide, (x[:, 0],))) == 1
    assert not are_rows_of_the_fit(EnsembleGuide([some, other]), (x,))
    with pytest.warns(UserWarning, match=r"a value of \['level'\] for each of the 6 rows"):
        predict(_levels, EnsembleGuide([some, some]), x + 1, num_samples=2)
    prior = prior_from(EnsembleGuide([some, some]), x, y, num_samples=50)
    with pytest.warns(UserWarning, match=r"the prior has a value of \['level'\] for each of the 6"):
        prior(_levels)(x + 1, y)


def test_latents_of_all_rows_are_not() -> None:
    x, y = torch.zeros(6, 1), torch.randn(6)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(level, 0.1), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup(x, y)
    evaluate(model, guide, x + 1, y, num_samples=5)
    gap = torch.tensor([1.0, torch.nan])
    assert fingerprint((gap,)) == fingerprint((gap,)) == (2, 1.0, 1.0, 1.0)
    assert fingerprint(()) is None and fingerprint((3,)) is None
    assert fingerprint((torch.tensor(1.0),)) is None
    assert fingerprint((torch.tensor([True, False]), 1)) == (2, 1.0, 1.0, 1.0)


@pytest.mark.long
def test_rows_that_are_named_may_come_in_any_order() -> None:
    def named(x: Tensor, y: Tensor | None = None, rows: Tensor | None = None) -> None:
        with pyro.plate("data", 6, subsample=torch.arange(6) if rows is None else rows):
            z = pyro.sample("z", dist.Normal(0.0, 3.0))
            pyro.sample("y", dist.Normal(z, 0.1), obs=y)

    def plate(x: Tensor, y: Tensor | None = None, rows: Tensor | None = None) -> Any:
        return pyro.plate("data", 6, subsample=torch.arange(6) if rows is None else rows)

    x, order = torch.arange(6.0), torch.tensor([3, 0, 4, 1, 5, 2])
    guide = HyperNetworkGuide(named, init_from="laplace", create_plates=plate).setup(x, x)
    found = predict(named, guide, x[order], rows=order, num_samples=50, sites=["z"])["z"]
    assert torch.allclose(found.mean(0), x[order], atol=0.2)
    with pytest.warns(UserWarning, match="or in another order"):
        predict(named, guide, x[order], num_samples=2)


def test_a_fit_in_batches_of_rows_that_are_named_shares_nothing() -> None:
    """The guide has a value of each of all rows, and those of a batch are named by its plate."""

    def model(rows: Tensor, y: Tensor | None = None) -> None:
        with plate(rows):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z, 0.5), obs=y)

    def plate(rows: Tensor, y: Tensor | None = None) -> Any:
        return pyro.plate("data", 8, subsample=rows)

    y, rows = torch.arange(8.0), torch.arange(8)
    batches = [(rows[:4], y[:4]), (rows[4:], y[4:])]
    guide = HyperNetworkGuide(model, init_from=None, create_plates=plate)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, guide, batches=batches, num_steps=4, seed=0, progress=False)
    assert not [one for one in caught if "share these values" in str(one.message)]
