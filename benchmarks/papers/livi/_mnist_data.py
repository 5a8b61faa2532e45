"""The images that LeNet is judged by: as they come, rotated, and of something else than digits."""

from __future__ import annotations

from argparse import Namespace

import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate

from benchmarks.common import load_npz
from benchmarks.shared.image_fits import cut_mnist, standardised
from benchmarks.shared.judged_images import Images

__all__ = ["ANGLES", "OTHERS", "load"]

ANGLES = tuple(range(0, 181, 15))
#: what the images of another kind are, and their files
OTHERS = {
    "KMNIST": "kmnist_test.npz",
    "FashionMNIST": "fashion_mnist_test.npz",
    "notMNIST": "notmnist_test.npz",
}


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
        str(angle): standardised(rotate(x_test[:count], angle, InterpolationMode.BILINEAR))
        for angle in ANGLES[1:]
    }
    return Images(standardised(x), y, standardised(x_test), y_test, turned, others)
