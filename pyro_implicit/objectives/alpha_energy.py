r"""
Power expectation propagation by one energy: between the ELBO and the predictive likelihood.

References

- `Black-Box alpha-Divergence Minimization`, J. M. Hernandez-Lobato and others, ICML 2016.
- `Dropout Inference in Bayesian Neural Networks with Alpha-divergences`, Y. Li, Y. Gal, ICML
  2017. Eq. 7.
- `Variational Implicit Processes`, C. Ma, Y. Li, J. M. Hernandez-Lobato, ICML 2019. Eq. 11.
"""

from __future__ import annotations

from typing import Any

from pyro_implicit._checks import check_number
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.objectives.linearised import LinearisedELBO
from pyro_implicit.objectives.particles.particle import Reads

__all__ = ["AlphaEnergy"]


class AlphaEnergy(LinearisedELBO):
    r"""
    Black-box alpha inference: between variational inference and expectation propagation.

    The loss is minus the energy in the form of Li and Gal (2017), which Ma, Li and Hernandez-Lobato
    (2019) train implicit processes with (Eq. 11 there):

    .. math::  \sum_n \tfrac1\alpha \log \mathbb E_q[p(y_n \mid \theta)^\alpha]
        - KL(q \,\|\, p).

    ``alpha=0`` is the ELBO, ``alpha=1`` the log predictive density of each datum less the KL term.
    A datum is one row of the innermost data plates. The expectation is a mean over the particles,
    within the logarithm: use many (32 or more, vectorised). With finitely many the value is biased
    downwards if ``alpha > 0``.

    It serves **ordinary guides** (``AutoNormal``, ``AutoMultivariateNormal``, ...), which have a
    density, as well as implicit ones, whose entropy is then the linearised one. For ``alpha > 0``
    it is no bound on the evidence.

    Example::

        guide = AutoNormal(model)
        objective = AlphaEnergy(32, alpha=0.5, vectorize_particles=True)
        fit(model, guide, x, y, objective=objective, seed=0)

    Sources:

    - `Dropout Inference in Bayesian Neural Networks with Alpha-divergences`, Li and Gal, ICML 2017.
    - `Variational Implicit Processes`, Ma, Li and Hernandez-Lobato, ICML 2019.

    :param float alpha: from 0 to 1.
    :param int num_particles: draws.
    :param options: all others of :class:`~pyro_implicit.ImplicitELBO` but ``likelihood``.
    :raises ArgumentError: for an ``alpha`` outside of 0 to 1, or a ``likelihood``.
    """

    def __init__(self, num_particles: int = 1, *, alpha: float = 0.5, **options: Any) -> None:
        alpha = check_number("alpha", alpha, minimum=0, maximum=1, why=" (0 is the ELBO)")
        if "likelihood" in options:
            raise ArgumentError(
                f"likelihood={options['likelihood']!r}: alpha takes its place. Write alpha=0 for "
                "'expected' and alpha=1 for 'per_datum'."
            )
        self.alpha = float(alpha)  # first: the base asks for the power
        super().__init__(num_particles, **options)

    @property
    def power(self) -> float:
        """The power ``alpha`` of the likelihoods that are averaged over draws."""
        return self.alpha

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        """The parts of a run that an ELBO reads, of explicit guides too."""
        return Reads(implicit_site=False, apart=self._parts_are_weighed)

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        settings = super().settings
        del settings["likelihood"]
        return settings | {"alpha": self.alpha}
