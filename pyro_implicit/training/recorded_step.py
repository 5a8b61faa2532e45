"""One recorded training step: what it is for, and what it holds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyro
from pyro import poutine
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor
from torch.fx import GraphModule

from pyro_implicit.handlers.python_state import PythonState
from pyro_implicit.ops.same_bits import same_bits
from pyro_implicit.training.argument_checks import ArgumentChecks

__all__ = [
    "RecordedStep",
    "as_backward_leaves_them",
    "foreign",
    "is_current",
    "messages_of",
]


@dataclass
class RecordedStep:
    """One recorded step, for arguments of some shapes."""

    #: from the tensors among the arguments to the loss and its gradients; None: not to be used
    run: Callable[..., tuple[Tensor, ...]] | None = None
    #: model and guide, which a graph keeps: another object may have the number of one that is gone
    programs: tuple[Any, ...] = ()
    #: the parameters by name, in the gradients' order
    params: dict[str, Tensor] = field(default_factory=dict)
    #: how Pyro tells of each of them, but of those that it transforms
    messages: dict[str, Any] = field(default_factory=dict)
    #: why it is not to be recorded, or an empty text
    reason: str = ""
    num_steps: int = 0  # so far, of these arguments
    seconds: list[tuple[float, float]] = field(default_factory=list)  # of program and graph
    #: of its arguments, where Pyro's validation is on
    checks: ArgumentChecks | None = None
    #: what model and guide held when the program last ran
    state: PythonState | None = None
    #: copies of the only arguments that it is for, where shapes follow from their numbers
    given: list[Tensor] | None = None
    #: names of the implicit sites of which it counts a training step
    sites: list[str] = field(default_factory=list)

    def is_for(self, tensors: list[Tensor]) -> bool:
        """Whether shapes are those of the recording, as far as they follow from arguments."""
        return self.given is None or all(
            same_bits(one, other) for one, other in zip(tensors, self.given, strict=True)
        )

    @property
    def is_hooked(self) -> bool:
        """Whether somebody changes gradients, or looks at them, as they are made."""
        return any(
            param._backward_hooks or param._post_accumulate_grad_hooks
            for param in self.params.values()
        )

    def show(self) -> None:
        """Tells whoever traces the parameters of a step of them."""
        if not _PYRO_STACK:
            return
        for name, param in self.params.items():
            if name not in self.messages:
                pyro.param(name)
                continue
            value: Any = param.detach()
            value.unconstrained = weakref.ref(param)
            message = self.messages[name]
            message["value"] = value
            for handler in reversed(_PYRO_STACK):  # they look on, and take copies
                handler._postprocess_message(message)


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


def foreign(recorded: GraphModule, params: list[Tensor]) -> str:
    """What else a graph holds that the program gives a gradient, in words."""
    known = {id(param) for param in params}
    held = [*recorded.parameters(), *recorded.buffers()]
    if any(one.requires_grad and one.is_leaf and id(one) not in known for one in held):
        return "a parameter is not in Pyro's store: write pyro.module(name, network)"
    return ""


def messages_of(params: dict[str, Tensor]) -> dict[str, Any]:
    """What ``pyro.param`` tells of parameters whose value is the tensor that is trained."""
    with poutine.trace(param_only=True) as capture:
        for name in params:
            pyro.param(name)
    nodes = capture.trace.nodes
    found = {name: nodes[name] for name, param in params.items() if nodes[name]["value"] is param}
    for name in found:  # a parameter with a weak reference on it could not be pickled
        vars(params[name]).pop("unconstrained", None)
    return found


def is_current(name: str, param: Tensor) -> bool:
    """Whether a tensor is the trained parameter of that name."""
    return pyro.get_param_store()._params.get(name) is param and param.requires_grad
