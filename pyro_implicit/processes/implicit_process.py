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

from pyro_implicit._checks import (
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_shape,
    check_tensor,
)
from pyro_implicit.exceptions import ArgumentError, DensityError, ShapeError
from pyro_implicit.ops.logdet import is_zero, upcast
from pyro_implicit.ops.low_rank import (
    lifted,
    low_rank_log_prob,
    posterior_by_functions,
    posterior_by_weights,
)
from pyro_implicit.processes._process_moments import as_like, check_finite
from pyro_implicit.processes._process_weights import WeightSpace
from pyro_implicit.processes.function_draws import frozen

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
        ``(*batch, N)``, such as ``(batch, 1)``; None or 0: the values of ``f`` itself, whose
        density then needs ``psi`` or more functions than values. What has a noise of its own is a
        replicate of its own: its draws are of other functions, unless the prior draws them jointly.
    :param psi: scale of the inverse-Wishart prior on the covariance (appendix C.3 of [1], posterior
        mean with ``nu = N``): the covariance is then
        :math:`(S \Phi\Phi^\top + \psi I) / (S - 1)`. None: Eq. 6. A number, or a tensor
        ``(*batch, 1)``. It acts as a noise of each value of ``f``, of new ones too.
    :param seed: None for fresh functions, or an integer from 0 to 2**32 - 1.
    :param int event_dim: 1, or 2 to take the last batch dimension (outputs) as parts of one event,
        with the covariance between outputs.
    :raises ArgumentError: for fewer than 2 functions, or a scale, ``psi`` or seed that is negative
        or no number.
    :raises NonFiniteError: if a function is not finite at an input.
    :raises ShapeError: if the prior returns another shape, or noise or ``psi`` do not fit to it.
    """

    # ---- density

    def to_gaussian(self) -> dist.TorchDistribution:
        """
        The Gaussian that stands for the density, in float64 and with the event flattened.

        :raises DensityError: without noise and ``psi``, for no more functions than values, or
            functions that do not span all directions.
        """
        mean, factor, diagonal = self._low_rank()
        size, rank = factor.shape[-2:]
        if self._is_bare and rank <= size:
            raise DensityError(
                f"{rank} functions at {size} inputs span too few directions for a density of the "
                "values themselves. Give a noise_scale, psi, or more num_functions than values."
            )
        if size > rank:
            wide = dist.LowRankMultivariateNormal(mean, factor, diagonal, validate_args=False)
            return wide.expand(self.batch_shape)
        covariance = factor @ factor.mT + torch.diag_embed(diagonal)
        root, failed = torch.linalg.cholesky_ex(covariance)
        if bool((failed != 0).any()):
            raise DensityError(
                f"the covariance at {size} inputs is singular in double precision: the functions "
                "span too few directions for so small a noise. Give a larger noise_scale or psi."
            )
        full = dist.MultivariateNormal(mean, scale_tril=root, validate_args=False)
        return full.expand(self.batch_shape)

    # ---- what Pyro calls

    def expand(self, batch_shape: Any, _instance: Any = None) -> ImplicitProcess:
        """
        Replicates. The moments are those of the same functions, and as the density counts
        replicates as independent, so are draws: each is of a function of its own.

        :param torch.Size batch_shape: the new batch shape.
        :returns: the same distribution with it.
        :raises ShapeError: if the batch shape does not expand to it.
        """
        wanted = check_shape("batch_shape", batch_shape)
        try:
            fits = torch.broadcast_shapes(self.batch_shape, wanted) == wanted
        except RuntimeError:
            fits = False
        if not fits:
            raise ShapeError(
                f"a process of batch shape {tuple(self.batch_shape)} does not expand to "
                f"{tuple(wanted)}."
            )
        clone = self.__class__.__new__(self.__class__)
        clone.__dict__.update(self.__dict__)
        clone._batch_shape = wanted
        return clone

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """
        New functions, with noise: draws of the process itself and not of the Gaussian. Functions
        that the prior draws together (outputs of one network) are drawn together; every other
        entry of the batch has a function of its own.

        :param torch.Size sample_shape: leading shape of the draws.
        :returns: shape ``(*sample_shape, *batch, N)``.
        """
        values = self._replicates(check_shape("sample_shape", sample_shape))
        if is_zero(self.noise_scale):
            return values
        return values + as_like(self.noise_scale, values) * torch.randn_like(values)

    def _replicates(self, sample_shape: torch.Size) -> Tensor:
        """New functions, as many as there are entries that do not share one."""
        own = self.functions.shape[1:]
        event, together = own[-self.event_dims :], own[: -self.event_dims]
        lead = sample_shape + self.batch_shape[: len(self.batch_shape) - len(together)]
        inner = self.batch_shape[len(self.batch_shape) - len(together) :]
        apart = torch.Size(1 if a == b else b for a, b in zip(together, inner, strict=True))
        count = lead.numel() * apart.numel()
        shape = sample_shape + self.batch_shape + self.event_shape
        if not count:
            return self.functions.new_zeros(shape)
        values = self._draw(self.inputs, count).reshape(*lead, *apart, *together, *event)
        pairs = [p for i in range(len(apart)) for p in (i, len(apart) + i)]
        order = [*range(len(lead)), *(len(lead) + p for p in pairs)]
        values = values.permute(*order, *range(len(order), values.dim()))
        return values.reshape(*lead, *inner, *event).expand(shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """
        Under the Gaussian with the moments of the process (see the class).

        :param torch.Tensor value: ``y``, shape ``(..., *batch, N)``.
        :returns: shape ``(..., *batch)``.
        :raises DensityError: see :meth:`to_gaussian`.
        :raises ShapeError: if there is not one value for each input.
        """
        wide = self._checked_value(value)
        shape = torch.broadcast_shapes(wide.shape, self.batch_shape + self.event_shape)
        flat = wide.expand(shape).flatten(-self.event_dims)
        dtype = value.dtype if value.is_floating_point() else self.functions.dtype
        mean, factor, diagonal = self._low_rank()
        if factor.shape[-2] <= self.num_functions or self._is_bare:
            return self.to_gaussian().log_prob(flat).to(dtype)
        return low_rank_log_prob(flat - mean, factor, diagonal).to(dtype)

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
        :param int num_functions: functions to draw for it, at least 2; by default as many as for
            the density.
        :param bool observed: of new observations, with noise, rather than of ``f``. (Eq. 13 of [1]
            is the latent variance.) They need a noise that is the same for all inputs.
        :param str method: ``"weights"`` (Eq. 13: a system of the size of ``S``), ``"functions"``
            (Eq. 12: of the size of ``N``), or ``"auto"``: the smaller of both. They are equal.
        :returns: a Gaussian of batch shape ``batch`` and event shape ``(K,)``, in float64.
        :raises ArgumentError: for another method, ``event_dim=2``, without noise and ``psi``, or
            for observations at new inputs with a noise for each of the own ones.
        :raises NonFiniteError: if a value is NaN or infinite.
        :raises ShapeError: if there is not one value for each input.
        """
        self._check_conditioning(inputs, observed, method)
        value = self._checked_value(value)
        check_finite("value", value)
        mean, factor, count = self._at(inputs, num_functions)
        size = len(self.inputs)
        here, there = factor[..., :size, :], factor[..., size:, :]
        noise = self._diagonal(count)
        if method == "auto":
            method = "weights" if count <= size else "functions"
        solve = posterior_by_weights if method == "weights" else posterior_by_functions
        shift, covariance = solve(here, there, noise, value - mean[..., :size])
        extra = covariance.new_zeros(())
        if self.psi is not None:
            extra = extra + as_like(self.psi, covariance) / (count - 1)
        if observed:
            extra = extra + as_like(self.noise_scale, covariance).square()
        extra = extra.expand(torch.broadcast_shapes(extra.shape, there.shape[-2:-1]))
        posterior = dist.MultivariateNormal(
            mean[..., size:] + shift,
            lifted(covariance + torch.diag_embed(extra)),
            validate_args=False,
        )
        return posterior.expand(torch.broadcast_shapes(posterior.batch_shape, self.batch_shape))

    def _check_conditioning(self, inputs: Tensor | None, observed: bool, method: str) -> None:
        check_choice("method", method, ("auto", "weights", "functions"))
        check_flag("observed", observed)
        if self.event_dims != 1:
            raise ArgumentError("condition knows event_dim=1 only; treat outputs as a batch.")
        if self._is_bare:
            raise ArgumentError("a posterior needs noise: give noise_scale or psi.")
        if observed and not self.has_noise_at(inputs):
            raise ArgumentError(
                f"noise_scale has one value for each of {len(self.inputs)} rows, and new inputs "
                "have none. Write observed=False, and add the noise of the new ones."
            )

    def has_noise_at(self, inputs: Tensor | None) -> bool:
        """
        :param torch.Tensor inputs: inputs; None for the own ones.
        :returns: whether the noise there is known: it is one for all, or these are the own ones.
        """
        if inputs is not None:
            check_tensor("inputs", inputs, "a tensor (K, ...)")
        noise = self.noise_scale
        if inputs is None or not isinstance(noise, Tensor) or noise.shape[-1:] in ((), (1,)):
            return True
        return inputs.shape == self.inputs.shape and bool((inputs == self.inputs).all())

    def _at(self, inputs: Tensor | None, count: int | None) -> tuple[Tensor, Tensor, int]:
        """Mean and factor at the own and at other inputs, and the number of functions."""
        count = self.num_functions if count is None else check_count("num_functions", count, 2)
        new = self.inputs if inputs is None else inputs
        check_instance("inputs", new, Tensor, "a tensor (K, ...)")
        if new.shape[1:] != self.inputs.shape[1:]:
            raise ShapeError(
                f"inputs of shape {tuple(new.shape)}; expected (K, "
                f"{', '.join(map(str, self.inputs.shape[1:]))}), like the own ones."
            )
        with frozen(self.seed):
            values = upcast(self._draw(torch.cat([self.inputs, new]), count))
        divisor = count if self.psi is None else count - 1
        factor = (values - values.mean(0)).movedim(0, -1) / math.sqrt(divisor)
        return values.mean(0), factor, count
