r"""
Implicit processes: random functions that anyone can draw, as distributions of their values.

References

[1] `Variational Implicit Processes`, C. Ma, Y. Li, J. M. Hernandez-Lobato, ICML 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_implicit.distributions._random_functions import frozen, network_functions
from pyro_implicit.exceptions import ArgumentError, DensityError, NonFiniteError, ShapeError
from pyro_implicit.nn.bayesian import BayesianModule
from pyro_implicit.ops.logdet import is_zero, upcast
from pyro_implicit.ops.low_rank import lifted, posterior_by_functions, posterior_by_weights

__all__ = ["ImplicitProcess"]

Functions = Callable[[Tensor, int], Tensor]


class ImplicitProcess(dist.TorchDistribution):
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

    arg_constraints: dict[str, constraints.Constraint] = {}
    has_rsample = True

    def __init__(
        self,
        prior: Functions | BayesianModule,
        inputs: Tensor,
        num_functions: int = 20,
        noise_scale: float | Tensor | None = None,
        *,
        psi: float | Tensor | None = None,
        seed: int | None = None,
        event_dim: int = 1,
    ) -> None:
        _check_settings(num_functions, noise_scale, psi, event_dim)
        self.prior, self.inputs = prior, inputs
        self.num_functions = num_functions
        self.noise_scale = 0.0 if noise_scale is None else noise_scale
        self.psi = psi
        self.seed = seed
        self.event_dims = event_dim
        self._values: Tensor | None = None
        shape = self.functions.shape[1:]
        if isinstance(noise_scale, Tensor):
            shape = torch.broadcast_shapes(shape, noise_scale.shape)
        split = len(shape) - event_dim
        if split < 0:
            raise ShapeError(
                f"functions of shape {tuple(self.functions.shape)}: too few dims for event_dim="
                f"{event_dim}; expected (num_functions, *batch, outputs, N)."
            )
        super().__init__(shape[:split], shape[split:], validate_args=False)

    @property
    def support(self) -> constraints.Constraint:
        """Real vectors, or matrices with ``event_dim=2``."""
        return constraints.independent(constraints.real, self.event_dims)

    # ---- functions

    @property
    def functions(self) -> Tensor:
        """The functions that the moments are taken of, shape ``(S, *batch, N)``; drawn once."""
        if self._values is None:
            with frozen(self.seed):
                self._values = self._draw(self.inputs, self.num_functions)
        return self._values

    def _draw(self, inputs: Tensor, num_functions: int) -> Tensor:
        """New functions at ``inputs``."""
        if isinstance(self.prior, BayesianModule):
            values = network_functions(self.prior, inputs, num_functions)
        else:
            values = self.prior(inputs, num_functions)
        expected = (num_functions, len(inputs))
        if not isinstance(values, Tensor) or values.dim() < 2:
            raise ShapeError(
                f"the prior returned {_told(values)}; expected a tensor (num_functions, ..., N) = "
                f"({expected[0]}, ..., {expected[1]})."
            )
        if (values.shape[0], values.shape[-1]) != expected:
            raise ShapeError(
                f"the prior returned shape {tuple(values.shape)} for {expected[0]} functions at "
                f"{expected[1]} inputs; expected ({expected[0]}, ..., {expected[1]})."
            )
        if not bool(values.detach().isfinite().all()):
            raise NonFiniteError(
                "a function drawn from the prior is not finite at some input: look for NaN in the "
                "inputs, or a prior scale that has diverged."
            )
        return values

    # ---- moments

    @property
    def mean(self) -> Tensor:
        """``m``, shape ``(*batch, N)`` (Eq. 5)."""
        return self.functions.mean(0).expand(self.batch_shape + self.event_shape)

    @property
    def variance(self) -> Tensor:
        """Of ``y``, shape ``(*batch, N)``."""
        _, factor, diagonal = self._low_rank()
        flat = factor.square().sum(-1) + diagonal
        shape = self.batch_shape + self.event_shape
        return flat.reshape(*flat.shape[:-1], *self.event_shape).expand(shape).to(self.inputs.dtype)

    @property
    def covariance(self) -> Tensor:
        """Of ``y``, all of it, shape ``(*batch, N, N)`` (Eq. 6)."""
        _, factor, diagonal = self._low_rank()
        return factor @ factor.mT + torch.diag_embed(diagonal.expand(factor.shape[:-1]))

    def _low_rank(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""
        Mean ``(*batch, M)``, factor :math:`\Phi` ``(*batch, M, S)`` and diagonal ``(*batch, M)`` in
        float64, ``M`` the entries of one event.
        """
        values = upcast(self.functions).flatten(-self.event_dims)
        centred = values - values.mean(0)
        count = self.num_functions if self.psi is None else self.num_functions - 1
        factor = centred.movedim(0, -1) / math.sqrt(count)
        return values.mean(0), factor, self._diagonal(values.shape[1:])

    def _diagonal(self, shape: torch.Size, latent: bool = False) -> Tensor:
        """What the covariance has beside its low-rank part."""
        like = upcast(self.functions)
        noise = _as(self.noise_scale, like)
        if noise.dim() >= self.event_dims:
            noise = noise.expand(self.batch_shape + self.event_shape).flatten(-self.event_dims)
        elif noise.dim():
            noise = noise.expand(self.event_shape).flatten()
        square = torch.zeros_like(noise) if latent else noise.square()
        if self.psi is not None:
            square = square + _as(self.psi, like) / (self.num_functions - 1)
        return square.expand(torch.broadcast_shapes(square.shape, shape))

    def to_gaussian(self) -> dist.TorchDistribution:
        """
        The Gaussian that stands for the density, in float64 and with the event flattened.

        :raises DensityError: without noise and ``psi``, for no more functions than values.
        """
        mean, factor, diagonal = self._low_rank()
        size, rank = factor.shape[-2:]
        bare = is_zero(self.noise_scale) and self.psi is None
        if bare and rank <= size:
            raise DensityError(
                f"{rank} functions at {size} inputs span too few directions for a density of the "
                "values themselves. Give a noise_scale, psi, or more num_functions than values."
            )
        if size <= rank:
            covariance = factor @ factor.mT + torch.diag_embed(diagonal.expand(factor.shape[:-1]))
            return dist.MultivariateNormal(mean, covariance, validate_args=False)
        return dist.LowRankMultivariateNormal(mean, factor, diagonal, validate_args=False)

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
        if self.seed is None:
            raise ArgumentError(
                "coefficients of functions that change at every call mean nothing, and training "
                "them learns nothing: write ImplicitProcess(..., seed=0) to freeze the functions."
            )
        if weights.shape[-1:] != (self.num_functions,) or weights.shape[-2:-1] not in ((), (1,)):
            raise ShapeError(
                f"weights of shape {tuple(weights.shape)}; expected ({self.num_functions},) or "
                f"(..., 1, {self.num_functions}), one for each function."
            )
        values = self.functions
        mean = values.mean(0)
        factor = (values - mean).movedim(0, -1) / math.sqrt(self.num_functions)
        return mean + (factor @ torch.atleast_2d(weights).mT).squeeze(-1)

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
        return values + _as(self.noise_scale, values) * torch.randn_like(values)

    def log_prob(self, value: Tensor) -> Tensor:
        """
        Under the Gaussian with the moments of the process (see the class).

        :param torch.Tensor value: ``y``, shape ``(..., *batch, N)``.
        :returns: shape ``(..., *batch)``.
        :raises DensityError: see :meth:`to_gaussian`.
        """
        shape = torch.broadcast_shapes(value.shape, self.batch_shape + self.event_shape)
        flat = upcast(value).expand(shape).flatten(-self.event_dims)
        return self.to_gaussian().log_prob(flat).to(value.dtype)

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
        if is_zero(self.noise_scale) and self.psi is None:
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
            new = _as(self.noise_scale, covariance).square()
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
            extra = _as(self.psi, values) / divisor
        return values.mean(0), factor, extra


def _as(value: float | Tensor, like: Tensor) -> Tensor:
    """A number or tensor in the dtype and on the device of another."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


def _told(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _check_settings(count: Any, noise_scale: Any, psi: Any, event_dim: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 2:
        raise ArgumentError(f"num_functions={count!r}; expected an integer >= 2.")
    for name, value in (("noise_scale", noise_scale), ("psi", psi)):
        if isinstance(value, (int, float)) and not 0 <= value < math.inf:
            raise ArgumentError(f"{name}={value}; expected a finite number >= 0.")
    if event_dim not in (1, 2):
        raise ArgumentError(f"event_dim={event_dim}; expected 1, or 2 for several outputs.")
