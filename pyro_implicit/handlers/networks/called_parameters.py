"""Parameters of the networks that a step calls, some of which nobody may train."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from pyro_implicit._few import few_of

__all__ = ["CalledParameters"]


_ADVICE_ON_PYRO_MODULE = (
    "Pyro knows those that it is told of. Write pyro.module('net', net) in the model, or make net "
    "a pyro.nn.PyroModule"
)


class CalledParameters:
    """
    Notes the parameters of each ``torch.nn.Module`` that this thread calls within, with gradients.

    What a call puts in their place, such as draws of weights, is no parameter.

    :param bool without_gradients: whether calls that record none are noted, too.
    """

    def __init__(self, *, without_gradients: bool = False) -> None:
        self._always = without_gradients
        #: what each parameter is called
        self._found: dict[Tensor, str] = {}
        self._hook: RemovableHandle | None = None
        self._thread = threading.get_ident()

    def __enter__(self) -> CalledParameters:
        self._hook = register_module_forward_pre_hook(self._note)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._hook is not None:
            self._hook.remove()

    def _note(self, module: nn.Module, _: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if not (self._always or torch.is_grad_enabled()):
            return
        if isinstance(module, PyroModule):  # whose parameters are statements where they are read
            return
        for name, one in module._parameters.items():
            if _is_of_own_guide(module, name):
                continue
            if isinstance(one, nn.Parameter) and one.requires_grad:
                self._found.setdefault(one, f"{name} of {type(module).__name__}")

    def warning_of_untrained(
        self, trained: Iterable[Tensor], instead: str = _ADVICE_ON_PYRO_MODULE
    ) -> str:
        """
        Says which of them stay as they are.

        :param trained: the parameters that the optimiser moves, of any shape.
        :param str instead: what to write.
        :returns: a text for a warning; empty if there is none.
        """
        known = {one.data_ptr() for one in trained}
        names = [name for one, name in self._found.items() if one.data_ptr() not in known]
        if not names:
            return ""
        return (
            f"the parameters {few_of(names)} of networks that are called are not trained: "
            f"{instead}; if they are to stay as they are, net.requires_grad_(False) says so."
        )


def _is_of_own_guide(module: nn.Module, name: str) -> bool:
    """Whether a parameter is of the guide that a kernel of Pyro's brings along for its latents."""
    guides = getattr(module, "_guides", None)
    if not isinstance(guides, dict) or getattr(module, "mode", "") != "model":
        return False
    return any(name.startswith(f"{latent}_") for latent in guides)
