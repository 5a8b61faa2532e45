"""Photographs to train on and to judge by: as they come, spoilt, and of other classes."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

from benchmarks.common import load_npz
from benchmarks.shared.judged_images import Images

__all__ = ["CORRUPTIONS", "LEVELS", "OTHERS", "SPOILT", "corrupted", "load"]

#: what the images of other classes are, and their files
OTHERS = {"CIFAR-100": "cifar100_test_jpeg.npz"}
LEVELS = (1, 3, 5)
_DEVIATIONS = {1: 0.4, 2: 0.6, 3: 0.8, 4: 1.1, 5: 1.5}  # of the blur, in pixels
_MEAN = (0.4914, 0.4822, 0.4465)  # of all pixels of the training images, and their deviations
_DEVIATION = (0.2470, 0.2435, 0.2616)


def _blur(x: Tensor, level: int) -> Tensor:
    return gaussian_blur(x, [9, 9], [_DEVIATIONS[level]] * 2)


def _noise(x: Tensor, level: int) -> Tensor:
    drawn = torch.randn(x.shape, generator=torch.Generator().manual_seed(level))
    return (x + 0.04 * level * drawn).clamp(0, 1)


def _brightness(x: Tensor, level: int) -> Tensor:
    return (x + 0.1 * level).clamp(0, 1)


#: by name, from images in [0, 1] and a level of 1 to 5
_KINDS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "blur": _blur,
    "noise": _noise,
    "brightness": _brightness,
}
SPOILT = tuple(_KINDS)
#: by name and level, as scores are named
CORRUPTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    f"{kind} {level}": partial(spoil, level=level)
    for kind, spoil in _KINDS.items()
    for level in LEVELS
}


def corrupted(x: Tensor, kind: str) -> Tensor:
    """
    :param Tensor x: images ``(N, 3, 32, 32)`` in [0, 1].
    :param str kind: one of :data:`CORRUPTIONS`.
    :returns: the same images, spoilt.
    """
    return CORRUPTIONS[kind](x)


def load(arguments: Namespace) -> Images:
    """
    :param arguments: with ``data_root``, the numbers of images, ``validation``.
    """
    pictures = _Pictures(arguments.data_root, "cifar10_jpeg.npz")
    train, test = pictures.shuffled(0), pictures.shuffled(1)
    x, y = pictures.read(train[: arguments.num_train])
    if arguments.validation:  # rows of the training part that no fit of this size sees
        test = train[arguments.num_train :]
    x_test, y_test = pictures.read(test[: arguments.num_test])
    count = arguments.num_shifted
    spoilt = {kind: _standardised(corrupted(x_test[:count], kind)) for kind in CORRUPTIONS}
    others = {}
    for name, file in OTHERS.items():
        other = _Pictures(arguments.data_root, file)
        others[name] = _standardised(other.read(other.shuffled(1)[:count])[0])
    return Images(_standardised(x), y, _standardised(x_test), y_test, spoilt, others)


class _Pictures:
    """
    Compressed images of a file.

    :param Path root: of the data.
    :param str file: below it.
    """

    def __init__(self, root: Path, file: str) -> None:
        self.data = load_npz(root, file)

    def shuffled(self, split: int) -> np.ndarray:
        """Numbers of the images of training (0) or test (1): in the file they lie by class."""
        found = np.flatnonzero(self.data["split"] == split)
        return np.random.default_rng(split).permutation(found)

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Images ``(N, 3, 32, 32)`` in [0, 1], and labels."""
        from PIL import Image

        blob, start = self.data["blob"], self.data["offsets"]
        raw = [blob[start[row] : start[row + 1]].tobytes() for row in rows]
        images = np.stack([np.asarray(Image.open(io.BytesIO(one))) for one in raw])
        x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        return x, torch.from_numpy(self.data["labels"][rows].astype(np.int64))


def _standardised(x: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(one)[:, None, None] for one in (_MEAN, _DEVIATION))
    return (x - mean) / deviation
