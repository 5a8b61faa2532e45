"""Fully connected networks, one weight matrix per layer, and the generators of KIVI for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.shared.images import NoEntropy
from pyro_implicit import AdversarialELBO, KernelDensityRatioELBO, MMNNGuide
from pyro_implicit.generators import MMNN, Generator
from pyro_implicit.guides.latent_site import LatentSite

__all__ = ["KiviGuide", "NUM_SAMPLES", "OBJECTIVES", "Perceptron", "forced_kl"]

#: of the generators' guides; the ratio sees as many draws as the paper's
NUM_SAMPLES = 10


def _linear(size: int) -> nn.Module:
    return nn.Linear(size, 1)


#: the critic is trained a step at a time, on as many draws
_CRITIC: dict[str, Any] = {"critic": _linear, "contrast": "prior", "num_critic_steps": 1}
OBJECTIVES: dict[str, Callable[..., Any]] = {
    "no KL": partial(NoEntropy, kl_weight=0.0),
    "published": partial(KernelDensityRatioELBO, published=True, num_samples=NUM_SAMPLES),
    "adaptive": partial(KernelDensityRatioELBO, num_samples=NUM_SAMPLES),
    "logistic critic": partial(AdversarialELBO, **_CRITIC, num_samples=NUM_SAMPLES),
}


class Perceptron(nn.Module):
    """784-L-L-10 with rectified units; the last column of each matrix is the bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [784, width, width, 10]
        pairs = zip(sizes[:-1], sizes[1:], strict=True)
        self.layers = nn.ParameterList(_fresh(before, after) for before, after in pairs)

    def forward(self, x: Tensor) -> Tensor:
        """Images, shape ``(N, 784)``, to logits."""
        for index, weight in enumerate(self.layers):
            x = x if index == 0 else torch.relu(x)
            x = x @ weight[:, :-1].T + weight[:, -1]
        return x


def _fresh(before: int, after: int) -> Tensor:
    weight = torch.randn(after, before + 1) * (2 / before) ** 0.5
    weight[:, -1] = 0.0
    return weight


class KiviGuide(MMNNGuide):
    """
    One matrix-multiplication generator per layer with the shapes of appendix D.2: noise 30 x 30,
    two rectified hidden layers of N x N (30 x N for the last layer's), the weight matrix itself
    as the output. :class:`~pyro_implicit.MMNNGuide` alone gives all sites the same hidden shapes.

    :param model: the model.
    :param int hidden: N; 500 for 400 units in the paper, 800 for more.
    :param options: those of :class:`~pyro_implicit.MMNNGuide`.
    """

    def __init__(self, model: Callable[..., Any], *, hidden: int, **options: Any) -> None:
        super().__init__(model, factorized=True, noise_shape=(30, 30), activation="relu", **options)
        self._hidden = hidden

    def _make_generator(
        self, output_dim: int, sites: list[LatentSite], preconditioned: bool
    ) -> Generator:
        rows, columns = sites[0].unconstrained_shape
        side = 30 if rows == 10 else self._hidden
        shapes = [(side, self._hidden)] * 2
        return MMNN(
            output_dim,
            hidden_shapes=shapes,
            output_shape=(rows, columns),
            **self._layout(preconditioned),
        )


@torch.no_grad()
def forced_kl(guide: Callable[..., dict[str, Tensor]], num_draws: int) -> float:
    """
    The KL divergence to the N(0, 1) prior of independent Gaussians with the means and variances of
    the guide's weights. A guide that is itself Gaussian and independent has this one; one whose
    weights depend on each other has more.

    :param guide: gives one draw of all weights at a call.
    :param int num_draws: for the moments, at least 2. That few draws make logarithms of variances
        too small and squared means too large, on average, is taken off.
    """
    count, total = num_draws, 0.0
    means: dict[str, Tensor] = {}
    squares: dict[str, Tensor] = {}
    for index in range(1, count + 1):  # Welford's sums: no more than a draw is held
        for name, value in guide().items():
            old = means.setdefault(name, torch.zeros_like(value, dtype=torch.float64))
            change = value - old
            means[name] = old + change / index
            seen = squares.setdefault(name, torch.zeros_like(old))
            squares[name] = seen + change * (value - means[name])
    half = torch.tensor((count - 1) / 2)
    bias = float(torch.digamma(half) - half.log())
    for name, mean in means.items():
        variance = squares[name] / (count - 1)
        mean_square = mean.square() - variance / count
        total += float((0.5 * (variance + mean_square - 1 - variance.log() + bias)).sum())
    return total
