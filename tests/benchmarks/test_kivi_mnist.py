"""The generators' shapes, held-out images, and the tables."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

import pytest
import torch

from benchmarks.papers.kivi import _kivi_mnist_fits, kivi_mnist
from benchmarks.papers.kivi._kivi_mnist import KiviGuide, Perceptron, forced_kl
from benchmarks.papers.kivi._kivi_mnist_fits import Bench
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
    options = Namespace(num_train=4, num_test=3, num_validation=2, download=False, validation=True)
    data = kivi_mnist._data(options)
    assert data["y_train"].tolist() == [0, 1, 2, 3] and data["y_held"].tolist() == [4, 5]
    assert data["y_test"].tolist() == [6, 7, 8]
    shapes = {name: tuple(data[f"x_{name}"].shape) for name in ("train", "held", "test")}
    assert shapes == {"train": (4, 4), "held": (2, 4), "test": (3, 4)}
    assert options.num_train == 4
    options.validation = False
    assert kivi_mnist._data(options)["y_test"].tolist() == [0, -1, -2]


def _images(count: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(count, 784), torch.arange(count) % 10
    names = ("train", "held", "test")
    return {f"x_{name}": x for name in names} | {f"y_{name}": y for name in names}


@pytest.fixture()
def arguments() -> Namespace:
    return Namespace(quiet=True, start_epochs=1.0, epochs=2.0, hidden=5, guide_lr=0.02)


def test_held_out_images_choose_the_epoch(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _images(20)
    bench = Bench(data, 4, arguments)
    before = [weight.detach().clone() for weight in bench.start.parameters()]
    scores = iter([3.0, 1.0, 2.0])
    states = []

    def score(p: torch.Tensor, y: torch.Tensor) -> float:
        states.append([weight.detach().clone() for weight in net.parameters()])
        return next(scores)

    monkeypatch.setattr(_kivi_mnist_fits, "_nll", score)
    net = bench.start
    net, epoch = bench._mode(net, 2)
    assert epoch == 1 and len(states) == 3
    assert all(torch.equal(a, b) for a, b in zip(states[0], before, strict=True))
    kept = [weight.detach() for weight in net.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(states[1], kept, strict=True))


def test_without_held_out_images_the_last_epoch_is_kept(arguments: Namespace) -> None:
    data = _images(10)
    data |= {"x_held": data["x_held"][:0], "y_held": data["y_held"][:0]}
    probabilities, found = Bench(data, 4, arguments).fit("map")
    assert found["epoch"] is None
    assert probabilities(data["x_test"]).sum(-1).allclose(torch.ones(10))


def test_a_diverged_epoch_is_not_kept(
    arguments: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(_images(10), 4, arguments)
    scores = iter([3.0, float("nan"), 4.0])
    monkeypatch.setattr(_kivi_mnist_fits, "_nll", lambda p, y: next(scores))
    assert bench._mode(bench.start, 2)[1] == 0


def test_forced_kl_is_that_of_independent_gaussians() -> None:
    torch.manual_seed(0)
    m, scale, shift, repeats = 4000, 0.3, 0.5, 20

    def guide() -> dict[str, torch.Tensor]:
        draws = scale * torch.randn(m) + shift
        return {"a": draws[:1000].reshape(10, 100), "b": draws[1000:]}

    exact = 0.5 * m * (scale**2 + shift**2 - 1 - 2 * math.log(scale))
    found = torch.tensor([forced_kl(guide, 5) for _ in range(repeats)])
    assert abs(float(found.mean()) - exact) < 3 * float(found.std()) / repeats**0.5
    assert float(found.std()) < 0.02 * exact


def test_tables_pair_by_seed() -> None:
    def row(method: str, seed: int, error: float, claimed: float | None = None) -> dict[str, Any]:
        scores = {"test_error": error, "nll": 10 * error, "claimed_kl": claimed, "epoch": seed}
        scores |= {"claimed_last": claimed, "claimed_kl_many": claimed, "forced_kl": None}
        scores["error_last"] = claimed
        return {"width": 4, "method": method, "seed": seed, **scores, "cpu_seconds": 1.0}

    rows = [
        row("map", 0, 0.03),
        row("map", 1, 0.05),
        row("no KL", 0, 0.02),
        row("no KL", 1, 0.02),
        row("published", 1, 0.02, 1.5),
    ]
    rows.append(row("map", 1, 0.5) | {"width": 8})
    cells = [
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()[2:]]
        for text in (kivi_mnist.table(rows), kivi_mnist.differences(rows))
    ]
    none = ["", "", "", "", "", "1"]
    both = ["4", "no KL", "2", "2.00 ± 0.00", "0.200 ± 0.000", "0.5 ± 0.5"]
    assert cells[0] == [
        ["4", "map", "2", "4.00 ± 1.00", "0.400 ± 0.100", "0.5 ± 0.5", *none[:5], "1 ± 0"],
        [*both, *none[:5], "1 ± 0"],
        ["4", "published", "1", "2.00", "0.200", "1.0", "1.5", "1.5", "1.5", "150.00", "", "1"],
        ["8", "map", "1", "50.00", "5.000", "1.0", *none],
    ]
    assert cells[1] == [
        ["4", "map", "2", "+2.00 ± 1.00", "+0.200 ± 0.100"],
        ["4", "published", "1", "+0.00", "+0.000"],
    ]
