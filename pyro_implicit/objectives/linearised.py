r"""
The linearised-entropy objective of LIVI.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Eq. 14 to 16.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pyro_implicit._checks import check_count, check_flag
from pyro_implicit._hints import hint
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.objectives.checks.fold_watch import FoldWatch, can_tell
from pyro_implicit.objectives.exact_determinant import exact_is_cheap
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.path_gradient import along_path
from pyro_implicit.objectives.scaled_site import entropy_constant
from pyro_implicit.ops.logdet import is_zero

__all__ = ["LinearisedELBO"]

_MAX_NOISES_WITHOUT_HINT = 256  # up to here as many noises as latents are no burden


class LinearisedELBO(ImplicitELBO):
    r"""
    The objective :math:`\mathcal L'` of LIVI: an exact log-determinant for the entropy.

    The entropy of the guide is found by linearising its generator ``g`` at each draw (Uppal et al.
    2023, Eq. 15),

    .. math::  \mathbb H[q] \approx \tfrac m2 (1 + \log 2\pi)
        + \tfrac12\, \mathbb E_z \log\det(J(z) J(z)^\top + \sigma^2 I_m),

    with ``J`` the Jacobian of ``g``, computed exactly, on the smaller side, by the fastest route
    that the generator knows (see :class:`~pyro_implicit.generators.Generator`).

    For a **linear** generator this is the exact ELBO at every ``sigma``. For a **nonlinear** one it
    is an *objective, not a lower bound*: where the map folds, mass is counted twice, and the value
    can exceed the log-evidence (by 0.3 to 1.5 nats in small examples); :attr:`is_bound` is False,
    as nothing here can prove that a generator is linear. For a generator that is certain to be
    **bijective** (:class:`~pyro_implicit.generators.BijectiveGenerator`), without output noise, the
    linearised entropy is the entropy: the objective is the ELBO, and :meth:`is_bound_for` says
    so. Compare values across noise
    dimensions or ``sigma`` with care, and judge a fit by held-out log-likelihood.

    Cost: one Jacobian (or Gram matrix) and one factorisation of size ``min(d, m)`` per draw. For
    guides over more than some thousands of latents use a cheaper estimate of the determinant.

    **It watches for folds** in training: generators that are not known to be bijective, with as
    many noises as latents, have the sign of :math:`\det J` looked at now and then. A map that is
    one to one has one sign; where both are seen a warning tells how often, and what to write. (A
    rarer sign at 3% of the noises went with 0.14 to 0.18 nats too many, at 27% with 0.5.) A map
    that folds an even number of times at every noise is not seen so.

    With other numbers of noises and of latents a Jacobian has no determinant, hence no sign:
    nothing is watched, and nothing is bounded. :func:`~pyro_implicit.entropy_report` compares the
    linearised entropy with the true one there, after the fit and up to 100 noises, and
    :class:`~pyro_implicit.SemiImplicitELBO` bounds the true one wherever there is output noise.

    **Gradients along the path.** Of generators that tell the score of their draws
    (:class:`~pyro_implicit.generators.AutoregressiveGenerator`, the default up to 1024 latents) the
    entropy's gradient is taken through the draws alone (``path_gradient=True``): the same in the
    mean, and with a small part of the noise near the posterior (Roeder et al. 2017). Far from it,
    in a guide that is much narrower (``init_scale=0.05`` without a searched start), it has more
    noise, and steps that are not clipped may diverge: leave ``init_scale`` to the start, or write
    ``path_gradient=False``. The value is what it was. At noise that is held fixed they are not the
    gradients of that value, nor are its derivatives of higher order those of the bound: write
    ``path_gradient=False`` for them, for L-BFGS and other line searches on the same draws at each
    call, and for finite differences.

    Example::

        guide = HyperNetworkGuide(model)
        objective = LinearisedELBO(8, vectorize_particles=True)
        fit(model, guide, x, y, objective=objective, seed=0)
        objective.is_bound_for(guide)                      # up to 1024 latents a true bound

    ``SVI(model, guide, optim, RecordedObjective(objective))`` takes steps of small models as a
    recorded graph, as ``fit`` does: the same bits in 0.4 to 0.6 of the time
    (:class:`~pyro_implicit.training.RecordedObjective`).

    :param int num_particles: number of draws.
    :param int watch_folds: look in every k-th training step of a site; 0 never looks.
    :param bool path_gradient: whether training steps leave the part out of the entropy's gradient
        whose mean is zero, where the generator tells the score of its draws.
    :param options: all others of :class:`~pyro_implicit.ImplicitELBO`.
    :raises ArgumentError: for a negative number, or what is no flag; in a step with
        ``vectorize_particles="vmap"`` of a generator that may fold, unless ``watch_folds=0``.
    :warns UserWarning: if the generator folds, once for each site of a guide.
    :warns PerformanceHint: once, for a Jacobian too large for an exact determinant.

    Source: `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS
    2023.
    """

    bounds_bijective = True
    takes_log_det = True
    can_be_mapped = True

    def __init__(
        self,
        num_particles: int = 1,
        *,
        watch_folds: int = 100,
        path_gradient: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, **options)
        self.path_gradient = check_flag("path_gradient", path_gradient)
        self.watch_folds = check_count("watch_folds", watch_folds, 0)
        self._watch = FoldWatch()

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {
            "watch_folds": self.watch_folds,
            "path_gradient": self.path_gradient,
        }

    def estimate(self, site: ImplicitSite) -> Tensor:
        r"""
        The linearised entropy by the exact log-determinant.

        :param ImplicitSite site: an implicit site with its draws.
        :returns: linearised entropy at each draw, shape ``site.distribution.batch_shape``.
        :raises ArgumentError: for a generator that may fold where nobody would see it.
        :raises GuideError: for noise that is not standard normal and has more dimensions than the
            site.
        """
        if self.training_step is not None:
            _hint_at_size(site)
        value = site.distribution.half_log_det() + _entropy_of_noise(site)
        if self.path_gradient and self.training_step is not None:
            value = along_path(site, value)
        if not self.is_mapped:
            self._watch(self.training_step, site, self.watch_folds, self.vectorised)
        elif self.watch_folds and not self._mapped.is_mapping and can_tell(site):
            raise ArgumentError(
                f"implicit site {site.name!r} has a generator that may fold, and draws that are "
                'mapped (vectorize_particles="vmap") are not watched for that. Write '
                "watch_folds=0, or vectorize_particles=True or False."
            )
        return value


def _entropy_of_noise(site: ImplicitSite) -> Tensor | float:
    """
    What the entropy has beside the log-determinant; of bijections at each draw, not in the mean.

    The sum is then minus the log-density of the draw, as far from the mean as the log-joint is,
    the other way: losses vary the less the nearer the guide is to the posterior (Roeder, Wu and
    Duvenaud 2017), by which a fit sees when it is level. Means and gradients are the same.
    """
    fn = site.distribution
    if fn.generator.draws_with_log_det and is_zero(fn.scale):  # as increasing functions do
        return -fn.noise_log_prob()
    return entropy_constant(site)


def _hint_at_size(site: ImplicitSite) -> None:
    """Names what is cheaper, where a step spends its time on the determinant."""
    generator, scale = site.distribution.generator.origin, site.distribution.scale
    num_latents, num_noises = generator.output_dim, generator.noise_dim
    if generator.has_structured_log_det and is_zero(scale):
        return
    size = f"implicit site {site.name!r} has {num_latents} latents and {num_noises} noises"
    if not exact_is_cheap(generator, scale):
        hint(
            "exact determinant",
            f"{size}, and LinearisedELBO computes and factorises all of its Jacobian for every "
            "draw. LanczosELBO, which fit chooses here, is cheaper.",
        )
    elif num_noises == num_latents > _MAX_NOISES_WITHOUT_HINT:
        hint(
            "noise_dim",
            f"{size}: a determinant of that size for every draw. Leave noise_dim out (100 noises "
            "beside learned output noise), or write generator=ResidualGenerator, whose determinant "
            "has the size of its hidden layer.",
        )
