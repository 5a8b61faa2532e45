r"""
Implicit processes: random functions that anyone can draw, as distributions of their values.

References

[1] `Variational Implicit Processes`, C. Ma, Y. Li, J. M. Hernandez-Lobato, ICML 2019.
"""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit.distributions._process_moments import as_like
from pyro_implicit.distributions._process_weights import WeightSpace
from pyro_implicit.distributions._random_functions import frozen
from pyro_implicit.exceptions import ArgumentError, DensityError
from pyro_implicit.ops.logdet import is_zero, upcast
from pyro_implicit.ops.low_rank import (
    lifted,
    low_rank_log_prob,
    posterior_by_functions,
    posterior_by_weights,
)

__all__ = ["ImplicitProcess"]


class ImplicitProcess(WeightSpace):
    r"""
    The values at some inputs of a random function ``f`` that can only be drawn, plus Gaussian
    noise: the finite marginal of an implicit process [1].

    Draws (:meth:`rsample`) are draws of the process itself. The density (:meth:`log_prob`) is that
    of the Gaussian with its moments, estimated from ``S = num_functions`` functions (Eq. 4 to 6 of
    [1]),

    .. math::  y \sim \mathcal N(m, \Phi\Phi^\top + \sigma^2 I), \quad
        m = \tfrac1S \textstyle\sum_s f_s, \quad \Phi_s = (f_s - m) / \sqrt S,

    by algebra of rank ``S``: time :math:`O(N S^2)`, memory :math:`O(N S)`, no ``N x N`` matrix
    unless ``N <= S``. It is differentiable with respect to the parameters of the prior, so that

    .. code-block:: python

        def model(x, y=None):
            noise = pyro.sample("noise", dist.LogNormal(-1.0, 1.0))
            return pyro.sample("y", ImplicitProcess(prior, x, noise_scale=noise), obs=y)

    learns them by SVI or MAP beside any other latents: the *collapsed* training of the paper's
    Eq. 8. Its error as an estimate of the log-marginal of the moment-matched Gaussian falls as
    :math:`S^{-1/2}` and is biased downwards for small ``S``; that of the Gaussian approximation
    itself does not fall.

    **Frozen or fresh functions.** With ``seed=None`` every instance draws new functions: gradients
    of the collapsed objective are those of a fresh sample at each step, and prediction needs its
    own, larger ``num_functions`` (200 or more). With a ``seed`` all instances that share it, at
    whatever inputs, see *the same* random numbers, and so the same functions if the prior's
    randomness does not depend on the inputs (weights of a network, not the noise of each row). A
    posterior over coefficients of the functions (Eq. 10) has a meaning with frozen ones only.

    :param prior: draws functions: ``prior(inputs, num_functions)`` of shape ``(num_functions,
        *batch, N)``; or a :class:`~pyro_implicit.BayesianModule` from ``(N, ...)`` to ``(N, 1)``,
        ``(N,)``, or ``(N, K)``, whose ``K`` outputs become a batch.
    :param torch.Tensor inputs: ``(N, ...)``.
    :param int num_functions: ``S >= 2``.
    :param noise_scale: standard deviation of the noise, a number or a tensor that broadcasts with
        ``(*batch, N)``; None or 0: the values of ``f`` itself, whose density then needs ``psi`` or
        more functions than values.
    :param psi: scale of the inverse-Wishart prior on the covariance (appendix C.3 of [1], posterior
        mean with ``nu = N``): the covariance is then
        :math:`(S \Phi\Phi^\top + \psi I) / (S - 1)`. None: Eq. 6.
    :param seed: None for fresh functions, or an integer.
    :param int event_dim: 1, or 2 to take the last batch dimension (outputs) as parts of one event,
        with the covariance between outputs.
    :raises ArgumentError: for fewer than 2 functions or a negative scale or ``psi``.
    :raises NonFiniteError: if a function is not finite at an input.
    :raises ShapeError: if the prior returns another shape.
    """

    # ---- density

    def to_gaussian(self) -> dist.TorchDistribution:
        """
        The Gaussian that stands for the density, in float64 and with the event flattened.

        :raises DensityError: without noise and ``psi``, for no more functions than values.
        """
        mean, factor, diagonal = self._low_rank()
        size, rank = factor.shape[-2:]
        if self._is_bare and rank <= size:
            raise DensityError(
                f"{rank} functions at {size} inputs span too few directions for a density of the "
                "values themselves. Give a noise_scale, psi, or more num_functions than values."
            )
        if size <= rank:
            covariance = factor @ factor.mT + torch.diag_embed(diagonal.expand(factor.shape[:-1]))
            return dist.MultivariateNormal(mean, covariance, validate_args=False)
        return dist.LowRankMultivariateNormal(mean, factor, diagonal, validate_args=False)

    # ---- what Pyro calls

    def expand(self, batch_shape: Any, _instance: Any = None) -> ImplicitProcess:
        """
        :param torch.Size batch_shape: the new batch shape.
        :returns: the same distribution with it, of the same functions.
        """
        clone = self.__class__.__new__(self.__class__)
        clone.__dict__.update(self.__dict__)
        clone._batch_shape = torch.broadcast_shapes(self.batch_shape, batch_shape)
        return clone

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """
        New functions, with noise: draws of the process itself and not of the Gaussian.

        :param torch.Size sample_shape: leading shape of the draws.
        :returns: shape ``(*sample_shape, *batch, N)``.
        """
        own = self.functions.shape[1:]
        shape = torch.Size(sample_shape) + self.batch_shape + self.event_shape
        count = shape[: len(shape) - len(own)].numel()
        values = self._draw(self.inputs, count).reshape(*shape[: len(shape) - len(own)], *own)
        values = values.expand(shape)
        if is_zero(self.noise_scale):
            return values
        return values + as_like(self.noise_scale, values) * torch.randn_like(values)

    def log_prob(self, value: Tensor) -> Tensor:
        """
        Under the Gaussian with the moments of the process (see the class).

        :param torch.Tensor value: ``y``, shape ``(..., *batch, N)``.
        :returns: shape ``(..., *batch)``.
        :raises DensityError: see :meth:`to_gaussian`.
        """
        shape = torch.broadcast_shapes(value.shape, self.batch_shape + self.event_shape)
        flat = upcast(value).expand(shape).flatten(-self.event_dims)
        mean, factor, diagonal = self._low_rank()
        if factor.shape[-2] <= self.num_functions or self._is_bare:
            return self.to_gaussian().log_prob(flat).to(value.dtype)
        return low_rank_log_prob(flat - mean, factor, diagonal).to(value.dtype)

    # ---- the posterior

    def condition(
        self,
        value: Tensor,
        inputs: Tensor | None = None,
        *,
        num_functions: int | None = None,
        observed: bool = False,
        method: str = "auto",
    ) -> dist.TorchDistribution:
        """
        The posterior at ``inputs`` given ``y`` at the own ones, of the Gaussian with the moments of
        the process.

        :param torch.Tensor value: ``y``, shape ``(*batch, N)``.
        :param torch.Tensor inputs: new inputs ``(K, ...)``; by default the own ones. Functions are
            drawn at both together, frozen if the process is.
        :param int num_functions: functions to draw for it; by default as many as for the density.
        :param bool observed: of new observations, with noise, rather than of ``f``. (Eq. 13 of [1]
            is the latent variance.)
        :param str method: ``"weights"`` (Eq. 13: a system of the size of ``S``), ``"functions"``
            (Eq. 12: of the size of ``N``), or ``"auto"``: the smaller of both. They are equal.
        :returns: a Gaussian of batch shape ``batch`` and event shape ``(K,)``, in float64.
        :raises ArgumentError: for another method, ``event_dim=2``, or without noise and ``psi``.
        """
        if method not in ("auto", "weights", "functions"):
            raise ArgumentError(f"method={method!r}; expected 'auto', 'weights' or 'functions'.")
        if self.event_dims != 1:
            raise ArgumentError("condition knows event_dim=1 only; treat outputs as a batch.")
        if self._is_bare:
            raise ArgumentError("a posterior needs noise: give noise_scale or psi.")
        joint = self._at(self.inputs if inputs is None else inputs, num_functions)
        size = len(self.inputs)
        mean, factor, diagonal = joint
        here, there = factor[..., :size, :], factor[..., size:, :]
        noise = self._diagonal(here.shape[:-1])
        rest = upcast(value) - mean[..., :size]
        if method == "auto":
            method = "weights" if factor.shape[-1] <= size else "functions"
        solve = posterior_by_weights if method == "weights" else posterior_by_functions
        shift, covariance = solve(here, there, noise, rest)
        if diagonal is not None:
            covariance = covariance + diagonal * torch.eye(there.shape[-2]).to(covariance)
        if observed:
            new = as_like(self.noise_scale, covariance).square()
            covariance = covariance + torch.diag_embed(new.expand(covariance.shape[:-1]))
        return dist.MultivariateNormal(
            mean[..., size:] + shift, lifted(covariance), validate_args=False
        )

    def _at(self, inputs: Tensor, count: int | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean and factor at the own and at other inputs, and what new values have beside it."""
        count = count or self.num_functions
        with frozen(self.seed):
            values = upcast(self._draw(torch.cat([self.inputs, inputs]), count))
        divisor = count if self.psi is None else count - 1
        factor = (values - values.mean(0)).movedim(0, -1) / math.sqrt(divisor)
        extra = None
        if self.psi is not None:
            extra = as_like(self.psi, values) / divisor
        return values.mean(0), factor, extra
