r"""
The objective of LIVI for very many latents: a bound by the smallest singular value.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Eq. 17 to 19, appendix C.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from pyro.infer.util import is_validation_enabled
from torch import Tensor

from pyro_implicit._checks import check_count, check_flag, check_number, check_state, shown
from pyro_implicit._warn import warn
from pyro_implicit.exceptions import StateError
from pyro_implicit.generators.base import Generator
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.scaled_site import rest_of_entropy, scaled_jacobian
from pyro_implicit.ops.lobpcg import SmallestPair, smallest_eigenpair
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian

__all__ = ["SingularValueELBO", "SingularValueReport"]


@dataclass(frozen=True)
class SingularValueReport:
    """
    What LOBPCG found for one site, the worst of its draws.

    :param float smallest: the smallest singular value of the Jacobian, in units of the output
        noise; never too small.
    :param float residual: the relative residual of :class:`~pyro_implicit.ops.lobpcg.SmallestPair`.
    :param int num_iterations: iterations done.
    :param bool is_certified: whether the residual is within the tolerance.
    """

    smallest: float
    residual: float
    num_iterations: int
    is_certified: bool


class SingularValueELBO(ImplicitELBO):
    r"""
    The objective :math:`\mathcal L''` of LIVI: a bound on the entropy by one singular value.

    It is a lower bound of :class:`~pyro_implicit.LinearisedELBO` that replaces all ``d`` singular
    values of the Jacobian by the smallest one (Uppal et al. 2023, Eq. 18),

    .. math::  \tfrac12 \log\det(J J^\top + \sigma^2 I_m)
        \ge \tfrac d2 \log(s_1^2 + \sigma^2) + (m - d) \log \sigma .

    The last term, left out in the paper, is constant only while ``sigma`` is. With one sigma per
    latent the formula holds for :math:`\mathrm{diag}(1/\sigma) J`, and with ``d > m`` for the ``m``
    singular values that are not zero. (Appendix C argues that the dropped terms are positive. They
    are not where ``s < 1``: it is a bound because :math:`s_1` is the smallest.)

    **When not to use it:** almost always. It is here for comparison with the published method: for
    the same number of products :class:`~pyro_implicit.LanczosELBO` with one probe was 3 to 50 times
    nearer to the truth (10 to 40 products, trained generators), and has the better gradient.

    - *It forgets all directions but one.* Its optimum for a linear generator is **isotropic**,
      whatever the posterior's shape, with the harmonic mean of the posterior's variances: below
      mean-field on ill-conditioned Gaussians (KL 2.26, 2.15, 1.43 against 1.81, 0.69, 1.35).
    - *Converged it is loose*: by 76 nats for a trained generator ``50 -> 751``, by 8141 for one
      of LeNet's 44 426 weights (half the log-determinant in
      units of sigma: 21 998). The cosine of its gradient
      to the exact one is 0.14 to 0.32.
    - *Stopped early it is no bound.* LOBPCG approaches the smallest singular value from above, so
      that the value is too large, with few iterations even above what it should bound (LeNet, after
      1 iteration: +408). The residual is in :attr:`last_report`, a warning tells, once, when it
      exceeds the tolerance, and :attr:`is_certified` says whether it does. A small residual shows
      that *an* eigenvalue is near; that it is the smallest is then very likely, not proven.

    *Small problems*, with at most ``num_iterations + 1`` noise entries or latents, are solved
    exactly, which costs no more.

    *Cost:* one product with the Jacobian and one with its transpose per iteration and to begin, and
    one differentiable product, for each draw. A step for LeNet (batch 256, two draws, one CPU
    thread, 5 iterations) took 4.2 MAP steps.

    *Warm start:* the search begins at the vectors that it ended with in the last call for the same
    generator, if their shape fits. On LeNet's generator 5 iterations left the bound 6500 nats above
    its converged value from a random start and 1100 after 40 calls. The vectors live as long as
    their generator; :meth:`state_dict` has them, so that a run that is taken up goes on with the
    same bits (of several processes, those of the first). Conditional guides always begin at random
    vectors: the rows that a call shows need not be those of the last.

    Example::

        guide = MMNNGuide(model, learn_scale="scalar")
        objective = SingularValueELBO(2, num_iterations=10)
        fit(model, guide, x, y, objective=objective, seed=0)
        print(objective.last_report)

    Source: `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS
    2023.

    :param int num_particles: number of draws.
    :param int num_iterations: LOBPCG iterations at most.
    :param float tolerance: relative residual of an eigenvalue of
        :math:`J^\top J / \sigma^2 + I` at which a search ends and its value counts as converged.
        The comparison waits for the device in each iteration; 0 never compares, and never
        certifies anything.
    :param bool warm_start: see above; with ``False`` every call begins at random vectors.
    :param options: all others of :class:`~pyro_implicit.ImplicitELBO`.
    :raises ArgumentError: for a negative number of iterations or a tolerance outside of [0, 1).
    """

    linearises = True

    def __init__(
        self,
        num_particles: int = 1,
        *,
        num_iterations: int = 10,
        tolerance: float = 0.01,
        warm_start: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, **options)
        self.num_iterations = check_count("num_iterations", num_iterations, 0)
        self.tolerance = check_number("tolerance", tolerance, minimum=0, below=1)
        self.warm_start = check_flag("warm_start", warm_start)
        self._forget()

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {
            "num_iterations": self.num_iterations,
            "tolerance": self.tolerance,
            "warm_start": self.warm_start,
        }

    @property
    def last_report(self) -> dict[str, SingularValueReport]:
        """
        What was found of each implicit site, by name, when it was last estimated.

        It is for all draws if particles are vectorised, else for the last one. Reading this waits
        for the device.
        """
        return {name: self._report(*found) for name, found in self._last.items()}

    @property
    def is_certified(self) -> bool:
        """Whether the last values were converged at every site; False before any."""
        reports = self.last_report.values()
        return bool(reports) and all(report.is_certified for report in reports)

    def estimate(self, site: ImplicitSite) -> Tensor:
        r"""
        A bound on the linearised entropy by the smallest singular value.

        :param ImplicitSite site: an implicit site with its draws.
        :returns: the bound on the linearised entropy at each draw, shape
            ``site.distribution.batch_shape``.
        :raises GuideError: for noise that is not standard normal and has more dimensions than the
            site.
        """
        rest = rest_of_entropy(site)
        jacobian = scaled_jacobian(site)
        start = self._start(site, jacobian)
        pair = smallest_eigenpair(jacobian, start, self.num_iterations, self.tolerance)
        self._remember(site, pair)
        square = jacobian.squared_norm(pair.vector)
        # theory/linearised.md (singular-value-bound), Eq. 17 of Uppal et al.
        value = 0.5 * jacobian.size * (jacobian.floor + square).log() + jacobian.log_scale()
        return value.to(jacobian.dtype) + rest

    # ---- memory: one vector per draw of a generator, which need not be there

    def _forget(self) -> None:
        self._vectors: WeakKeyDictionary[Generator, Tensor] = WeakKeyDictionary()
        self._to_come: list[Tensor] = []
        self._last: dict[str, tuple[Tensor, Tensor, int]] = {}
        self._has_warned = False

    def state_dict(self) -> dict[str, Any]:
        """The vectors of the warm start, by generator in the order that they were met in."""
        return {"vectors": [*self._vectors.values(), *self._to_come]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Restores what :meth:`state_dict` returned, for the next guide that is trained.

        :raises StateError: if it is not a state of such an objective.
        """
        vectors = check_state(self, state).get("vectors")
        fits = set(state) == {"vectors"} and isinstance(vectors, list)
        if vectors is None or not fits or not all(isinstance(v, Tensor) for v in vectors):
            raise StateError(
                f"not a state of {type(self).__name__}: found {shown(state)}; expected "
                "{'vectors': [one tensor for each generator]}."
            )
        self._vectors.clear()
        self._to_come = [vector.detach().clone() for vector in vectors]

    def __getstate__(self) -> dict[str, Any]:
        memory = ("_vectors", "_to_come", "_last", "_has_warned")
        return {k: v for k, v in super().__getstate__().items() if k not in memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _start(self, site: ImplicitSite, jacobian: ScaledJacobian) -> Tensor:
        """The last vectors of this generator if they fit; always as many random numbers drawn."""
        shape = (*jacobian.batch_shape, jacobian.size)
        start = torch.randn(shape, dtype=jacobian.dtype, device=jacobian.device)
        known = self._known(site.distribution.generator)
        if known is None or known.shape != start.shape or known.dtype != start.dtype:
            return start
        known = known.to(start.device)
        return torch.where(known.isfinite().all(-1, keepdim=True), known, start)

    def _known(self, generator: Generator) -> Tensor | None:
        if not self._has_warm_start(generator):
            return None
        if generator not in self._vectors and self._to_come:
            self._vectors[generator] = self._to_come.pop(0)
        return self._vectors.get(generator)

    def _has_warm_start(self, generator: Generator) -> bool:
        """Not one that is made for one call: the rows of a conditional guide change."""
        return self.warm_start and generator.origin is generator

    def _remember(self, site: ImplicitSite, pair: SmallestPair) -> None:
        generator = site.distribution.generator
        if self._has_warm_start(generator):
            self._vectors[generator] = pair.vector
        found = (pair.value, pair.residual, pair.num_iterations)
        self._last[site.name] = found
        if self._has_warned or not is_validation_enabled():
            return
        report = self._report(*found)
        if report.is_certified:
            return
        self._has_warned = True
        warn(
            f"implicit site {site.name!r}: LOBPCG stopped after {report.num_iterations} iterations "
            f"with a relative residual of {report.residual:.2g} (tolerance {self.tolerance:.2g}). "
            "The smallest singular value is over-estimated: the value is not certified as a bound "
            "and may exceed what it should bound. Raise num_iterations, see objective.last_report, "
            "or use LanczosELBO. (Shown once per objective.)"
        )

    def _report(self, value: Tensor, residual: Tensor, num_iterations: int) -> SingularValueReport:
        worst = residual.max().item()
        smallest = value.min().sqrt().item()
        return SingularValueReport(smallest, worst, num_iterations, worst <= self.tolerance)
