"""The model's run with the guide's draws, in rows that both agree on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.poutine import Trace
from pyro.poutine.replay_messenger import ReplayMessenger
from pyro.poutine.util import site_is_subsample

from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.observations.other_shape import check_event
from pyro_implicit.handlers.rows.row_slices import are_same_numbers, shows_all
from pyro_implicit.objectives.particles.particle import sample_nodes

__all__ = ["replayed_run"]


def replayed_run(
    model: Callable[..., Any], guide_trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Trace:
    """
    Runs the model with the guide's draws.

    The model chooses its rows by itself where the guide shows all of them, or does not say which.

    :param model: a Pyro model.
    :param pyro.poutine.Trace guide_trace: the guide's run with the same arguments.
    :param args: arguments of the model.
    :param kwargs: its keyword arguments.
    :returns: the model's trace.
    :raises ShapeError: if a latent has another shape in the guide.
    :raises SiteError: if the model names other rows of a plate than the guide has, or shows another
        number of them.
    """
    replay = _Replay(_without_full_plates(guide_trace))
    tracer = poutine.trace(replay(model))
    try:
        tracer(*args, **kwargs)
    except Exception:  # most models fail by themselves on the wrong rows; say why
        _check_pairs(tracer.trace, guide_trace, replay.named_rows)
        raise
    _check_pairs(tracer.trace, guide_trace, replay.named_rows)
    return tracer.trace


class _Replay(ReplayMessenger):
    """Replays a guide's trace, and notes the rows that the model itself names of its plates."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace=trace)
        self.named_rows: dict[str, Any] = {}

    def _pyro_sample(self, msg: Any) -> None:
        if msg["value"] is not None and site_is_subsample(msg):
            self.named_rows[msg["name"]] = msg["value"]
        super()._pyro_sample(msg)


def _without_full_plates(guide_trace: Trace) -> Trace:
    """A copy that leaves the model free to choose its rows where the guide shows them all."""
    trace = guide_trace.copy()
    for name, node in sample_nodes(guide_trace).items():
        if site_is_subsample(node) and shows_all(node["value"], node["fn"].size):
            trace.remove_node(name)
    return trace


def _check_pairs(model_trace: Trace, guide_trace: Trace, named_rows: dict[str, Any]) -> None:
    """Plates and latents of the guide are those of the model."""
    latents = sample_nodes(guide_trace)
    for name, node in sample_nodes(model_trace).items():
        if name not in latents or node["is_observed"]:
            continue
        if site_is_subsample(node):
            _check_plate(name, latents[name]["value"], named_rows.get(name, node["value"]))
        else:
            _check_sizes(node, latents[name])
            check_event(node, latents[name]["value"])


def _check_plate(name: str, mine: Any, theirs: Any) -> None:
    """
    Refuses other rows in the guide than the model shows, or another order of them.

    :raises SiteError: if they differ.
    """
    if are_same_numbers(mine, theirs):
        return
    found = f"{len(theirs)} rows in the model and {len(mine)} in the guide"
    if len(mine) == len(theirs):
        in_order = are_same_numbers(
            *(torch.as_tensor(rows).sort().values for rows in (mine, theirs))
        )
        kind = "its rows in another order" if in_order else "other rows"
        found = f"{kind} in the model than in the guide"
    raise SiteError(
        f"plate {name!r} has {found}, which has local latents there. Both use the same rows where "
        "create_plates of the guide, a function of the model's arguments, returns the model's own "
        "plate."
    )


def _check_sizes(node: Any, drawn: Any) -> None:
    """
    Refuses a latent with another number of rows than the model shows of its plate.

    :raises SiteError: if they differ.
    """
    shown = {frame.name: frame.size for frame in node["cond_indep_stack"] if frame.vectorized}
    for frame in drawn["cond_indep_stack"]:
        size = shown.get(frame.name, frame.size)
        if frame.vectorized and size != frame.size:
            raise SiteError(
                f"plate {frame.name!r} shows {size} rows in the model and {frame.size} in the "
                f"guide, which has local latents there, {node['name']!r} among them. Expected one "
                "number: for a conditional guide, a context with a row for each that the model "
                "shows; for others, create_plates (a function of the model's arguments that "
                "returns the model's plate)."
            )
