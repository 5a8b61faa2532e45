"""The toy curve: its data, and every method in a few steps."""

from __future__ import annotations

import pytest
import torch

from benchmarks.papers.livi import toy_regression


def test_the_data_leave_a_gap() -> None:
    torch.manual_seed(0)
    x, y = toy_regression.data()
    assert len(x) == 70 and x.abs().min() == pytest.approx(0.7)
    assert (y - toy_regression.curve(x)).std().item() == pytest.approx(0.15, rel=0.3)


def test_the_network_has_105_weights() -> None:
    model = toy_regression.make_model()
    trace = torch.no_grad()(toy_regression.pyro.poutine.trace(model).get_trace)(torch.zeros(3, 1))
    weights = [node["value"].numel() for name, node in trace.nodes.items() if "weight" in name]
    biases = [node["value"].numel() for name, node in trace.nodes.items() if "bias" in name]
    assert sum(weights) + sum(biases) == 105
