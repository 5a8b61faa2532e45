"""Compares vectorised draws with draws of a model that is run for one of them by itself."""

from __future__ import annotations

from typing import Any

import pyro
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.enumeration.discrete_latents import enumerated
from pyro_implicit.handlers.enumeration.sum_out import sum_out
from pyro_implicit.handlers.looks.asked_values import AskedValues
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.looks.unvalidated import Unvalidated
from pyro_implicit.handlers.masks.replicates import Replicates
from pyro_implicit.objectives.checks.batch_dims import PARTICLE_PLATE
from pyro_implicit.objectives.checks.particle_coupling import ADVICE_ON_VECTORISATION
from pyro_implicit.objectives.particles.particle import Particle, sample_nodes

__all__ = ["check_same_alone"]

_LOG_PROB_TOLERANCE = 1e-2  # in nats, and relative: the sums are in other orders
_HALF_PRECISION_TOLERANCE = 0.1
_HALF_PRECISION_DTYPES = (torch.float16, torch.bfloat16)


def check_same_alone(model: Any, args: Any, kwargs: Any, particle: Particle, count: int) -> None:
    """
    Refuses vectorised models that would do something else for one draw.

    Such are models that ask for the value of a latent, as ``if (w > 0).any():`` does, which is one
    question about all draws; and models that mix draws where no gradient shows it to
    ``check_particles_apart``: by ranks, the largest entry, a comparison with a mean. The first draw
    is evaluated by itself, twice, and three others once. A model that draws numbers of its own, or
    does not run so, is not judged.

    :param model: a Pyro model.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    :param Particle particle: the vectorised pass.
    :param int count: its draws.
    :raises SiteError: naming the line or the site.
    """
    nodes = {**particle.observed_nodes, **particle.latent_nodes}
    together = {name: _by_draw(node, count) for name, node in nodes.items()}
    try:
        with unseen_run(), torch.no_grad(), Unvalidated():
            with pyro.validation_enabled(False):
                place, alone = _run_alone(model, args, kwargs, particle, count)
    except Exception:  # whatever a model does with draws that were made for many
        return
    if place is not None:
        raise SiteError(
            f"the model asks for the value of what depends on its latents ({place}), as "
            "if (w > 0).any():, float(), .item(), .numpy() and w[w > 0] do. With vectorised "
            "particles that is one question about all draws, and one answer. Write "
            "torch.where(w > 0, a, b), or loop: vectorize_particles=False."
        )
    for index, found in alone.items():
        for name, value in found.items():
            many = together.get(name)
            if many is not None and not _is_near(many[index], value):
                raise SiteError(
                    f"the log-density of site {name!r} of the model is {float(many[index]):.6g} at "
                    f"one of {count} vectorised particles, and {float(value):.6g} at the same "
                    f"latents by themselves: the model mixes draws. {ADVICE_ON_VECTORISATION}"
                )


def _by_draw(node: Any, count: int) -> Tensor | None:
    """A site's log-densities, a sum for each draw; None if draws are not in front."""
    if "log_prob" not in node:
        return None
    log_prob = node["log_prob"].detach()
    if not log_prob.dim() or len(log_prob) != count:
        return None
    summed: Tensor = log_prob.reshape(count, -1).sum(1)
    return summed


def _run_alone(
    model: Any, args: Any, kwargs: Any, particle: Particle, count: int
) -> tuple[str | None, dict[int, dict[str, Tensor]]]:
    """Where a value is asked for, and log-densities by draw and site; none if they vary."""
    single = _single(model, particle)
    values = _values(particle, 0)
    with AskedValues(
        [value for name, value in values.items() if name not in particle.rows]
    ) as asked:
        first = _densities(single, args, kwargs, values)
    if asked.place is not None:
        return asked.place, {}
    again = _densities(single, args, kwargs, values)
    if first.keys() != again.keys() or any(not torch.equal(first[n], again[n]) for n in first):
        return None, {}
    some = sorted({count // 3, 2 * count // 3, count - 1} - {0})
    others = {index: _densities(single, args, kwargs, _values(particle, index)) for index in some}
    return None, {0: first, **others}


def _single(model: Any, particle: Particle) -> Any:
    """The model as it was run for all draws: of hidden data and listed values it made the same."""
    single = Replicates(particle.guide_samples.keys() | particle.implicit_latents)(model)
    listed = [
        node["infer"]["_enumerate_dim"]
        for factor in particle.model_nodes.values()
        for node in factor["infer"].get("marginal_nodes", ())
        if node["infer"].get("_enumerate_dim") is not None
    ]
    return enumerated(single, -1 - max(listed)) if listed else single


def _values(particle: Particle, index: int) -> dict[str, Tensor]:
    """The latents of one draw, of the shapes that they have by themselves, and the rows taken."""
    values = dict(particle.rows)
    for name in particle.all_latents:
        node = particle.model_nodes[name]
        if "_enumerate_dim" in node["infer"]:
            continue
        value, event_dim = node["value"].detach(), node["fn"].event_dim
        frames = [f for f in node["cond_indep_stack"] if f.vectorized and f.name != PARTICLE_PLATE]
        depth = max((-frame.dim for frame in frames), default=0)
        values[name] = value[index].reshape(value.shape[value.dim() - event_dim - depth :])
    return values


def _densities(single: Any, args: Any, kwargs: Any, values: dict[str, Tensor]) -> dict[str, Tensor]:
    given = poutine.condition(single, data=values)
    trace = poutine.trace(given).get_trace(*args, **kwargs)
    trace.compute_log_prob()
    sum_out(trace)
    nodes = sample_nodes(trace)
    return {name: node["log_prob_sum"] for name, node in nodes.items() if "log_prob_sum" in node}


def _is_near(one: Tensor, other: Tensor) -> bool:
    if not (bool(one.isfinite()) and bool(other.isfinite())):
        return True
    half = torch.is_autocast_enabled(one.device.type)
    tolerance = (
        _HALF_PRECISION_TOLERANCE
        if half or one.dtype in _HALF_PRECISION_DTYPES or other.dtype in _HALF_PRECISION_DTYPES
        else _LOG_PROB_TOLERANCE
    )
    return bool((one - other).abs() <= tolerance * (1 + other.abs()))
