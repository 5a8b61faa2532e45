"""One recorded training step: what it is for, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from pyro_implicit.handlers.looks.python_state import PythonState
from pyro_implicit.ops.graphs.same_bits import same_bits
from pyro_implicit.ops.graphs.shapes_of_values import shapes_of_values
from pyro_implicit.training.argument_checks import ArgumentChecks
from pyro_implicit.training.compiled_graph import CompiledGraph
from pyro_implicit.training.met_parameters import MetParameters

__all__ = [
    "RecordedStep",
    "as_backward_leaves_them",
    "foreign",
]


@dataclass
class RecordedStep:
    """One recorded step, for arguments of some shapes."""

    #: from the tensors among the arguments to the loss and its gradients; None: not to be used
    run: Callable[..., tuple[Tensor, ...]] | None = None
    #: the same in machine code, to rounding; None: not to be used
    compiled: CompiledGraph | None = None
    #: model and guide, which a graph keeps: another object may have the number of one that is gone
    programs: tuple[Any, ...] = ()
    #: the parameters that a step meets; gradients are of those that are trained, in their order
    met: MetParameters = field(default_factory=lambda: MetParameters({}))
    #: why it is not to be recorded, or an empty text
    reason: str = ""
    num_steps: int = 0  # so far, of these arguments
    num_unchecked: int = 0  # of them those of the program, as its checks could not be recorded
    seconds: list[tuple[float, float]] = field(default_factory=list)  # of program and graph
    #: of its arguments, where Pyro's validation is on
    checks: ArgumentChecks | None = None
    #: what model and guide held when the program last ran
    state: PythonState | None = None
    #: copies of the only arguments that it is for, where shapes follow from their numbers
    given: list[Tensor] | None = None
    #: tensors that the graph holds, their shapes, and their versions where shapes follow from their
    #: numbers: another number is in their place then
    held: list[tuple[Tensor, tuple[int, ...], int]] = field(default_factory=list)
    #: names of the implicit sites of which it counts a training step
    sites: list[str] = field(default_factory=list)
    _versioned: bool = False

    def is_current(self) -> bool:
        """Whether parameters, and what model and guide hold, are as they were; fast."""
        if not self.met.is_current() or (self.state is not None and self.state.replaced()):
            return False
        return self._holds_the_same()

    def hold(self, recorded: GraphModule, params: list[Tensor]) -> None:
        """Remembers what the graph's tensors are like, other than parameters that are trained."""
        tensors = held_by(recorded, params)
        self._versioned = shapes_of_values(recorded, trained=tensors, arguments=False)
        self.held = [(one, tuple(one.shape), self._version(one)) for one in tensors]

    def _version(self, one: Tensor) -> int:
        return one._version if self._versioned and not one.is_inference() else 0

    def _holds_the_same(self) -> bool:
        return all(
            one.shape == shape and self._version(one) == version
            for one, shape, version in self.held
        )

    def replaced(self) -> str:
        """What the programs hold instead of something else; empty for tensors in Pyro's store."""
        turned = self.met.turned()
        if turned or self.state is None or not self.met.is_current():
            return turned
        found = self.state.replaced()
        return found or ("" if self._holds_the_same() else "a tensor that model or guide holds")

    def is_for(self, tensors: list[Tensor]) -> bool:
        """Whether shapes are those of the recording, as far as they follow from arguments."""
        return self.given is None or all(
            same_bits(one, other) for one, other in zip(tensors, self.given, strict=True)
        )


def as_backward_leaves_them(gradients: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
    """
    Gradients that lie as their parameters do, each in memory of its own.

    Fused optimisers read them in their parameter's order, and clipping writes into them.
    """
    taken: set[int] = set()
    for gradient in gradients:
        if gradient is None:
            yield None
            continue
        own = gradient.contiguous()
        if own.untyped_storage().data_ptr() in taken:
            own = own.clone()
        taken.add(own.untyped_storage().data_ptr())
        yield own


def held_by(recorded: GraphModule, params: list[Tensor]) -> list[Tensor]:
    """The tensors that a graph holds, other than parameters that are trained."""
    known = {id(param) for param in params}
    held = [*recorded.parameters(), *recorded.buffers()]
    return [one for one in held if id(one) not in known]


def foreign(recorded: GraphModule, params: list[Tensor]) -> str:
    """What else a graph holds that the program gives a gradient, in words."""
    if any(one.requires_grad and one.is_leaf for one in held_by(recorded, params)):
        return "a parameter is not in Pyro's store: write pyro.module(name, network)"
    return ""
