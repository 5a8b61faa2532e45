"""Runs of a model at draws of a guide, recorded once as a graph of tensor operations."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor, fx

from pyro_implicit.handlers.looks.python_state import python_state
from pyro_implicit.inference.given_noise import GivenNoise, NoiseNeeded, OtherNoise
from pyro_implicit.inference.predictive_run import PredictiveRun
from pyro_implicit.inference.run_plan import RunPlan
from pyro_implicit.ops.graphs.graph_passes import is_functional
from pyro_implicit.ops.graphs.noted_checks import NotedChecks
from pyro_implicit.ops.graphs.noticed_operation import NUMBER_READ, NoticedOperation
from pyro_implicit.ops.graphs.read_values import ReadValues
from pyro_implicit.ops.graphs.recording import lighten, trace_operations
from pyro_implicit.ops.graphs.same_bits import same_bits
from pyro_implicit.ops.graphs.shapes_of_values import shapes_of_values
from pyro_implicit.ops.largest_tensor import LargestTensor

__all__ = ["RecordedDraws", "saves_time"]

_MIN_RUNS_TO_RECORD = 300  # fewer save less than it takes to record one
_MAX_NUMBERS_PER_RUN = 2**17  # of all tensors: above, a graph saves little beside the arithmetic

_CHECKING_OPS = ("_linalg_check_errors", "_assert")  # parts of their names

Values = dict[str, Tensor]


def saves_time(num_runs: int) -> bool:
    """
    Whether so many runs of a small model take longer than it takes to record one.

    :param int num_runs: how many.
    :returns: whether to record.
    """
    return num_runs >= _MIN_RUNS_TO_RECORD


class RecordedDraws:
    """
    What a model makes of draws on some rows, as a graph.

    It is not used where anything shows that runs are not alike: a number that is read from a
    tensor, as a branch on its value does; shapes that follow from values; noise other than that of
    a few distributions; numbers that the model counts, buffers that it writes, or other bits than
    those of a run at one of two draws.

    :param model: the model, which was run before.
    :param args: positional arguments, of these rows.
    :param kwargs: keyword arguments, of these rows.
    :param RunPlan plan: what to predict, with two draws at least.
    :param int start: first row.
    :param int stop: one past the last row.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        plan: RunPlan,
        start: int,
        stop: int,
    ) -> None:
        self._call, self._plan, self._rows = (model, args, kwargs), plan, (start, stop)
        self._latents = [name for name in plan.draws if name in plan.met]
        self._needed: list[NoiseNeeded] = []
        self._names: list[str] = []
        self._nobody = torch.empty(())  # noise that no value depends on
        self._used: list[bool] = []
        self._graph: Callable[..., Any] | None = None
        if _PYRO_STACK:  # somebody looks on
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph = self._recorded()
                self._graph = None if graph is None else graph.forward  # without hooks
                if not (self.is_true(0) and self.is_true(1)):
                    self._graph = None
        except Exception:  # whatever the tracer, or a model under it, raises
            self._graph = None

    @property
    def is_recorded(self) -> bool:
        """Whether there is a graph."""
        return self._graph is not None

    def values(self, draw: int) -> Values | None:
        """
        The sites that are kept.

        :param int draw: number of the draw.
        :returns: by name, each with a dimension of one draw in front; None where there is no graph,
            and where a distribution or an operation refuses a number, as the model will tell.
        """
        if self._graph is None:
            return None
        try:
            *values, passed = self._graph(*self._inputs(draw))
        except Exception:  # of an operation, which the model meets as well
            return None
        return dict(zip(self._names, values, strict=True)) if passed else None

    def is_true(self, draw: int) -> bool:
        """
        Whether it gives the bits of a run.

        :param int draw: number of the draw.
        """
        found = self.values(draw)
        run = PredictiveRun(self._plan, *self._rows, draw, draw + 1, vectorised=False)
        expected = self._run(run)
        return found is not None and list(found) == list(expected) and _same(found, expected)

    def _inputs(self, draw: int) -> list[Tensor]:
        latents = [self._plan.draws[name][draw] for name in self._latents]
        noise = [
            one.drawn(self._plan, *self._rows, draw) if used else self._nobody
            for one, used in zip(self._needed, self._used, strict=True)
        ]
        return latents + noise

    def _run(self, run: PredictiveRun) -> Values:
        model, args, kwargs = self._call
        with run:
            model(*args, **kwargs)
        return run.values

    def _recorded(self) -> fx.GraphModule | None:
        """The graph, if runs are alike as far as can be seen in one."""
        before = python_state(self._call[0])
        with LargestTensor() as made:
            self._names = list(self._run(GivenNoise(self._note, self._plan, *self._rows)))
        if before.changes(python_state(self._call[0])) or made.total > _MAX_NUMBERS_PER_RUN:
            return None
        example = self._inputs(0)
        with NoticedOperation(NUMBER_READ) as number, ReadValues() as read:
            graph = trace_operations(lambda *tensors: self._traced(*tensors), *example)
        if number.found or read.found or shapes_of_values(graph):
            return None
        if any(map(_stops, graph.graph.nodes)):
            return None
        graph.graph.eliminate_dead_code()
        if not is_functional(graph, draws=False):
            return None
        lighten(graph, *example, held=True)
        inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._used = [bool(node.users) for node in inputs[len(self._latents) :]]
        return graph

    def _note(self, needed: NoiseNeeded) -> Tensor:
        self._needed.append(needed)
        self._used.append(True)
        return needed.drawn(self._plan, *self._rows, 0)

    def _traced(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """From latents and noise to the values that are kept, and whether checks were passed."""
        given, needed, held = iter(tensors), iter(self._needed), self._plan.draws

        def give(one: NoiseNeeded) -> Tensor:
            if next(needed) != one:
                raise OtherNoise
            return next(given)

        self._plan.draws = {name: next(given)[None] for name in self._latents}
        try:
            with NotedChecks() as checks:
                values = self._run(GivenNoise(give, self._plan, *self._rows))
        finally:
            self._plan.draws = held
        return *values.values(), checks.passed()


def _stops(node: fx.Node) -> bool:
    """Whether an operation gives nothing and may raise an error (of a matrix, an assertion)."""
    return node.op == "call_function" and any(name in str(node.target) for name in _CHECKING_OPS)


def _same(found: Values, expected: Values) -> bool:
    """Whether two runs give the same bits."""
    return all(same_bits(found[name], value) for name, value in expected.items())
