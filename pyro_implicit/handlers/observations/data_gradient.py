"""Likelihoods that depend on their latents without a gradient, so that nothing is learned."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit._random import RandomStream
from pyro_implicit.handlers.looks.unvalidated import Unvalidated
from pyro_implicit.handlers.networks.evaluation_mode import evaluation_mode
from pyro_implicit.handlers.pointwise import SiteVisitor, is_auxiliary, is_delta
from pyro_implicit.handlers.rows.latent_rows import AtDraw

__all__ = ["warning_of_no_gradient", "warning_of_own_noise"]

_MAX_LATENTS_TRIED = 10  # each by a run of the model for each factor
#: By one of these some row of the data comes to the other side of a latent.
_FACTORS_OF_TRIED_LATENTS = (0.99, 0.9, 1.2, 0.5, 2.0)
_CALLS_THAT_DETACH = ".item(), float(), .numpy(), .detach(), torch.no_grad()"


def warning_of_no_gradient(
    model: Any,
    values: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    learned_else: Collection[str] = (),
) -> str:
    """
    Says of latents that data depend on, and have no gradient with respect to.

    Discrete latents that the model draws by itself are among the densities: what they join may
    reach the others through them alone.

    :param model: a Pyro model.
    :param values: of latents by name, of the shape of their sites.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param learned_else: latents that need no gradient of their values, as those that are learned by
        the score of their density.
    :returns: a text for a warning; empty if there is a gradient, or nobody can tell.
    """
    leaves = {
        name: value.detach().clone().requires_grad_(True)
        for name, value in values.items()
        if value.is_floating_point() and name not in learned_else
    }
    try:
        first = _Densities.of(model, {**values, **leaves}, args, kwargs)
        if not (leaves and first.data):
            return ""
        lost = first.unreached(leaves)
        if len(lost) < len(leaves):  # those of other latents' priors have none, and need none
            lost = first.need(lost[:_MAX_LATENTS_TRIED], model, values, args, kwargs)
    except Exception:  # what a model does with another draw than those of the steps
        return ""
    if not lost:
        return ""
    if len(lost) == len(leaves):
        return (
            "no observation has a density with a gradient for the latents: the model leaves torch "
            f"on the way ({_CALLS_THAT_DETACH}), or does not use them. Nothing of the data "
            "reaches the guide or the chains; compute with tensors throughout"
        )
    return (
        f"densities depend on latents {sorted(lost)} and have no gradient for them: the model "
        f"leaves torch on the way ({_CALLS_THAT_DETACH}), or compares with them (t < tau), so that "
        "the data teach nothing of these, and no step mends it. Compute with tensors throughout, "
        "smooth steps (torch.sigmoid), or make a latent of few values discrete and sum it out "
        "(infer={'enumerate': 'parallel'})"
    )


def warning_of_own_noise(
    model: Any, values: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> str:
    """
    Says that a model draws random numbers beside its latents.

    :param model: a Pyro model.
    :param values: of all latents by name, of the shape of their sites.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :returns: a text for a warning; empty if two runs have the same densities, or nobody can tell
        (of rows that a plate draws, and of latents that have no value).
    """
    try:
        first, second = (_Densities.of(model, values, args, kwargs, seed) for seed in (0, 1))
    except Exception:  # what a model does with another draw than those of the steps
        return ""
    if not first.data or first.is_random or not second.differ_from(first):
        return ""
    return (
        f"two runs of the model at the same latents have other densities of {sorted(first.data)}: "
        "it draws random numbers of its own (torch.randn, torch.rand, numpy), which each step has "
        "anew. They count as noise of the data, and the loss is a bound below that of the model "
        "with them as latents: write pyro.sample('z', ...) for these, or draw them once outside"
    )


class _Densities:
    """Those of one run of a model, but its latents' own."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self.all: list[Tensor] = []
        #: by the name of the observed site
        self.data: dict[str, Tensor] = {}
        #: whether rows, or latents without a value, were drawn
        self.is_random = False

    @classmethod
    def of(
        cls, model: Any, values: Mapping[str, Tensor], args: Any, kwargs: Any, seed: int = 0
    ) -> _Densities:
        found = cls(values.keys())
        with RandomStream(seed), poutine.block(), warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")
            with evaluation_mode(), SiteVisitor(found.visit), AtDraw(values):
                with pyro.validation_enabled(False), Unvalidated():
                    model(*args, **kwargs)
        return found

    def visit(self, site: Any) -> None:
        if site_is_subsample(site):
            self.is_random |= len(site["value"]) < site["fn"].size
        if site["name"] in self._names or is_delta(site) or site_is_subsample(site):
            return
        with RandomStream(0):  # of densities that are estimated
            density = site["fn"].log_prob(site["value"]).sum()
        self.all.append(density)
        if site["is_observed"] and not is_auxiliary(site):
            self.data[site["name"]] = density
        self.is_random |= not site["is_observed"]

    def unreached(self, leaves: Mapping[str, Tensor]) -> list[str]:
        """Names of values that no density has a gradient for."""
        ends = [one for one in self.all if one.requires_grad]
        if not ends:
            return list(leaves)
        found = torch.autograd.grad(
            ends, list(leaves.values()), [torch.ones_like(e) for e in ends], allow_unused=True
        )
        return [name for name, one in zip(leaves, found, strict=True) if one is None]

    def need(
        self, names: list[str], model: Any, values: Mapping[str, Tensor], args: Any, kwargs: Any
    ) -> list[str]:
        """The latents at other values of which data have other densities."""

        def differ(those: list[str]) -> bool:
            for factor in _FACTORS_OF_TRIED_LATENTS:
                other = {**values, **{name: factor * values[name] for name in those}}
                try:
                    if self.of(model, other, args, kwargs).differ_from(self):
                        return True
                except Exception:  # what a model does outside of its domain
                    continue
            return False

        if len(names) > 1 and not differ(names):  # as is usual of those that others depend on
            return []
        return [name for name in names if differ([name])]

    def differ_from(self, other: _Densities) -> bool:
        """Whether data have other densities than in another run."""
        if self.data.keys() != other.data.keys():
            return True
        pairs = [(self.data[name], other.data[name]) for name in self.data]
        return any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
