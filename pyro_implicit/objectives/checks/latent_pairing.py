"""Refuses latents that guide and model do not both treat as latents."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import pyro.distributions as dist
import torch
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit.exceptions import GuideError, SiteError
from pyro_implicit.handlers.wrapped import base_distribution

__all__ = ["check_pairing", "check_same_weight"]

Nodes = Mapping[str, Any]


def check_pairing(model_nodes: Nodes, guide_nodes: Nodes, *, entropy: bool, supports: bool) -> None:
    """
    Refuses latents that guide and model do not both treat as latents.

    :param model_nodes: the model's sample sites by name.
    :param guide_nodes: those of the guide.
    :param bool entropy: whether the objective reads the guide's entropy.
    :param bool supports: whether to compare supports, whose bounds may be on a device.
    :raises GuideError: if the entropy is read, and the rows of an implicit site share their noise.
    :raises SiteError: if the entropy is read, for latents that have one and no prior, or another
        number of rows there; for supports that differ.
    """
    if entropy:
        _check_latents(model_nodes, guide_nodes)
    if supports:
        _check_supports(model_nodes, guide_nodes)


def _check_latents(model_nodes: Nodes, guide_nodes: Nodes) -> None:
    """
    What an objective with an entropy needs: every latent of the guide has it once, and a prior.

    :param model_nodes: the model's sample sites by name.
    :param guide_nodes: those of the guide. The latents that are made from an implicit site count
        where they have a site of their own or are told by ``infer["implicit_latents"]``.
    :raises GuideError: if the rows of an implicit site share their noise.
    :raises SiteError: if the model skips or observes a latent that is not marked as auxiliary, or
        if a plate around it has another number of all rows there than in the guide.
    """
    _check_sampled_by_model(model_nodes, guide_nodes)
    _check_independent(guide_nodes)
    check_same_weight(model_nodes, guide_nodes)


def _check_supports(model_nodes: Nodes, guide_nodes: Nodes) -> None:
    """
    Refuses a model whose latents have other supports than the guide's.

    :param model_nodes: the model's sample sites by name.
    :param guide_nodes: those of the guide.
    :raises SiteError: if a latent that the guide maps on a support has another one in the model.
    """
    for name, node in guide_nodes.items():
        check = node["infer"].get("implicit_check_prior")
        if check is not None and name in model_nodes and not model_nodes[name]["is_observed"]:
            check(model_nodes[name]["fn"])


def _check_sampled_by_model(model_nodes: Nodes, guide_nodes: Nodes) -> None:
    """Refuses latents with an entropy and no prior."""
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


def _check_independent(guide_nodes: Nodes) -> None:
    """Refuses rows that share their noise: the sum of their entropies is not their entropy."""
    for name, node in guide_nodes.items():
        if node["infer"].get("implicit_shared"):
            raise GuideError(
                f"the rows of implicit site {name!r} share one noise, so they are dependent and "
                "this objective cannot tell their entropy. Write shared_noise=False, or train with "
                "PosteriorPredictiveLoss, which needs none."
            )


def check_same_weight(model_nodes: Nodes, guide_nodes: Nodes) -> None:
    """
    Refuses latents whose entropy would count more or less often than their prior.

    :param model_nodes: the model's sample sites by name.
    :param guide_nodes: those of the guide. Latents that are made from an implicit site have no
        weight of their own, and must be in plates of the same sizes; others may be scaled. A
        ``Delta`` that nothing was drawn for has no entropy that could weigh.
    :raises SiteError: for a plate that has another number of all rows on the other side.
    """
    nodes = guide_nodes.values()
    made = set(chain.from_iterable(node["infer"].get("implicit_latents", ()) for node in nodes))
    # a latent may be a Delta that is made of one of these
    has_auxiliaries = any(node["infer"].get("is_auxiliary") for node in nodes)
    for latent, node in guide_nodes.items():
        prior = model_nodes.get(latent)
        if prior is None or node["is_observed"] or site_is_subsample(node):
            continue
        if latent in made:
            frame, size = _other_size(prior, node, is_whole=True)
        elif _weigh_alike(node, prior) or (not has_auxiliaries and _has_no_entropy(node)):
            continue
        else:
            frame, size = _other_size(prior, node)
            if frame is None:
                _refuse_plate_of_guide(latent, *_other_size(node, prior))
        if frame is not None:
            there = any(f.name == frame.name for f in node["cond_indep_stack"])
            raise SiteError(
                f"latent site {latent!r} is in plate {frame.name!r}, which has "
                f"{frame.full_size} rows in all in the model and {size} in the guide"
                f"{'' if there else ', which has no such plate'}: its "
                "entropy would have another weight than its prior. Give the model's plate the "
                "number of all data, pyro.plate(name, num_data, subsample_size=len(x)), or the "
                "guide create_plates (a function of the model's arguments that returns it)."
            )


def _refuse_plate_of_guide(latent: str, frame: Any, size: int | None) -> None:
    """Refuses a plate that counts for more rows than the model has."""
    found = "in plates of other sizes" if frame is None else f"in plate {frame.name!r}"
    rows = "" if frame is None else f", which has {frame.full_size} rows in all there"
    raise SiteError(
        f"latent site {latent!r} of the guide is {found}{rows}, and has another weight in the "
        f"model{'' if size is None else f', whose plate has {size}'}: its entropy would count more "
        "or less often than its prior. Write the same plates in both, pyro.plate(name, num_data, "
        "subsample_size=len(x))."
    )


def _other_size(site: Any, other: Any, is_whole: bool = False) -> tuple[Any, int | None]:
    """
    A plate of a site that has another number of all rows around the other site, and that number.

    A plate that is not there has as many as are shown, or, of a site that is made whole, all.
    """
    theirs = {frame.name: frame.full_size for frame in other["cond_indep_stack"]}
    for frame in site["cond_indep_stack"]:
        size = theirs.get(frame.name, frame.full_size if is_whole else frame.size)
        if size != frame.full_size:
            return frame, size
    return None, None


def _weigh_alike(node: Any, prior: Any) -> bool:
    """Whether plates give two sites one weight, or something else does."""
    if math.isclose(_weight_by_plates(node), _weight_by_plates(prior), rel_tol=1e-6):
        return True
    one, other = node["scale"], prior["scale"]
    if not isinstance(one, Tensor) and not isinstance(other, Tensor):
        return math.isclose(one, other, rel_tol=1e-6)
    one = torch.as_tensor(one)
    return bool(one.isclose(torch.as_tensor(other).to(one), rtol=1e-6).all())


def _weight_by_plates(node: Any) -> float:
    shown = [frame for frame in node["cond_indep_stack"] if frame.size and frame.full_size]
    return float(math.prod(frame.full_size / frame.size for frame in shown))


def _has_no_entropy(node: Any) -> bool:
    fn = base_distribution(node["fn"])
    return isinstance(fn, dist.Delta) and not bool(torch.as_tensor(fn.log_density).any())
