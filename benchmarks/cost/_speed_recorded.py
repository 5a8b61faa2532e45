"""Steps as ``fit`` and as Pyro's ``SVI`` take them, recorded where that is faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
from pyro import poutine
from pyro.infer import SVI
from torch import Tensor

from benchmarks.cost._speed_timing import Job
from pyro_implicit.training import RecordedObjective
from pyro_implicit.training.compiled_graph import CompiledGraph
from pyro_implicit.training.fitting.pace.norm_clipped_adam import NormClippedAdam

__all__ = ["Graph", "fit_step", "recorded_graph", "recorded_step", "svi_step"]

Graph = Callable[..., tuple[Tensor, ...]]

_STEPS_TO_RECORD = 4  # it is given up later, if it is not faster by the clock
WARM_UP = 8  # steps after which an objective is recorded and has been compared


def recorded_step(
    make_objective: Callable[[], Any],
    model: Callable[..., Any],
    guide: Any,
    args: tuple[Any, ...],
    rate: float,
    tries: int,
    step_of: Callable[..., Job] | None = None,
    period: int = 1,
) -> tuple[Job, str]:
    """
    A step whose objective is recorded, and a note.

    It gives up where three steps of the graph were not faster by the clock, which other jobs of the
    machine can bring about: it is then tried again.

    :param make_objective: makes one that can be recorded.
    :param model: a Pyro model.
    :param guide: its guide, built.
    :param tuple args: their arguments.
    :param float rate: learning rate.
    :param int tries: trials at most.
    :param step_of: makes the step of an objective, as :func:`fit_step` does, which is the default.
    :param int period: steps after which those of the objective are the same again.
    """
    num_tried = 0
    while True:
        num_tried += 1
        recorded = RecordedObjective(make_objective(), hints=False)
        step = (step_of or fit_step)(recorded, model, guide, args, rate)
        for _ in range(WARM_UP * period):
            step()
        if recorded.is_recorded:
            return step, f"recorded at trial {num_tried}" if num_tried > 1 else ""
        if num_tried == tries:
            return step, f"not recorded: {recorded.reason}"


def recorded_graph(
    objective: Any,
    model: Callable[..., Any],
    guide: Any,
    args: tuple[Any, ...],
    jit_compile: bool = False,
) -> tuple[Graph, CompiledGraph | None]:
    """
    The graph of a step's loss and gradients, whether or not it is faster than the program.

    :param objective: one that can be recorded.
    :param model: a Pyro model.
    :param guide: its guide, built.
    :param tuple args: their arguments, tensors.
    :param bool jit_compile: whether it is compiled, too.
    :returns: a function of the arguments, and the same compiled.
    """
    recorded = RecordedObjective(objective, jit_compile=jit_compile, hints=False)
    for _ in range(_STEPS_TO_RECORD):
        recorded.loss_and_grads(model, guide, *args)
    for graph in recorded._graphs.values():
        if graph.run is not None:
            return graph.run, graph.compiled
    raise RuntimeError(f"the step was not recorded: {recorded.reason}")


def fit_step(
    objective: Any, model: Callable[..., Any], guide: Any, args: tuple[Any, ...], rate: float
) -> Job:
    """A step as ``fit`` takes it: one fused optimiser."""
    adam = NormClippedAdam()

    def step() -> None:
        with poutine.trace(param_only=True) as capture:
            objective.loss_and_grads(model, guide, *args)
        nodes = capture.trace.nodes
        params = {k: nodes[k]["value"].unconstrained() for k in capture.trace.param_nodes}
        adam.step(params, rate)

    return step


def svi_step(
    objective: Any, model: Callable[..., Any], guide: Any, args: tuple[Any, ...], rate: float
) -> Job:
    """A step of Pyro's ``SVI``: one Adam for each parameter."""
    svi = SVI(model, guide, pyro.optim.Adam({"lr": rate}), objective)
    return lambda: svi.step(*args)
