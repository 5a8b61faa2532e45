"""Where a guide may start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from pyro.infer.autoguide import init_to_median, init_to_sample
from torch import Tensor

from pyro_implicit.exceptions import ImplicitError
from pyro_implicit.guides.initialization.initial import init_to_fan_in
from pyro_implicit.guides.initialization.prototype import unconstrained_start
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.supports.own_support import own_support

__all__ = ["locations", "prior_draws"]

Node = Mapping[str, Any]


def locations(
    pairs: Sequence[tuple[LatentSite, Node]], own: Tensor, num_uniform: int = 1
) -> dict[str, Tensor]:
    """
    Candidates for the location of a guide, by name.

    They are the one that it would have without a search, the values of the wrapped module where
    the model has a :class:`~pyro_implicit.BayesianModule`, a fresh initialisation of the weights
    (:func:`~pyro_implicit.guides.init_to_fan_in`), the medians of the prior, and points drawn
    uniformly from (-2, 2) in the unconstrained space.

    :param pairs: the sites, and their nodes in a trace of the model.
    :param torch.Tensor own: the location without a search, shape ``(m,)``.
    :param int num_uniform: how many of the last kind.
    :returns: locations by name, shape ``(m,)`` each.
    """
    found = {"the default": own}
    if any("implicit_module_value" in node["infer"] for _, node in pairs):
        found["the module's values"] = _flat(pairs, own, _module_value)
    if any(site.event_dim >= 2 for site, _ in pairs):
        found["fan-in"] = _flat(pairs, own, init_to_fan_in)
    found["prior medians"] = _flat(pairs, own, init_to_median)
    for index in range(num_uniform):
        found[f"uniform {index + 1}"] = 4 * torch.rand_like(own) - 2
    distinct: dict[str, Tensor] = {}
    for name, value in found.items():
        if not any(torch.equal(value, other) for other in distinct.values()):
            distinct[name] = value
    return distinct


def prior_draws(pairs: Sequence[tuple[LatentSite, Node]], own: Tensor, count: int) -> list[Tensor]:
    """
    Points drawn from the prior of each site, given the values that it depends on in the trace.

    :param pairs: the sites, and their nodes in a trace of the model.
    :param torch.Tensor own: what is taken where a prior cannot be drawn from, shape ``(m,)``.
    :param int count: how many.
    :returns: as many, shape ``(m,)`` each.
    """
    return [_flat(pairs, own, init_to_sample) for _ in range(count)]


def _flat(
    pairs: Sequence[tuple[LatentSite, Node]], own: Tensor, init: Callable[[Any], Tensor | None]
) -> Tensor:
    """The sites' values by a function of their nodes, or their own where it has none."""
    parts = []
    for (site, node), part in zip(pairs, own.split([s.numel for s, _ in pairs]), strict=True):
        try:
            value = init(node)
            flat = part if value is None else unconstrained_start(site, value).to(part)
        except (ImplicitError, NotImplementedError, RuntimeError, ValueError):
            flat = part  # a prior that cannot be drawn from, say
        parts.append(flat if bool(flat.isfinite().all()) else part)
    return torch.cat(parts)


def _module_value(node: Node) -> Tensor | None:
    value = node["infer"].get("implicit_module_value")
    if value is None or not bool(own_support(node["fn"]).check(value).all()):
        return None
    start: Tensor | None = value.expand(node["fn"].shape()).clone()
    return start
