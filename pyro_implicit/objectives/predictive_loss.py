r"""
Training on the posterior predictive distribution alone: a likelihood, no prior, no entropy.

References

- `Bayesian Neural Network Inference via Implicit Models and the Posterior Predictive
  Distribution`, J. J. Dabrowski, D. E. Pagendam, 2022. Eq. 3, Algorithm 1, appendices B, C, F.
"""

from __future__ import annotations

import math
from typing import Any

from pyro_implicit._checks import check_choice, check_number
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.objectives.likelihood import batch_log_predictive, log_predictive
from pyro_implicit.objectives.particle_objective import ParticleObjective, Terms
from pyro_implicit.objectives.particles.particle import Reads
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch

__all__ = ["PosteriorPredictiveLoss"]

_FORMS = ("per_datum", "expected", "per_batch")
#: what every objective of Pyro takes
_OPTIONS_OF_PYRO = {
    "retain_graph",
    "strict_enumeration_warning",
    "ignore_jit_warnings",
    "jit_options",
    "tail_adaptive_beta",
}
#: They are refused: such a mean of densities underflows.
_FORMS_WITHOUT_LOGARITHM = ("raw", "density", "eq4", "mean")


class PosteriorPredictiveLoss(ParticleObjective):
    r"""
    Minus the log of a Monte Carlo estimate of the posterior predictive density.

    It is Eq. 3 of Dabrowski and Pagendam (2022). It needs a likelihood only: no prior,
    and of the guide only draws, so that any guide with reparameterised draws serves, implicit or
    not.

    The paper can be read in three ways; ``form`` chooses, with ``L = num_particles`` draws:

    ``"per_datum"``
        :math:`-\sum_n \log \tfrac1L \sum_l p(y_n \mid x_n, \theta_l)`, Eq. 3 for each datum. Draws
        may share the data among them, so that the spread stays where the data have it.
    ``"expected"``
        :math:`-\tfrac1L \sum_l \sum_n \log p(y_n \mid x_n, \theta_l)`, what the appendices
        describe. Nothing rewards a spread: the guide **collapses to the maximum-likelihood point**
        (appendix C; on :math:`x \sin x` its standard deviation falls to about 0.02). Stop early, on
        held-out data (:class:`~pyro_implicit.training.EarlyStopping`).
    ``"per_batch"``
        :math:`-\log \tfrac1L \sum_l \prod_n p(y_n \mid x_n, \theta_l)` over the minibatch,
        Algorithm 1 with the logarithm outside. The best draw takes it all: erratic, and the value
        depends on how the data are cut into minibatches.

    With one draw all three are the negative log-likelihood. The average of densities without a
    logarithm (Eq. 4 as printed) is refused: products of densities underflow, and the gradient
    vanishes wherever no draw explains the data.

    None of them is a bound on the evidence, and none makes the guide approximate the posterior: the
    spread is what the *predictions* need. A narrow likelihood makes ``"per_datum"`` slow and
    ragged: anneal its scale from about 1 downwards (:class:`~pyro_implicit.training.Annealed`).
    **Few draws beside a narrow likelihood want too wide a guide**, one of whose draws is near each
    datum: of normal data whose noise is 0.3, 0.2 and 0.1 of the spread ten draws score best with
    about 1.2, 1.4 and 1.4 times it, 1000 with 1.0, 1.0 and 1.2. Take more draws at the end.

    The likelihood may be any observed site, or a pseudo-likelihood as ``pyro.factor`` inside of the
    data plate (L1, hinge, synthetic likelihoods).

    Example::

        guide = HyperNetworkGuide(model)
        objective = PosteriorPredictiveLoss(10, vectorize_particles=True)
        fit(model, guide, x, y, objective=objective, validation=(x_val, y_val), seed=0)

    Source: `Bayesian Neural Network Inference via Implicit Models and the Posterior Predictive
    Distribution`, Dabrowski and Pagendam, 2022.

    :param int num_particles: draws ``L``; 10 in the paper.
    :param str form: see above.
    :param float prior_weight: weight of the expected log-density of the model's prior, the
        regulariser of appendix F (its :math:`\lambda` is ``prior_weight / 2`` for a standard normal
        prior). 0: the prior is never evaluated; latents that the data depend on through the prior
        alone (hyperparameters) then get no gradient.
    :param bool vectorize_particles: draw them in one vectorised pass.
    :param max_plate_nesting: see :class:`~pyro_implicit.ImplicitELBO`.
    :param options: ``retain_graph``, likewise.
    :raises ArgumentError: for another ``form``, or options of an evidence bound.
    """

    def __init__(
        self,
        num_particles: int = 10,
        *,
        form: str = "per_datum",
        prior_weight: float = 0.0,
        vectorize_particles: bool = False,
        max_plate_nesting: float = math.inf,
        **options: Any,
    ) -> None:
        if isinstance(form, str) and form in _FORMS_WITHOUT_LOGARITHM:
            raise ArgumentError(
                f"form={form!r}: a mean of densities without a logarithm (Eq. 4 as printed) "
                "underflows as soon as a few data are multiplied, and does not train. Write "
                "form='per_datum', the logarithm of the mean for each datum."
            )
        check_choice("form", form, _FORMS)
        unknown = sorted(options.keys() - _OPTIONS_OF_PYRO)
        if unknown == ["likelihood"]:
            raise ArgumentError(
                "PosteriorPredictiveLoss has no option likelihood=: write form= "
                f"({', '.join(_FORMS)})."
            )
        if unknown:
            raise ArgumentError(
                f"PosteriorPredictiveLoss got {', '.join(unknown)}; it has no entropy and no KL "
                "term to weigh. Its options are form, prior_weight, vectorize_particles, "
                "max_plate_nesting and retain_graph, and what every objective of Pyro takes."
            )
        super().__init__(
            num_particles,
            vectorize_particles=vectorize_particles,
            max_plate_nesting=max_plate_nesting,
            **options,
        )
        self.prior_weight = check_number("prior_weight", prior_weight, minimum=0)
        self.form = form

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        """What the loss reads of a run: a likelihood and, if it has a weight, the prior."""
        weighed = self.prior_weight != 0
        return Reads(prior=weighed, guide=False, implicit_site=False, apart=True)

    @property
    def pools(self) -> bool:  # type: ignore[override]
        """Whether the draws are averaged within the logarithm."""
        return self.form != "expected"

    def terms_of(self, batch: ParticleBatch) -> Terms:
        """
        See :meth:`ParticleObjective.terms_of`.

        :returns: ``log_predictive``, or ``log_likelihood`` if ``form="expected"``; and
            ``log_prior`` if it has a weight.
        """
        terms: Terms = {}
        if self.form == "expected":
            terms["log_likelihood"] = batch.log_likelihood.mean()
        elif self.form == "per_datum":
            terms["log_predictive"] = log_predictive(batch)
        else:
            terms["log_predictive"] = batch_log_predictive(batch)
        if self.prior_weight:
            terms["log_prior"] = self.prior_weight * batch.log_density_of_latents().mean()
        return terms

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {"prior_weight": self.prior_weight, "form": self.form}
