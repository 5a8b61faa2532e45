"""Compares densities of vectorised draws with those of one draw by itself."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit._random import RandomStream
from pyro_implicit.exceptions import SiteError
from pyro_implicit.objectives.particle import Particle, sample_nodes
from pyro_implicit.objectives.particle_coupling import REMEDY

__all__ = ["check_same_alone"]

_TOLERANCE = 1e-2  # of nats and of the density: sums in other orders
_COARSE = 0.1  # of half precision
_HALF = (torch.float16, torch.bfloat16)


def check_same_alone(
    model: Any, guide: Any, args: Any, kwargs: Any, particle: Particle, count: int
) -> None:
    """
    Refuses vectorised models whose densities at a draw are not those of the draw alone.

    Ranks, the largest entry or a comparison with a mean have no gradient by which
    :func:`~pyro_implicit.objectives.particle_coupling.check_particles_apart` sees that draws are
    mixed. The first and the last draw are evaluated by themselves, twice: a model that draws
    numbers of its own is not judged.

    :param model: a Pyro model.
    :param guide: its guide.
    :param args: positional arguments of both.
    :param kwargs: keyword arguments of both.
    :param Particle particle: the vectorised pass.
    :param int count: its draws.
    :raises SiteError: naming the site.
    """
    nodes = {**particle.observed_nodes, **particle.latent_nodes}
    together = {name: _by_draw(node, count) for name, node in nodes.items()}
    if any(node["infer"].get("_enumerate_dim") is not None for node in nodes.values()):
        return
    try:
        with RandomStream(0), torch.no_grad(), poutine.block():
            with pyro.validation_enabled(False), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                shapes = _shapes_alone(guide, args, kwargs)
                found = {k: _alone(model, args, kwargs, particle, shapes, k) for k in (0, -1)}
    except Exception:  # whatever a model does with draws that were made for many
        return
    for index, alone in found.items():
        for name, value in ({} if alone is None else alone).items():
            many = together.get(name)
            if many is not None and not _is_near(many[index], value):
                raise SiteError(
                    f"the log-density of site {name!r} of the model is {float(many[index]):.6g} at "
                    f"one of {count} vectorised particles, and {float(value):.6g} at the same "
                    f"latents by themselves: the model mixes draws. {REMEDY}"
                )


def _by_draw(node: Any, count: int) -> Tensor | None:
    """A site's log-densities, a sum for each draw; None if draws are not in front."""
    if "log_prob" not in node:
        return None
    log_prob = node["log_prob"].detach()
    if not log_prob.dim() or len(log_prob) != count:
        return None
    return log_prob.reshape(count, -1).sum(1)  # type: ignore[no-any-return]


def _shapes_alone(guide: Any, args: Any, kwargs: Any) -> dict[str, torch.Size]:
    nodes = sample_nodes(poutine.trace(guide).get_trace(*args, **kwargs))
    return {name: node["value"].shape for name, node in nodes.items()}


def _alone(
    model: Any,
    args: Any,
    kwargs: Any,
    particle: Particle,
    shapes: dict[str, torch.Size],
    index: int,
) -> dict[str, Tensor] | None:
    """Log-densities by site at one draw; None if they are others each time."""
    values = {}
    for name in particle.all_latents:
        value = particle.model_nodes[name]["value"].detach()
        values[name] = value[index].reshape(shapes[name])
    first, second = (_densities(model, args, kwargs, values) for _ in range(2))
    same = all(torch.equal(first[name], second[name]) for name in first)
    return first if same and first.keys() == second.keys() else None


def _densities(model: Any, args: Any, kwargs: Any, values: dict[str, Tensor]) -> dict[str, Tensor]:
    trace = poutine.trace(poutine.condition(model, data=values)).get_trace(*args, **kwargs)
    trace.compute_log_prob()
    nodes = sample_nodes(trace)
    return {name: node["log_prob_sum"] for name, node in nodes.items() if "log_prob_sum" in node}


def _is_near(one: Tensor, other: Tensor) -> bool:
    if not (bool(one.isfinite()) and bool(other.isfinite())):
        return True
    half = torch.is_autocast_enabled(one.device.type)
    tolerance = _COARSE if half or one.dtype in _HALF or other.dtype in _HALF else _TOLERANCE
    return bool((one - other).abs() <= tolerance * (1 + other.abs()))
