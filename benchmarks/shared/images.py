"""What the benchmarks of image networks share: networks, models, generators, controls and MNIST."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.common import load_npz
from benchmarks.networks import LeNet, WideResNet
from pyro_implicit import BayesianModule, CMMNNGuide, ImplicitELBO, MMNNGuide
from pyro_implicit.objectives.implicit_site import ImplicitSite

__all__ = [
    "GUIDES",
    "NETWORKS",
    "NoEntropy",
    "classifier",
    "count",
    "digits_layers",
    "load_mnist",
    "map_step",
]

NUM_DATA = 60_000

#: name -> how to make it, shape of an image
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10)),
        (1, 8, 8),
    ),
    "lenet": (LeNet, (1, 28, 28)),
    "wideresnet-16-4": (partial(WideResNet, 16, 4), (3, 32, 32)),
    "wideresnet-28-10": (partial(WideResNet, 28, 10), (3, 32, 32)),
}

_PAPER: dict[str, Any] = {
    "noise_shape": (65, 65),
    "output_shape": (350, 127),
    "init_from": None,
}
_BARE: dict[str, Any] = {"init_from": None}  # records are of steps from there
#: name -> guide; A and B are the published shapes for LeNet, with two and with one hidden layer
GUIDES: dict[str, Callable[..., Any]] = {
    "A": partial(MMNNGuide, hidden_shapes=[(250, 250)] * 2, **_PAPER),
    "B": partial(MMNNGuide, hidden_shapes=[(250, 250)], **_PAPER),
    "mmnn": partial(MMNNGuide, **_BARE),
    "cmmnn": partial(CMMNNGuide, **_BARE),
}


def digits_layers() -> list[nn.Module]:
    """Two max-pooled convolutions for 8 x 8 grey images: 1898 weights."""
    return [
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    ]


class NoEntropy(ImplicitELBO):
    """The control: the same draws, likelihood and prior, and no entropy."""

    def estimate(self, site: ImplicitSite) -> Tensor:
        return site.value.new_zeros(site.distribution.batch_shape)


def classifier(
    module: nn.Module, num_data: int = NUM_DATA, how: str = "auto"
) -> tuple[Callable[..., Any], BayesianModule]:
    """
    :param module: a network that gives logits.
    :param int num_data: rows in all.
    :param str how: several draws at once by ``"vmap"`` or ``"loop"``.
    :returns: a model of ``x``, ``y`` and the numbers ``rows`` of a minibatch, with a standard
        normal prior on all weights; and its network.
    """
    net = BayesianModule(module, dist.Normal(0.0, 1.0), vectorize=how)  # type: ignore[arg-type]

    def model(x: Tensor, y: Tensor, rows: Tensor) -> None:
        logits = net(x)
        with pyro.plate("data", num_data, subsample=rows):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return model, net


def map_step(
    module: nn.Module, lr: float, num_data: int = NUM_DATA
) -> tuple[Callable[[Tensor, Tensor], None], torch.optim.Optimizer]:
    """A step of plain PyTorch towards the mode of the same posterior, and its optimiser."""
    optimiser = torch.optim.Adam(module.parameters(), lr=lr)

    def step(x: Tensor, y: Tensor) -> None:
        optimiser.zero_grad()
        prior = sum(weight.square().sum() for weight in module.parameters())
        loss = num_data * F.cross_entropy(module(x), y) + 0.5 * prior
        loss.backward()
        optimiser.step()

    return step, optimiser


def count(module: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def load_mnist(root: Path, download: bool) -> dict[str, Tensor]:
    """
    MNIST from ``mnist.npz`` in ``root`` if that is there, else by torchvision (which needs the
    extra ``benchmarks``).

    :returns: ``x_train``, ``x_test`` of shape ``(N, 1, 28, 28)`` in [0, 1], ``y_train``,
        ``y_test``.
    """
    if (root / "mnist.npz").is_file():
        arrays = {name: torch.from_numpy(a) for name, a in load_npz(root, "mnist.npz").items()}
    else:
        from torchvision.datasets import MNIST

        try:
            parts = {k: MNIST(str(root), train=k == "train", download=download) for k in _PARTS}
        except RuntimeError as error:
            raise SystemExit(
                f"error: there is no MNIST in {root}: say where with --data-root, or --download it"
            ) from error
        arrays = {f"x_{k}": part.data for k, part in parts.items()}
        arrays |= {f"y_{k}": part.targets for k, part in parts.items()}
    return {
        name: a[:, None].float() / 255 if name.startswith("x") else a.long()
        for name, a in arrays.items()
    }


_PARTS = ("train", "test")
