"""The toy curve: its data, and every method in a few steps."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks import toy_regression


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


def test_every_method_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"map_steps": 20, "num_draws": 5, "warmup_steps": 3}
    monkeypatch.setattr(toy_regression, "SETTINGS", toy_regression.SETTINGS | short)
    figure, record = tmp_path / "bands.png", tmp_path / "record.json"
    arguments = ["--num-steps", "3", "--quiet", "--figure", str(figure), "--output", str(record)]
    methods = [name for name in toy_regression.METHODS if name != "NUTS"]
    rows = toy_regression.main([*arguments, "--methods", *methods])
    assert all(math.isfinite(row["ratio"]) for row in rows)
    assert figure.stat().st_size > 0
    assert len(json.loads(record.read_text())["results"]) == len(methods)
