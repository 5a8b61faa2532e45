r"""
Unbiased implicit variational inference: the score of the guide by a chain over the noise.

References

- `Unbiased Implicit Variational Inference`, M. Titsias, F. Ruiz, AISTATS 2019.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pyro_implicit._checks import check_count, check_state, shown
from pyro_implicit.exceptions import GuideError, StateError
from pyro_implicit.generators.noise_alone import check_function_of_noise
from pyro_implicit.objectives.implicit_elbo import ImplicitELBO
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.score_of_draws import entropy_by_score
from pyro_implicit.ops.hamiltonian import hamiltonian_chain
from pyro_implicit.ops.logdet import is_zero

__all__ = ["UIVI"]

_FIRST_STEP_SIZE = 0.1
_TARGET_ACCEPTANCE = 0.8
_ADAPTATION_RATE = 0.2  # of the logarithm of the step size, by training step


class UIVI(ImplicitELBO):
    r"""
    Path gradients with the true score of the guide, by Markov chains over the noise.

    The score of a semi-implicit guide is :math:`\nabla \log q(x) = \mathbb E_{q(z \mid x)}
    \nabla_x \log q(x \mid z)`. A chain of Hamiltonian Monte Carlo over the noise begins at the one
    that made the draw, which is a draw of :math:`q(z \mid x)`: so are all states of the chain
    (Titsias and Ruiz 2019). It needs no proposal, and serves noise of any law.

    **"Unbiased" holds of states that are independent of the first one**, after a long chain: a
    state that is still near the noise that made the draw gives a gradient that is too small, none
    at all where it has not moved. With a small output noise, or modes that several noises lead to,
    chains stay where they began; :class:`~pyro_implicit.objectives.AISIVI` and
    :class:`~pyro_implicit.LinearisedELBO` are cheaper. The step size is adapted in training to an
    acceptance of 80%, one for each implicit site; :meth:`state_dict` has it.

    The value is the evidence bound with the entropy of the output noise in place of the guide's:
    a bound, far too low, and not what is trained. Watch predictions, or
    :func:`~pyro_implicit.entropy_report`.

    Example::

        guide = HyperNetworkGuide(model, noise_dim=5, learn_scale="diagonal")
        objective = UIVI(8, num_burn_in=5, num_inner=5, vectorize_particles=True)
        fit(model, guide, x, y, objective=objective, seed=0)

    Source: `Unbiased Implicit Variational Inference`, Titsias and Ruiz, AISTATS 2019.

    :param int num_particles: draws.
    :param int num_burn_in: steps of each chain before a state counts.
    :param int num_inner: states that count.
    :param int num_leapfrog: gradients of the generator for each step.
    :param options: all others of :class:`~pyro_implicit.ImplicitELBO`.
    :raises ArgumentError: for values outside of these.
    """

    bounds_entropy = True

    def __init__(
        self,
        num_particles: int = 1,
        *,
        num_burn_in: int = 5,
        num_inner: int = 5,
        num_leapfrog: int = 5,
        **options: Any,
    ) -> None:
        super().__init__(num_particles, **options)
        self.num_burn_in = check_count("num_burn_in", num_burn_in, 0)
        self.num_inner = check_count("num_inner", num_inner)
        self.num_leapfrog = check_count("num_leapfrog", num_leapfrog)
        #: by implicit site, the length of a step of its chains (of one guide: make a new objective
        #: for another)
        self.step_sizes: dict[str, float] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """What defines the objective, as plain values, for records."""
        return super().settings | {
            "num_burn_in": self.num_burn_in,
            "num_inner": self.num_inner,
            "num_leapfrog": self.num_leapfrog,
        }

    def state_dict(self) -> dict[str, Any]:
        """The step sizes of the chains."""
        return {"step_sizes": dict(self.step_sizes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """
        Restores what :meth:`state_dict` returned.

        :raises StateError: if it is not a state of such an objective.
        """
        sizes = check_state(self, state).get("step_sizes")
        if set(state) != {"step_sizes"} or not _are_sizes(sizes):
            raise StateError(
                f"not a state of UIVI: found {shown(state)}; expected "
                "{'step_sizes': {name of a site: a positive number}}."
            )
        self.step_sizes = {name: float(size) for name, size in sizes.items()}  # type: ignore[union-attr]

    def estimate(self, site: ImplicitSite) -> Tensor:
        """
        The entropy of the output noise, with the path gradient of the guide's.

        :param ImplicitSite site: an implicit site with its draws.
        :returns: shape ``site.distribution.batch_shape``.
        :raises GuideError: if the site's scale is 0.
        :raises LayerError: if the generator is random or its draws depend on each other.
        """
        fn = site.distribution
        if is_zero(fn.scale):
            raise GuideError(
                f"implicit site {site.name!r} has scale 0: given its noise it has no density, "
                "hence no score. Use scale=0.05, learn_scale='scalar', or LinearisedELBO."
            )
        check_function_of_noise(fn.generator, fn.noise)  # type: ignore[arg-type]
        noises = fn.given(torch.stack(self._chain(site)))

        def log_density(moved: ImplicitSite) -> Tensor:
            # its slope is the score: theory/scores.md (uivi-score)
            return noises.conditional_log_prob(moved.value).mean(0)

        own = fn.conditional_log_prob(site.value.detach())
        return entropy_by_score(site, log_density, -own)

    def _chain(self, site: ImplicitSite) -> list[Tensor]:
        """States of the chains over the noise that count."""
        fn, value = site.distribution, site.value.detach()

        def log_density(z: Tensor) -> Tensor:
            return fn.given(z).conditional_log_prob(value) + fn.base_dist.log_prob(z)

        size = self.step_sizes.get(site.name, _FIRST_STEP_SIZE)
        num_steps = self.num_burn_in + self.num_inner
        states, rate = hamiltonian_chain(
            log_density, site.noise, size, num_steps, self.num_leapfrog
        )
        if self.training_step is not None:
            self.step_sizes[site.name] = size * math.exp(
                _ADAPTATION_RATE * (float(rate) - _TARGET_ACCEPTANCE)
            )
        return states[self.num_burn_in :]


def _are_sizes(sizes: Any) -> bool:
    return isinstance(sizes, dict) and all(
        isinstance(name, str) and type(size) is float and 0 < size < math.inf
        for name, size in sizes.items()
    )
