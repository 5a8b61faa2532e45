"""Fill the groups: one draw and one row batch at a time, into arrays allocated once."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_implicit.arviz.program import Program
from pyro_implicit.arviz.site import Slot
from pyro_implicit.arviz.summed_likelihood import summed_likelihood
from pyro_implicit.handlers.errors.value_errors import refuses_parameter
from pyro_implicit.handlers.observations.observed_shape import check_duration
from pyro_implicit.handlers.observations.without_density import refuse_data_without_density
from pyro_implicit.handlers.pointwise import pointwise_log_prob
from pyro_implicit.inference.posterior_draws import draws_of

__all__ = [
    "GUIDE_GROUPS",
    "PRIOR_GROUPS",
    "ExportPlan",
    "collect",
    "make_plan",
    "nbytes",
    "to_numpy",
]

#: group -> variable -> what it looks like (without the sample dimensions)
ExportPlan = dict[str, dict[str, Slot]]

#: the groups that follow from draws of a guide, and so differ from restart to restart
GUIDE_GROUPS = ("posterior", "posterior_predictive", "log_likelihood")

#: the groups that follow from draws of the prior
PRIOR_GROUPS = frozenset(("prior", "prior_predictive"))

#: which draw, and of which restart if there are several
Index = tuple[int, ...]


def make_plan(program: Program, groups: tuple[str, ...]) -> ExportPlan:
    """
    Tells which variables each group has.

    :param Program program: the model.
    :param tuple groups: names of groups, without ``constant_data``.
    :returns: the variables of each group; empty groups are left out.
    """
    parameters = {n: s.value for n, s in program.of_kind("latent", "deterministic").items()}
    predicted = {n: s.predicted for n, s in program.of_kind("observed", "free").items()}
    observed = program.of_kind("observed")
    summed = summed_likelihood(program) if "log_likelihood" in groups else None
    everything: ExportPlan = {
        "posterior": parameters,
        "posterior_predictive": predicted,
        "log_likelihood": (
            {n: s.log_prob for n, s in observed.items() if s.log_prob}
            if summed is None
            else summed.slots
        ),
        "prior": parameters,
        "prior_predictive": predicted,
        "observed_data": {n: s.value for n, s in observed.items()},
    }
    return {group: everything[group] for group in groups if everything.get(group)}


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """
    The dtype of NumPy that stores a dtype of torch.

    :param torch.dtype dtype: of a tensor.
    :returns: the same in NumPy; half precision, which netCDF lacks, becomes single.
    """
    if dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    return torch.empty(0, dtype=dtype).numpy().dtype


def to_numpy(value: Tensor) -> np.ndarray:
    """
    Copies a tensor into a NumPy array.

    :param Tensor value: a tensor on any device.
    :returns: a copy as an array of :func:`numpy_dtype`.
    """
    return np.array(_as_numpy(value), dtype=numpy_dtype(value.dtype))


def _as_numpy(value: Tensor) -> np.ndarray:
    """The numbers of a tensor for NumPy, in its own memory where that can be."""
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def nbytes(slots: Mapping[str, Slot], num_samples: int) -> int:
    """
    The size of the arrays of one group, in bytes.

    :param dict slots: the variables of one group.
    :param int num_samples: how many draws.
    :returns: the size of their arrays.
    """
    sizes = [math.prod(s.shape) * numpy_dtype(s.dtype).itemsize for s in slots.values()]
    return num_samples * sum(sizes)


class _Arrays:
    """
    The arrays of all groups, ``(num_samples, *shape)`` each.

    Those of :data:`GUIDE_GROUPS` have shape ``(num_samples, num_restarts, *shape)`` if there are
    restarts.
    """

    def __init__(self, plan: ExportPlan, num_samples: int, num_restarts: int | None = None) -> None:
        self.plan = plan
        by_restart = (num_samples,) if num_restarts is None else (num_samples, num_restarts)
        lead = {group: by_restart if group in GUIDE_GROUPS else (num_samples,) for group in plan}
        self.groups = {
            group: {
                name: np.empty((*lead[group], *slot.shape), numpy_dtype(slot.dtype))
                for name, slot in slots.items()
            }
            for group, slots in plan.items()
        }

    def put(self, group: str, name: str, draw: Index, rows: slice, value: Tensor) -> None:
        """Writes the value of one draw on some rows; ignores what was not asked for."""
        slot = self.plan.get(group, {}).get(name)
        if slot is None:
            return
        index: tuple[Any, ...] = (*draw, ...)
        if slot.row_dim is not None:
            index += (rows,) + (slice(None),) * (-1 - slot.row_dim)
        self.groups[group][name][index] = _as_numpy(value)


def collect(
    programs: Sequence[Program],
    guides: Sequence[Callable[..., Any]],
    plan: ExportPlan,
    num_samples: int,
    restarts: bool = False,
    chains: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, dict[str, np.ndarray]], str]:
    """
    Fills the arrays of all groups, one draw at a time.

    :param programs: the model with each guide.
    :param guides: the guides.
    :param dict plan: from :func:`make_plan`.
    :param int num_samples: how many draws.
    :param bool restarts: whether the guides become a dimension after that of the draws.
    :param dict chains: draws of the one guide by site, ``(C, T, *site_shape)``; None to draw them.
    :returns: group to variable to array: ``(1, num_samples, *shape)``, with ``restarts``
        ``(1, num_samples, num_guides, *shape)``, with ``chains`` ``(C, T, *shape)`` in
        :data:`GUIDE_GROUPS`, or the bare data; and why the groups of :data:`PRIOR_GROUPS` are left
        out, or an empty text.
    """
    sampled = {group: slots for group, slots in plan.items() if group != "observed_data"}
    arrays = _Arrays(sampled, num_samples, len(guides) if restarts else None)
    last: dict[str, Tensor] = {}  # draw of the first guide
    if sampled.keys() & set(GUIDE_GROUPS):
        for r, (program, guide) in enumerate(zip(programs, guides, strict=True)):
            if chains is None:
                given = program.batches.args, program.batches.kwargs
                draws = draws_of(guide, num_samples, *given[0], **given[1])
            else:
                draws = {name: value.flatten(0, 1) for name, value in chains.items()}
            draws = program.at_rows(draws)
            last = last or {name: value[-1] for name, value in draws.items()}
            _guide_draws(program, draws, arrays, num_samples, (r,) if restarts else ())
    refused = (
        _prior_draws(programs[0], arrays, num_samples) if sampled.keys() & PRIOR_GROUPS else ""
    )
    by_chain = (1,) if chains is None else (len(next(iter(chains.values()))),)
    result = {
        group: {name: _by_chain(array, group, by_chain) for name, array in variables.items()}
        for group, variables in arrays.groups.items()
    }
    if "observed_data" in plan:
        slots = plan["observed_data"]
        result["observed_data"] = observed_data(programs[0], slots, programs[0].draw)
        if last:
            found = observed_data(programs[0], slots, programs[0].draw | last)
            data = result["observed_data"]
            programs[0].moving_data |= {
                name for name in data if not np.array_equal(data[name], found[name], equal_nan=True)
            }
    left_out = PRIOR_GROUPS if refused else frozenset()
    return {group: result[group] for group in plan if group not in left_out}, refused


def _prior_draws(program: Program, arrays: _Arrays, num_samples: int) -> str:
    """Draws of the prior; what is wrong with the first that the model refuses, in words."""
    for s in range(num_samples):
        try:
            _predictive_draw(program, arrays, (s,), {}, "prior_predictive", "prior")
        except ValueError as error:
            if not refuses_parameter(error):
                raise
            said = " ".join(str(error).split("but found")[0].split())
            return (
                f"draw {s} of the prior has parameters that a distribution does not take ({said}): "
                "a heavy tail that overflows, or a probability that rounds to 0 or 1"
            )
    return ""


def _by_chain(array: np.ndarray, group: str, by_chain: tuple[int, ...]) -> np.ndarray:
    """Draws one after the other as ``(chains, draws of each, *shape)``."""
    chains = by_chain if group in GUIDE_GROUPS else (1,)
    return array.reshape(*chains, -1, *array.shape[1:]) if array.size else array[None]


def _guide_draws(
    program: Program,
    draws: Mapping[str, Tensor],
    arrays: _Arrays,
    num_samples: int,
    restart: Index,
) -> None:
    """All groups that follow from draws of one guide."""
    summed = summed_likelihood(program) if "log_likelihood" in arrays.plan else None
    for s in range(num_samples):
        values = {name: draw[s] for name, draw in draws.items()}
        if summed is not None:
            for batch in program.batches.calls:
                for name, value in summed.at(batch, values).items():
                    arrays.put("log_likelihood", name, (s, *restart), batch.rows, value)
        if not _given_data(program, arrays, (s, *restart), values, summed is None):
            _predictive_draw(program, arrays, (s, *restart), values, "posterior_predictive", None)


def observed_data(
    program: Program, slots: Mapping[str, Slot], draw: dict[str, Tensor]
) -> dict[str, np.ndarray]:
    """
    The data that a model observes.

    :param Program program: the model.
    :param dict slots: the observed sites.
    :param dict draw: of the guide, at which the model is run.
    :returns: what they observe.
    """
    arrays = _Arrays({"observed_data": dict(slots)}, 1)
    for batch in program.batches.calls:

        def visit(site: Any, rows: slice = batch.rows) -> None:
            arrays.put("observed_data", site["name"], (0,), rows, site["value"])

        program.run(batch, draw, visit)
    return {name: array[0] for name, array in arrays.groups["observed_data"].items()}


def _given_data(
    program: Program,
    arrays: _Arrays,
    draw: Index,
    values: Mapping[str, Tensor],
    is_likely: bool = True,
) -> bool:
    """
    Latent and deterministic sites, and the log-likelihood, at one draw, from one run on the data.

    :param bool is_likely: whether the log-likelihood is that of the run.
    :returns: whether new data were drawn in that run as well.
    """
    posterior = arrays.plan.get("posterior", {})
    likelihood = arrays.plan.get("log_likelihood", {}) if is_likely else {}
    for name in posterior.keys() & values.keys():
        arrays.put("posterior", name, draw, slice(None), values[name])
    if posterior.keys() <= values.keys() and not likelihood:
        return False
    new = program.shows_predictions and arrays.plan.get("posterior_predictive", {})
    for batch in program.batches.calls:

        def visit(site: Any, rows: slice = batch.rows) -> None:
            name = site["name"]
            if name in likelihood:
                log_prob = pointwise_log_prob(site, wide=True)
                refuse_data_without_density(site, log_prob)
                arrays.put("log_likelihood", name, draw, rows, log_prob)
            elif name not in values:
                arrays.put("posterior", name, draw, rows, site["value"])
            if new and name in new:
                check_duration(site["fn"])
                value = site["fn"](*site["args"], **site["kwargs"])
                arrays.put("posterior_predictive", name, draw, rows, value)

        program.run(batch, values, visit)
    return bool(new)


def _predictive_draw(
    program: Program,
    arrays: _Arrays,
    draw: Index,
    values: Mapping[str, Tensor],
    predictive: str,
    parameters: str | None,
) -> None:
    """
    One forward run: observed sites are drawn, and so is every latent site without a value.

    What does not follow the rows is drawn in the first row batch and held for the others.
    """
    if predictive not in arrays.plan and parameters not in arrays.plan:
        return
    held = dict(values)
    for batch in program.batches.calls:

        def visit(site: Any, rows: slice = batch.rows) -> None:
            info = program.sites.get(site["name"])
            if info is None:
                return
            if info.value.row_dim is None and info.kind in ("latent", "free"):
                held[info.name] = site["value"]
            arrays.put(predictive, info.name, draw, rows, site["value"])
            if parameters is not None:
                arrays.put(parameters, info.name, draw, rows, site["value"])

        program.run(batch, dict(held), visit, predictive=True)
