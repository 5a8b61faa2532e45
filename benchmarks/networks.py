"""
Image classifiers and a forecaster of the sizes that posteriors over weights are compared on.

References

[1] `Gradient-Based Learning Applied to Document Recognition`, Y. LeCun, L. Bottou, Y. Bengio,
    P. Haffner, Proceedings of the IEEE 1998.
[2] `Wide Residual Networks`, S. Zagoruyko, N. Komodakis, BMVC 2016.
[3] `Group Normalization`, Y. Wu, K. He, ECCV 2018.
[4] `N-BEATS: Neural Basis Expansion Analysis for Interpretable Time Series Forecasting`,
    B. N. Oreshkin, D. Carpov, N. Chapados, Y. Bengio, ICLR 2020.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit._checks import check_count, check_flag
from pyro_implicit.exceptions import ArgumentError

__all__ = ["LeNet", "NBeats", "WideResNet"]

#: most groups of channels that are normalised together; each has at least two channels
_MAX_GROUPS = 8
_DEPTHS = "6 n + 4 with n >= 1, such as 10, 16, 22 or 28"


class LeNet(nn.Module):
    """
    A small convolutional network for 28 x 28 grey images, after [1]: two 5 x 5 convolutions (6 and
    16 channels, no padding), each with ReLU and 2 x 2 max-pooling, then 256, 120 and 84 features.
    44 426 weights for 10 classes.

    It has no normalisation and needs none at this depth.

    :param int num_classes: number of logits.
    :raises ArgumentError: for fewer than one class.
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        num_classes = check_count("num_classes", num_classes)
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(256, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """
        :param torch.Tensor x: images, shape ``(N, 1, 28, 28)``.
        :returns: logits, shape ``(N, num_classes)``.
        """
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


class WideResNet(nn.Module):
    r"""
    A wide residual network for small colour images [2]: a 3 x 3 convolution, three stages of
    pre-activated residual blocks with 16, 32 and 64 times ``widen_factor`` channels, average
    pooling, logits. Depth 16 and factor 4 give 2.7 million weights, 28 and 10 give 36.5 million.

    *Normalisation* differs from [2], which has BatchNorm. That makes the output of one image depend
    on the others of its batch, so the likelihood is no product over data and there is no posterior
    to speak of; and its running statistics belong to one draw of the weights, so several draws at
    once cannot train it, and a draw never seen before cannot predict with it. Here each image is
    normalised by itself, in groups of channels [3]: nothing is kept, training and prediction are
    the same, and a loop over draws equals ``torch.func.vmap``.

    The normalisation has *no weights of its own*. Gains under a prior with mean zero would block
    the network at the prior mean, and a gain is nothing that the next convolution cannot do as
    well. The shifts are biases of the convolutions before (which BatchNorm would cancel, and groups
    of several channels do not). So all weights and biases may share one zero-mean prior.

    There is no dropout: the posterior is the noise.

    :param int depth: layers, ``6 n + 4`` with ``n >= 1`` blocks in each stage.
    :param int widen_factor: width relative to the thinnest network.
    :param int num_classes: number of logits.
    :raises ArgumentError: for another depth, a factor or a number of classes below 1.
    """

    def __init__(self, depth: int, widen_factor: int, num_classes: int = 10) -> None:
        super().__init__()
        blocks, rest = divmod(check_count("depth", depth, 10, why=f": {_DEPTHS}") - 4, 6)
        if blocks < 1 or rest:
            raise ArgumentError(f"depth={depth}; expected {_DEPTHS}.")
        widen_factor = check_count("widen_factor", widen_factor)
        num_classes = check_count("num_classes", num_classes)
        widths = [16, *(width * widen_factor for width in (16, 32, 64))]
        self.conv = nn.Conv2d(3, widths[0], 3, padding=1)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    _Block(before, width, stride=1 if stage == 0 else 2),
                    *(_Block(width, width, stride=1) for _ in range(blocks - 1)),
                )
                for stage, (before, width) in enumerate(zip(widths[:-1], widths[1:], strict=True))
            )
        )
        self.norm = _group_norm(widths[-1])
        self.linear = nn.Linear(widths[-1], num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """
        :param torch.Tensor x: images, shape ``(N, 3, H, W)`` with sides of at least 4 pixels.
        :returns: logits, shape ``(N, num_classes)``.
        """
        x = self.stages(self.conv(x))
        return self.linear(F.relu(self.norm(x)).mean((-2, -1)))


class _Block(nn.Module):
    """Normalise, ReLU, convolve, twice, beside a skip (a 1 x 1 convolution if shapes change)."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = _group_norm(before)
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1)
        self.norm2 = _group_norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        same = before == width and stride == 1
        self.skip = None if same else nn.Conv2d(before, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(x))
        shortcut = x if self.skip is None else self.skip(out)
        out = self.conv1(out)
        return shortcut + self.conv2(F.relu(self.norm2(out)))


def _group_norm(channels: int) -> nn.GroupNorm:
    """Normalisation in as many groups as divide the channels, at most 8."""
    return nn.GroupNorm(math.gcd(channels, _MAX_GROUPS), channels, affine=False)


class _GenericBlock(nn.Module):
    """Four fully connected layers, then a backcast and a forecast through ``theta_dim`` numbers."""

    def __init__(self, input_size: int, horizon: int, theta_dim: int, hidden_dim: int) -> None:
        super().__init__()
        sizes = [input_size, *[hidden_dim] * 4]
        layers = [nn.Linear(k, n) for k, n in zip(sizes[:-1], sizes[1:], strict=True)]
        self.layers = nn.ModuleList(layers)
        self.theta_backcast = nn.Linear(hidden_dim, theta_dim, bias=False)
        self.theta_forecast = nn.Linear(hidden_dim, theta_dim, bias=False)
        self.backcast = nn.Linear(theta_dim, input_size)
        self.forecast = nn.Linear(theta_dim, horizon)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = F.relu(layer(x))
        backcast = self.backcast(self.theta_backcast(x))
        return backcast, self.forecast(self.theta_forecast(x))


class NBeats(nn.Module):
    """
    Forecasts by a stack of generic blocks that explain what the blocks before have left [4].

    :param int input_size: number of past values.
    :param int horizon: number of values to forecast.
    :param int num_stacks: number of stacks.
    :param int num_blocks: blocks in each stack.
    :param int theta_dim: expansion coefficients of a block.
    :param int hidden_dim: width of its four layers.
    :param bool share_weights: whether the blocks of a stack are one.
    :raises ArgumentError: for a size below 1.
    """

    def __init__(
        self,
        input_size: int,
        horizon: int,
        *,
        num_stacks: int = 1,
        num_blocks: int = 3,
        theta_dim: int = 32,
        hidden_dim: int = 64,
        share_weights: bool = True,
    ) -> None:
        super().__init__()
        input_size = check_count("input_size", input_size)
        horizon = check_count("horizon", horizon)
        num_stacks = check_count("num_stacks", num_stacks)
        num_blocks = check_count("num_blocks", num_blocks)
        theta_dim = check_count("theta_dim", theta_dim)
        hidden_dim = check_count("hidden_dim", hidden_dim)
        check_flag("share_weights", share_weights)
        self.horizon, self.repeats = horizon, num_blocks if share_weights else 1
        own = num_stacks * (1 if share_weights else num_blocks)
        self.blocks = nn.ModuleList(
            _GenericBlock(input_size, horizon, theta_dim, hidden_dim) for _ in range(own)
        )

    def forward(self, x: Tensor) -> Tensor:
        """
        :param torch.Tensor x: past values, shape ``(N, input_size)``.
        :returns: forecasts, shape ``(N, horizon)``.
        """
        total = x.new_zeros(*x.shape[:-1], self.horizon)
        for block in self.blocks:
            for _ in range(self.repeats):
                backcast, forecast = block(x)
                x, total = x - backcast, total + forecast
        return total
