"""A few steps of every method on a small set, and what the marginal moments force."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.papers.kivi._kivi_uci import NUM_HIDDEN, marginal_kl


def test_forced_kl_of_the_prior_is_none() -> None:
    torch.manual_seed(0)
    shapes = {"first": (NUM_HIDDEN, 4), "second": (1, NUM_HIDDEN + 1)}
    draws = {name: torch.randn(20_000, *shape) for name, shape in shapes.items()}
    assert marginal_kl(draws) == pytest.approx(0.0, abs=0.05)
    narrow = {name: 0.1 * value for name, value in draws.items()}
    each = 0.5 * (0.01 - 1 - math.log(0.01))
    assert marginal_kl(narrow) == pytest.approx(251 * each, rel=0.01)
