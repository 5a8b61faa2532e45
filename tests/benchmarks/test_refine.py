"""The gradient by hand is that of the model, and the tables say what the rows do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.posterior import mclmc_bias, refine
from benchmarks.posterior._refine_gradient import HandWritten
from benchmarks.shared.uci import build_model
from pyro_implicit.chains.density import ChainDensity
from pyro_implicit.chains.latents import read_latents
from pyro_implicit.handlers.log_joint import LogJoint


def test_the_gradient_by_hand() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(9, 3), torch.randn(9)
    model = build_model(3, 9, hidden_units=4)
    sites, _ = read_latents(model, (x, y), {})
    density = ChainDensity(LogJoint(model, sites, (x, y), {}), torch.float32)
    u = 0.5 * torch.randn(5, sum(site.numel for site in sites))
    with density.ready(u):
        assert density.how == "recorded"
        expected = density(u)
    found: tuple[Tensor, Tensor] = HandWritten(x, y, 4)(u)
    torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-3, atol=1e-3)


def row(split: int, method: str, value: float) -> dict:
    scores = {"rmse": 1.0, "log_likelihood": value, "coverage": 0.9, "crps": 0.5}
    r_hat = {"median": 1.1, "worst": 1.5} if method == "refine, long" else None
    return {
        "set": "toy",
        "split": split,
        "seed": 0,
        "method": method,
        "r_hat": r_hat,
        "cpu_seconds": 2.0,
        **scores,
    }


def test_tables() -> None:
    rows = [row(s, m, v + s) for s in (0, 1) for m, v in (("map", -1.0), ("refine, long", -0.5))]
    text = refine.table(rows)
    assert "| toy | map          |    2 | 1.000 ± 0.000 | -0.500 ± 0.500 |" in text
    assert "| 1.10, 1.50" in text
    assert "| toy | map     | +0.500 ± 0.000" in refine.differences(rows)
    assert "2 of 2" in refine.differences(rows)
    assert refine.table([{"set": "toy", "way": "by hand", "microseconds": 3.0, "ratio": 1.0}])


@pytest.mark.long
def test_bananas_have_the_moments_that_are_claimed() -> None:
    torch.manual_seed(0)
    for _, exact, moments in mclmc_bias.TARGETS.values():
        draws = exact(100_000)
        for name, (mean, variance) in moments.items():
            squares = (draws[name] - mean) ** 2 / variance
            assert abs(float(squares.mean()) - 1) < 0.02
