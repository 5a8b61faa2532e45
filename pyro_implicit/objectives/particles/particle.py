"""Paired traces of guide and model, read for an objective."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyro.distributions.util import scale_and_mask
from pyro.poutine import Trace
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.objectives.implicit_site import ImplicitSite

__all__ = ["Particle", "Reads", "sample_nodes"]


def sample_nodes(trace: Trace) -> dict[str, Any]:
    """The sample sites of a trace by name."""
    return {name: node for name, node in trace.nodes.items() if node["type"] == "sample"}


@dataclass(frozen=True)
class Reads:
    """
    What an objective reads of a run of guide and model; nothing else is computed.

    :param bool prior: the density of the model's prior at the draws of implicit sites, and the
        log-Jacobian of their constraints.
    :param bool guide: the density or entropy of the guide. Without it and without ``prior`` no
        density of any latent is computed, and mixtures in the guide are drawn with weights that
        carry the gradient of their components (:attr:`Particle.log_weight`).
    :param bool prior_draws: draws of the model's prior (``site.prior``).
    :param bool implicit_site: whether the guide must have one.
    :param bool log_det: the exact log-determinants of the generators at the draws, so that those
        which tell it with the draw are run once for both.
    :param bool linearisation: the derivative of the generators at the draws, so that they are run
        once for both (``site.distribution.linearisation()``).
    :param bool apart: the likelihood apart from the prior. A latent whose prior depends on discrete
        ones that are summed out is then refused: both are within one sum.
    """

    prior: bool = True
    guide: bool = True
    prior_draws: bool = False
    implicit_site: bool = True
    linearisation: bool = False
    log_det: bool = False
    apart: bool = False


READS_OF_A_BOUND = Reads()


@dataclass(frozen=True)
class Particle:
    """
    One pass of the guide and of the model against it: one draw, or all of them if vectorised.

    :param Trace model: the model's trace, log-probabilities computed.
    :param Trace guide: the guide's, log-probabilities computed for its explicit sites.
    :param implicit: the guide's implicit sites by name.
    :param rows: the rows that each subsampled plate of the model took, by its name.
    """

    model: Trace
    guide: Trace
    implicit: dict[str, ImplicitSite]
    rows: dict[str, Tensor] = field(default_factory=dict)

    @cached_property
    def implicit_latents(self) -> frozenset[str]:
        """Names of the model's sites that come from implicit sites."""
        return frozenset(latent for site in self.implicit.values() for latent in site.latents)

    @cached_property
    def model_nodes(self) -> dict[str, Any]:
        """The model's sample sites by name."""
        return sample_nodes(self.model)

    @cached_property
    def guide_samples(self) -> dict[str, Any]:
        """The guide's sample sites by name, implicit ones and their noise among them."""
        return sample_nodes(self.guide)

    @cached_property
    def log_weight(self) -> Any:
        """The log-weights (0 in value) of draws of mixtures in the guide, by row."""
        nodes = self.guide_samples.values()
        return sum((node["infer"].get("log_weight", 0.0) for node in nodes), 0.0)

    @cached_property
    def observed_nodes(self) -> dict[str, Any]:
        """The model's observed sites and factors by name; what is computed has no density."""
        return {
            name: node
            for name, node in self.model_nodes.items()
            if node["is_observed"] and not node["infer"].get("_deterministic")
        }

    @cached_property
    def latent_nodes(self) -> dict[str, Any]:
        """The model's latent sites whose prior was evaluated, by name."""
        nodes = self.model_nodes.items()
        return {n: node for n, node in nodes if not node["is_observed"] and "log_prob" in node}

    @property
    def all_latents(self) -> frozenset[str]:
        """Names of the model's latent sites."""
        return frozenset(n for n, x in self.model_nodes.items() if not x["is_observed"])

    @cached_property
    def guide_nodes(self) -> dict[str, Any]:
        """
        The guide's sites that have a density, by name.

        Neither implicit ones nor the noise of such a site are among them. Those named as latents of
        implicit sites are Deltas with *minus* the log-Jacobian of the latent's constraint as their
        density.
        """
        return {
            name: node
            for name, node in self.guide_samples.items()
            if name not in self.implicit and not node["infer"].get("is_implicit_noise")
        }

    def weight(self, name: str) -> Any:
        """
        The one number that a term of all entries of a site together is multiplied by.

        :raises SiteError: if scale or mask differ between entries.
        """
        node = self.guide.nodes[name]
        scale, mask = node["scale"], node["mask"]
        sizes = [x.numel() for x in (scale, mask) if isinstance(x, Tensor)]
        if any(size > 1 for size in sizes):
            raise SiteError(
                f"implicit site {name!r} has a scale or mask that differs between its entries; "
                "this objective sees them together. Use one number, or LinearisedELBO."
            )
        return scale if mask is None else scale * mask

    def weigh(self, name: str, per_draw: Tensor) -> Tensor:
        """The sum of ``per_draw`` (shape ``batch``) under a site's scale and mask."""
        node = self.guide.nodes[name]
        term: Tensor = scale_and_mask(per_draw, node["scale"], node["mask"]).sum()
        return term
