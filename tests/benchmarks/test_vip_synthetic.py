"""The synthetic curve: every method runs, and the collapsed objective learns the curve."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.papers.vip import vip_synthetic


def test_the_curve() -> None:
    x = torch.tensor([[0.0], [math.pi / 5]])
    expected = torch.tensor([1.0, -1 / (1 + math.pi / 5)])
    torch.testing.assert_close(vip_synthetic.curve(x), expected)


@pytest.mark.long
def test_the_collapsed_objective_learns_the_curve() -> None:
    arguments = ["--num-steps", "300", "--seeds", "0", "--quiet", "--methods", "collapsed, frozen"]
    (row,) = vip_synthetic.main(arguments)
    assert row["rmse"] < 0.2
    assert row["nll"] < -0.3
    (untrained,) = vip_synthetic.main(["--num-steps", "1", *arguments[2:]])
    assert row["rmse"] < 0.7 * untrained["rmse"]


@pytest.mark.long
def test_an_independent_gaussian_process() -> None:
    pytest.importorskip("sklearn")
    torch.manual_seed(0)
    x, y = vip_synthetic.data()
    mean, sd = vip_synthetic.exact_gp(x[:80], y[:80], x[:80], None)
    assert (mean - y[:80]).abs().mean() < 0.2
    assert bool((sd > 0).all())


def test_coverage_is_of_observations() -> None:
    f = torch.tensor([0.0, 1.0])
    exact = vip_synthetic.scores(f, (f, torch.full((2,), vip_synthetic.NOISE)))
    assert exact["coverage"] == pytest.approx(0.9, abs=1e-4) and exact["rmse"] == 0
    far = vip_synthetic.scores(f, (f + 5, torch.full((2,), vip_synthetic.NOISE)))
    assert far["coverage"] == pytest.approx(0.0, abs=1e-4)


def test_differences_are_to_fresh_functions() -> None:
    rows = [
        {"method": method, "seed": seed, "rmse": 0.5, "nll": nll}
        for method, seed, nll in (
            ("exact GP", 0, 1.0),
            ("exact GP", 1, 2.0),
            ("collapsed, fresh", 0, 2.0),
            ("collapsed, fresh", 1, 1.0),
        )
    ]
    (line,) = vip_synthetic.differences(rows).splitlines()[2:]
    assert "+0.00 ± 1.00" in line and "1 of 2" in line
