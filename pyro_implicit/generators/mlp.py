r"""
The usual neural sampler: a perceptron, with exact Jacobians.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023.
- `Tuning Large Neural Networks via Zero-Shot Hyperparameter Transfer`, G. Yang et al., NeurIPS
  2021: how far a step should move a wide layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit._checks import check_count, check_counts, check_flag, check_number
from pyro_implicit.generators.base import Generator
from pyro_implicit.ops.activations import get_activation
from pyro_implicit.ops.jacobian import mlp_chain
from pyro_implicit.ops.linearisation import DenseLinearisation, Linearisation
from pyro_implicit.ops.logdet import (
    check_scale,
    half_log_det,
    half_log_det_gram,
    is_zero,
    upcast,
)

__all__ = ["MLPGenerator"]

# An optimiser's step along the whole last layer, relative to one along a bias. Chosen on 500 images
# of Fashion-MNIST, where networks score 0.009 better than at 1; Friedman's function +0.04, kin8nm
# level.
_LAST_LAYER_RELATIVE_STEP = 0.3


class MLPGenerator(Generator):
    r"""
    A multilayer perceptron :math:`g(z) = W_{k+1} h(z) + b \; (+ A z)` with hidden features ``h``.

    With ``skip`` a linear map ``A``, which starts as a multiple of the identity, is added: the
    first draws are then Gaussian and fill the space, and the network learns what is not Gaussian.
    Without it the rank of the Jacobian is at most the smallest hidden width.

    Log-determinants use a hand-written chain rule. Without ``skip`` and with ``d <= m`` the
    Jacobian is never formed: with the hidden part ``B`` of shape ``(h, d)``, the Gram matrix is
    :math:`B^\top (W^\top W) B`, and :math:`W^\top W` is shared by all draws. Value and gradient of
    ``100 -> 100 -> 751`` for 5 draws took 3.4 ms so, 8.5 ms with the Jacobian formed, and 142 ms by
    the ``m x m`` determinant (one CPU thread).

    :param int noise_dim: noise dimensions ``d``.
    :param int output_dim: outputs ``m``.
    :param hidden_dims: hidden widths, at least one.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param bool skip: add the linear map.
    :param float init_scale: standard deviation of each output at initialisation (positive).
    :param bool short_steps: store the last layer's weights times their number ``h`` over 0.3, so
        that an optimiser's steps along all of them together are 0.3 of those of a bias. Otherwise
        each output, and so each weight of a network, moves some ``h`` times as far in a step as a
        mean-field guide's. :class:`~pyro_implicit.HyperNetworkGuide` asks for it above 256 latents.
    :raises ArgumentError: for an empty ``hidden_dims``, a width below 1, an unknown activation or a
        scale that is not positive.
    """

    def __init__(
        self,
        noise_dim: int,
        output_dim: int,
        hidden_dims: Sequence[int] = (100,),
        *,
        activation: str = "tanh",
        skip: bool = False,
        init_scale: float = 1.0,
        short_steps: bool = False,
    ) -> None:
        noise_dim = check_count("noise_dim", noise_dim)
        super().__init__((noise_dim,), output_dim)
        output_dim = self.output_dim
        init_scale = check_number("init_scale", init_scale, above=0)
        check_flag("skip", skip)
        self.hidden_dims = check_counts("hidden_dims", hidden_dims, empty=False)
        self.activation = activation
        self._activation = get_activation(activation)
        self.full_rank = skip and noise_dim >= output_dim
        sizes = (noise_dim, *self.hidden_dims)
        self.weights = nn.ParameterList(
            torch.randn(n, k) / math.sqrt(k) for k, n in zip(sizes[:-1], sizes[1:], strict=True)
        )
        # With small biases tanh features are nearly odd and slow to skew the Gaussian of the map.
        spread = 1.0 if skip else 0.1
        self.biases = nn.ParameterList(spread * torch.randn(n) for n in self.hidden_dims)
        self.short_steps = check_flag("short_steps", short_steps)
        self._stored_times = sizes[-1] / _LAST_LAYER_RELATIVE_STEP if short_steps else 1.0
        weight_out = torch.randn(output_dim, sizes[-1]) / math.sqrt(sizes[-1])
        self.stored_weight_out = nn.Parameter(self._stored_times * weight_out)
        self.bias_out = nn.Parameter(torch.zeros(output_dim))
        self.skip_diagonal: nn.Parameter | None = None
        self.skip_dense: nn.Parameter | None = None
        if skip:
            self.skip_diagonal = nn.Parameter(torch.full((min(sizes[0], output_dim),), init_scale))
            self.skip_dense = nn.Parameter(torch.zeros(output_dim, noise_dim))
        self._rescale_output(0.05 * init_scale if skip else init_scale)

    @property
    def skip(self) -> Tensor | None:
        """
        The linear map ``A``, shape ``(m, d)``, or None.

        Its diagonal is a parameter; the rest is stored times the root of ``d``, so that an
        optimiser's steps along all of its ``d`` columns together are no larger than those of the
        other parameters.
        """
        if self.skip_diagonal is None or self.skip_dense is None:
            return None
        rows, columns = self.skip_dense.shape
        rest = self.skip_dense / math.sqrt(columns)
        diagonal = torch.diag(self.skip_diagonal)
        size = len(diagonal)
        return rest + F.pad(diagonal, (0, columns - size, 0, rows - size))

    @property
    def weight_out(self) -> Tensor:
        """The weights of the last layer, shape ``(m, h)``; see ``short_steps``."""
        if self._stored_times == 1.0:
            return self.stored_weight_out
        return self.stored_weight_out / self._stored_times

    @torch.no_grad()
    def _rescale_output(self, target: float) -> None:
        """Centres and scales the network's part so that its outputs have that deviation."""
        out = self._hidden(torch.randn(512, self.noise_dim)) @ self.weight_out.mT
        spread = out.std(0).clamp(min=1e-6)
        self.stored_weight_out.mul_((target / spread)[:, None])
        self.bias_out.copy_(-target * out.mean(0) / spread)

    def _hidden(self, z: Tensor) -> Tensor:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            z = self._activation[0](F.linear(z, weight, bias))
        return z

    def forward(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.forward`."""
        hidden, skip = self._hidden(z), self.skip
        if torch.is_autocast_enabled(
            z.device.type
        ):  # the bias locates the draws: in full precision
            out = F.linear(hidden, self.weight_out) + self.bias_out
        else:
            out = F.linear(hidden, self.weight_out, self.bias_out)
        return out if skip is None else out + F.linear(z, skip)

    def _hidden_jacobian(self, z: Tensor) -> Tensor:
        return mlp_chain(
            [w.to(z.dtype) for w in self.weights],
            [b.to(z.dtype) for b in self.biases],
            self._activation,
            z,
        )

    def jacobian(self, z: Tensor) -> Tensor:
        """See :meth:`Generator.jacobian`."""
        self.check_noise(z)
        jac, skip = self.weight_out.to(z.dtype) @ self._hidden_jacobian(z), self.skip
        return jac if skip is None else jac + skip.to(z.dtype)

    def linearise(self, z: Tensor) -> Linearisation:
        """See :meth:`Generator.linearise`; one pass, structured products."""
        self.check_noise(z)
        hidden, slopes = z, []
        for weight, bias in zip(self.weights, self.biases, strict=True):
            pre = F.linear(hidden, weight, bias)
            slopes.append(self._activation[1](pre))
            hidden = self._activation[0](pre)
        out, skip = F.linear(hidden, self.weight_out, self.bias_out), self.skip
        value = out if skip is None else out + F.linear(z, skip)
        return DenseLinearisation(value, [*self.weights, self.weight_out], slopes, skip)

    def half_log_det(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        """See :meth:`Generator.half_log_det`."""
        self.check_noise(z)
        m, d = self.output_dim, self.noise_dim
        with torch.autocast(z.device.type, enabled=False):
            wide = upcast(z)
            if self.skip_dense is not None or d > m or is_zero(scale):
                return half_log_det(self.jacobian(wide), scale).to(z.dtype)
            check_scale(scale, m, d)
            inner = self._hidden_jacobian(wide)
            sigma = torch.as_tensor(scale, dtype=wide.dtype, device=z.device)
            weight = upcast(self.weight_out) / (sigma[:, None] if sigma.dim() else sigma)
            gram = inner.mT @ (weight.mT @ weight) @ inner
            return half_log_det_gram(gram, sigma, m).to(z.dtype)

    def config(self) -> dict[str, Any]:
        """See :meth:`Generator.config`."""
        return {
            "type": "MLPGenerator",
            "noise_dim": self.noise_dim,
            "output_dim": self.output_dim,
            "hidden_dims": list(self.hidden_dims),
            "activation": self.activation,
            "skip": self.skip_dense is not None,
            "short_steps": self.short_steps,
        }
