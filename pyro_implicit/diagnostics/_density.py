"""The density of an implicit guide, part by part, at given values and at its own draws."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from pyro.infer.autoguide import AutoGuideList
from torch import Tensor

from pyro_implicit.exceptions import DensityError, GuideError
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.guides.diverged import refuse_diverged
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.guides.sampler import Sampler
from pyro_implicit.guides.values import check_values, unconstrain
from pyro_implicit.ops.inversion import (
    DensityEstimate,
    Map,
    density_by_preimages,
    density_by_sampling,
)
from pyro_implicit.ops.logdet import is_zero, upcast

__all__ = ["GuideDensity", "Part", "check_implicit_guide"]

MAX_NOISE_DIM = 100  # importance sampling over more is hopeless
_MAX_NUMBERS_AT_ONCE = 2_000_000  # in the largest tensor


def check_implicit_guide(guide: Any, asked: str) -> ImplicitGuide:
    """
    Checks that an argument is an implicit guide with one distribution of all latents.

    :param guide: what the user passed.
    :param str asked: the function that was called.
    :returns: the guide.
    :raises GuideError: if it is none of this package, or has a distribution for each row of the
        data.
    :raises NonFiniteError: if a parameter of it is NaN.
    """
    if isinstance(guide, ConditionalGuide):
        raise GuideError(
            f"{asked} looks at one distribution of the latents; a {type(guide).__name__} has one "
            "for each row of the data. Check its draws instead: stein_discrepancy, c2st, vsbc."
        )
    if isinstance(guide, ImplicitGuide):
        refuse_diverged(guide)
        return guide
    if hasattr(guide, "num_chains"):
        raise GuideError(
            f"{asked} needs a guide with a density, and these are chains, which have draws alone. "
            "Their convergence is r-hat's and the effective sample sizes' to tell (print them, or "
            "to_arviz(model, chains, ...) and az.summary)."
        )
    if hasattr(guide, "guides"):
        raise GuideError(
            f"{asked} needs a guide with a density, and {type(guide).__name__} is made of several, "
            "of which a call draws from one. Ask each of them: "
            f"[{asked}(one, ...) for one in guide.guides]."
        )
    if isinstance(guide, AutoGuideList):
        raise GuideError(
            f"{asked} looks at one guide of all latents, and an AutoGuideList draws each part's by "
            "itself. Take one HyperNetworkGuide(model, factorized=...) for parts that are "
            "independent; or check draws: stein_discrepancy, c2st, vsbc."
        )
    raise GuideError(
        f"{asked} needs an implicit guide of this package, such as HyperNetworkGuide(model); found "
        f"{type(guide).__name__}. A guide with a density tells it by itself: "
        "poutine.trace(guide).get_trace(...).log_prob_sum()."
    )


class Part:
    """
    One independent part of a guide: its sites, and a float64 copy of what draws them.

    :param sites: the sites.
    :param Sampler sampler: generator, preconditioner and scale.
    """

    def __init__(self, sites: list[LatentSite], sampler: Sampler) -> None:
        self.sites = sites
        wide = upcast(torch.zeros((), device=sampler.preconditioner.loc.device)).dtype
        self.sampler = copy.deepcopy(sampler).requires_grad_(False).to(wide)
        self.generator, self.preconditioner = self.sampler.generator, self.sampler.preconditioner
        self.scale = self.sampler.scale
        self.noise_dim, self.output_dim = self.generator.noise_dim, self.generator.output_dim

    @property
    def is_exact(self) -> bool:
        """Whether the density is known: that of a bijection."""
        return self.sampler.distribution().is_bijective

    @property
    def map(self) -> Map:
        """The generator as a function of flat noise."""
        shape = self.generator.noise_shape
        return Map(
            lambda z: self.generator(z.reshape(-1, *shape)),
            lambda z: self.generator.jacobian(z.reshape(-1, *shape)),
            self.noise_dim,
        )

    def check(self) -> None:
        """
        Refuses guides whose density nobody can estimate.

        :raises DensityError: if nobody can estimate this density.
        """
        names = [site.name for site in self.sites]
        if is_zero(self.scale) and self.noise_dim != self.output_dim:
            raise DensityError(
                f"sites {names} are made of {self.noise_dim} noises for {self.output_dim} latents "
                "without output noise: their density is an integral over a surface. Give the guide "
                "scale=0.01, or as many noises as latents."
            )
        if self.noise_dim > MAX_NOISE_DIM:
            raise DensityError(
                f"sites {names} are made of {self.noise_dim} noises; importance sampling over more "
                f"than {MAX_NOISE_DIM} is hopeless. Use checks that need draws only: "
                "stein_discrepancy, vsbc, c2st, az.loo."
            )

    def draw(self, num_samples: int) -> tuple[Tensor, Tensor]:
        """Noises ``(n, d)`` and unconstrained draws ``(n, m)``."""
        loc = self.preconditioner.loc
        noise = torch.randn(num_samples, self.noise_dim, dtype=loc.dtype, device=loc.device)
        w = self.map.value(noise)
        if not is_zero(self.scale):
            w = w + self.scale * torch.randn_like(w)
        return noise, self.preconditioner(w)

    def density(
        self, u: Tensor, num_inner: int, num_starts: int, own: Tensor | None = None
    ) -> DensityEstimate:
        """The density at values ``(n, m)``, with the noises that made them if known."""
        if self.is_exact:
            value = self.sampler.distribution().log_prob(u)
            return DensityEstimate(value, torch.zeros_like(value), value)
        self.check()
        w = self.preconditioner.inverse(u)
        rows = max(1, _MAX_NUMBERS_AT_ONCE // (num_inner * num_starts * self.noise_dim))
        owns = [None] * len(w) if own is None else own.split(rows)
        found = [
            density_by_preimages(piece, self.map, num_starts, one)
            if is_zero(self.scale)
            else density_by_sampling(piece, self.map, self.scale, num_inner, num_starts, one)
            for piece, one in zip(w.split(rows), owns, strict=False)
        ]
        log_det = self.preconditioner.log_abs_det
        return DensityEstimate(
            torch.cat([one.value for one in found]) - log_det,
            torch.cat([one.standard_error for one in found]),
            torch.cat([one.upper for one in found]) - log_det,
        )


@dataclass(frozen=True)
class GuideDensity:
    """
    Densities in the unconstrained space, summed over the independent parts of a guide.

    :param ImplicitGuide guide: a guide that is built.
    :param int num_inner: inner draws for each value.
    :param int num_starts: starts of the search for noises that lead to a value.
    """

    guide: ImplicitGuide
    num_inner: int
    num_starts: int

    def parts(self) -> Iterator[Part]:
        """The independent parts."""
        for _, sites, sampler in self.guide._groups():
            yield Part(sites, sampler)

    def at(self, values: Mapping[str, Tensor]) -> tuple[DensityEstimate, Tensor]:
        """
        Estimates the guide's density at given values.

        :param dict values: constrained values of every site, shape ``(n, *site_shape)``.
        :returns: the densities of the unconstrained values, and the sum of
            ``log|du/dvalue|``, shape ``(n,)``.
        """
        check_values(values, self.guide.sites)
        estimates, jacobian = [], torch.zeros(())
        for part in self.parts():
            u, log_jacobian = unconstrain(values, part.sites, part.preconditioner.loc)
            u, log_jacobian = u.detach(), log_jacobian.detach()
            jacobian = jacobian + log_jacobian
            estimates.append(part.density(u, self.num_inner, self.num_starts))
        return reduce(_sum, estimates), jacobian

    def of_own_draws(self, num_samples: int) -> tuple[list[Tensor], DensityEstimate]:
        """
        Draws from the guide, and estimates its density at these draws.

        :param int num_samples: how many draws ``n``.
        :returns: unconstrained draws by part, shape ``(n, m)`` each, and their densities with
            :attr:`DensityEstimate.upper` from the noises that made them.
        """
        draws, estimates = [], []
        for part in self.parts():
            noise, u = part.draw(num_samples)
            draws.append(u)
            estimates.append(part.density(u, self.num_inner, self.num_starts, noise))
        return draws, reduce(_sum, estimates)


def _sum(a: DensityEstimate, b: DensityEstimate) -> DensityEstimate:
    error = (a.standard_error.square() + b.standard_error.square()).sqrt()
    return DensityEstimate(a.value + b.value, error, a.upper + b.upper)
