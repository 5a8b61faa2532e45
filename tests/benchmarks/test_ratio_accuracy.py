"""Ratios between known Gaussians: the truth, and which estimators come near it."""

from __future__ import annotations

import pytest
import torch

from benchmarks.numerics import ratio_accuracy
from benchmarks.numerics.ratio_accuracy import MOST_FULL, TARGETS, truth


@pytest.mark.parametrize("dim", TARGETS)
def test_truth_is_that_of_torch(dim: int) -> None:
    start = [torch.tensor(value, requires_grad=True) for value in TARGETS[dim]]
    q = torch.distributions.Normal(start[0], start[1])
    p = torch.distributions.Normal(0.0, 1.0)
    kl = dim * torch.distributions.kl_divergence(q, p)
    values = [kl.detach(), *torch.autograd.grad(kl, start)]
    expected = {k: float(v) for k, v in zip(("kl", "by_mean", "by_scale"), values, strict=True)}
    assert truth(dim, *TARGETS[dim]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.long
def test_the_adaptive_contrast_in_500_dimensions_and_the_published_form() -> None:
    names = ["adaptive diagonal", "published"]
    options = ["--dims", "500", "--repeats", "2", "--quiet", "--estimators", *names]
    rows = ratio_accuracy.main(options)
    assert len(rows) == 4 and MOST_FULL < 500
    exact = truth(500, *TARGETS[500])
    for row in rows:
        if row["estimator"] == "published":
            assert row["kl"] < 0.1 * exact["kl"]
        else:
            assert row["kl"] == pytest.approx(exact["kl"], rel=0.05)
            assert row["by_mean"] == pytest.approx(exact["by_mean"], rel=0.1)
    assert "| published" in ratio_accuracy.by_mean(rows)
    assert "| draws clipped |" in ratio_accuracy.shares(rows)
