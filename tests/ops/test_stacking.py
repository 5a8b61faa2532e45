"""Stacking weights: the maximum of their objective, by an independent optimiser and by ArviZ."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.ops.stacking import stacking_weights


@pytest.mark.long
@given(seed=st.integers(0, 30), count=st.integers(1, 4))
def test_no_other_weights_are_better(seed, count):
    torch.manual_seed(seed)
    logs = torch.randn(40, count, dtype=torch.float64) * 2 - 300.0
    weights = stacking_weights(logs)
    assert weights.min() >= 0 and abs(float(weights.sum()) - 1) < 1e-12
    density = (logs + 300.0).exp().numpy()

    def loss(free):
        shares = np.exp(free - free.max())
        return -np.log(density @ (shares / shares.sum())).mean()

    best = minimize(loss, np.zeros(count), method="BFGS").fun
    assert -float((torch.from_numpy(density) @ weights).log().mean()) <= best + 1e-5


def test_a_component_that_is_always_better_takes_all():
    logs = torch.tensor([[0.0, -2.0], [1.0, -3.0], [-5.0, -9.0]])
    torch.testing.assert_close(
        stacking_weights(logs), torch.tensor([1.0, 0.0], dtype=torch.float64), atol=1e-4, rtol=0
    )


def test_a_datum_that_is_impossible_under_all_ranks_none():
    logs = torch.tensor([[0.0, -1.0], [-math.inf, -math.inf], [-2.0, -1.5], [-math.inf, -3.0]])
    with pytest.warns(UserWarning, match="1 of 4 data have a density of 0 under every component"):
        found = stacking_weights(logs)
    torch.testing.assert_close(found, stacking_weights(logs[[0, 2, 3]]), rtol=0, atol=0)
    with pytest.raises(NonFiniteError, match="all 2 data have a density of 0"):
        stacking_weights(torch.full((2, 3), -math.inf))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_number_that_is_none_is_told(bad):
    logs = torch.zeros(4, 2)
    logs[2, 1] = bad
    with pytest.raises(NonFiniteError, match="1 of 4 data .*datum 2 under component 1"):
        stacking_weights(logs)
