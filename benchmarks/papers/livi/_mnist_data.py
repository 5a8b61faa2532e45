"""The images that LeNet is judged by: as they come, rotated, and of something else than digits."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from benchmarks.common import load_npz
from benchmarks.shared.image_fits import cut_mnist, standardised

__all__ = ["ANGLES", "OTHERS", "Images", "load"]

ANGLES = tuple(range(0, 181, 15))
#: what the images of another kind are, and their files
OTHERS = {
    "KMNIST": "kmnist_test.npz",
    "FashionMNIST": "fashion_mnist_test.npz",
    "notMNIST": "notmnist_test.npz",
}


@dataclass(frozen=True)
class Images:
    """
    Standardised images, to train on and to judge by.

    :param Tensor x: training images, shape ``(N, 1, 28, 28)``.
    :param Tensor y: their labels.
    :param Tensor x_test: digits to judge by.
    :param Tensor y_test: their labels.
    :param rotated: the first of these at each angle but 0.
    :param others: images of another kind, by name.
    """

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    rotated: dict[int, Tensor]
    others: dict[str, Tensor]


def load(arguments: Namespace) -> Images:
    """
    :param arguments: with ``data_root``, ``download``, the numbers of images, ``validation``.
    """
    data = cut_mnist(arguments, arguments.download)
    x, y, x_test, y_test = (data[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    if arguments.validation:
        held = max(len(x) // 12, 1)  # 5000 of 60 000
        x_test, y_test, x, y = x[-held:], y[-held:], x[:-held], y[:-held]
    count = arguments.num_shifted
    others = {}
    for name, file in OTHERS.items():
        raw = load_npz(arguments.data_root, file)["x"][:count]
        others[name] = standardised(torch.from_numpy(raw)[:, None].float() / 255)
    turned = {
        angle: standardised(rotate(x_test[:count], angle, InterpolationMode.BILINEAR))
        for angle in ANGLES[1:]
    }
    return Images(standardised(x), y, standardised(x_test), y_test, turned, others)
