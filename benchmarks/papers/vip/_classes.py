"""Three classification tasks, and how well probabilities of classes do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from benchmarks.common import load_npz

__all__ = [
    "OTHERS",
    "SETS",
    "Predict",
    "Task",
    "load_task",
    "area_under_curve",
    "load_untested",
    "nll",
    "scores",
]

#: from inputs ``(N, D)`` to probabilities ``(N, C)``
Predict = Callable[[Tensor], Tensor]
SETS = ("breast cancer", "digits", "mnist")
#: what MNIST's digits are told from
OTHERS = ("fashion_mnist", "kmnist")
_PARTS = (0.6, 0.15)  # to fit and to choose by; the others are to test
_LEAST = 1e-12


@dataclass(frozen=True)
class Task:
    """Inputs ``(N, D)`` and labels ``(N,)`` of three parts, and inputs of other kinds by name."""

    fit: tuple[Tensor, Tensor]
    held: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    others: dict[str, Tensor] = field(default_factory=dict)

    @property
    def num_classes(self) -> int:
        """Of all parts."""
        return int(max(part[1].max() for part in (self.fit, self.held, self.test))) + 1


def load_task(data_root: Path, name: str, seed: int, num_images: int) -> Task:
    """
    Inputs are standardised by the rows to fit: each column, or all pixels of MNIST together.

    :param str name: one of :data:`SETS`.
    :param int seed: of the parts.
    :param int num_images: of MNIST, to fit and to choose by, and as many to test and of each of the
        others; at most.
    """
    if name == "mnist":
        return _mnist(data_root, seed, num_images)
    x, y = _arrays(name)
    return _of_rows(x, y, _parts(len(x), seed))


def load_untested(data_root: Path, name: str, seeds: Iterable[int], num_images: int) -> Task:
    """
    What no seed has in its test part: rows to fit and to choose by, four fifths and one fifth; none
    are left to test, and the last part is the second. Of MNIST: other images for training.

    :param seeds: of the tasks; for the others see :func:`load_task`.
    """
    seeds = list(seeds)
    if name == "mnist":
        found = _mnist(data_root, max(seeds) + 1, num_images)
        return Task(found.fit, found.held, found.held)
    x, y = _arrays(name)
    tested = np.concatenate([_parts(len(x), seed)[2] for seed in seeds])
    rows = np.setdiff1d(np.arange(len(x)), tested)
    rows = np.random.default_rng(max(seeds) + 1).permutation(rows)
    fit, held = np.split(rows, [round(len(rows) * _PARTS[0] / sum(_PARTS))])
    return _of_rows(x, y, (fit, held, held))


def _arrays(name: str) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer, load_digits

    return (load_digits if name == "digits" else load_breast_cancer)(return_X_y=True)


def _parts(count: int, seed: int) -> list[np.ndarray]:
    """Rows to fit, to choose by and to test."""
    order = np.random.default_rng(seed).permutation(count)
    return np.split(order, np.cumsum([round(part * count) for part in _PARTS]))


def _of_rows(x: np.ndarray, y: np.ndarray, parts: Sequence[np.ndarray]) -> Task:
    fit = parts[0]
    mean, scale = x[fit].mean(0), x[fit].std(0)
    x = (x - mean) / np.where(scale > 0, scale, 1.0)
    return Task(*((_inputs(x[rows]), torch.tensor(y[rows]).long()) for rows in parts))


def _mnist(data_root: Path, seed: int, count: int) -> Task:
    arrays = load_npz(data_root, "mnist.npz")
    rows = np.random.default_rng(seed).permutation(len(arrays["x_train"]))[:count]
    fit, held = np.split(rows, [round(len(rows) * _PARTS[0] / sum(_PARTS))])
    pixels = arrays["x_train"][fit] / 255.0
    mean, scale = pixels.mean(), pixels.std()

    def images(values: np.ndarray) -> Tensor:
        return _inputs((values.reshape(len(values), -1) / 255.0 - mean) / scale)

    def part(kind: str, chosen: np.ndarray) -> tuple[Tensor, Tensor]:
        return images(arrays[f"x_{kind}"][chosen]), torch.tensor(arrays[f"y_{kind}"][chosen]).long()

    others = {name: images(load_npz(data_root, f"{name}_test.npz")["x"][:count]) for name in OTHERS}
    test = np.arange(min(count, len(arrays["x_test"])))
    return Task(part("train", fit), part("train", held), part("test", test), others)


def _inputs(values: np.ndarray) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def nll(p: Tensor, y: Tensor) -> float:
    """Mean negative log-probability of the labels."""
    return -p.clamp(min=_LEAST).log()[torch.arange(len(y)), y].mean().item()


def area_under_curve(low: Tensor, high: Tensor) -> float:
    """The probability that a number of the second is larger than one of the first, ties by half."""
    _, places, counts = torch.cat([low, high]).unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2).double()[places[len(low) :]]
    return float((ranks.mean() - (len(high) + 1) / 2) / len(low))


def scores(predict: Predict, task: Task) -> dict[str, float | None]:
    """
    Of the test rows: accuracy, negative log-likelihood, expected calibration error in 15 bins, area
    under the curve of each class against the rest, mean over the classes that are there; and of
    each other kind of inputs that by which the entropy tells it from these rows, None without.
    """
    x, y = task.test
    p = predict(x).clamp(0.0, 1.0)  # a mean of ones may round to more
    there = [label for label in y.unique().tolist() if 0 < int((y == label).sum()) < len(y)]
    areas = [area_under_curve(p[y != label, label], p[y == label, label]) for label in there]
    error = multiclass_calibration_error(p, y, num_classes=task.num_classes, n_bins=15)
    found: dict[str, float | None] = {
        "accuracy": float((p.argmax(-1) == y).double().mean()),
        "nll": nll(p, y),
        "ece": float(error),
        "auroc": sum(areas) / len(areas),
    }
    doubt = torch.special.entr(p).sum(-1)
    for name in OTHERS:
        found[f"auroc {name}"] = None
        if name in task.others:
            other = torch.special.entr(predict(task.others[name]).clamp(0.0, 1.0)).sum(-1)
            found[f"auroc {name}"] = area_under_curve(doubt, other)
    return found
