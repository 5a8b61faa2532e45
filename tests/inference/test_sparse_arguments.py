"""Sparse inputs give what the same numbers give as dense ones."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.infer import SVI
from pyro.optim import Adam
from torch import Tensor

from pyro_implicit import (
    HyperNetworkGuide,
    LinearisedELBO,
    evaluate,
    fit,
    log_predictive_density,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.exceptions import PerformanceHint
from pyro_implicit.handlers.rows.row_slices import between
from pyro_implicit.handlers.rows.same_rows import fingerprint
from pyro_implicit.training import RecordedObjective

_GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(64, 4, generator=_GENERATOR) * (torch.rand(64, 4, generator=_GENERATOR) < 0.5)
Y = X.sum(1)
LAYOUTS: dict[str, Any] = {
    "COO": lambda x: x.to_sparse_coo(),
    "COO, not coalesced": lambda x: (x / 2).to_sparse_coo() + (x / 2).to_sparse_coo(),
    "CSR": lambda x: x.to_sparse_csr(),
    "CSC": lambda x: x.to_sparse_csc(),
    "BSR": lambda x: x.to_sparse_bsr((2, 2)),
}
layouts = st.sampled_from(sorted(LAYOUTS))


def sparse(layout: str, x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, that some layouts are new
        made: Tensor = LAYOUTS[layout](x)
    return made


def model(x: Tensor, y: Tensor | None = None) -> Any:
    w = pyro.sample("w", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    f = (x @ w.reshape(-1, 4).T).T.reshape(*w.shape[:-2], x.shape[0])
    with pyro.plate("data", x.shape[0]):
        return pyro.sample("y", dist.Normal(f, 0.5), obs=y)


@pytest.fixture(scope="module")
def guide() -> Any:
    made = HyperNetworkGuide(model)
    fit(model, made, X, Y, num_steps=20, progress=False, seed=0)
    return made


@given(layout=layouts, start=st.integers(0, 31), size=st.integers(1, 32))
def test_rows_are_cut(layout: str, start: int, size: int) -> None:
    start, size = 2 * start, 2 * size  # blocks are whole
    cut = between(sparse(layout, X), start, start + size)
    assert cut.layout is sparse(layout, X).layout
    torch.testing.assert_close(cut.to_dense(), X[start : start + size])


@given(layout=layouts, seed=st.integers(0, 9))
def test_rows_are_told_apart(layout: str, seed: int) -> None:
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    known, found = fingerprint((X[order],)), fingerprint((sparse(layout, X[order]),))
    assert known is not None and found == pytest.approx(known)


@pytest.mark.long
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "BSR"])
def test_the_same_numbers(layout: str, guide: Any) -> None:
    given = sparse(layout, X)
    for options in ({"num_samples": 5}, {"num_samples": 300, "batch_size": 32}):
        found, known = (predict(model, guide, x, seed=0, **options)["y"] for x in (given, X))
        torch.testing.assert_close(found, known)
    one, other = (evaluate(model, guide, x, Y, num_samples=9, seed=0) for x in (given, X))
    assert one.log_density == pytest.approx(other.log_density, rel=1e-4)
    pairs = [log_predictive_density(model, guide, x, Y, num_samples=9, seed=0) for x in (given, X)]
    torch.testing.assert_close(pairs[0], pairs[1])


@pytest.mark.parametrize("batch_size", [None, 20])
def test_as_arviz_has_them(batch_size: int | None, guide: Any) -> None:
    found = []
    for x in (sparse("CSR", X), X):
        pyro.set_rng_seed(0)
        found.append(to_arviz(model, guide, x, Y, num_samples=5, batch_size=batch_size))
    one, other = found
    np.testing.assert_allclose(one.log_likelihood["y"], other.log_likelihood["y"], rtol=1e-4)
    assert "x" in other.constant_data and "constant_data" not in one.groups()


@pytest.mark.long
def test_a_fit_and_chains_run() -> None:
    given, fresh = sparse("CSR", X), HyperNetworkGuide(model)
    found = fit(model, fresh, given, Y, num_steps=20, progress=False, seed=0)
    known = fit(model, HyperNetworkGuide(model), X, Y, num_steps=20, progress=False, seed=0)
    assert found.history == pytest.approx(known.history, rel=1e-3)
    with pytest.warns(UserWarning, match="one after the other.*unsupported for SparseCsr"):
        chains = refine(model, fresh, given, Y, num_chains=2, num_steps=60, progress=False, seed=0)
    assert predict(model, chains, given, num_samples=4)["y"].shape == (4, 64)


def test_steps_are_not_recorded(guide: Any) -> None:
    objective = RecordedObjective(LinearisedELBO(2, vectorize_particles=True))
    svi = SVI(model, HyperNetworkGuide(model), Adam({"lr": 1e-3}), objective)
    with pytest.warns(PerformanceHint, match="an argument is sparse"):
        for _ in range(5):
            svi.step(sparse("CSR", X), Y)
