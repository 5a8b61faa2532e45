r"""
The base of objectives that learn the ratio of two densities from their draws.

References

- `Adversarial Variational Bayes`, L. Mescheder, S. Nowozin, A. Geiger, ICML 2017, section 3.3.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from pyro.infer.util import is_validation_enabled
from torch import Tensor

from pyro_implicit._checks import check_choice, check_count
from pyro_implicit._warn import warn
from pyro_implicit.distributions.implicit import ImplicitDistribution
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.ops.logdet import is_zero
from pyro_implicit.ops.moments import standardise

__all__ = ["ContrastiveELBO"]

_MAX_LATENTS_FOR_RANK_CHECK = 512  # of larger sites the rank is what the sizes allow
_MAX_SHARE_OF_ONE_DRAW = 0.4  # of the spread in its direction, on average over the latest steps
_DECAY_OF_MEAN_SHARE = 0.98
#: Of so many normal draws none makes up that share (0.26 with 256 latents).
_MIN_DRAWS_TO_JUDGE_TAILS = 50


class ContrastiveELBO(ImplicitELBO):
    r"""
    An objective that compares draws of the guide with draws of something else.

    It needs nothing of the guide but draws (a pure implicit guide, ``scale=0``, included). A
    subclass fills :meth:`divergence`, an estimate of a Kullback-Leibler divergence from draws of
    both sides.

    * ``contrast="adaptive"`` compares the guide with **the Gaussian of its own moments**, ``r``
      (Mescheder, Nowozin and Geiger 2017), and so estimates an entropy:
      :math:`\mathbb H[q] = \mathbb H[r] - KL(q \,\|\, r)`. The ratio has only the guide's deviation
      from a Gaussian to tell, its location and scale are exact, and the prior enters with its own
      density. Any Pyro prior, and weights, masks and plates, as for every other objective.
    * ``contrast="prior"`` compares the guide with **draws of the model's prior**, and so estimates
      ``KL(q || p)`` as they and their successors first proposed. It is the only one that serves a
      prior without a density, such as an :class:`~pyro_implicit.ImplicitDistribution` in the
      model. Everywhere else it is the worse: the two distributions are far apart, and in more than
      a few dimensions no ratio of draws tells how far. Nothing of it reaches learned parameters of
      the prior. Local latents under a subsampled plate are refused.

    With ``contrast="prior"`` each implicit site is compared with the prior of its own latents, so
    that a factorised guide has the sum of its sites' terms; a prior that couples the sites is
    refused.

    Example::

        class GaussianELBO(ContrastiveELBO):
            def divergence(self, name, q, p):  # of Gaussians with the moments of the draws
                variance = q.var(0) / p.var(0)
                shift = (q.mean(0) - p.mean(0)) / p.std(0)
                return 0.5 * (variance + shift.square() - 1 - variance.log()).sum()

        objective = GaussianELBO(8, num_samples=100, vectorize_particles=True)
        fit(model, HyperNetworkGuide(model), x, y, objective=objective, seed=0)

    Source: `Adversarial Variational Bayes`, Mescheder, Nowozin and Geiger, ICML 2017.

    :param int num_particles: draws for the likelihood.
    :param str contrast: ``"adaptive"`` or ``"prior"``.
    :param str covariance: moments of the adaptive contrast: ``"diagonal"``, ``"full"``, or
        ``"auto"``: full for sites of at most ``num_samples / 4`` entries. With a diagonal the ratio
        has the correlations to tell as well, which it cannot for a network's weights: give more
        ``num_samples``.
    :param int num_samples: draws of the guide's generator for the ratio, beside those for the
        likelihood, and as many of what they are compared with. With ``contrast="prior"`` and looped
        particles each of the latter is a run of the model up to its last latent: vectorise.
    :param options: all others of :class:`~pyro_implicit.ImplicitELBO`, except
        ``num_entropy_particles``, which ``num_samples`` takes the place of.
    :raises ArgumentError: for values outside of these, or a ``prior_weight`` other than 1 with
        ``contrast="prior"``, where the prior has no term of its own.
    """

    joint = True

    def __init__(
        self,
        num_particles: int = 1,
        *,
        contrast: str = "adaptive",
        covariance: str = "auto",
        num_samples: int = 200,
        **options: Any,
    ) -> None:
        check_choice("contrast", contrast, ("adaptive", "prior"))
        check_choice("covariance", covariance, ("auto", "diagonal", "full"))
        num_samples = check_count("num_samples", num_samples, 2)
        if options.get("num_entropy_particles") is not None:
            raise ArgumentError(
                f"{type(self).__name__} takes its draws by num_samples={num_samples}; leave "
                "num_entropy_particles out."
            )
        super().__init__(num_particles, **options)
        if contrast == "prior" and self.prior_weight != 1:
            raise ArgumentError(
                f"prior_weight={self.prior_weight} with contrast='prior': the prior has no term of "
                "its own there. Use kl_weight, or contrast='adaptive'."
            )
        self.replaces = "kl" if contrast == "prior" else "entropy"
        self.contrast = contrast
        self.covariance = covariance
        self.num_samples = num_samples
        self._warned: set[str] = set()
        self._far: dict[str, float] = {}  # running means, see _check_tails

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        settings = super().settings
        del settings["num_entropy_particles"]
        return settings | {
            "contrast": self.contrast,
            "covariance": self.covariance,
            "num_samples": self.num_samples,
        }

    @abstractmethod
    def divergence(self, name: str, q: Tensor, p: Tensor) -> Tensor:
        """
        Estimates a divergence from draws of both sides: the hook that a subclass fills.

        :param str name: the implicit site.
        :param torch.Tensor q: draws of the guide, shape ``(num_samples, m)``, with gradients.
        :param torch.Tensor p: draws of the prior, or of a standard normal, ``(num_samples, m)``.
        :returns: an estimate of ``KL(q || p)``, shape ``()``.
        """

    def estimate(self, site: ImplicitSite) -> Tensor:
        """
        Estimates the entropy, or the divergence from the prior, from draws of both sides.

        :param ImplicitSite site: an implicit site with the draws of all particles.
        :returns: the entropy, or with ``contrast="prior"`` the KL divergence, shape ``()``.
        :raises NonFiniteError: if a full covariance was asked for and is singular.
        :raises ShapeError: if a full covariance was asked for and draws are too few for it.
        """
        self._check_rank(site)
        with torch.autocast(site.value.device.type, enabled=False):
            q, p, entropy = self.pair(site)
            divergence = self.divergence(site.name, q, p)
        if entropy is not None:
            self._check_tails(site.name, q.detach())
        return divergence if entropy is None else entropy - divergence

    def pair(self, site: ImplicitSite) -> tuple[Tensor, Tensor, Tensor | None]:
        """
        New draws of both sides.

        :param ImplicitSite site: an implicit site.
        :returns: draws of the guide and of what it is compared with, shape ``(num_samples, m)``;
            and, for the adaptive contrast, whose guide draws are standardised, the entropy of the
            Gaussian of their moments.
        """
        q = site.fresh(self.num_samples).flatten(1)
        q = q.to(torch.promote_types(q.dtype, torch.float32))
        if self.contrast == "prior":
            return q, site.prior(self.num_samples).flatten(1).to(q), None  # type: ignore[misc]
        u, entropy = self._standardise(site.name, q)
        return u, torch.randn_like(u), entropy

    def _standardise(self, name: str, q: Tensor) -> tuple[Tensor, Tensor]:
        covariance = self._covariance_for(name, q.shape[1])
        try:
            return standardise(q, covariance)
        except NonFiniteError:
            if self.covariance != "auto":
                raise
            return standardise(q, "diagonal")

    def _covariance_for(self, name: str, m: int) -> str:
        if self.covariance == "full" and self.num_samples <= m:
            raise ShapeError(
                f"implicit site {name!r} has {m} entries: a full covariance needs more than "
                f"num_samples={self.num_samples} draws. Use covariance='auto'."
            )
        if self.covariance != "auto":
            return self.covariance
        return "full" if self.num_samples >= 4 * m else "diagonal"

    def _check_tails(self, name: str, u: Tensor) -> None:
        """
        Warns where, step after step, one draw makes up much of a direction's spread.

        A few steps of a young guide do that too: the mean of the latest ones counts.
        """
        key = f"{name}:tails"
        if key in self._warned or len(u) < _MIN_DRAWS_TO_JUDGE_TAILS or not is_validation_enabled():
            return
        now = _farthest(u, self._covariance_for(name, u.shape[1]))
        far = self._far[name] = (
            _DECAY_OF_MEAN_SHARE * self._far.get(name, 0.0) + (1 - _DECAY_OF_MEAN_SHARE) * now
        )
        if far > _MAX_SHARE_OF_ONE_DRAW:
            self._warn(
                key,
                f"implicit site {name!r}: one of {len(u)} draws makes up {far:.0%} of the spread in"
                " its direction, on average over the latest steps. With tails as heavy as that the "
                "estimated entropy may be too large by any amount: the objective promises more "
                "than the evidence, and draws run away. Use LinearisedELBO.",
            )

    def _check_rank(self, site: ImplicitSite) -> None:
        """Warns of draws on a surface: their true KL is infinite, and no ratio of draws tells."""
        if site.name in self._warned or not is_validation_enabled():
            return
        rank = _rank(site.distribution)
        if rank < site.distribution.generator.output_dim:
            self._warn(
                site.name,
                f"implicit site {site.name!r}: draws of its generator fill {rank} of "
                f"{site.distribution.generator.output_dim} dimensions and its scale is 0. Its true "
                "entropy is minus infinity, and no comparison of draws can tell. Use scale=0.01, or"
                " a generator of full rank with at least as many noise dimensions as latents.",
            )
        self._warned.add(site.name)

    def _warn(self, key: str, message: str) -> None:
        """Warns once per ``key`` and objective."""
        if key not in self._warned:
            self._warned.add(key)
            warn(f"{message} (Shown once per objective.)")


def _farthest(u: Tensor, covariance: str) -> float:
    """
    The largest share that one draw has of the spread in any direction.

    :param torch.Tensor u: standardised draws, shape ``(n, m)``.
    :param str covariance: the moments that they are standardised by.
    """
    if covariance == "full":
        largest = u.square().sum(-1).max() - u.shape[1]
    else:
        largest = u.square().max() - 1
    return float(largest) / max(len(u) - 1, 1)


@torch.no_grad()
def _rank(fn: ImplicitDistribution) -> int:
    """The rank of the Jacobian at one draw; for large sites what the sizes allow."""
    m, d = fn.generator.output_dim, fn.generator.noise_dim
    if fn.generator.full_rank or not is_zero(fn.scale):
        return m
    if d < m or m > _MAX_LATENTS_FOR_RANK_CHECK:
        return min(d, m)
    z = fn.noise.reshape(-1, *fn.generator.noise_shape)[0]  # type: ignore[union-attr]
    jacobian = fn.generator.jacobian(z).reshape(-1, m, d)[0]  # of the first row, if conditional
    return int(torch.linalg.matrix_rank(jacobian.double()))
