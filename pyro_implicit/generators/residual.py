r"""A generator of full rank whose exact log-determinant is cheap."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit._checks import check_count, check_number
from pyro_implicit.generators.base import Generator
from pyro_implicit.ops.activations import get_activation
from pyro_implicit.ops.linearisation import DenseLinearisation, Linearisation
from pyro_implicit.ops.logdet import (
    low_rank_half_log_det,
    upcast,
)

__all__ = ["ResidualGenerator"]


class ResidualGenerator(Generator):
    r"""
    A full-rank generator with a cheap exact determinant.

    It is :math:`g(z) = a + s \odot z + W_2\, \phi(W_1 z + b)`, with as many noise dimensions as
    outputs.

    Its Jacobian is a diagonal plus a matrix of rank ``h``, so
    :math:`\log|\det J| = \sum \log s_i + \log|\det(I_h + D W_1 \mathrm{diag}(1/s) W_2)|` with ``D``
    the slopes of :math:`\phi`: an ``h x h`` determinant and :math:`O(m h)` memory. No output noise
    is needed.

    :param int output_dim: outputs and noise dimensions ``m``.
    :param int hidden_dim: width ``h``.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param float init_scale: standard deviation of each output at initialization (positive); the
        network's part has a twentieth of it.
    :raises ArgumentError: for a width below 1, an unknown activation or a scale that is not
        positive.
    """

    full_rank = True

    def __init__(
        self,
        output_dim: int,
        hidden_dim: int = 50,
        *,
        activation: str = "elu",
        init_scale: float = 1.0,
    ) -> None:
        output_dim = check_count("output_dim", output_dim)
        super().__init__((output_dim,), output_dim)
        init_scale = check_number("init_scale", init_scale, above=0)
        self.hidden_dim = hidden_dim = check_count("hidden_dim", hidden_dim)
        self.activation = activation
        self._activation = get_activation(activation)
        self.shift = nn.Parameter(torch.zeros(output_dim))
        self.log_diagonal = nn.Parameter(torch.full((output_dim,), math.log(init_scale)))
        self.weight_in = nn.Parameter(torch.randn(hidden_dim, output_dim) / math.sqrt(output_dim))
        self.bias_in = nn.Parameter(torch.zeros(hidden_dim))
        self.weight_out = nn.Parameter(
            0.05 * init_scale * torch.randn(output_dim, hidden_dim) / math.sqrt(hidden_dim)
        )

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        hidden = self._activation[0](F.linear(z, self.weight_in, self.bias_in))
        return self.shift + self.log_diagonal.exp() * z + F.linear(hidden, self.weight_out)

    def _slopes(self, z: Tensor) -> Tensor:
        return self._activation[1](
            F.linear(z, self.weight_in.to(z.dtype), self.bias_in.to(z.dtype))
        )

    def jacobian(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.jacobian`."""
        self.check_noise(z)
        inner = self._slopes(z)[..., None] * self.weight_in.to(z.dtype)
        return self.weight_out.to(z.dtype) @ inner + torch.diag(self.log_diagonal.to(z.dtype).exp())

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`; one pass, structured products."""
        self.check_noise(z)
        weights = [self.weight_in, self.weight_out]
        return DenseLinearisation(self(z), weights, [self._slopes(z)], self.log_diagonal.exp())

    def half_log_det(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        """See :meth:`Generator.half_log_det`."""
        self.check_noise(z)
        with torch.autocast(z.device.type, enabled=False):
            wide = upcast(z)
            inner = self._slopes(wide)[..., None] * upcast(self.weight_in)
            diagonal = upcast(self.log_diagonal).exp()
            return low_rank_half_log_det(diagonal, self.weight_out, inner, scale).to(z.dtype)

    def config(self) -> dict[str, Any]:
        """See :meth:`Generator.config`."""
        return {
            "type": "ResidualGenerator",
            "output_dim": self.output_dim,
            "hidden_dim": self.hidden_dim,
            "activation": self.activation,
        }
