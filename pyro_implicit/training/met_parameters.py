"""The parameters that a step meets, trained and frozen, and how Pyro tells of them."""

from __future__ import annotations

import weakref
from typing import Any

import pyro
from pyro import poutine
from pyro.poutine.runtime import _PYRO_STACK
from torch import Tensor

from pyro_implicit._params import unconstrained

__all__ = ["MetParameters", "met_in"]


class MetParameters:
    """
    All parameters that a step of a program has asked Pyro for.

    Frozen ones are among them: optimisers move these as well, by their momentum or their decay, if
    they had a gradient before; and who frees one trains it from the next step on.

    :param dict found: by name, as :func:`met_in` reads them.
    """

    def __init__(self, found: dict[str, Tensor]) -> None:
        self._found = [(name, param, param.requires_grad) for name, param in found.items()]
        #: those with gradients, each once: one tensor may have two names
        self.trained: list[Tensor] = list({id(p): p for _, p, flag in self._found if flag}.values())
        # how Pyro tells of each of them, but of those that it transforms
        self._messages: dict[str, Any] = {}

    def is_current(self) -> bool:
        """
        Looks into Pyro's store; fast, to be asked at each step.

        :returns: whether the same tensors have these names, and are trained or frozen as they were.
        """
        stored = pyro.get_param_store()._params
        return all(
            [
                stored.get(name) is param and param.requires_grad is is_trained
                for name, param, is_trained in self._found
            ]
        )

    def turned(self) -> str:
        """
        Names one that was frozen or freed.

        :returns: its flag, in words, or an empty text.
        """
        turned = (name for name, param, flag in self._found if param.requires_grad is not flag)
        name = next(turned, "")
        return f"{name}.requires_grad" if name else ""

    def are_those_of(self, later: MetParameters) -> bool:
        """
        Compares with those of another step.

        :param MetParameters later: of the other step.
        :returns: whether both met the same tensors by the same names, frozen and trained alike.
        """
        one, other = (
            {name: (id(param), flag) for name, param, flag in met._found} for met in (self, later)
        )
        return one == other

    @property
    def is_hooked(self) -> bool:
        """Whether somebody changes gradients, or looks at them, as they are made."""
        return any(
            param._backward_hooks or param._post_accumulate_grad_hooks for param in self.trained
        )

    def listen(self) -> None:
        """Takes what ``pyro.param`` tells of those whose value is the tensor that is trained."""
        with poutine.trace(param_only=True) as capture:
            for name, _, _ in self._found:
                pyro.param(name)
        nodes = capture.trace.nodes
        plain = {name: param for name, param, _ in self._found if nodes[name]["value"] is param}
        self._messages = {name: nodes[name] for name in plain}
        for param in plain.values():  # with a weak reference on it it could not be pickled
            vars(param).pop("unconstrained", None)

    def show(self) -> None:
        """Tells whoever traces the parameters of a step of them."""
        if not _PYRO_STACK:
            return
        for name, param, _ in self._found:
            if name not in self._messages:
                pyro.param(name)
                continue
            value: Any = param.detach()
            value.unconstrained = weakref.ref(param)
            message = self._messages[name]
            message["value"] = value
            for handler in reversed(_PYRO_STACK):  # they look on, and take copies
                handler._postprocess_message(message)


def met_in(trace: Any) -> MetParameters:
    """
    Reads what a step has asked for.

    :param trace: of ``poutine.trace(param_only=True)`` around the step.
    :returns: its parameters, unconstrained.
    """
    values = {name: trace.nodes[name]["value"] for name in trace.param_nodes}
    return MetParameters({name: unconstrained(value) for name, value in values.items()})
