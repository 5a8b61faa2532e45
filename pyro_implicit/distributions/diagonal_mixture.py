"""A mixture of diagonal Gaussians that can also be drawn from with gradients and weights."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_implicit._checks import check_instance
from pyro_implicit.exceptions import ShapeError

__all__ = ["DiagonalMixture", "WeightedDraws"]


class DiagonalMixture(dist.TorchDistribution):
    r"""
    :math:`\sum_k \pi_k\, \mathcal N(\mu_k, \operatorname{diag} \sigma_k^2)` over vectors.

    A draw that moves with the weights :math:`\pi` would have to carry mass from one component to
    another: such pathwise derivatives have enormous variance where components are apart. So plain
    draws have no gradient (``Trace_ELBO`` then uses the score), and :meth:`weighted_rsample` gives
    draws that are reparameterised within their component together with a weight, which is 1 and
    whose derivative is the score of the component.

    :param torch.Tensor loc: shape ``(*batch, K, m)``.
    :param torch.Tensor scale: standard deviations, positive, shape ``(*batch, K, m)``.
    :param torch.Tensor logits: logarithms of the weights up to a constant, shape ``(*batch, K)``;
        the batch shapes of the three are broadcast.
    :param bool validate_args: see ``torch.distributions.Distribution``.
    :raises ArgumentError: for what is no tensor.
    :raises ShapeError: for another number of components, or of entries, in one than in another.
    :raises ValueError: with validation on, for values outside of these.
    """

    arg_constraints = {
        "loc": constraints.independent(constraints.real, 2),
        "scale": constraints.independent(constraints.positive, 2),
        "logits": constraints.real_vector,
    }
    support = constraints.real_vector
    has_rsample = False

    def __init__(
        self, loc: Tensor, scale: Tensor, logits: Tensor, validate_args: bool | None = None
    ) -> None:
        _check_shapes(loc, scale, logits)
        parts, kinds = loc.shape[-2:], logits.shape[-1:]
        batch = torch.broadcast_shapes(loc.shape[:-2], scale.shape[:-2], logits.shape[:-1])
        self.loc, self.scale = loc.expand(batch + parts), scale.expand(batch + parts)
        self.logits = logits.log_softmax(-1).expand(batch + kinds)
        super().__init__(batch, loc.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> DiagonalMixture:
        """
        Expands the mixture to another batch shape.

        :param torch.Size batch_shape: the new batch shape.
        :returns: the same distribution with it.
        """
        batch = torch.Size(batch_shape)
        loc, scale, logits = self.loc, self.scale, self.logits
        return DiagonalMixture(
            loc.expand(batch + loc.shape[-2:]),
            scale.expand(batch + loc.shape[-2:]),
            logits.expand(batch + logits.shape[-1:]),
            validate_args=False,
        )

    def _components(self) -> tuple[dist.TorchDistribution, dist.TorchDistribution]:
        weights = dist.Categorical(logits=self.logits, validate_args=False)
        return weights, dist.Normal(self.loc, self.scale, validate_args=False).to_event(1)

    def log_prob(self, value: Tensor) -> Tensor:
        """
        The log-density of the mixture.

        :param torch.Tensor value: shape ``(*sample, *batch, m)``.
        :returns: shape ``(*sample, *batch)``.
        """
        _, normals = self._components()
        return torch.logsumexp(self.logits + normals.log_prob(value[..., None, :]), -1)

    def weighted_rsample(self, sample_shape: Any = ()) -> tuple[Tensor, Tensor]:
        r"""
        Draws from the mixture, with weights that carry the gradients of its logits.

        :param torch.Size sample_shape: leading shape of the draws.
        :returns: draws, shape ``(*sample, *batch, m)``, and logarithms of their weights,
            ``(*sample, *batch)``, all 0, such that :math:`\mathbb E[w f(\theta)]` has the right
            gradient.
        """
        weights, normals = self._components()
        which = weights.sample(torch.Size(sample_shape))
        index = which[..., None, None].expand(*which.shape, 1, self.event_shape[0])
        shape = index.shape[:-2] + self.loc.shape[-2:]
        loc = self.loc.expand(shape).gather(-2, index)[..., 0, :]
        scale = self.scale.expand(shape).gather(-2, index)[..., 0, :]
        score = weights.log_prob(which)
        return loc + scale * torch.randn_like(loc), score - score.detach()

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """
        Draws from the mixture without gradients.

        :param torch.Size sample_shape: leading shape of the draws.
        :returns: draws without gradient, shape ``(*sample, *batch, m)``.
        """
        return self.weighted_rsample(sample_shape)[0]


def _check_shapes(loc: Any, scale: Any, logits: Any) -> None:
    for name, one in (("loc", loc), ("scale", scale), ("logits", logits)):
        check_instance(name, one, Tensor, "a tensor")
    shapes = f"{tuple(loc.shape)}, {tuple(scale.shape)} and {tuple(logits.shape)}"
    fits = loc.dim() > 1 < scale.dim() and logits.dim() and logits.shape[-1] == loc.shape[-2]
    try:
        lead = torch.broadcast_shapes(loc.shape[:-2], scale.shape[:-2], logits.shape[:-1])
        fits = fits and scale.expand(*lead, *loc.shape[-2:]) is not None
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"loc, scale and logits have the shapes {shapes}; expected (*batch, K, m) of the first "
            "two and (*batch, K) of logits, for K components over vectors of length m."
        )


class WeightedDraws(Messenger):
    """
    Draws the mixtures of a program with weights.

    Every :class:`DiagonalMixture` is drawn by :meth:`~DiagonalMixture.weighted_rsample`, and the
    logarithm of the weight noted at the site.
    """

    def _pyro_sample(self, msg: Any) -> None:
        if isinstance(msg["fn"], DiagonalMixture) and not msg["done"] and msg["value"] is None:
            msg["value"], log_weight = msg["fn"].weighted_rsample()
            msg["infer"] = {**(msg["infer"] or {}), "log_weight": log_weight}
            msg["done"] = True
