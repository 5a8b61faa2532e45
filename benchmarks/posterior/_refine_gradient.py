"""The gradient of the UCI network's log-joint by hand, to measure a recorded model against."""

# Shape legend: C chains, N rows, D features, H hidden units, m latents.
from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["HandWritten"]


class HandWritten:
    """
    One hidden layer of tanh units, standard normal priors, log-normal noise.

    Latents are ordered as the model samples them: log sigma, weights and biases of the hidden
    layer, weights and bias of the output.

    :param Tensor x: inputs [N, D].
    :param Tensor y: targets [N].
    :param int hidden_units: H.
    """

    def __init__(self, x: Tensor, y: Tensor, hidden_units: int) -> None:
        self.x, self.y, self.x_t = x, y, x.mT.contiguous()
        self.sizes = [1, hidden_units * x.shape[-1], hidden_units, hidden_units, 1]

    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """
        :param Tensor u: unconstrained latents [C, m].
        :returns: log-densities [C] and gradients [C, m].
        """
        log_sigma, w1, b1, w2, b2 = u.split(self.sizes, -1)
        count, (num_rows, num_features) = len(u), self.x.shape
        kernel = w1.reshape(count, -1, num_features)
        x_t = self.x_t.expand(count, *self.x_t.shape)
        hidden = torch.baddbmm(b1[..., None], kernel, x_t).tanh_()  # [C, H, N]
        mean = torch.bmm(w2[:, None], hidden)[:, 0] + b2
        rest, precision = self.y - mean, torch.exp(-2 * log_sigma)
        squares = rest.square().sum(-1, keepdim=True)
        at_noise = log_sigma + 2.0  # the prior's mean is -2
        value = -num_rows * log_sigma - 0.5 * precision * squares - 0.5 * at_noise.square()
        value = value[:, 0] - 0.5 * u[:, 1:].square().sum(-1)
        value = value - 0.5 * (num_rows + u.shape[-1]) * math.log(2 * math.pi)
        slope = rest * precision
        to_w2 = torch.bmm(hidden, slope[..., None])[..., 0]
        back = hidden.square_().neg_().add_(1.0).mul_(slope[:, None]).mul_(w2[..., None])
        to_w1 = torch.bmm(back, self.x.expand(count, num_rows, num_features)).flatten(1)
        to_noise = precision * squares - num_rows - at_noise
        to_b2 = slope.sum(-1, keepdim=True)
        likelihood = torch.cat([to_w1, back.sum(-1), to_w2, to_b2], -1)
        return value, torch.cat([to_noise, likelihood - u[:, 1:]], -1)
