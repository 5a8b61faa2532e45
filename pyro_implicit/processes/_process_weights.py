"""An implicit process as a linear model of frozen functions: the paper's weight space."""

from __future__ import annotations

import math

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit._checks import check_instance, check_number
from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.ops.alpha_energy import normal_alpha_energy
from pyro_implicit.ops.low_rank import weights_scale
from pyro_implicit.processes._process_moments import ProcessMoments, as_like, check_finite

__all__ = ["WeightSpace"]


class WeightSpace(ProcessMoments):
    """
    The part of :class:`~pyro_implicit.ImplicitProcess` that knows coefficients of its functions.
    """

    def weighted(self, weights: Tensor) -> Tensor:
        r"""
        The random function as a linear model of the frozen functions (Eq. 10 of [1]),
        :math:`m + \Phi a`: with :math:`a \sim \mathcal N(0, I_S)` it has the moments of the
        process, and with :math:`a \sim q` it is the paper's approximate posterior. For data in
        minibatches::

            a = pyro.sample("a", dist.Normal(torch.zeros(S), 1.0).to_event(1))
            f = ImplicitProcess(prior, x, S, seed=0).weighted(a)
            with pyro.plate("data", num_data, subsample_size=len(x)):
                pyro.sample("y", dist.Normal(f, noise), obs=y)

        with ``AutoMultivariateNormal`` for ``a`` and
        :class:`~pyro_implicit.AlphaEnergy`, under any likelihood, classification included.

        :param torch.Tensor weights: ``a``, shape ``(S,)``, or ``(..., 1, S)``: as in any data plate
            the dimension before the event is that of the rows, so that vectorised particles need
            nothing more.
        :returns: values of ``f``, shape ``(..., *batch, N)``.
        :raises ArgumentError: if the functions are fresh at every call: a posterior of their
            coefficients then has no meaning, and training learns nothing.
        :raises ShapeError: if there is not one weight for each function.
        """
        check_instance("weights", weights, Tensor, "a tensor of coefficients")
        if weights.shape[-1:] != (self.num_functions,) or weights.shape[-2:-1] not in ((), (1,)):
            raise ShapeError(
                f"weights of shape {tuple(weights.shape)}; expected ({self.num_functions},) or "
                f"(..., 1, {self.num_functions}), one for each function."
            )
        mean, factor = self._features()
        return mean + (factor @ torch.atleast_2d(weights).mT).squeeze(-1)

    def weight_posterior(self, value: Tensor) -> dist.MultivariateNormal:
        """
        The exact posterior of the coefficients under Gaussian noise (above Eq. 13 of [1]): what
        training by ``alpha=0`` on all data tends to. With :meth:`marginals` it predicts at as many
        new inputs as there are, without a matrix of all pairs of them::

            q = ImplicitProcess(prior, x, S, noise_scale, seed=0).weight_posterior(y)
            f = ImplicitProcess(prior, x_new, S, seed=0).marginals(q)

        :param torch.Tensor value: ``y``, shape ``(*batch, N)``.
        :returns: batch shape ``batch``, event shape ``(S,)``, in float64.
        :raises ArgumentError: for fresh functions (see :meth:`weighted`), or without noise.
        :raises NonFiniteError: if a value is NaN or infinite.
        :raises ShapeError: if there is not one value for each input.
        """
        self._features()
        if self._is_bare:
            raise ArgumentError("a posterior needs noise: give noise_scale or psi.")
        rest = self._checked_value(value)
        check_finite("value", rest)
        mean, factor, noise = self._low_rank()
        scale, gain = weights_scale(factor, noise)
        shift = gain @ (rest.flatten(-self.event_dims) - mean)[..., None]
        return dist.MultivariateNormal(shift[..., 0], scale_tril=scale, validate_args=False)

    def marginals(self, posterior: dist.TorchDistribution) -> dist.Normal:
        r"""
        The random function at each input, for a Gaussian posterior of its coefficients (Eq. 13 of
        [1]): :math:`f(x_n) \sim \mathcal N(m_n + \phi_n^\top \mu, \phi_n^\top \Sigma \phi_n)`.

        :param posterior: ``q(a)``, a ``MultivariateNormal`` of event shape ``(S,)`` or an
            independent ``Normal``, :meth:`weight_posterior` or
            ``AutoMultivariateNormal(...).get_posterior()``; its batch shape, if it has one, is
            that of the process.
        :returns: a Normal of shape ``(*batch, N)``; for observations add the noise and, with
            ``psi``, its share ``psi / (S - 1)`` of the variance.
        :raises ArgumentError: for fresh functions (see :meth:`weighted`), or another posterior.
        :raises ShapeError: if there is not one weight for each function.
        """
        mean, variance = self._moments(posterior)
        return dist.Normal(mean, variance.sqrt(), validate_args=False)

    def alpha_energy(
        self, value: Tensor, posterior: dist.TorchDistribution, alpha: float = 0.5
    ) -> Tensor:
        r"""
        The data term of Eq. 11 of [1] in closed form, for each datum, under Gaussian noise:
        :math:`\tfrac1\alpha \log \mathbb E_q[p(y_n \mid a)^\alpha]`, and for ``alpha=0`` the
        expected log-likelihood. What :class:`~pyro_implicit.AlphaEnergy` estimates from draws of
        ``a``, without their noise::

            def model(x, y):
                loc = pyro.param("loc", torch.zeros(S))
                scale = pyro.param("scale", torch.eye(S), constraint=constraints.lower_cholesky)
                q = dist.MultivariateNormal(loc, scale_tril=scale)
                p = dist.MultivariateNormal(torch.zeros(S), torch.eye(S))
                process = ImplicitProcess(prior, x, S, noise_scale, seed=0)
                with pyro.plate("data", num_data, subsample_size=len(x)):
                    pyro.factor("energy", process.alpha_energy(y, q, alpha=0.5))
                pyro.factor("kl", -kl_divergence(q, p))

            svi = SVI(model, lambda *_: None, optim, Trace_ELBO())

        A prior on the prior's own parameters (the first half of appendix C.5) is a ``pyro.sample``
        statement with an ``AutoDelta``. Its second half, *likelihood regularisation*, is not here:
        it subtracts the log-marginal likelihood that the energy approximates, so that for
        ``alpha=0`` only :math:`-KL(q(a) \,\|\, p(a \mid y))` is left, which says nothing about the
        prior; in our trials the fits diverged.

        :param torch.Tensor value: ``y``, shape ``(*batch, N)``.
        :param posterior: as for :meth:`marginals`.
        :param float alpha: from 0 to 1.
        :returns: shape ``(*batch, N)``.
        :raises ArgumentError: for another ``alpha``, without noise, or as :meth:`marginals`.
        :raises ShapeError: as :meth:`marginals`.
        """
        alpha = check_number("alpha", alpha, minimum=0, maximum=1)
        self._checked_value(value)
        if self._is_bare:
            raise ArgumentError("an alpha-energy needs noise: give noise_scale or psi.")
        mean, variance = self._moments(posterior)
        noise = as_like(self.noise_scale, mean).square()
        if self.psi is not None:
            noise = noise + as_like(self.psi, mean) / (self.num_functions - 1)
        return normal_alpha_energy(value, mean, variance, noise, alpha)

    def _moments(self, posterior: dist.TorchDistribution) -> tuple[Tensor, Tensor]:
        """Mean and variance of the function under a posterior, both ``(*batch, N)``."""
        mean, factor = self._features()
        check_instance("posterior", posterior, torch.distributions.Distribution, "a distribution")
        batches = ((), mean.shape[: -self.event_dims], self.batch_shape)
        if posterior.event_shape != (self.num_functions,) or posterior.batch_shape not in batches:
            raise ShapeError(
                f"a posterior of batch shape {tuple(posterior.batch_shape)} and event shape "
                f"{tuple(posterior.event_shape)}; expected () or {tuple(self.batch_shape)}, and "
                f"({self.num_functions},)."
            )
        scale, loc = _scale(posterior).to(factor), posterior.mean.to(factor)
        if self.event_dims == 2:  # the same coefficients for all outputs of one event
            scale, loc = scale[..., None, :, :], loc[..., None, :]
        shift = (factor @ loc[..., None])[..., 0]
        return mean + shift, (factor @ scale).square().sum(-1)

    def _features(self) -> tuple[Tensor, Tensor]:
        r"""Mean ``(*batch, N)`` and :math:`\Phi` ``(*batch, N, S)`` of functions that stay."""
        if self.seed is None:
            raise ArgumentError(
                "coefficients of functions that change at every call mean nothing, and training "
                "them learns nothing: write ImplicitProcess(..., seed=0) to freeze the functions."
            )
        mean = self.functions.mean(0)
        return mean, (self.functions - mean).movedim(0, -1) / math.sqrt(self._divisor)


def _scale(posterior: dist.TorchDistribution) -> Tensor:
    """A square root of the covariance, ``(..., S, S)``."""
    if isinstance(posterior, torch.distributions.MultivariateNormal):
        return posterior.scale_tril
    base = posterior
    while isinstance(base, torch.distributions.Independent):
        base = base.base_dist
    if isinstance(base, torch.distributions.Normal):
        return torch.diag_embed(posterior.stddev)
    raise ArgumentError(
        f"a posterior of type {type(base).__name__}; expected a MultivariateNormal or independent "
        "Normals. Draw from any other, and use weighted."
    )
