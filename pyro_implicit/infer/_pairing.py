"""Refuses latents that guide and model do not both treat as latents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyro.poutine.util import site_is_subsample

from pyro_implicit.exceptions import SiteError

__all__ = ["check_not_enumerated", "check_sampled_by_model"]


def check_not_enumerated(model_nodes: Mapping[str, Any], guide_names: Iterable[str]) -> None:
    """
    A site that Pyro would enumerate is drawn from its prior by a plain run of the model.

    :param model_nodes: the model's sample sites by name.
    :param guide_names: names of those of the guide.
    :raises SiteError: naming such a site.
    """
    names = set(guide_names)
    for name, node in model_nodes.items():
        if node["is_observed"] or name in names or not node["infer"].get("enumerate"):
            continue
        raise SiteError(
            f"site {name!r} of the model is to be enumerated (infer={{'enumerate': "
            f"{node['infer']['enumerate']!r}}}), which objectives for implicit guides do not do: "
            "it would be drawn from its prior, whatever the data say. Sum it out in the model: "
            "dist.MixtureSameFamily(dist.Categorical(weights), components) in place of a choice "
            "and what depends on it, dist.DiscreteHMM for a chain, or torch.logsumexp and "
            "pyro.factor."
        )


def check_sampled_by_model(model_nodes: Mapping[str, Any], guide_nodes: Mapping[str, Any]) -> None:
    """
    A latent of the guide that the model skips has an entropy and no prior.

    :param model_nodes: the model's sample sites by name.
    :param guide_nodes: those of the guide. The latents that are made from an implicit site count
        where they have a site of their own or are told by ``infer["implicit_latents"]``.
    :raises SiteError: naming it, unless it is marked as auxiliary.
    """
    for name, node in guide_nodes.items():
        if node["is_observed"] or site_is_subsample(node):
            continue
        made = node["infer"].get("implicit_latents", ())
        latents = made or (() if node["infer"].get("is_auxiliary") else (name,))
        for latent in latents:
            found = model_nodes.get(latent)
            if found is not None and not found["is_observed"]:
                continue
            how = "does not sample in this call" if found is None else "observes"
            raise SiteError(
                f"the guide draws {latent!r}, which the model {how}: its entropy would count, and "
                "no prior would hold it. Let the model sample it in every call, make the guide "
                f"without it (poutine.block(model, hide=[{latent!r}])), or mark an auxiliary "
                "variable of the guide's own, infer={'is_auxiliary': True}."
            )
