"""The draws of all implicit sites as points of one space, with the scores there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pyro_implicit.exceptions import GuideError, SiteError
from pyro_implicit.generators.noise_alone import check_function_of_noise
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.particles.particle_batch import ParticleBatch
from pyro_implicit.ops.kernels import median_distance
from pyro_implicit.ops.logdet import is_zero

__all__ = ["JointDraws"]


class JointDraws:
    r"""
    The draws of all implicit sites as points of one space, with the scores there.

    The space is that of the generators, :math:`w = L^{-1} (u - c)`: distances in it do not depend
    on the units of the latents where the guide is preconditioned. Entries of all sites, and of all
    rows of a plate, are side by side: ``m`` in all.

    :param ParticleBatch batch: ``n`` draws, all of an evaluation.
    :param str objective: the name of the objective, for messages.
    :raises SiteError: if a site counts more or less than once: then it is a part of its plate.
    """

    def __init__(self, batch: ParticleBatch, objective: str) -> None:
        self._batch = batch
        self._sites = batch.sites
        for name in self._sites:
            _check_weight(batch, name, objective)
        #: the draws, differentiable, shape ``(n, m)``
        self.points = _side_by_side([_whitened(site) for site in self._sites.values()])

    def score(self, create_graph: bool) -> Tensor:
        """
        The score of the posterior at the points.

        :param bool create_graph: whether it can itself be differentiated.
        :returns: shape ``(n, m)``.
        """
        scores = self._batch.score(create_graph=create_graph)
        return _side_by_side([_pulled_back(self._sites[name], s) for name, s in scores.items()])

    def conditional_score(self, create_graph: bool) -> Tensor:
        r"""
        The score of each draw's own conditional, :math:`-\varepsilon / \sigma`.

        :param bool create_graph: whether it can be differentiated.
        :returns: shape ``(n, m)``.
        :raises GuideError: if the scale of a site is 0.
        :raises LayerError: if a generator is random or its draws depend on each other.
        """
        scores = _side_by_side([_conditional(site) for site in self._sites.values()])
        return scores if create_graph else scores.detach()

    def bandwidth(self, width: float | None, factor: float) -> Tensor:
        """
        The width of a kernel between the points.

        :param float width: it, if it is given.
        :param float factor: else it is this times the median distance of the points.
        :returns: shape ``()``, without a gradient.
        """
        points = self.points.detach()
        if width is not None:
            return points.new_tensor(width)
        return factor * median_distance(points, points)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.flatten(1) for part in parts], -1)


def _whitened(site: ImplicitSite) -> Tensor:
    """The draws in the generator's coordinates, as they are now: a shift moves the draws in it."""
    preconditioner = site.distribution.preconditioner
    if preconditioner is None:
        return site.value
    centred = site.value - preconditioner.centre.detach()
    factor = preconditioner.factor
    if factor is None:
        return centred
    if factor.dim() == 1:
        return centred / factor
    solved: Tensor = torch.linalg.solve(factor, centred[..., None])[..., 0]
    return solved


def _pulled_back(site: ImplicitSite, score: Tensor) -> Tensor:
    """A gradient with respect to the draws as one in the generator's coordinates."""
    preconditioner = site.distribution.preconditioner
    if preconditioner is None or preconditioner.factor is None:
        return score
    factor = preconditioner.factor
    return factor * score if factor.dim() == 1 else score @ factor


def _conditional(site: ImplicitSite) -> Tensor:
    fn = site.distribution
    if is_zero(fn.scale):
        raise GuideError(
            f"implicit site {site.name!r} has scale 0: given its noise it has no density, hence no "
            "score. Use scale=0.05, learn_scale='scalar', or AmortisedSVGD, which needs none."
        )
    check_function_of_noise(fn.generator, fn.noise)  # type: ignore[arg-type]
    with torch.no_grad():
        w = site.value if fn.preconditioner is None else fn.preconditioner.inverse(site.value)
        epsilon = (w - fn.generator(fn.noise)) / fn.scale  # type: ignore[arg-type]
    score: Tensor = -epsilon / fn.scale  # theory/scores.md (conditional-score)
    return score


def _check_weight(batch: ParticleBatch, name: str, objective: str) -> None:
    weight: Any = batch.weight(name)
    if float(weight) != 1:
        raise SiteError(
            f"implicit site {name!r} has weight {float(weight):g}, and {objective} compares draws "
            "of the whole posterior. Show all rows of a local latent at once, without "
            "poutine.scale or mask on the guide, or use AISIVI or LinearisedELBO."
        )
