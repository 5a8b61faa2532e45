r"""
Mixture density networks: from a context to an explicit distribution of many latents.

References

- `Mixture Density Networks`, C. M. Bishop, technical report NCRG/94/004, 1994.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyro.distributions as dist
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit._checks import check_count, check_counts, check_instance, check_number
from pyro_implicit.distributions.diagonal_mixture import DiagonalMixture
from pyro_implicit.exceptions import ShapeError
from pyro_implicit.ops.activations import get_activation

__all__ = ["MixtureDensityNetwork"]

_INVERSE_SOFTPLUS_OF_ONE = math.log(math.e - 1)


class MixtureDensityNetwork(nn.Module):
    r"""
    A perceptron from a context to a mixture of diagonal Gaussians over ``m`` latents.

    With one component draws are reparameterised as usual; with more see
    :class:`~pyro_implicit.distributions.diagonal_mixture.DiagonalMixture`.

    :param int context_dim: entries ``k`` of the context.
    :param torch.Tensor loc: where all components are initialised, shape ``(m,)``.
    :param int num_components: number of components.
    :param hidden_dims: widths of the hidden layers.
    :param str activation: see :data:`pyro_implicit.ops.activations.ACTIVATIONS`.
    :param float init_scale: standard deviation of each component at initialisation; several also
        start about as far from ``loc``.
    :raises ArgumentError: for values outside of these.
    :raises ShapeError: for a ``loc`` of another shape.
    """

    loc: Tensor
    spread: Tensor

    def __init__(
        self,
        context_dim: int,
        loc: Tensor,
        num_components: int = 1,
        hidden_dims: Sequence[int] = (16,),
        *,
        activation: str = "relu",
        init_scale: float = 0.1,
    ) -> None:
        super().__init__()
        context_dim = check_count("context_dim", context_dim)
        check_instance("loc", loc, Tensor, "a tensor of shape (m,)")
        if loc.dim() != 1:
            raise ShapeError(f"loc has shape {tuple(loc.shape)}; expected (m,), for m latents.")
        m = len(loc)
        self.hidden_dims = hidden_dims = check_counts("hidden_dims", hidden_dims, empty=False)
        self.init_scale = check_number("init_scale", init_scale, above=0)
        self.num_components = num_components = check_count("num_components", num_components)
        self.activation = activation
        self._activation = get_activation(activation)[0]
        sizes = (context_dim, *hidden_dims)
        self.layers = nn.ModuleList(
            nn.Linear(k, n) for k, n in zip(sizes[:-1], sizes[1:], strict=True)
        )
        self.head = nn.Linear(sizes[-1], num_components * (2 * m + 1))
        with torch.no_grad():
            self.head.bias.zero_()
        self.register_buffer("loc", loc.detach().clone())
        spread = torch.randn(num_components, m) if num_components > 1 else torch.zeros(1, m)
        self.register_buffer("spread", spread.to(loc))
        self.to(loc)

    @property
    def output_dim(self) -> int:
        """Number of latents ``m``."""
        return len(self.loc)

    def distribution(self, context: Tensor) -> dist.TorchDistribution:
        """
        The mixture at each row of a context.

        :param torch.Tensor context: shape ``(*batch, k)``.
        :returns: a distribution with a density, batch shape ``batch``, event shape ``(m,)``.
        """
        hidden = context.to(self.loc.dtype)
        for layer in self.layers:
            hidden = self._activation(layer(hidden))
        return self._mixture(self.head(hidden))

    def _mixture(self, out: Tensor) -> dist.TorchDistribution:
        """The mixture from ``K (2m + 1)`` numbers: locations, log-scales and logits."""
        m, k = self.output_dim, self.num_components
        shape = (*out.shape[:-1], k, m)
        locs, log_scales, logits = out.split([k * m, k * m, k], -1)
        steps = locs.reshape(shape)
        scales = F.softplus(log_scales.reshape(shape) + _INVERSE_SOFTPLUS_OF_ONE)
        scales = self.init_scale * scales
        if k == 1:
            loc = self.loc + self.init_scale * steps[..., 0, :]
            component: dist.TorchDistribution = dist.Normal(loc, scales[..., 0, :]).to_event(1)
            return component
        locs = self.loc + self.init_scale * (self.spread + steps)
        return DiagonalMixture(locs, scales, logits)

    def config(self) -> dict[str, Any]:
        """
        The constructor's arguments as plain values, without ``loc``.

        :returns: keyword arguments.
        """
        return {
            "context_dim": self.layers[0].in_features,
            "num_components": self.num_components,
            "hidden_dims": list(self.hidden_dims),
            "activation": self.activation,
            "init_scale": self.init_scale,
        }
