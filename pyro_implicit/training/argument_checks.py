"""What Pyro's validation says of the arguments of a step, without the step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor, fx

from pyro_implicit._random import RandomStream
from pyro_implicit.handlers.pointwise import latent_sites
from pyro_implicit.ops.graphs.graph_passes import drop_unused, is_functional
from pyro_implicit.ops.graphs.noted_checks import NotedChecks
from pyro_implicit.ops.graphs.recording import lighten, trace_operations
from pyro_implicit.training.step_call import StepCall

__all__ = ["ArgumentChecks"]

_aten = torch.ops.aten
_MAX_NUMBERS_TO_COPY = 10_000  # of an argument: so many are compared in microseconds


class _Taken(NamedTuple):
    """An argument that was valid."""

    tensor: Tensor
    version: int
    copy: Tensor | None  # if it is small: others may write its memory unseen

    @classmethod
    def of(cls, tensor: Tensor) -> _Taken:
        small = tensor.numel() <= _MAX_NUMBERS_TO_COPY
        return cls(tensor, tensor._version, tensor.detach().clone() if small else None)

    def is_still(self, other: Tensor) -> bool:
        if other is not self.tensor or other._version != self.version:
            return False
        return self.copy is None or torch.equal(self.copy, other)


class ArgumentChecks:
    """
    The checks of a model's distributions that depend on arguments, as a graph of them alone.

    A recorded step does not check what it is given; this does, for each batch once: supports of
    what is observed, and parameters, whatever the model makes of its arguments before. Latents are
    those of one draw of the guide. What it refuses goes to the program, which knows; and so does
    each new batch where the checks cannot be recorded.

    :param StepCall call: a step, of which tensors of the same shapes will follow.
    """

    def __init__(self, call: StepCall) -> None:
        self._last: list[_Taken] = []
        self._graph: Callable[..., Any] | None = None
        try:
            with warnings.catch_warnings(), RandomStream(0), torch.no_grad():
                warnings.simplefilter("ignore")
                self._graph = _recorded(call)
        except Exception:  # whatever the tracer, or a model under it, raises
            self._graph = None

    @property
    def is_recorded(self) -> bool:
        """Whether other arguments can be looked at."""
        return self._graph is not None

    def passed(self, tensors: Sequence[Tensor]) -> None:
        """
        Notes that the program has taken these arguments.

        :param tensors: the arguments that are tensors.
        """
        self._last = [_Taken.of(one) for one in tensors]

    def refuse(self, tensors: Sequence[Tensor]) -> bool:
        """
        Tells whether the program would refuse other arguments, or might.

        :param tensors: as many as the step had, in the same order.
        :returns: False for those that were looked at last.
        """
        known = zip(self._last, tensors, strict=False)
        if self._last and all(one.is_still(other) for one, other in known):
            return False
        if self._graph is None or not all(map(bool, self._graph(*tensors))):
            return True
        self.passed(tensors)
        return False


def _recorded(call: StepCall) -> Callable[..., Any]:
    """From arguments to whether each check is passed."""
    model = call.model
    with poutine.block():
        sites = latent_sites(call.guide, call.args, call.kwargs)
    latents = {name: site["value"] for name, site in sites.items()}

    def checks(*tensors: Tensor) -> tuple[Tensor, ...]:
        args, kwargs = call.filled(tensors)
        with NotedChecks() as noted:
            trace = poutine.trace(poutine.condition(model, data=latents)).get_trace(*args, **kwargs)
            trace.compute_log_prob()
        return tuple(noted.found)

    tensors = [one.detach() for one in call.tensors]
    with pyro.validation_enabled(False), poutine.block():
        dist.enable_validation(True)  # alone: others read numbers
        graph = trace_operations(checks, *tensors)
    _keep_those_of_arguments(graph)
    if not is_functional(graph, draws=False):
        raise ValueError("checks that draw numbers, or write into tensors")
    lighten(graph, *tensors)
    return graph.forward


def _keep_those_of_arguments(graph: fx.GraphModule) -> None:
    """Leaves out results that no argument decides, and whether numbers are any (of reals)."""
    inputs: set[fx.Node] = set()
    for node in graph.graph.nodes:
        if node.op == "placeholder" or any(one in inputs for one in node.all_input_nodes):
            inputs.add(node)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    kept = [one for one in output.args[0] if one in inputs and not _is_of_reals(one)]
    output.args = (tuple(dict.fromkeys(kept)),)
    drop_unused(graph)  # the rows that a plate chooses, say


def _is_of_reals(node: fx.Node) -> bool:
    """Whether a check is that of a number with itself: the loss is not finite where that fails."""
    while node.target in (_aten.all.default, _aten.all.dim, _aten._is_all_true.default):
        (node,) = node.all_input_nodes
    return node.target is _aten.eq.Tensor and node.args[0] is node.args[1]
