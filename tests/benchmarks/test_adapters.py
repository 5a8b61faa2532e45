"""A frozen network, what is random beside it, and the table of what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.common import fixed_seed
from benchmarks.posterior import adapters as benchmark

SMALL = {"hidden": 8, "steps": 3, "epochs": 2, "draws": 4}


@pytest.fixture()
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[benchmark.Digits, nn.Module]]:
    """A split, and a small network that was trained on it."""
    for name, value in SMALL.items():
        monkeypatch.setitem(benchmark.SETTINGS, name, value)
    with fixed_seed(0):
        data = benchmark.digits()
        yield data, benchmark.trained(data)[0]


def test_no_digit_is_both_seen_and_scored(small: Any) -> None:
    data, _ = small
    assert (len(data.x), len(data.test_x)) == (300, 897)
    assert 0 <= float(data.x.min()) and float(data.x.max()) == 1
    both = {tuple(row) for row in data.x.tolist()} & {tuple(row) for row in data.test_x.tolist()}
    assert not both


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "latents", "frozen"),
    [("last layer", 90, 592), ("AutoNormal", 106, 682)],
)
def test_a_fit_leaves_the_network_as_it_was(
    small: Any, method: str, latents: int, frozen: int
) -> None:
    data, network = small
    before = {name: value.clone() for name, value in network.state_dict().items()}
    row = benchmark._one(method, data, network, 1.5)
    assert (row["latents"], row["frozen"]) == (latents, frozen)
    assert all(torch.equal(before[n], v) for n, v in network.state_dict().items())
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_the_network_alone_is_scored_by_its_own_logits(small: Any) -> None:
    data, network = small
    row = benchmark._one("network", data, network, 1.5)
    logits = network(data.test_x)
    nll = nn.functional.cross_entropy(logits, data.test_y)
    assert row["nll"] == pytest.approx(float(nll), rel=1e-4)
    right = (logits.argmax(-1) == data.test_y).float().mean()
    assert row["accuracy"] == pytest.approx(float(right))
    assert row["cpu_seconds"] == 1.5


def test_the_table_compares_the_same_seeds() -> None:
    scores = {"network": (0.5, 0.9), "implicit": (0.3, 0.8)}
    common = {"accuracy": 0.9, "ece": 0.1, "latents": 3, "frozen": 7, "steps": 2}
    common |= {"cpu_seconds": 4.0, "note": "none"}
    rows = [
        {"method": method, "seed": seed, "nll": nll} | common
        for method, nlls in scores.items()
        for seed, nll in enumerate(nlls)
    ]
    shown = benchmark.table(rows)
    assert "-0.150 ± 0.050" in shown and "0.700 ± 0.283" in shown
    assert benchmark.table(rows[2:]).count("\n") == 2
