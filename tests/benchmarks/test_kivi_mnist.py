"""The generators' shapes, held-out images, and the tables."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch

from benchmarks.papers.kivi import kivi_mnist
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


def test_validation_takes_training_images_after_the_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(10.0)[:, None, None].expand(10, 2, 2)
    whole = {"x_train": x, "y_train": torch.arange(10), "x_test": -x, "y_test": -torch.arange(10)}

    def cut(arguments: Namespace, download: bool) -> dict[str, torch.Tensor]:
        sizes = {"train": arguments.num_train, "test": arguments.num_test}
        return {name: value[: sizes[name[2:]]] for name, value in whole.items()}

    monkeypatch.setattr(kivi_mnist, "cut_mnist", cut)
    options = Namespace(num_train=4, num_test=3, download=False, validation=True)
    data = kivi_mnist._data(options)
    assert data["y_train"].tolist() == [0, 1, 2, 3] and data["y_test"].tolist() == [4, 5, 6]
    assert data["x_train"].shape == (4, 4) and data["x_test"].shape == (3, 4)
    assert options.num_train == 4
    options.validation = False
    assert kivi_mnist._data(options)["y_test"].tolist() == [0, -1, -2]


def test_tables_pair_by_seed() -> None:
    def row(method: str, seed: int, error: float, claimed: float | None = None) -> dict[str, Any]:
        scores = {"test_error": error, "nll": 10 * error, "claimed_kl": claimed}
        return {"method": method, "seed": seed, **scores, "cpu_seconds": 1.0}

    rows = [
        row("map", 0, 0.03),
        row("map", 1, 0.05),
        row("no KL", 0, 0.02),
        row("no KL", 1, 0.02),
        row("published", 1, 0.02, 1.5),
    ]
    cells = [
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
        for text in (kivi_mnist.table(rows), kivi_mnist.differences(rows))
    ]
    assert cells[0] == [
        ["map", "2", "4.00 ± 1.00", "0.400 ± 0.100", "", "1.0"],
        ["no KL", "2", "2.00 ± 0.00", "0.200 ± 0.000", "", "1.0"],
        ["published", "1", "2.00", "0.200", "1.5", "1.0"],
    ]
    assert cells[1] == [
        ["map", "2", "+2.00 ± 1.00", "+0.200 ± 0.100"],
        ["published", "1", "+0.00", "+0.000"],
    ]
