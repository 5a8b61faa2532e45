"""The toy curve: its data, and every method in a few steps."""

from __future__ import annotations

import pytest
import torch

from benchmarks.papers.livi import _toy_fits, toy_regression


def test_the_data_leave_a_gap() -> None:
    torch.manual_seed(0)
    x, y = _toy_fits.data()
    assert len(x) == 70 and x.abs().min() == pytest.approx(0.7)
    assert (y - _toy_fits.curve(x)).std().item() == pytest.approx(0.15, rel=0.3)


def test_the_network_has_105_weights() -> None:
    model = _toy_fits.make_model()
    trace = torch.no_grad()(_toy_fits.pyro.poutine.trace(model).get_trace)(torch.zeros(3, 1))
    weights = [node["value"].numel() for name, node in trace.nodes.items() if "weight" in name]
    biases = [node["value"].numel() for name, node in trace.nodes.items() if "bias" in name]
    assert sum(weights) + sum(biases) == 105


def test_the_distance_is_in_deviations_of_the_reference() -> None:
    torch.manual_seed(0)
    reference = torch.randn(4000, 2) * torch.tensor([1.0, 5.0])
    moved = reference + torch.tensor([2.0, 5.0])
    assert toy_regression.distances(moved, reference).tolist() == pytest.approx([2, 1], rel=0.05)
    point = torch.zeros(10, 2)  # the mean of the absolute value of a standard normal
    assert toy_regression.distances(point, reference).tolist() == pytest.approx([0.8, 0.8], rel=0.1)


def test_the_table_is_over_seeds_and_begins_with_the_reference() -> None:
    scores = dict.fromkeys(toy_regression.SHOWN, 1.0)
    rows = [
        {"method": method, "seed": seed, **scores, "critic right": critic}
        for seed in (0, 1)
        for method, critic in (("linearised", None), ("adversarial", 0.5), ("HMC", None))
    ]
    lines = toy_regression.table(rows).splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["HMC", "linearised", "adversarial"]
    assert "1.000 ± 0.000" in lines[0] and " 50% " in lines[2] and "%" not in lines[1]
    for row in rows:
        row |= {"r-hat, data": 1.01, "r-hat, gap": 1.2}
    assert [line.split()[5] for line in toy_regression.r_hat(rows).splitlines()[2:]] == ["1.20"] * 2
