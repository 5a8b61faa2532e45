r"""
Implicit distributions: anyone can draw, nobody can evaluate.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Eq. 5 and 6.
"""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.distributions.torch_distribution import TorchDistributionMixin
from torch import Tensor

from pyro_implicit._checks import check_instance, check_shape, check_tensor
from pyro_implicit.distributions._base_dist import is_standard_normal
from pyro_implicit.exceptions import ArgumentError, DensityError, NonFiniteError, ShapeError
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.noise_alone import check_function_of_noise, refuse_batch_statistics
from pyro_implicit.generators.packed import named_tensors
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.ops.linearisation import Linearisation
from pyro_implicit.ops.logdet import check_scale, is_zero

__all__ = ["ImplicitDistribution"]


class ImplicitDistribution(dist.TorchDistribution):
    r"""
    The distribution of mapped noise: it can be sampled; its density is known for bijections alone.

    It is that of :math:`\theta = c + L\,(g(z) + \sigma \varepsilon)` with :math:`\varepsilon \sim
    \mathcal N(0, I_m)` and ``z`` from a base distribution: a Gaussian deep latent variable model
    (Uppal et al. 2023, Eq. 5 and 6; there ``c = 0``, ``L = I``).

    Draws are reparameterised. The density is an integral over ``z`` that nobody can evaluate, so
    :meth:`log_prob` raises, unless the map is certain to be a bijection (:attr:`is_bijective`). In
    a guide, draw with :func:`~pyro_implicit.distributions.sample_implicit`: it makes two sites, the
    noise and the latent given the noise, so that an objective finds the noise in the trace and
    replaying a trace replays it::

        def guide():
            w = sample_implicit("w", ImplicitDistribution(generator, scale=0.01))

    Example::

        fn = ImplicitDistribution(BijectiveGenerator(2))
        theta = fn.sample((100,))
        fn.log_prob(theta)                                 # a bijection has a density

    Source: `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS
    2023.

    :param Generator generator: ``g``, from ``noise_shape`` to ``m`` outputs.
    :param torch.Tensor noise: a fixed ``z`` of shape ``(*batch, *noise_shape)``: the distribution
        is then that of theta given z.
    :param scale: ``sigma``, the number 0, a positive one, or a positive tensor of shape ``()`` or
        ``(m,)``. The values of a tensor, which may be learned, are not looked at: zeros in one give
        densities and determinants that are NaN.
    :type scale: float or torch.Tensor
    :param Preconditioner preconditioner: ``c`` and ``L``; none by default.
    :param base_dist: distribution of ``z`` with event shape ``noise_shape``; standard normal by
        default. A mixture serves posteriors with separated modes, which a continuous map of one
        Gaussian cannot tear apart; its components stay as they are, and the generator learns where
        they go. A base with parameters that are learned needs ``rsample``: without it (mixtures of
        Pyro and torch) draws do not move with the parameters, and objectives refuse the guide.
    :raises ArgumentError: if ``scale`` is a negative number, or for arguments of other types.
    :raises ShapeError: if noise, scale or base have a shape that does not fit the generator.
    """

    arg_constraints: dict[str, constraints.Constraint] = {}
    support = constraints.real_vector
    has_rsample = True

    def __init__(
        self,
        generator: Generator,
        noise: Tensor | None = None,
        *,
        scale: float | Tensor = 0.0,
        preconditioner: Preconditioner | None = None,
        base_dist: dist.TorchDistribution | None = None,
    ) -> None:
        _check_parts(generator, preconditioner, base_dist)
        m, shape = generator.output_dim, generator.noise_shape
        check_scale(scale, m, m)
        self.generator, self.scale, self.preconditioner = generator, scale, preconditioner
        self.noise = noise
        self._shares_noise = False  # rows of a plate that have one noise: no density together
        self._linearisation: Linearisation | None = None
        # known for the default; looking at the numbers of any other waits for the device
        self._standard_base: bool | None = True if base_dist is None else None
        self.base_dist = base_dist or _standard_normal(generator)
        if self.base_dist.event_shape != shape:
            raise ShapeError(
                f"base_dist has event_shape {tuple(self.base_dist.event_shape)}; expected the "
                f"generator's noise_shape {tuple(shape)}. Did you forget .to_event({len(shape)})?"
            )
        batch_shape = self.base_dist.batch_shape
        if noise is not None:
            _check_noise(noise, shape)
            batch_shape = noise.shape[: noise.dim() - len(shape)]
        super().__init__(batch_shape, torch.Size((m,)), validate_args=False)

    def _changed(self, batch_shape: torch.Size, **changes: Any) -> ImplicitDistribution:
        """The same parts, checked already, with another noise or base; nothing else is made."""
        copy = ImplicitDistribution.__new__(ImplicitDistribution)
        copy.__dict__.update(self.__dict__ | changes)
        copy._batch_shape, copy._linearisation = batch_shape, None
        return copy

    def given(self, noise: Tensor) -> ImplicitDistribution:
        """
        Fixes the noise, which leaves a Gaussian.

        :param torch.Tensor noise: ``z``, shape ``(*batch, *noise_shape)``.
        :returns: the distribution of theta given ``z``.
        """
        shape = self.generator.noise_shape
        _check_noise(noise, shape)
        return self._changed(noise.shape[: noise.dim() - len(shape)], noise=noise)

    def unsqueezed(self) -> ImplicitDistribution:
        """
        The distribution given one noise as that of a batch of one.

        :returns: the same, with a batch dimension of size 1 in front.
        """
        noise = self.noise.unsqueeze(0)  # type: ignore[union-attr]
        copy = self._changed(torch.Size((1, *self.batch_shape)), noise=noise)
        if self._linearisation is not None:
            copy._linearisation = self._linearisation.unsqueezed()
        return copy

    def expand(self, batch_shape: Any, _instance: Any = None) -> ImplicitDistribution:
        """
        Expands the distribution to another batch shape.

        :param torch.Size batch_shape: the new batch shape.
        :returns: the same distribution with it.
        """
        if isinstance(batch_shape, (list, tuple)):  # of tensors in Pyro's jitted objectives
            batch_shape = [int(n) if isinstance(n, Tensor) else n for n in batch_shape]
        batch_shape = check_shape("batch_shape", batch_shape)
        if self.noise is not None:
            noise = self.noise.expand(batch_shape + self.generator.noise_shape)
            return self._changed(batch_shape, noise=noise)
        return self._changed(batch_shape, base_dist=self.base_dist.expand(batch_shape))

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        """
        Draws with gradients: new noise, mapped by the generator, plus output noise.

        :param torch.Size sample_shape: leading shape of the draws.
        :returns: draws, shape ``(*sample_shape, *batch_shape, m)``.
        :raises LayerError: if the generator normalises by the draws that are made together.
        """
        if not isinstance(sample_shape, torch.Size) or sample_shape:
            sample_shape = check_shape("sample_shape", sample_shape)
        refuse_batch_statistics(self.generator)
        z = self.base_dist(sample_shape) if self.noise is None else self.noise
        kept = self._linearisation
        if kept is not None and not kept.holds_value:
            kept = None
        mean = self.generator(z) if kept is None else kept.value
        expected = z.shape[: z.dim() - len(self.generator.noise_shape)] + self.event_shape
        if mean.shape != expected:
            raise ShapeError(
                f"{type(self.generator).__name__} returned shape {tuple(mean.shape)} for noise of "
                f"shape {tuple(z.shape)}; expected {tuple(expected)}."
            )
        if torch.is_autocast_enabled(mean.device.type):  # a small sigma is lost in half precision
            mean = mean.to(torch.promote_types(mean.dtype, torch.float32))
        mean = mean.expand(sample_shape + self.batch_shape + self.event_shape)
        if not is_zero(self.scale):
            mean = mean + self.scale * torch.randn_like(mean)
        draws = mean if self.preconditioner is None else self.preconditioner(mean)
        if kept is not None and draws is not kept.value:
            kept.let_go()  # products do without
        return draws

    def linearisation(self) -> Linearisation:
        """
        The generator's value and derivative at the fixed noise.

        They are those that the draw was made with, if these were kept.

        :returns: of batch shape ``batch_shape``.
        :raises ArgumentError: if no noise is fixed.
        """
        if self._linearisation is not None:
            return self._linearisation
        if self.noise is None:
            raise ArgumentError("no noise is fixed: write distribution.given(z).linearisation().")
        with torch.autocast(self.noise.device.type, enabled=False):
            return self.generator.linearise(self.noise)

    @property
    def mean(self) -> Tensor:
        """
        The centre ``g(z)`` of the Gaussian given the fixed noise, shape ``(*batch_shape, m)``.

        :raises ArgumentError: if no noise is fixed.
        """
        if self.noise is None:
            raise ArgumentError("no noise is fixed: write distribution.given(z).mean.")
        mean = self.generator(self.noise)
        scaled: Tensor = mean if self.preconditioner is None else self.preconditioner(mean)
        return scaled

    def conditional_log_prob(self, value: Tensor) -> Tensor:
        r"""
        The log-density of theta *given the fixed noise*, a Gaussian around :attr:`mean`.

        It is not the density of the implicit distribution, which averages it over the noise.

        :param torch.Tensor value: shape ``(..., *batch_shape, m)`` or broadcastable to it.
        :returns: shape ``(..., *batch_shape)``.
        :raises ArgumentError: if no noise is fixed, if ``scale=0``, or for a value that is no
            tensor.
        :raises ShapeError: for a value of another number of entries.
        """
        check_tensor("value", value, "a tensor (..., m)")
        if value.shape[-1:] != self.event_shape:
            raise ShapeError(
                f"value of shape {tuple(value.shape)}; expected (..., {self.event_shape[-1]})."
            )
        if self.noise is None or is_zero(self.scale):
            missing = "no noise is fixed" if self.noise is None else "scale=0"
            raise ArgumentError(
                f"{missing}: there is no Gaussian to evaluate. Write "
                "distribution.given(z).conditional_log_prob(value), and give the guide scale=0.05."
            )
        w = value if self.preconditioner is None else self.preconditioner.inverse(value)
        residual = (w - self.generator(self.noise)) / self.scale
        log_scale = torch.as_tensor(self.scale).to(residual).log().expand(self.event_shape).sum()
        constant = 0.5 * self.event_shape[-1] * math.log(2 * math.pi) + log_scale
        if self.preconditioner is not None:
            constant = constant + self.preconditioner.log_abs_det
        log_density: Tensor = -0.5 * residual.square().sum(-1) - constant
        return log_density

    def base_entropy(self) -> Tensor | float:
        r"""
        The entropy of the noise, or an estimate of it.

        It has a closed form, :math:`\tfrac d2 (1 + \log 2\pi)`, for the standard normal; for any
        other base it is estimated by ``-log p(z)`` at each fixed noise.

        :returns: a number, or shape ``batch_shape``.
        """
        if self._standard_base is None:
            self._standard_base = is_standard_normal(self.base_dist)
        if self._standard_base:
            return 0.5 * self.generator.noise_dim * (1 + math.log(2 * math.pi))
        return -self.base_dist.log_prob(self.noise)  # type: ignore[arg-type]

    def noise_log_prob(self) -> Tensor:
        """
        The log-density of the fixed noise under the base.

        :returns: shape ``batch_shape``.
        :raises ArgumentError: if no noise is fixed.
        """
        if self.noise is None:
            raise ArgumentError("no noise is fixed: write distribution.given(z).noise_log_prob().")
        if self._standard_base is not True:
            return self.base_dist.log_prob(self.noise)
        dims = range(-len(self.generator.noise_shape), 0)
        constant = 0.5 * self.generator.noise_dim * math.log(2 * math.pi)
        return -0.5 * self.noise.square().sum(tuple(dims)) - constant

    def half_log_det(self) -> Tensor:
        r"""
        :math:`\tfrac12 \log\det(L (J J^\top + \sigma^2 I) L^\top)` at the fixed noise.

        :returns: shape ``batch_shape``.
        :raises ArgumentError: if no noise is fixed, or if ``scale=0`` and the generator has fewer
            noise dimensions than outputs.
        :raises LayerError: if the generator is random, its draws depend on each other, or torch
            cannot differentiate its Jacobian.
        """
        if self.noise is None:
            raise ArgumentError("no noise is fixed: write distribution.given(z).half_log_det().")
        check_function_of_noise(self.generator, self.noise)
        kept = None if self._linearisation is None else self._linearisation.log_abs_det
        if kept is not None and is_zero(self.scale):
            value = kept
        else:
            value = self.generator.half_log_det(self.noise, self.scale)
        if self.preconditioner is None:
            return value
        return value + self.preconditioner.log_abs_det

    def score_of_mean(self) -> Tensor | None:
        r"""
        The derivative of the log-density of ``g(z)`` at the fixed noise, without output noise.

        :returns: shape ``(*batch_shape, m)``; None unless the noise is standard normal and was
            drawn with a linearisation that carries its score (see
            :meth:`~pyro_implicit.ops.linearisation.Linearisation.score`).
        """
        kept = self._linearisation
        if kept is None or self.noise is None or not is_zero(self.scale):
            return None
        if self._standard_base is not True:
            return None
        return kept.score(-self.noise)

    @property
    def is_bijective(self) -> bool:
        """
        Whether a draw and its noise determine each other for certain.

        That is so if the generator is a bijection and there is no output noise. The density can
        then be evaluated.
        """
        certain = self.generator.is_bijective and is_zero(self.scale)
        return certain and not self._shares_noise

    def log_prob(self, value: Tensor) -> Tensor:
        r"""
        Evaluate the density of a certified bijection, by the noise that leads to the value.

        It is :math:`\log p(z) - \log|\det J(z)| - \log|\det L|`. For a fixed noise it is the last
        two terms, what a trace needs beside the density of the noise itself. No other implicit
        distribution has a density that can be evaluated.

        :param torch.Tensor value: shape ``(..., *batch_shape, m)``.
        :returns: shape ``(..., *batch_shape)``.
        :raises DensityError: unless :attr:`is_bijective`, and for a value that the fixed noise
            does not lead to.
        :raises NonFiniteError: if a parameter of the generator is not finite.
        :raises ShapeError: for a value of another number of entries.
        """
        if not self.is_bijective:
            _refuse_non_finite(self.generator)
            raise DensityError(_ADVICE_ON_DENSITIES)
        check_tensor("value", value, "a tensor (..., m)")
        if value.shape[-1:] != self.event_shape:
            raise ShapeError(
                f"value of shape {tuple(value.shape)}; expected (..., {self.event_shape[-1]})."
            )
        if self.noise is not None:
            self._check_own(value)
            return (-self.half_log_det()).expand(
                torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
            )
        if not value.numel():
            batch = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
            return value.new_zeros(batch)
        w = value if self.preconditioner is None else self.preconditioner.inverse(value)
        z = self.generator.inverse(w)
        return self.base_dist.log_prob(z) - self.given(z).half_log_det()

    def _check_own(self, value: Tensor) -> None:
        """Refuse a value that is not what the fixed noise leads to."""
        if not value.numel():
            return
        with torch.no_grad():
            mean = self.mean
            gap = ((mean - value).abs() / (1 + mean.abs())).max()
        if not gap < torch.finfo(mean.dtype).eps ** 0.5:
            raise DensityError(
                "the value is not the draw that belongs to the fixed noise, so that their joint "
                "density is zero. Replay or condition both sites, the latent and its noise, or "
                "evaluate distribution.log_prob(value) with no noise fixed."
            )


_ADVICE_ON_DENSITIES = (
    "an implicit distribution can be drawn from but its density cannot be evaluated, so "
    "Trace_ELBO, TraceMeanField_ELBO, RenyiELBO and their relatives cannot train it. Use "
    "an objective for implicit guides instead, e.g. SVI(model, guide, optim, "
    "LinearisedELBO()) with `from pyro_implicit import LinearisedELBO`; or a guide whose "
    "density is known: up to 1024 latents the default one, HyperNetworkGuide(model) without "
    "hidden_dims, noise_dim and scale, else one with generator=BijectiveGenerator, certain to be "
    "invertible."
)


def _refuse_non_finite(generator: Generator) -> None:
    """
    Refuses a generator whose parameters have diverged: it is no bijection for that reason alone.

    :raises NonFiniteError: naming a parameter that is not finite.
    """
    for name, parameter in named_tensors(generator).items():
        if not bool(parameter.isfinite().all()):
            raise NonFiniteError(
                f"parameter {name!r} of {type(generator).__name__} is not finite: its draws have "
                "no density. Train with a smaller learning rate, or clip the gradients "
                "(pyro.optim.ClippedAdam)."
            )


def _check_parts(generator: Any, preconditioner: Any, base: Any) -> None:
    """Types alone: this runs at every draw."""
    wrap = "a Generator (any other nn.Module as ModuleGenerator(module, noise_shape, output_dim))"
    if not isinstance(generator, Generator):
        check_instance("generator", generator, Generator, wrap)
    if preconditioner is not None and not isinstance(preconditioner, Preconditioner):
        check_instance("preconditioner", preconditioner, Preconditioner, "a Preconditioner")
    if base is not None and not isinstance(base, TorchDistributionMixin):
        kind = "a distribution of pyro.distributions"
        check_instance("base_dist", base, TorchDistributionMixin, kind)


def _check_noise(noise: Any, shape: torch.Size) -> None:
    """
    Refuses what cannot be noise.

    :raises ArgumentError: unless it is a tensor of real numbers.
    :raises ShapeError: unless it ends in ``shape``.
    """
    if not isinstance(noise, Tensor):
        check_instance("noise", noise, Tensor, "a tensor (*batch, *noise_shape)")
    if not noise.is_floating_point():
        raise ArgumentError(f"noise is of type {noise.dtype}; expected real numbers.")
    if noise.dim() < len(shape) or noise.shape[noise.dim() - len(shape) :] != shape:
        raise ShapeError(
            f"noise has shape {tuple(noise.shape)}; expected (..., "
            f"{', '.join(map(str, shape))}), the generator's noise_shape on the right."
        )


def _standard_normal(generator: Generator) -> dist.TorchDistribution:
    example = next(generator.parameters(), torch.zeros(()))
    zeros = example.new_zeros(generator.noise_shape)
    normal = dist.Normal(zeros, torch.ones_like(zeros), validate_args=False)
    noise: dist.TorchDistribution = normal.to_event(zeros.dim())
    return noise
