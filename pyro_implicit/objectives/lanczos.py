r"""
The linearised-entropy objective with a log-determinant from products alone.

References

- `Implicit Variational Inference for High-Dimensional Posteriors`, A. Uppal, K. Stensbo-Smidt,
  W. Boomsma, J. Frellsen, NeurIPS 2023. Eq. 14 to 16.
- `Fast Estimation of tr(f(A)) via Stochastic Lanczos Quadrature`, S. Ubaru, J. Chen, Y. Saad,
  SIAM Journal on Matrix Analysis and Applications, 2017.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_choice, check_count, check_state, shown
from pyro_implicit.exceptions import ArgumentError, StateError
from pyro_implicit.objectives.checks.fold_watch import FoldWatch
from pyro_implicit.objectives.every_kth_step import StepCounts
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.scaled_site import rest_of_entropy, scaled_jacobian
from pyro_implicit.ops.lanczos import (
    PROBE_KINDS,
    LanczosQuadrature,
    draw_probes,
    gradient_surrogate,
    lanczos_quadrature,
)
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian

__all__ = ["MAX_NOISE_DIM_WATCHED", "LanczosELBO", "LanczosReport"]

#: Up to here a look at the whole Jacobian for folds costs nothing beside the steps.
MAX_NOISE_DIM_WATCHED = 512

_QUADRATURE_RULES = ("gauss", "radau", "average")


@dataclass(frozen=True)
class LanczosReport:
    """
    Both estimates of half the log-determinant of a site's covariance, averaged over its draws.

    :param float gauss: the upper one.
    :param float radau: the lower one; minus infinity without output noise.
    :param float standard_error: of each, from the spread over probes as if they were independent
        (of orthogonal ones it is less, and 0 for as many as dimensions); NaN for a single probe.
    """

    gauss: float
    radau: float
    standard_error: float


class LanczosELBO(ImplicitELBO):
    r"""
    :class:`~pyro_implicit.LinearisedELBO` for very many latents, from products with the Jacobian.

    The objective is the same (Uppal et al. 2023, Eq. 15), with the log-determinant estimated by
    stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017); the Jacobian is never formed. The
    estimate has two sides: the Gauss rule is an **upper** bound of the log-determinant in
    expectation, the Gauss-Radau rule a **lower** one; both are in :attr:`last_report`. (They bound
    the log-determinant. That the linearised entropy may exceed the entropy remains, see
    :class:`~pyro_implicit.LinearisedELBO`.)

    *When to use it:* when the exact determinant is too dear, from some thousands of latents on.
    Prefer it to :class:`~pyro_implicit.SingularValueELBO`, whose cost is the same.

    *Bias*: with 5 steps some nats too high (Gauss) for trained networks of hundreds of latents, and
    some hundred nats for ten thousands; it falls about tenfold with 5 to 10 more. The bound by the
    smallest singular value is off by tens of times as much.

    *Gradient:* that of :func:`~pyro_implicit.ops.lanczos.gradient_surrogate`, the same for all
    rules. Its cosine to the exact one is 0.94 with 32 probes, with one probe 0.64: probes and
    draws, not steps, limit it.

    *Cost:* ``num_steps`` products with the Jacobian and as many with its transpose, for each probe
    of each draw. For LeNet and two draws ``num_entropy_particles=1`` saves half
    of it, ``entropy_every=4`` two thirds.

    *Precision:* float32 is enough down to ``sigma = 1e-4`` times the largest singular value.
    Singular values below ``2e-6`` times the largest count as 0. The tables are in
    :doc:`How accurate are the numbers? </results/numerics>`.

    Sources:

    - `Implicit Variational Inference for High-Dimensional Posteriors`, Uppal et al., NeurIPS 2023.
    - `Fast Estimation of tr(f(A)) via Stochastic Lanczos Quadrature`, Ubaru, Chen and Saad, SIAM
      Journal on Matrix Analysis and Applications, 2017.

    :param int num_particles: number of draws.
    :param int num_steps: Lanczos steps ``k``. 5 train well; take 20 to report a value.
    :param int num_probes: random vectors for each draw.
    :param str rule: which value enters the loss: ``"gauss"``, ``"radau"`` (so that the loss errs
        on the pessimistic side) or ``"average"``. Gauss was nearest to the truth in every
        measurement. The others need output noise.
    :param int entropy_every: *lazy entropy*: in training, estimate the log-determinant in every
        k-th step only and give it, with its gradient, the weight k: unbiased over k steps. The loss
        of a single training step then jumps; see below for how to read it.
    :param str probes: ``"orthogonal"`` or ``"rademacher"``, see
        :func:`~pyro_implicit.ops.lanczos.draw_probes`.
    :param int watch_folds: look for folds in every k-th training step, see
        :class:`~pyro_implicit.LinearisedELBO`; here up to 512 noises. 0 never looks.
    :param options: all others of :class:`~pyro_implicit.ImplicitELBO`.
    :raises ArgumentError: for a number below 1 (``watch_folds``: 0) or an unknown name.

    A *training step*, which ``entropy_every`` counts, is a call of :meth:`loss_and_grads` (what
    ``SVI.step`` calls) or of :meth:`differentiable_loss` with gradients enabled. Everything else,
    that is :meth:`loss`, ``SVI.evaluate_loss``, :meth:`terms`, and any call under
    :func:`torch.no_grad`, has the entropy with weight 1 and counts nothing: it is what to plot.

    Example::

        objective = LanczosELBO(2, num_entropy_particles=1, entropy_every=4)
        svi = SVI(model, guide, Adam({"lr": 2e-3}), objective)
        for x, y in batches:
            svi.step(x, y)
        objective.loss(model, guide, x, y)
        print(objective.last_report)
    """

    linearises = True

    def __init__(
        self,
        num_particles: int = 1,
        *,
        num_steps: int = 5,
        num_probes: int = 1,
        rule: str = "gauss",
        entropy_every: int = 1,
        probes: str = "orthogonal",
        watch_folds: int = 100,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, **options)
        self.num_steps = check_count("num_steps", num_steps)
        self.num_probes = check_count("num_probes", num_probes)
        self.rule = check_choice("rule", rule, _QUADRATURE_RULES)
        self.entropy_every = check_count("entropy_every", entropy_every)
        self.probes = check_choice("probes", probes, PROBE_KINDS)
        self.watch_folds = check_count("watch_folds", watch_folds, 0)
        self._watch = FoldWatch()
        self._forget()

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {
            "num_steps": self.num_steps,
            "num_probes": self.num_probes,
            "rule": self.rule,
            "entropy_every": self.entropy_every,
            "probes": self.probes,
            "watch_folds": self.watch_folds,
        }

    @property
    def last_report(self) -> dict[str, LanczosReport]:
        """
        Both estimates of each implicit site, from the last time that it was estimated.

        They are for all draws if particles are vectorised, else for the last one. Kept on the
        device until it is read. (A training step itself waits there for one eigenproblem of size
        ``k + 1`` only.)
        """
        return {name: _report(*found) for name, found in self._last.items()}

    def estimate(self, site: ImplicitSite) -> Tensor:
        r"""
        The linearised entropy, its log-determinant estimated from products.

        :param ImplicitSite site: an implicit site with its draws.
        :returns: linearised entropy at each draw, shape ``site.distribution.batch_shape``; in a
            training step without its turn, what it has beside the log-determinant.
        :raises ArgumentError: for ``rule="radau"`` or ``"average"`` without output noise.
        :raises GuideError: for noise that is not standard normal and has more dimensions than the
            site.
        """
        rest = rest_of_entropy(site)
        if site.distribution.generator.noise_dim <= MAX_NOISE_DIM_WATCHED:
            self._watch(self.training_step, site, self.watch_folds, self.vectorised)
        weight = self._weight(site)
        if weight == 0:
            return site.value.new_zeros(site.value.shape[:-1]) + rest
        jacobian = scaled_jacobian(site)
        self._check_rule(site, jacobian)
        probes = draw_probes(self.probes, self.num_probes, jacobian)
        found = lanczos_quadrature(jacobian, probes, self.num_steps)
        log_scale = jacobian.log_scale()
        self._remember(site, found, log_scale)
        value = self._chosen(found) + log_scale
        if torch.is_grad_enabled():
            surrogate = gradient_surrogate(jacobian, found.pairs)
            value = value + (surrogate - surrogate.detach())
        return (weight * value).to(jacobian.dtype) + rest

    def _chosen(self, found: LanczosQuadrature) -> Tensor:
        """Half the mean over probes of the rule that enters the loss, shape ``(...)``."""
        if self.rule == "average":
            return 0.25 * (found.gauss + found.radau).mean(0)
        return 0.5 * (found.gauss if self.rule == "gauss" else found.radau).mean(0)

    def _check_rule(self, site: ImplicitSite, jacobian: ScaledJacobian) -> None:
        if jacobian.floor == 0 and self.rule != "gauss":
            raise ArgumentError(
                f"implicit site {site.name!r} has no output noise (scale=0), so nothing is known "
                f"of the smallest eigenvalue of its covariance, which rule={self.rule!r} needs. "
                "Write rule='gauss', or give the guide scale=0.01."
            )

    # ---- memory: two small tensors per site, and whose turn it is

    def state_dict(self) -> dict[str, Any]:
        """Whose turn it is in ``entropy_every``, by site in the order of their first step."""
        return {"turns": self._step_counts.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Restores what :meth:`state_dict` returned, for the next guide that is trained.

        :raises StateError: if it is not a state of such an objective.
        """
        turns = check_state(self, state).get("turns")
        fits = set(state) == {"turns"} and isinstance(turns, list)
        if turns is None or not fits or any(type(turn) is not int for turn in turns):
            raise StateError(
                f"not a state of {type(self).__name__}: found {shown(state)}; expected "
                "{'turns': [one integer for each implicit site]}."
            )
        self._step_counts.load(turns)

    def _forget(self) -> None:
        self._step_counts = StepCounts()
        self._last: dict[str, tuple[Tensor, Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        memory = ("_step_counts", "_last")
        return {k: v for k, v in super().__getstate__().items() if k not in memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _remember(self, site: ImplicitSite, found: LanczosQuadrature, log_scale: Tensor) -> None:
        preconditioner = site.distribution.preconditioner
        shift = log_scale.detach() + (0 if preconditioner is None else preconditioner.log_abs_det)
        self._last[site.name] = (0.5 * found.gauss + shift, 0.5 * found.radau + shift)

    # ---- lazy entropy

    def _weight(self, site: ImplicitSite) -> int:
        """
        The weight of the log-determinant: 1 outside of training steps.

        Within one: ``entropy_every`` in the first and each k-th step that meets this site of this
        guide, else 0. Each guide has a count of its own, so that models trained in turns do not
        count each other's steps.
        """
        now = self.training_step
        if now is None or self.entropy_every == 1:
            return 1
        is_kth = self._step_counts.take(now.number, now.guide, site) % self.entropy_every == 0
        return self.entropy_every if is_kth else 0

    def estimates_next(self, guide: Any) -> tuple[bool, ...]:
        """
        Whether the next training step estimates the log-determinant, for those who record steps.

        :param guide: the guide that is trained in it.
        :returns: one answer if it holds for all sites of the guide that were met, else one for
            each, in the order of their first step; none before that step.
        """
        if self.entropy_every == 1:
            return (True,)
        counts = self._step_counts.of(guide).values()
        found = tuple((count + 1) % self.entropy_every == 0 for count in counts)
        return found[:1] if len(set(found)) == 1 else found

    def count_step(self, guide: Any, sites: Iterable[str]) -> None:
        """
        Counts a training step that was taken by a recording.

        :param guide: the guide that was trained in it.
        :param sites: names of the sites that it met.
        """
        counts = self._step_counts.of(guide)
        self._step_counts.put(guide, {n: counts[n] + 1 for n in sites if n in counts})

    @contextmanager
    def uncounted(self, guide: Any) -> Iterator[list[str]]:
        """
        Training steps of a guide within count for nothing, such as one that is being recorded.

        :param guide: a guide that has been trained before.
        :returns: a list that gets the names of the sites that were met.
        """
        met: list[str] = []
        before = self._step_counts.of(guide)
        try:
            yield met
        finally:
            after = self._step_counts.of(guide)
            met += [name for name, turn in before.items() if after[name] != turn]
            self._step_counts.put(guide, before)


def _report(gauss: Tensor, radau: Tensor) -> LanczosReport:
    count = gauss.shape[0]
    error = math.nan
    if count > 1:
        error = math.sqrt(gauss.var(0).mean().item() / gauss.numel())
    return LanczosReport(gauss.mean().item(), radau.mean().item(), error)
