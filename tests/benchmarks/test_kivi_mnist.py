"""The generators' shapes, and a step of every method."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.papers.kivi._kivi_mnist import KiviGuide, Perceptron
from benchmarks.shared.images import classifier


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
