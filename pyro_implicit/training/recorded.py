r"""
Training steps as one graph of tensor operations, where that gives the same bits.

A step of a small model spends more time in Python, in Pyro's handlers and in the bookkeeping of
autograd, than in arithmetic. Its operations, forwards and backwards and the draws of random numbers
among them, are the same at each step: they are recorded once and replayed.
"""

from __future__ import annotations

import time
import warnings
from contextlib import nullcontext
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import ELBO
from pyro.infer.util import is_validation_enabled
from pyro.poutine.runtime import _PYRO_STACK
from pyro.poutine.trace_messenger import TraceMessenger
from torch import Tensor, fx

from pyro_implicit._checks import check_flag, shown
from pyro_implicit._random import (
    read_random_state,
    read_torch_state,
    same_random_state,
    write_random_state,
    write_torch_state,
)
from pyro_implicit._warn import warn
from pyro_implicit.exceptions import ArgumentError, PerformanceHint
from pyro_implicit.handlers.looks.python_state import python_state
from pyro_implicit.handlers.looks.unvalidated import Unvalidated
from pyro_implicit.objectives.lanczos import LanczosELBO
from pyro_implicit.objectives.linearised import LinearisedELBO
from pyro_implicit.ops.graphs.noticed_operation import NUMBER_READ, NoticedOperation
from pyro_implicit.ops.graphs.read_values import ReadValues
from pyro_implicit.ops.graphs.recording import lighten, trace_operations
from pyro_implicit.ops.graphs.same_bits import same_bits
from pyro_implicit.ops.graphs.shapes_of_values import shapes_of_values
from pyro_implicit.training.argument_checks import ArgumentChecks
from pyro_implicit.training.compiled_graph import CompiledGraph
from pyro_implicit.training.met_parameters import met_in
from pyro_implicit.training.recorded_step import RecordedStep, as_backward_leaves_them, foreign
from pyro_implicit.training.step_call import StepCall
from pyro_implicit.training.why_not_recorded import (
    REASON_OF_READ_NUMBERS,
    what_differs,
    why_it_fails,
    why_not_recorded,
)

__all__ = ["RecordedObjective"]

_NUM_WARM_UP_STEPS = 3  # before one is recorded: the first makes parameters
_NUM_TRIAL_STEPS = 3  # in which the graph must give the bits of the program's step, and be faster
_MAX_UNCHECKED_STEPS = 20  # whose arguments were new, and only the program can check them
_REASON_OF_CHECKS = (
    "the checks of each new batch by Pyro's validation cannot be recorded, as where they look at "
    "random numbers, or write into tensors; after pyro.enable_validation(False) there are none"
)
_STEPS_BETWEEN_AUDITS = 100  # from one comparison with the program itself to the next
_MAX_GRAPHS = 4  # one for each kind of arguments, such as a last batch that is shorter
_STEPS_THAT_PAY_FOR_RECORDING = 500  # after which a graph that was replaced counts no more
_MAX_RELATIVE_STEP_TIME = 0.9  # of the graph, to that of the program
_MAX_RELATIVE_COMPILED_TIME = 1.0  # of the compiled graph, to that of the graph


class RecordedObjective(ELBO):
    """
    An objective whose steps are recorded as graphs of tensor operations and replayed.

    Replayed steps give the same bits as the objective itself, losses and gradients, without the
    cost of Pyro's handlers: 0.4 to 0.6 of the time for small models. It takes the objective's place
    in ``SVI``, with any optimiser.

    Model and guide must do the same at every step: no branch on the value of a tensor, no shapes
    that follow from draws, no counts in Python, no buffers that they write (batch norm in training
    mode). What is seen to differ keeps the program as it is, with a
    :class:`~pyro_implicit.exceptions.PerformanceHint`, and so does no gain. One recording is made
    for each kind of arguments (shapes, dtypes, devices, values that are no tensors), training mode
    and settings, and a new one where something that model or guide hold was replaced, or a
    parameter frozen. Every hundredth step is compared with the program again.

    **What it cannot see** until that comparison: files and clocks, objects a few levels deep in
    others, large lists and arrays that were written in place. Of Pyro's validation, replayed steps
    keep what arguments decide. A :class:`~pyro_implicit.LanczosELBO` that looks for folds, as it
    does of generators of up to 512 noises, stays as it is. :doc:`Vectorise, and record
    </howto/vectorise>` tells more.

    **Compiled.** With ``jit_compile=True`` the recording is compiled by ``torch.compile``, with
    a C++ compiler. Steps then take 0.3 to 0.7 of the time of those that are replayed. The first
    time takes some ten seconds and pays in loops of ten thousand steps; the next loop of the
    same model and shapes, in another process too, takes a second and pays after a thousand.
    Numbers are those of the program to rounding, at the same random draws; comparisons allow
    for that, and what is farther off, cannot be compiled or is no faster is replayed as it was
    recorded, with a hint.

    :param objective: a :class:`~pyro_implicit.LinearisedELBO` or
        :class:`~pyro_implicit.LanczosELBO` with vectorised particles.
    :param bool jit_compile: whether recordings are compiled.
    :param bool hints: whether to tell why steps are not recorded, or not compiled, if so.
    :raises ArgumentError: for anything else.

    Example::

        objective = RecordedObjective(LinearisedELBO(8, vectorize_particles=True))
        svi = SVI(model, guide, Adam({"lr": 1e-3}), objective)
        for _ in range(2000):
            svi.step(x, y)
    """

    def __init__(self, objective: Any, *, jit_compile: bool = False, hints: bool = True) -> None:
        if (
            type(objective) not in (LinearisedELBO, LanczosELBO)
            or not objective.vectorize_particles
        ):
            raise ArgumentError(
                f"objective={shown(objective)}; expected a LinearisedELBO or LanczosELBO with "
                "vectorize_particles=True: steps of others may differ from one to the next."
            )
        super().__init__(  # type: ignore[no-untyped-call]
            objective.num_particles, vectorize_particles=True
        )
        self.objective = objective
        #: whose steps are of two kinds, if it estimates the entropy in some of them only
        self._lazy = objective if isinstance(objective, LanczosELBO) else None
        self.jit_compile = check_flag("jit_compile", jit_compile)
        self.hints = check_flag("hints", hints)
        #: why steps are those of the program, or an empty text
        self.reason = ""
        #: whether the program has changed after it was recorded: some steps were those of before
        self.has_changed = False
        self._graphs: dict[Any, RecordedStep] = {}
        #: times that model or guide held something else than before, soon after a recording
        self._num_replaced = 0

    def loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """
        The loss alone, by the objective itself.

        :param model: a Pyro model.
        :param guide: its guide.
        :param args: arguments of both.
        :param kwargs: keyword arguments of both.
        :returns: minus the objective.
        """
        return float(self.objective.loss(model, guide, *args, **kwargs))

    def terms(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Any:
        """
        The parts of the objective, by the objective itself.

        :param model: a Pyro model.
        :param guide: its guide.
        :param args: arguments of both.
        :param kwargs: keyword arguments of both.
        :returns: the terms by name, each of shape ``()``.
        """
        return self.objective.terms(model, guide, *args, **kwargs)

    @property
    def is_recorded(self) -> bool:
        """Whether some steps are replayed."""
        return any(graph.run is not None for graph in self._graphs.values())

    @property
    def is_compiled(self) -> bool:
        """Whether some steps are those of compiled recordings."""
        return any(graph.compiled is not None for graph in self._graphs.values())

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        """
        Adds the gradients of the loss to the parameters.

        :param model: a Pyro model.
        :param guide: its guide.
        :param args: arguments of both.
        :param kwargs: keyword arguments of both.
        :returns: minus the objective.
        :raises NonFiniteError: as the objective itself does.
        """
        call = StepCall(model, guide, args, kwargs)
        if (
            self.reason
            or _is_handled()
            or not (torch.is_grad_enabled() and self._estimates_next(guide))
        ):
            return self._program(call)
        graph = self._graph(call)
        graph.num_steps += 1
        if graph.num_steps == _NUM_WARM_UP_STEPS:
            return self._look(graph, call)
        if graph.num_steps < _NUM_WARM_UP_STEPS:
            return self._program(call)
        if graph.num_steps == _NUM_WARM_UP_STEPS + 1:
            self._record(graph, call)
        if graph.met.is_hooked:
            self._give_up("a parameter has a hook on its gradient")
            return self._program(call)
        num_replayed = graph.num_steps - _NUM_WARM_UP_STEPS - 1
        if graph.run is None or not graph.is_for(call.tensors):
            return self._program(call)
        if graph.checks is not None and graph.checks.refuse(call.tensors):
            loss = self._program(call)
            graph.checks.passed(call.tensors)
            graph.num_unchecked += not graph.checks.is_recorded
            if graph.num_unchecked == _MAX_UNCHECKED_STEPS:
                self._give_up(_REASON_OF_CHECKS)
            return loss
        is_trial = len(graph.seconds) < _NUM_TRIAL_STEPS
        if not is_trial and num_replayed % _STEPS_BETWEEN_AUDITS == 0:
            self.objective.look_plainly()
        if is_trial or num_replayed % _STEPS_BETWEEN_AUDITS == 0:
            return self._compare(graph, call)
        return self._replay(graph, call)

    def differentiable_loss(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> Tensor:
        """
        The loss with its graph, by the objective itself.

        :param model: a Pyro model.
        :param guide: its guide.
        :param args: arguments of both.
        :param kwargs: keyword arguments of both.
        :returns: minus the objective, shape ``()``, to be differentiated.
        """
        loss: Tensor = self.objective.differentiable_loss(model, guide, *args, **kwargs)
        return loss

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_graphs": {}}  # made anew where it is read

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.objective!r})"

    def _get_trace(self, model: Any, guide: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError  # Pyro's abstract method

    # ---- the program

    def _program(self, call: StepCall) -> float:
        step = self.objective.loss_and_grads
        return float(step(call.model, call.guide, *call.args, **call.kwargs))

    def _graph(self, call: StepCall) -> RecordedStep:
        """The graph of some arguments, or a new one where it does not hold any more."""
        kind = call.kind(self.objective)
        key = kind, self._estimates_next(call.guide)
        graph = self._graphs.get(key)
        known = {one for one, _ in self._graphs}
        if graph is None and len(known | {kind}) > _MAX_GRAPHS:
            self._give_up(what_differs(list(known), kind))
        elif graph is not None:
            if graph.is_current():
                return graph
            replaced = graph.replaced()
            self._graphs = {key: one for key, one in self._graphs.items() if one.is_current()}
            self._num_replaced += bool(replaced)
            if self._num_replaced > _MAX_GRAPHS:
                self._give_up(f"{replaced} changes from step to step")
        graph = self._graphs[key] = RecordedStep(programs=(call.model, call.guide))
        return graph

    def _give_up(self, reason: str) -> None:
        self.reason, self._graphs = reason, {}
        if self.hints:
            notes = f"steps are not recorded, and may take twice as long: {reason}"
            warn(notes, PerformanceHint)

    def _estimates_next(self, guide: Any) -> tuple[bool, ...]:
        """What the next step of a guide is to estimate, empty where only the program knows."""
        return (True,) if self._lazy is None else self._lazy.estimates_next(guide)

    # ---- the graph

    def _record(self, graph: RecordedStep, call: StepCall) -> None:
        """Records one step, if its program is the same at each step as far as can be seen."""
        reason = why_not_recorded(self.objective, call.guide) or graph.reason or call.unfit()
        if reason:
            self._give_up(reason)
            return
        graph.met.listen()
        params = graph.met.trained
        state, terms = read_random_state(), self.objective.last_terms
        try:
            recorded, reads = self._traced(graph, call, params)
            write_random_state(state)
            other = foreign(recorded, params)
            if shapes_of_values(recorded, trained=params, arguments=False):
                other = "a shape follows from the numbers of a draw or of a parameter"
            graph.hold(recorded, params)
            if shapes_of_values(recorded):
                graph.given = [one.detach().clone() for one in call.tensors]
            if self.jit_compile:
                graph.compiled = CompiledGraph(recorded)
            lighten(recorded, *call.tensors)
        except Exception as error:  # whatever the tracer, or a model under it, raises
            self._give_up(why_it_fails(error))
            return
        finally:
            write_random_state(state)
            self.objective.last_terms = terms
        if reads or other:
            self._give_up(REASON_OF_READ_NUMBERS if reads else other)
            return
        graph.run, graph.state = torch.no_grad()(recorded), python_state(call.model, call.guide)
        graph.checks = ArgumentChecks(call) if is_validation_enabled() else None

    def _traced(
        self, graph: RecordedStep, call: StepCall, params: list[Tensor]
    ) -> tuple[fx.GraphModule, bool]:
        """The operations of a step and its gradients; whether it reads numbers out of tensors."""

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            some, named = call.filled(tensors)
            loss = self.objective.differentiable_loss(call.model, call.guide, *some, **named)
            gradients = torch.autograd.grad(loss, params, allow_unused=True)
            return loss.detach(), *as_backward_leaves_them(gradients)

        number, read = NoticedOperation(NUMBER_READ), ReadValues()
        lazy = self._lazy
        uncounted = lazy.uncounted(call.guide) if lazy else nullcontext(graph.sites)
        with warnings.catch_warnings(), pyro.validation_enabled(False), Unvalidated():
            warnings.simplefilter("ignore")
            with number, read, uncounted as graph.sites:
                # objects of their own: another argument, or the model, may hold the same one
                recorded = trace_operations(step, *(one.detach() for one in call.tensors))
        return recorded, bool(number.found or read.found)

    def _look(self, graph: RecordedStep, call: StepCall) -> float:
        """A step of the program, its parameters, and what it changes beside the gradients."""
        programs, tensors = (call.model, call.guide), call.tensors
        before, written = python_state(*programs), [one._version for one in tensors]
        with poutine.trace(param_only=True) as capture:
            loss = self._program(call)
        changed = before.changes(python_state(*programs))
        graph.met = met_in(capture.trace)
        if written != [one._version for one in tensors]:
            changed = "an argument, which it writes into"
        graph.reason = f"a step changes {changed}" if changed else ""
        if not graph.met.is_current():
            graph.reason = "its parameters are not in Pyro's store (module_local_params)"
        return loss

    def _replay(self, graph: RecordedStep, call: StepCall) -> float:
        run = graph.compiled or graph.run
        assert run is not None
        state = read_torch_state()  # a graph draws no others
        try:
            loss, *gradients = run(*call.tensors)
        except Exception:  # of an operation, which the program meets as well
            write_torch_state(state)
            return self._program(call)
        found = [gradient for gradient in gradients if gradient is not None]
        norms = torch.stack([loss.abs(), *torch._foreach_norm(found)])
        if not bool(norms.isfinite().all()):  # the program names the site
            write_torch_state(state)
            return self._program(call)
        graph.met.show()
        if self._lazy is not None:
            self._lazy.count_step(call.guide, graph.sites)
        for param, gradient in zip(graph.met.trained, gradients, strict=True):
            if gradient is not None:
                param.grad = gradient if param.grad is None else param.grad + gradient
        return float(loss)

    def _compare(self, graph: RecordedStep, call: StepCall) -> float:
        """One step of the program, and whether the graph gives the same bits."""
        assert graph.run is not None
        params = graph.met.trained
        before = [param.grad for param in params]
        compiled = self._of_compiled(graph, call)
        state, start = read_random_state(), time.perf_counter()
        try:
            loss, *gradients = graph.run(*call.tensors)
        except Exception:  # of an operation, which the program meets as well
            write_random_state(state)
            return self._program(call)
        then, middle = read_random_state(), time.perf_counter()
        write_random_state(state)
        for param in params:
            param.grad = None
        try:
            with poutine.trace(param_only=True) as capture:
                value = self._program(call)
        except BaseException:
            for param, had in zip(params, before, strict=True):
                param.grad = had
            raise
        graph.seconds.append((time.perf_counter() - middle, middle - start))
        graph.state = python_state(call.model, call.guide)
        same = _is_same(torch.as_tensor(value, dtype=loss.dtype), loss)
        same = same and graph.met.are_those_of(met_in(capture.trace))
        same = same and same_random_state(then, read_random_state())
        for param, gradient, had in zip(params, gradients, before, strict=True):
            same = same and _is_same(param.grad, gradient)
            if had is not None:
                param.grad = had if param.grad is None else had + param.grad
        self._judge(graph, same)
        if graph.compiled is not None and same:
            found = [loss, *gradients]
            self._judge_compiled(graph, graph.compiled.why_not(compiled, found, then))
        return value

    def _of_compiled(self, graph: RecordedStep, call: StepCall) -> Any:
        """What the compiled graph gives, the state of random numbers then, and its seconds."""
        if graph.compiled is None:
            return None
        state = read_random_state()
        try:
            return graph.compiled.tried(*call.tensors)
        finally:
            write_random_state(state)

    def _judge_compiled(self, graph: RecordedStep, reason: str) -> None:
        assert graph.compiled is not None
        if not reason and len(graph.seconds) == _NUM_TRIAL_STEPS:
            recorded = min(times[1] for times in graph.seconds)
            if graph.compiled.seconds > _MAX_RELATIVE_COMPILED_TIME * recorded:
                reason = "compiled steps take as long"
        if reason:
            graph.compiled = None
            if self.hints:
                warn(f"steps are recorded, and not compiled: {reason}", PerformanceHint)

    def _judge(self, graph: RecordedStep, same: bool) -> None:
        if not same and len(graph.seconds) > _NUM_TRIAL_STEPS:
            self.has_changed = True
            self._give_up(
                "the program has changed since it was recorded, at most "
                f"{_STEPS_BETWEEN_AUDITS} steps ago, which went by the recording"
            )
        elif not same:
            self._give_up("a recorded step gives other numbers")
        elif len(graph.seconds) == _NUM_TRIAL_STEPS:
            # the least of each: others may be at work on the machine
            program, recorded = (min(times) for times in zip(*graph.seconds, strict=True))
            if graph.compiled is not None:
                recorded = min(recorded, graph.compiled.seconds)
            if recorded > _MAX_RELATIVE_STEP_TIME * program:
                self._give_up("a recorded step takes as long")
        elif graph.num_steps > _STEPS_THAT_PAY_FOR_RECORDING:
            self._num_replaced = 0


def _is_handled() -> bool:
    """Whether effect handlers are at work around a step, other than those that look on."""
    return any(type(handler) is not TraceMessenger for handler in _PYRO_STACK)


def _is_same(found: Any, expected: Any) -> bool:
    if found is None or expected is None:
        return found is None and (expected is None or not bool(expected.any()))
    return same_bits(found, expected)
