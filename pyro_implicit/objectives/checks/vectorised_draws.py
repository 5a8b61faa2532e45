"""Compares vectorised draws with draws of a model that is run for one of them by itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit._random import RandomStream
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
from pyro_implicit.ops.log_prob_tolerance import is_half_precision, log_prob_tolerance
from pyro_implicit.ops.perturbed_results import PerturbedResults, perturbed

__all__ = ["check_same_alone"]

_ENTRY_TOLERANCE = 1e-4  # what differs by more is compared with what rounding does
_TOLERANCE_OF_ALIKE = 1e-3  # of draws that are all one, in units of their densities
_LEAST_PART_OF_A_DIFFERENCE = 0.1  # that draws with numbers of their own make up
_NUM_PERTURBED_RUNS = 3
_SEEDS_OF_A_RUN = 1_000_000  # one for each result
_MAX_TIMES_ROUNDING = 30.0  # six times was seen of networks at noise scales of 1e-13


class _Mixed(NamedTuple):
    """A site, the draw at which it has two densities, and both of these."""

    site: str
    draw: int
    many: float
    one: float


def check_same_alone(model: Any, args: Any, kwargs: Any, particle: Particle, count: int) -> None:
    """
    Refuses vectorised models that would do something else for one draw.

    Such are models that ask for the value of a latent, as ``if (w > 0).any():`` does, which is one
    question about all draws; and models that mix draws where no gradient shows it to
    ``check_particles_apart``: by ranks, the largest entry, a comparison with a mean; and models
    that broadcast otherwise with draws in front, such as ``scale[:, None] * chol``. The first draw
    is evaluated by itself, twice, and three others once; of a model that draws numbers of its own
    (dropout in training mode) all of it once more, from one random state. A model that has other
    ones for each draw, at the first or where a density differs, is not judged, nor is one that does
    not run so.

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
                is_random = place is None and not alone
                if is_random:
                    together, alone = _from_one_state(model, args, kwargs, particle, count)
                mixed = _first_mixed(model, args, kwargs, particle, together, alone)
                if mixed is not None and is_random:
                    mixed = _if_not_by_own_numbers(mixed, model, args, kwargs, particle, count)
    except Exception:  # whatever a model does with draws that were made for many
        return
    if place is not None:
        raise SiteError(
            f"the model asks for the value of what depends on its latents ({place}), as "
            "if (w > 0).any():, float(), .item(), .numpy() and w[w > 0] do. With vectorised "
            "particles that is one question about all draws, and one answer. Write "
            "torch.where(w > 0, a, b), or loop: vectorize_particles=False."
        )
    if mixed is not None:
        name, _, many, one = mixed
        raise SiteError(
            f"the log-density of site {name!r} of the model is {many:.7g} at one of {count} "
            f"vectorised particles, and {one:.7g} at the same latents by themselves: the model "
            f"mixes draws, or broadcasts otherwise with draws in front. {ADVICE_ON_VECTORISATION}"
        )


def _by_draw(node: Any, count: int) -> Tensor | None:
    """A site's log-densities, those of each draw in a row; None if draws are not in front."""
    if "log_prob" not in node:
        return None
    log_prob: Tensor = node["log_prob"].detach()
    if not log_prob.dim() or len(log_prob) != count:
        return None
    return log_prob.reshape(count, -1)


def _first_mixed(
    model: Any,
    args: Any,
    kwargs: Any,
    particle: Particle,
    together: dict[str, Tensor | None],
    alone: dict[int, dict[str, Tensor]],
) -> _Mixed | None:
    """A site whose density is another one among other draws."""
    for index, found in alone.items():
        rounding: dict[str, float] | None = None
        for name, one in found.items():
            many = together.get(name)
            if many is None or not (_is_finite(many[index]) and _is_finite(one)):
                continue
            as_sums = not _is_precise(one)
            difference, tolerance = _difference(many[index], one, as_sums)
            if difference <= tolerance:
                continue
            if rounding is None:
                rounding = _rounding(model, args, kwargs, particle, index, found)
            if not rounding and not as_sums:
                difference, tolerance = _difference(many[index], one, as_sums=True)
            if difference > max(tolerance, _MAX_TIMES_ROUNDING * rounding.get(name, 0.0)):
                return _Mixed(name, index, float(many[index].sum()), float(one.sum()))
    return None


def _difference(many: Tensor, one: Tensor, as_sums: bool) -> tuple[float, float]:
    """How far densities differ, and by how much they may."""
    if as_sums:
        return _largest_difference(many.sum(), one.sum()), log_prob_tolerance(one)
    return _largest_difference(many, one), _ENTRY_TOLERANCE


def _largest_difference(one: Tensor, other: Tensor) -> float:
    """Of entries, in units of their size; of sums, where one has entries that the other lacks."""
    if one.numel() != other.numel():
        one, other = one.sum(), other.sum()
    return float(((one - other).abs() / (1.0 + other.abs())).max()) if one.numel() else 0.0


def _rounding(
    model: Any,
    args: Any,
    kwargs: Any,
    particle: Particle,
    index: int,
    found: dict[str, Tensor],
) -> dict[str, float]:
    """
    How far densities of one draw move by site, if what follows from its latents is rounded.

    Data stay as they are: codes and labels among them may be numbers with a point. Empty for a
    model that does not run at such latents.
    """
    single, values = _single(model, particle), _values(particle, index)
    most = dict.fromkeys(found, 0.0)
    for seed in range(0, _NUM_PERTURBED_RUNS * _SEEDS_OF_A_RUN, _SEEDS_OF_A_RUN):
        try:
            moved = {name: _perturbed_latent(value, seed) for name, value in values.items()}
            with torch.enable_grad(), RandomStream(0), PerturbedResults(seed):
                made = _densities(single, args, kwargs, moved)
        except Exception:  # of a model that takes no other latents than those that were drawn
            return {}
        for name, value in made.items():
            if name in most and _is_finite(value):
                most[name] = max(most[name], _largest_difference(value.detach(), found[name]))
    return most


def _perturbed_latent(value: Tensor, seed: int) -> Tensor:
    return perturbed(value, seed).requires_grad_() if value.is_floating_point() else value


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
    others = {
        index: _densities(single, args, kwargs, _values(particle, index))
        for index in _some_draws(count)
    }
    return None, {0: first, **others}


def _some_draws(count: int) -> list[int]:
    """Of draws but the first."""
    return sorted({count // 3, 2 * count // 3, count - 1} - {0})


def _from_one_state(
    model: Any, args: Any, kwargs: Any, particle: Particle, count: int
) -> tuple[dict[str, Tensor | None], dict[int, dict[str, Tensor]]]:
    """
    Densities of a model that draws numbers of its own, of all draws at once and of some alone.

    Each run begins with the same random numbers. None where draws have numbers of their own, as by
    a mask of what follows from latents: then many draws that are all the first one differ.
    """
    single, indices = _single(model, particle), torch.arange(count)
    alike = _together(single, args, kwargs, particle, torch.zeros_like(indices))
    for many in alike.values():
        if many is not None and any(
            _largest_difference(one, many[0]) > _TOLERANCE_OF_ALIKE for one in many
        ):
            return {}, {}
    alone = {}
    for index in (0, *_some_draws(count)):
        with RandomStream(0):
            alone[index] = _densities(single, args, kwargs, _values(particle, index))
    return _together(single, args, kwargs, particle, indices), alone


def _if_not_by_own_numbers(
    mixed: _Mixed, model: Any, args: Any, kwargs: Any, particle: Particle, count: int
) -> _Mixed | None:
    """
    The same, unless many draws that are all that one differ among themselves by as much.

    Numbers of each draw may weigh less at others, as noise whose size follows from a latent.
    """
    indices = torch.full((count,), mixed.draw)
    rows = _together(_single(model, particle), args, kwargs, particle, indices).get(mixed.site)
    if rows is None:
        return None
    sums = rows.sum(-1)
    least = _LEAST_PART_OF_A_DIFFERENCE * abs(mixed.many - mixed.one)
    return mixed if float(sums.max() - sums.min()) < least else None


def _together(
    single: Any, args: Any, kwargs: Any, particle: Particle, indices: Tensor
) -> dict[str, Tensor | None]:
    """Densities by site of some draws in one vectorised run, from one random state."""
    values = dict(particle.rows)
    for name in particle.all_latents:
        node = particle.model_nodes[name]
        if "_enumerate_dim" not in node["infer"]:
            values[name] = node["value"].detach()[indices.to(node["value"].device)]
    with RandomStream(0), pyro.plate(PARTICLE_PLATE, len(indices), dim=_dim_of_draws(particle)):
        nodes = _nodes(single, args, kwargs, values)
    return {name: _by_draw(node, len(indices)) for name, node in nodes.items()}


def _dim_of_draws(particle: Particle) -> int:
    """The dimension of the plate around a vectorised run."""
    frames = (f for node in particle.model_nodes.values() for f in node["cond_indep_stack"])
    dim: int = next(frame.dim for frame in frames if frame.name == PARTICLE_PLATE)
    return dim


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
    nodes = _nodes(single, args, kwargs, values)
    return {name: node["log_prob"].flatten() for name, node in nodes.items() if "log_prob" in node}


def _nodes(single: Any, args: Any, kwargs: Any, values: dict[str, Tensor]) -> dict[str, Any]:
    given = poutine.condition(single, data=values)
    trace = poutine.trace(given).get_trace(*args, **kwargs)
    trace.compute_log_prob()
    sum_out(trace)
    return dict(sample_nodes(trace))


def _is_finite(value: Tensor) -> bool:
    return bool(value.isfinite().all())


def _is_precise(value: Tensor) -> bool:
    """Whether two runs of the same numbers differ in the last digits alone."""
    if is_half_precision(value):
        return False
    if value.dtype == torch.float64:
        return True
    # a GPU may multiply in TF32 by default
    return value.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
