"""Noise in blocks of rows: the right law, other numbers in each block, no matter the batches."""

# Shape legend: N rows.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from pyro_implicit.inference import noise_by_block
from pyro_implicit.inference.noise_by_block import RowBlocks, drawn_by_blocks

Make = Callable[[Tensor], Any]
#: distributions of N rows, by a number of each
KINDS: dict[str, Make] = {
    "normal": lambda a: dist.Normal(a, 1 + a**2),
    "normal of scalars": lambda a: dist.Normal(a, 0.5),
    "log-normal": lambda a: dist.LogNormal(a, 0.5),
    "bernoulli": lambda a: dist.Bernoulli(logits=a),
    "categorical": lambda a: dist.Categorical(logits=torch.stack([a, -a, 0 * a, a * 0 - 2], -1)),
    "events": lambda a: dist.Normal(torch.stack([a, -a], -1), 1.0).to_event(1),
    "rows as events": lambda a: dist.Normal(a, 1.0).to_event(1),
    "masked": lambda a: dist.Normal(a, 1.0).mask(a > 0),
    "masked events": lambda a: (
        dist.Bernoulli(logits=torch.stack([a, -a], -1)).mask(a[:, None] > 0).to_event(1)
    ),
    "several": lambda a: dist.Normal(a.expand(3, len(a)), 1.0),
}
ROW_DIM = {"events": -2, "masked events": -2}


def blocks(start: int, stop: int, total: int, *shape: int, seed: int = 0) -> RowBlocks:
    return RowBlocks(start, stop, total, lambda row: 10**6 * seed + row, shape)


def of_rows(kind: str, start: int, stop: int, total: int, *shape: int) -> Tensor:
    numbers = torch.linspace(-2, 2, total)
    fn = KINDS[kind](numbers[start:stop])
    drawn = drawn_by_blocks(fn, ROW_DIM.get(kind, -1), blocks(start, stop, total, *shape))
    assert drawn is not None and drawn.shape == torch.Size(shape) + fn.shape()
    assert drawn.dtype == fn.sample().dtype
    return drawn


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    total=st.integers(33, 5000),
    size=st.integers(1, 80),
    shape=st.sampled_from([(), (1,), (70,)]),
)
def test_any_batches_give_the_same(kind: str, total: int, size: int, shape: Any) -> None:
    step, dim = 32 * size, ROW_DIM.get(kind, -1)
    parts = [
        of_rows(kind, start, min(start + step, total), total, *shape)
        for start in range(0, total, step)
    ]
    assert torch.equal(torch.cat(parts, dim), of_rows(kind, 0, total, total, *shape))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [dist.Normal, dist.LogNormal])
def test_law_of_numbers(kind: Any, dtype: torch.dtype) -> None:
    fn = kind(torch.zeros(9000, dtype=dtype), torch.ones(9000, dtype=dtype))
    drawn = drawn_by_blocks(fn, -1, blocks(0, 9000, 9000, 4))
    assert drawn is not None and drawn.dtype == dtype
    law = stats.norm() if kind is dist.Normal else stats.lognorm(1.0)
    coarse = {torch.float16: 2e-3, torch.bfloat16: 1e-2}.get(dtype, 0.0)  # distance by rounding
    assert stats.kstest(drawn.flatten().double().numpy(), law.cdf).statistic < 0.009 + coarse


def test_law_of_classes() -> None:
    """Among them one that cannot be, and one of a probability below the steps of 32 bits."""
    probs = torch.tensor([0.0, 0.2, 0.5, 0.0, 0.3 - 1e-9, 1e-9, 0.0])
    fn = dist.Categorical(probs.expand(2**16, 7))
    drawn = drawn_by_blocks(fn, -1, blocks(0, 2**16, 2**16, 4))
    assert drawn is not None
    counts = torch.bincount(drawn.flatten(), minlength=7)
    possible = probs > 1e-8
    assert int(counts[~possible].sum()) == 0
    expected = probs[possible].double() * 2**18
    found = stats.chisquare(counts[possible].numpy(), expected / expected.sum() * counts.sum())
    assert found.pvalue > 1e-4


def test_law_of_yes_and_no() -> None:
    probs = torch.tensor([0.0, 1e-9, 0.3, 1.0])
    fn = dist.Bernoulli(probs.expand(2**16, 4))
    drawn = drawn_by_blocks(fn, -2, blocks(0, 2**16, 2**16, 4))
    assert drawn is not None
    assert drawn.mean((0, 1)).tolist() == pytest.approx([0.0, 0.0, 0.3, 1.0], abs=4e-3)
    assert drawn[..., [0, 1]].sum() == 0 and (drawn[..., 3] == 1).all()


@pytest.mark.parametrize("shape", [(), (3,), (50,)])
def test_no_number_comes_twice(shape: tuple[int, ...]) -> None:
    fn = dist.Normal(torch.zeros(6000, dtype=torch.float64), 1.0)
    drawn = drawn_by_blocks(fn, -1, blocks(0, 6000, 6000, *shape))
    assert drawn is not None and drawn.unique().numel() == drawn.numel()


def test_another_seed_gives_others() -> None:
    fn = dist.Normal(torch.zeros(100), 1.0)
    one, other = (drawn_by_blocks(fn, -1, blocks(0, 100, 100, seed=seed)) for seed in (0, 1))
    assert one is not None and other is not None and not (one == other).any()


@pytest.mark.parametrize(
    "fn",
    [
        dist.Poisson(torch.ones(40)),
        dist.Normal(torch.zeros(39), 1.0),
        dist.Normal(torch.zeros(()), 1.0),
        dist.MultivariateNormal(torch.zeros(40, 2), torch.eye(2)),
        dist.Bernoulli(torch.tensor(float("nan")).expand(40), validate_args=False),
        dist.Bernoulli(torch.tensor(1.5).expand(40), validate_args=False),
        dist.Categorical(torch.tensor([float("nan"), 1.0]).expand(40, 2), validate_args=False),
        dist.Categorical(torch.tensor([-0.5, 1.5]).expand(40, 2), validate_args=False),
        dist.Categorical(torch.tensor([0.0, 0.0]).expand(40, 2), validate_args=False),
    ],
    ids=lambda fn: type(fn).__name__,
)
def test_what_is_left_to_others(fn: Any) -> None:
    """Other distributions, rows that are not those of the batch, parameters that torch refuses."""
    assert drawn_by_blocks(fn, -1, blocks(0, 40, 40)) is None


@pytest.mark.parametrize(("kind", "drawn"), [("normal", True), ("bernoulli", False)])
def test_devices_without_double_precision(
    monkeypatch: pytest.MonkeyPatch, kind: str, drawn: bool
) -> None:
    monkeypatch.setattr(noise_by_block, "_DEVICES_WITHOUT_DOUBLE", ("cpu",))
    found = drawn_by_blocks(KINDS[kind](torch.zeros(40)), -1, blocks(0, 40, 40))
    assert (found is not None) is drawn
