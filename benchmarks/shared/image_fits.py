"""Fits of image classifiers on shuffled minibatches: the mode, and a guide; and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import torch
from pyro.infer import SVI
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from tqdm.auto import tqdm

from benchmarks.common import positive
from benchmarks.shared.images import load_mnist, map_step

__all__ = ["ImageFits", "Minibatch", "add_mnist_options", "cut_mnist", "standardised"]

#: images, labels and row numbers
Minibatch = tuple[Tensor, Tensor, Tensor]


class ImageFits:
    """
    Training on some images, by Adam whose rate falls along a cosine.

    :param Tensor x: images.
    :param Tensor y: their labels.
    :param int batch_size: images of a step.
    :param bool quiet: no progress bars.
    """

    def __init__(self, x: Tensor, y: Tensor, batch_size: int, quiet: bool) -> None:
        self.x, self.y, self.batch_size, self.quiet = x, y, batch_size, quiet

    def steps(self, epochs: float) -> int:
        """How many steps so many epochs have; a part of one has one at least."""
        return max(round(epochs * -(-len(self.x) // self.batch_size)), 1)

    def batches(self, epochs: float, name: str) -> Iterator[Minibatch]:
        """Shuffled minibatches, with a bar of that name."""
        rows: list[Tensor] = []
        for _ in tqdm(range(self.steps(epochs)), desc=name, disable=self.quiet):
            rows = rows or list(torch.randperm(len(self.x)).split(self.batch_size))
            batch = rows.pop()
            yield self.x[batch], self.y[batch], batch

    def to_mode(
        self, net: nn.Module, epochs: float, lr: float, check: Callable[[], object] | None = None
    ) -> nn.Module:
        """Trains a plain network on the log-joint density; ``check`` is called after each epoch."""
        step, optimiser = map_step(net, lr, len(self.x))
        schedule = CosineAnnealingLR(optimiser, self.steps(epochs))
        for index, (x, y, _) in enumerate(self.batches(epochs, "map"), 1):
            step(x, y)
            schedule.step()
            self._call(check, index, epochs)
        return net

    def _call(self, check: Callable[[], object] | None, index: int, epochs: float) -> None:
        """After each epoch, and after the last step."""
        if check is not None and (index % self.steps(1) == 0 or index == self.steps(epochs)):
            check()

    def train_guide(
        self,
        model: Any,
        guide: Any,
        elbo: Any,
        *,
        epochs: float,
        lr: float,
        name: str,
        check: Callable[[], object] | None = None,
    ) -> Minibatch | None:
        """Trains a guide, and calls ``check`` after each epoch; gives back the last minibatch."""
        options = {"optim_args": {"lr": lr}, "T_max": self.steps(epochs)}
        schedule = pyro.optim.CosineAnnealingLR(  # type: ignore[attr-defined]
            {"optimizer": torch.optim.Adam, **options}
        )
        svi = SVI(model, guide, schedule, elbo)
        batch = None
        for index, batch in enumerate(self.batches(epochs, name), 1):
            svi.step(*batch)
            schedule.step()
            self._call(check, index, epochs)
        return batch


def add_mnist_options(options: argparse.ArgumentParser, train: int, test: int) -> None:
    """``--num-train`` and ``--num-test``, with these defaults."""
    for part, size in (("train", train), ("test", test)):
        options.add_argument(
            f"--num-{part}", type=positive, default=size, metavar="N", help="use the first N"
        )


def cut_mnist(arguments: argparse.Namespace, download: bool = False) -> dict[str, Tensor]:
    """As many images and labels as these options say."""
    data = load_mnist(arguments.data_root, download)
    counts = {"train": arguments.num_train, "test": arguments.num_test}
    return {name: values[: counts[name.split("_")[1]]] for name, values in data.items()}


def standardised(x: Tensor) -> Tensor:
    """Images by the mean and the deviation of all pixels of MNIST."""
    return (x - 0.1307) / 0.3081
