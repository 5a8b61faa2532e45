"""The benchmark's exact value and gradient, and one small run of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import logdet_accuracy
from pyro_implicit import MLPGenerator
from pyro_implicit.ops.logdet import half_log_det


def test_exact_value_and_gradient_are_those_of_autograd() -> None:
    generator = MLPGenerator(5, 9, (7,))
    z = torch.randn(1, 5)
    found = logdet_accuracy.exact(generator, z)
    value = half_log_det(generator.jacobian(z).double() / logdet_accuracy.SCALE, 1.0).sum()
    assert found.value == pytest.approx(value.item(), rel=1e-6)
    parameters = list(generator.parameters())
    gradients = torch.autograd.grad(value, parameters, allow_unused=True)
    pairs = zip(gradients, parameters, strict=True)
    expected = torch.cat([(p * 0 if g is None else g).flatten() for g, p in pairs])
    torch.testing.assert_close(found.gradient.float(), expected.detach(), rtol=1e-3, atol=1e-2)


def test_a_small_run(data_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    record, picture = tmp_path / "found.json", tmp_path / "found.png"
    options = ["--generators", "boston 50 -> 751", "--train-steps", "2", "--draws", "1"]
    options += ["--probes", "20", "--quiet", "--data-root", str(data_root)]
    results = logdet_accuracy.main([*options, "--output", str(record), "--figure", str(picture)])
    assert set(results) == {"boston 50 -> 751, untrained", "boston 50 -> 751, trained"}
    for rows in results.values():
        many, converged = rows["Lanczos, 20 steps"], rows["LOBPCG, converged"]
        assert abs(many["upper"]) < 1 and abs(many["lower"]) < 1
        assert many["cosine"] > rows["Lanczos, 2 steps"]["cosine of one"]
        assert converged["lower"] < -10 and converged["residual"] < 1e-3
    assert "| boston 50 -> 751, trained" in capsys.readouterr().out
    assert json.loads(record.read_text())["results"].keys() == results.keys()
    assert picture.stat().st_size > 0
