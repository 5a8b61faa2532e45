r"""
Implicit processes: random functions that anyone can draw, as distributions of their values.

References

- `Variational Implicit Processes`, C. Ma, Y. Li, J. M. Hernandez-Lobato, ICML 2019.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from torch import Tensor

from pyro_implicit._checks import (
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_number,
    check_shape,
    check_tensor,
    shown,
)
from pyro_implicit.bayesian.module import BayesianModule
from pyro_implicit.exceptions import ArgumentError, DensityError, NonFiniteError, ShapeError
from pyro_implicit.handlers.errors.explained_errors import explained_errors
from pyro_implicit.ops.alpha_energy import normal_alpha_energy
from pyro_implicit.ops.logdet import is_zero, upcast
from pyro_implicit.ops.low_rank import (
    lifted,
    low_rank_log_prob,
    posterior_by_functions,
    posterior_by_weights,
    weights_scale,
)
from pyro_implicit.processes.function_draws import frozen, network_functions

__all__ = ["ImplicitProcess"]

Functions = Callable[[Tensor, int], Tensor]


class ImplicitProcess(dist.TorchDistribution):
    r"""
    The values at some inputs of a random function that can only be drawn, plus Gaussian noise.

    It is the finite marginal of an implicit process ``f`` (Ma, Li and Hernandez-Lobato 2019).

    Draws (:meth:`rsample`) are draws of the process itself. The density (:meth:`log_prob`) is that
    of the Gaussian with its moments, estimated from ``S = num_functions`` functions (Eq. 4 to 6 of
    the paper),

    .. math::  y \sim \mathcal N(m, \Phi\Phi^\top + \sigma^2 I), \quad
        m = \tfrac1S \textstyle\sum_s f_s, \quad \Phi_s = (f_s - m) / \sqrt S,

    by algebra of rank ``S``: time :math:`O(N S^2)`, memory :math:`O(N S)`, no ``N x N`` matrix
    unless ``N <= S``. It is differentiable with respect to the parameters of the prior, so that

    .. code-block:: python

        def model(x, y=None):
            noise = pyro.sample("noise", dist.LogNormal(-1.0, 1.0))
            process = ImplicitProcess(prior, x, noise_scale=noise[..., None])  # for several draws
            return pyro.sample("y", process, obs=y)

    learns them by SVI or MAP beside any other latents: the *collapsed* training of the paper's
    Eq. 8. Its error as an estimate of the log-marginal of the moment-matched Gaussian falls as
    :math:`S^{-1/2}` and is biased downwards for small ``S``; that of the Gaussian approximation
    itself does not fall.

    **Frozen or fresh functions.** With ``seed=None`` every instance draws new functions: gradients
    of the collapsed objective are those of a fresh sample at each step, and prediction needs its
    own, larger ``num_functions`` (200 or more): two deviations around the mean then covered 94% and
    77% of the truth between the data on two curves (training with 20, three seeds), and frozen
    ones 48% and 44%, which fit the mean more closely. Beyond the data neither is to be trusted.
    With a ``seed`` all instances that share it, at
    whatever inputs, see *the same* random numbers, and so the same functions if the prior's
    randomness does not depend on the inputs (weights of a network, not the noise of each row). A
    posterior over coefficients of the functions (Eq. 10) has a meaning with frozen ones only.

    Example::

        process = ImplicitProcess(NeuralSampler(1), x, num_functions=200, noise_scale=0.1, seed=0)
        process.log_prob(y)
        f = process.condition(y, x_test)                   # at new inputs, without the noise
        f.mean, f.variance.sqrt()

    Source: `Variational Implicit Processes`, Ma, Li and Hernandez-Lobato, ICML 2019.

    :param prior: draws functions: ``prior(inputs, num_functions)`` of shape ``(num_functions,
        *batch, N)``; or a :class:`~pyro_implicit.BayesianModule` from ``(N, ...)`` to ``(N, 1)``,
        ``(N,)``, or ``(N, K)``, whose ``K`` outputs become a batch.
    :param torch.Tensor inputs: ``(N, ...)``.
    :param int num_functions: ``S >= 2``.
    :param noise_scale: standard deviation of the noise, a number or a tensor that broadcasts with
        ``(*batch, N)``, such as ``(batch, 1)``; None or 0: the values of ``f`` itself, whose
        density then needs ``psi`` or more functions than values. What has a noise of its own is a
        replicate of its own: its draws are of other functions, unless the prior draws them jointly.
    :param psi: scale of the inverse-Wishart prior on the covariance (appendix C.3 of the paper,
        posterior mean with ``nu = N``): the covariance is then :math:`(S \Phi\Phi^\top + \psi I) /
        (S - 1)`. None: Eq. 6. A number, or a tensor ``(*batch, 1)``. It acts as a noise of each
        value of ``f``, of new ones too.
    :param seed: None for fresh functions, or an integer from 0 to 2**32 - 1.
    :param int event_dim: 1, or 2 to take the last batch dimension (outputs) as parts of one event,
        with the covariance between outputs.
    :raises ArgumentError: for fewer than 2 functions, or a scale, ``psi`` or seed that is negative
        or no number.
    :raises NonFiniteError: if a function is not finite at an input.
    :raises ShapeError: if the prior returns another shape, or noise or ``psi`` do not fit to it.
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
        check_callable("prior", prior, "a function (inputs, num_functions), or a BayesianModule")
        if not isinstance(inputs, Tensor) or not inputs.dim() or not len(inputs):
            raise ArgumentError(
                f"inputs is {shown(inputs)}; expected a tensor (N, ...) of one row at least."
            )
        self.prior, self.inputs = prior, inputs
        self.num_functions = check_count("num_functions", num_functions, 2)
        self.noise_scale = 0.0 if noise_scale is None else _checked("noise_scale", noise_scale)
        self.psi = None if psi is None else _checked("psi", psi)
        self.seed = None if seed is None else check_count("seed", seed, 0, 2**32 - 1)
        self.event_dims = check_choice("event_dim", event_dim, (1, 2))
        self._values: Tensor | None = None
        shape = self._joint_shape()
        super().__init__(shape[:-event_dim], shape[-event_dim:], validate_args=False)

    def _joint_shape(self) -> torch.Size:
        """``(*batch, N)`` of the functions, the noise and ``psi`` together."""
        shape = self.functions.shape[1:]
        if len(shape) < self.event_dims:
            raise ShapeError(
                f"functions of shape {tuple(self.functions.shape)}: too few dims for event_dim="
                f"{self.event_dims}; expected (num_functions, *batch, outputs, N)."
            )
        size = shape[-1]
        for name, value, last in (("noise_scale", self.noise_scale, size), ("psi", self.psi, 1)):
            if not isinstance(value, Tensor):
                continue
            alike = {1, *value.shape[-self.event_dims :]} if name == "psi" else {1}
            try:
                shape = torch.broadcast_shapes(shape, value.shape)
                fits = value.shape[-1:] in ((), (1,), (last,)) and alike == {1}
            except RuntimeError:
                fits = False
            if not fits:
                raise ShapeError(
                    f"{name} of shape {tuple(value.shape)} for functions of shape "
                    f"{tuple(self.functions.shape[1:])}; expected a number, or a tensor that "
                    f"broadcasts with (*batch, {last}): one value for each batch or particle is "
                    f"{name}{'[..., None]' * self.event_dims}."
                )
        return shape

    @property
    def support(self) -> constraints.Constraint:
        """The space of values: real vectors, or matrices with ``event_dim=2``."""
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
        with explained_errors((inputs,), {}):
            if isinstance(self.prior, BayesianModule):
                values = network_functions(self.prior, inputs, num_functions)
            else:
                values = self.prior(inputs, num_functions)
        expected = (num_functions, len(inputs))
        if not isinstance(values, Tensor) or values.dim() < 2:
            raise ShapeError(
                f"the prior returned {_described(values)}; expected a tensor (num_functions, ..., "
                f"N) = ({expected[0]}, ..., {expected[1]})."
            )
        if (values.shape[0], values.shape[-1]) != expected:
            raise ShapeError(
                f"the prior returned shape {tuple(values.shape)} for {expected[0]} functions at "
                f"{expected[1]} inputs; expected ({expected[0]}, ..., {expected[1]})."
            )
        if not values.is_floating_point():
            raise ArgumentError(
                f"the prior returned values of type {values.dtype}; expected floating-point "
                "numbers: convert the inputs within it, x.float()."
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
        """The mean of the process, shape ``(*batch, N)`` (Eq. 5 of the paper)."""
        return self.functions.mean(0).expand(self.batch_shape + self.event_shape)

    @property
    def variance(self) -> Tensor:
        """The variance of ``y`` at each input, shape ``(*batch, N)``."""
        _, factor, diagonal = self._low_rank()
        flat = factor.square().sum(-1) + diagonal
        shape = self.batch_shape + self.event_shape
        narrow = flat.reshape(*flat.shape[:-1], *self.event_shape).to(self.functions.dtype)
        return narrow.expand(shape)

    @property
    def covariance(self) -> Tensor:
        """The covariance matrix of ``y``, shape ``(*batch, N, N)`` (Eq. 6 of the paper)."""
        _, factor, diagonal = self._low_rank()
        covariance = factor @ factor.mT + torch.diag_embed(diagonal)
        return covariance.expand(*self.batch_shape, *covariance.shape[-2:])

    @property
    def _is_bare(self) -> bool:
        """Whether some value has nothing but the low-rank part of the covariance."""
        if any(not isinstance(v, Tensor) and v for v in (self.noise_scale, self.psi)):
            return False
        return not bool((self._diagonal(self.num_functions).detach() != 0).all())

    @property
    def _divisor(self) -> int:
        """What the sum of squares is divided by (Eq. 6, or C.3 with ``psi``)."""
        return self.num_functions if self.psi is None else self.num_functions - 1

    def _low_rank(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""
        Mean, low-rank factor and diagonal of the process in float64.

        Their shapes are ``(*batch, M)``, ``(*batch, M, S)`` and ``(*batch, M)``, ``M`` the entries
        of one event; ``batch`` without what only :meth:`expand` added.
        """
        values = upcast(self.functions)
        values = values.expand(values.shape[: -self.event_dims] + self.event_shape)
        values = values.flatten(-self.event_dims)
        mean, diagonal = values.mean(0), self._diagonal(self.num_functions)
        # theory/processes.md (process-moments, process-wishart)
        factor = (values - mean).movedim(0, -1) / math.sqrt(self._divisor)
        shape = torch.broadcast_shapes(mean.shape, diagonal.shape)
        return mean.expand(shape), factor.expand(*shape, -1), diagonal.expand(shape)

    def _diagonal(self, count: int) -> Tensor:
        """What the covariance of ``y`` has beside its part from ``count`` functions."""
        diagonal = self._flat(self.noise_scale).square()
        return diagonal if self.psi is None else diagonal + self._flat(self.psi) / (count - 1)

    def _flat(self, value: float | Tensor) -> Tensor:
        """One value for each entry of an event, ``(*batch, M)``."""
        tensor = _as_like(value, upcast(self.functions))
        batch = tensor.shape[: max(tensor.dim() - self.event_dims, 0)]
        return tensor.expand(batch + self.event_shape).flatten(-self.event_dims)

    # ---- density

    def to_gaussian(self) -> dist.TorchDistribution:
        """
        The Gaussian that stands for the density, in float64 and with the event flattened.

        :returns: a multivariate normal, of low rank where there are fewer functions than values.
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
            low_rank: dist.TorchDistribution = wide.expand(self.batch_shape)
            return low_rank
        covariance = factor @ factor.mT + torch.diag_embed(diagonal)
        root, failed = torch.linalg.cholesky_ex(covariance)
        if bool((failed != 0).any()):
            raise DensityError(
                f"the covariance at {size} inputs is singular in double precision: the functions "
                "span too few directions for so small a noise. Give a larger noise_scale or psi."
            )
        full = dist.MultivariateNormal(mean, scale_tril=root, validate_args=False)
        expanded: dist.TorchDistribution = full.expand(self.batch_shape)
        return expanded

    # ---- what Pyro calls

    def expand(self, batch_shape: Any, _instance: Any = None) -> ImplicitProcess:
        """
        Replicates the process along new batch dimensions.

        The moments are those of the same functions, and as the density counts replicates as
        independent, so are draws: each is of a function of its own.

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
        New functions, with noise: draws of the process itself and not of the Gaussian.

        Functions that the prior draws together (outputs of one network) are drawn together; every
        other entry of the batch has a function of its own.

        :param torch.Size sample_shape: leading shape of the draws.
        :returns: shape ``(*sample_shape, *batch, N)``.
        """
        values = self._replicates(check_shape("sample_shape", sample_shape))
        if is_zero(self.noise_scale):
            return values
        return values + _as_like(self.noise_scale, values) * torch.randn_like(values)

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
        The log-density under the Gaussian with the moments of the process (see the class).

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
        The posterior at ``inputs`` given ``y`` at the process's own ones.

        It is that of the Gaussian with the moments of the process. What ``psi`` adds to variances
        is of each place anew, also at the own inputs: a replicate, which ``y`` tells nothing of.

        :param torch.Tensor value: ``y``, shape ``(*batch, N)``.
        :param torch.Tensor inputs: new inputs ``(K, ...)``; by default the own ones. Functions are
            drawn at both together, frozen if the process is.
        :param int num_functions: functions to draw for it, at least 2; by default as many as for
            the density.
        :param bool observed: of new observations, with noise, rather than of ``f``. (Eq. 13 of the
            paper is the latent variance.) They need a noise that is the same for all inputs.
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
        _check_finite("value", value)
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
            extra = extra + _as_like(self.psi, covariance) / (count - 1)
        if observed:
            extra = extra + _as_like(self.noise_scale, covariance).square()
        extra = extra.expand(torch.broadcast_shapes(extra.shape, there.shape[-2:-1]))
        posterior = dist.MultivariateNormal(
            mean[..., size:] + shift,
            lifted(covariance + torch.diag_embed(extra)),
            validate_args=False,
        )
        shape = torch.broadcast_shapes(posterior.batch_shape, self.batch_shape)
        expanded: dist.TorchDistribution = posterior.expand(shape)
        return expanded

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
        Whether the scale of the noise is known at some inputs.

        :param torch.Tensor inputs: inputs, shape ``(K, ...)``; None for the own ones.
        :returns: whether the noise there is known: it is one for all, or these are the own ones.
        :raises ArgumentError: if they are no tensor.
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

    # ---- a linear model of frozen functions: the paper's weight space

    def weighted(self, weights: Tensor) -> Tensor:
        r"""
        The random function as a linear model of the frozen functions, :math:`m + \Phi a`.

        With :math:`a \sim \mathcal N(0, I_S)` it has the moments of the process, and with :math:`a
        \sim q` it is the approximate posterior of Ma, Li and Hernandez-Lobato (2019, Eq. 10). For
        data in minibatches::

            a = pyro.sample("a", dist.Normal(torch.zeros(S), 1.0).to_event(1))
            f = ImplicitProcess(prior, x, S, seed=0).weighted(a)
            with pyro.plate("data", num_data, subsample_size=len(x)):
                pyro.sample("y", dist.Normal(f, noise), obs=y)

        with ``AutoMultivariateNormal`` for ``a`` and
        :class:`~pyro_implicit.AlphaEnergy`, under any likelihood, classification included.

        :param torch.Tensor weights: ``a``, shape ``(S,)``, or ``(..., 1, S)``: as in any data plate
            the dimension before the event is that of the rows, so that vectorised particles need
            nothing more with one output. With outputs the dimensions before go with these:
            ``(..., K, 1, S)`` are weights of each, and ``(..., 1, 1, S)`` shared by all, which
            ``a.unsqueeze(-2)`` of particles ``(P, 1, S)`` are.
        :returns: values of ``f``, shape ``(..., *batch, N)``.
        :raises ArgumentError: if the functions are fresh at every call: a posterior of their
            coefficients then has no meaning, and training learns nothing.
        :raises ShapeError: if there is not one weight for each function, or for each output.
        """
        check_instance("weights", weights, Tensor, "a tensor of coefficients")
        if weights.shape[-1:] != (self.num_functions,) or weights.shape[-2:-1] not in ((), (1,)):
            raise ShapeError(
                f"weights of shape {tuple(weights.shape)}; expected ({self.num_functions},) or "
                f"(..., 1, {self.num_functions}), one for each function."
            )
        mean, factor = self._features()
        _check_leading(weights.shape, mean.shape[:-1])
        # theory/processes.md (process-weights), Eq. 10 of Ma et al.
        values: Tensor = mean + (factor @ torch.atleast_2d(weights).to(factor).mT).squeeze(-1)
        return values

    def weight_posterior(self, value: Tensor) -> dist.MultivariateNormal:
        """
        The exact posterior of the coefficients under Gaussian noise.

        It is what training by ``alpha=0`` on all data tends to (Ma, Li and Hernandez-Lobato 2019,
        above Eq. 13). With :meth:`marginals` it predicts at as many new inputs as there are,
        without a matrix of all pairs of them::

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
        _check_finite("value", rest)
        mean, factor, noise = self._low_rank()
        scale, gain = weights_scale(factor, noise)
        shift = gain @ (rest.flatten(-self.event_dims) - mean)[..., None]
        return dist.MultivariateNormal(shift[..., 0], scale_tril=scale, validate_args=False)

    def marginals(self, posterior: dist.TorchDistribution) -> dist.Normal:
        r"""
        The random function at each input, for a Gaussian posterior of its coefficients.

        :math:`f(x_n) \sim \mathcal N(m_n + \phi_n^\top \mu, \phi_n^\top \Sigma \phi_n)` (Ma, Li and
        Hernandez-Lobato 2019, Eq. 13).

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
        The expected data term of alpha inference in closed form, under Gaussian noise.

        For each datum (Ma, Li and Hernandez-Lobato 2019, Eq. 11) it is :math:`\tfrac1\alpha \log
        \mathbb E_q[p(y_n \mid a)^\alpha]`, and for ``alpha=0`` the expected log-likelihood. What
        :class:`~pyro_implicit.AlphaEnergy` estimates from draws of ``a``, without their noise::

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
        noise = _as_like(self.noise_scale, mean).square()
        if self.psi is not None:
            noise = noise + _as_like(self.psi, mean) / (self.num_functions - 1)
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

    # ---- checks

    def _checked_value(self, value: Tensor) -> Tensor:
        """
        Checks that a tensor can be a value of the process.

        :param torch.Tensor value: ``y``, shape ``(..., *batch, N)``.
        :returns: it, in float64.
        :raises ArgumentError: if it is no tensor.
        :raises ShapeError: if it has another number of values, or another batch.
        """
        check_instance("value", value, Tensor, "a tensor of observations")
        shape = self.batch_shape + self.event_shape
        try:
            joint = torch.broadcast_shapes(value.shape, shape)
            fits = value.shape[-self.event_dims :] == self.event_shape and len(joint) > 0
        except RuntimeError:
            fits = False
        if not fits:
            raise ShapeError(
                f"value of shape {tuple(value.shape)}; expected (..., "
                f"{', '.join(map(str, shape))}), one value for each input."
            )
        return upcast(value)


def _as_like(value: float | Tensor, like: Tensor) -> Tensor:
    """A number or tensor in the dtype and on the device of another."""
    return torch.as_tensor(value, dtype=like.dtype, device=like.device)


def _check_leading(shape: torch.Size, batch: torch.Size) -> None:
    """Refuses weights ``(..., 1, S)`` whose leading dimensions do not go with those of outputs."""
    try:
        torch.broadcast_shapes(shape[:-2], batch)
    except RuntimeError as error:
        raise ShapeError(
            f"weights of shape {tuple(shape)} for outputs {tuple(batch)}: the dimensions before "
            "the last two go with the outputs. Where all outputs share their weights, as with "
            "vectorised particles, write weights.unsqueeze(-2)."
        ) from error


def _check_finite(name: str, value: Tensor) -> None:
    """
    Checks that the entries of a tensor are finite.

    :raises NonFiniteError: if an entry is NaN or infinite.
    """
    if not bool(value.detach().isfinite().all()):
        raise NonFiniteError(f"{name} has entries that are NaN or infinite; leave these rows out.")


def _described(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _checked(name: str, value: Any) -> float | Tensor:
    """A number, or a tensor of numbers, none of them negative."""
    if not isinstance(value, Tensor):
        return check_number(name, value, minimum=0.0)
    if value.is_complex() or value.dtype == torch.bool:
        raise ArgumentError(f"{name}={shown(value)}; expected real numbers >= 0.")
    if bool((value.detach() < 0).any()):  # NaN goes on, to where losses are checked
        raise ArgumentError(
            f"{name}={shown(value)} has negative entries, down to {value.min():.4g}; expected "
            "numbers >= 0: transform it (softplus, exp) or give it a positive prior."
        )
    return value


def _scale(posterior: dist.TorchDistribution) -> Tensor:
    """A square root of the covariance, ``(..., S, S)``."""
    if isinstance(posterior, torch.distributions.MultivariateNormal):
        root: Tensor = posterior.scale_tril
        return root
    base = posterior
    while isinstance(base, torch.distributions.Independent):
        base = base.base_dist
    if isinstance(base, torch.distributions.Normal):
        return torch.diag_embed(posterior.stddev)
    raise ArgumentError(
        f"a posterior of type {type(base).__name__}; expected a MultivariateNormal or independent "
        "Normals. Draw from any other, and use weighted."
    )
