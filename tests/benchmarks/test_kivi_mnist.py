"""The generators' shapes, and a step of every method."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import kivi_mnist
from benchmarks._images import classifier
from benchmarks._kivi_mnist import KiviGuide, Perceptron


def test_shapes_are_those_of_the_paper() -> None:
    model, _ = classifier(Perceptron(40), num_data=2)
    guide = KiviGuide(model, hidden=50)
    guide.setup(torch.zeros(2, 784), torch.tensor([0, 1]), torch.arange(2))
    generators: list[Any] = [sampler.generator for sampler in guide.samplers]
    shapes = [generator.shapes for generator in generators]
    assert shapes == [
        [(30, 30), (50, 50), (50, 50), (40, 785)],
        [(30, 30), (50, 50), (50, 50), (40, 41)],
        [(30, 30), (30, 50), (30, 50), (10, 41)],
    ]


def test_every_method(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, size in (("train", 8), ("test", 4)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = rng.integers(0, 10, size, dtype=np.uint8)
    np.savez(tmp_path / "mnist.npz", **arrays)
    options = ["--data-root", str(tmp_path), "--width", "16", "--hidden", "20", "--quiet"]
    rows = kivi_mnist.main([*options, "--epochs", "2"])
    assert [row["method"] for row in rows] == list(kivi_mnist.METHODS)
    for row in rows:
        assert 0 <= row["test_error"] <= 1 and math.isfinite(row["nll"])
        assert (row["claimed_kl"] is None) == (row["method"] in ("map", "mean-field", "no KL"))
