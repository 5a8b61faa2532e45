"""A fingerprint of a model's program, by which a guide that is loaded without it knows it again."""

from __future__ import annotations

import hashlib
import inspect
from functools import partial
from types import CodeType
from typing import Any

from pyro.infer.autoguide.initialization import InitMessenger
from pyro.poutine.condition_messenger import ConditionMessenger
from pyro.poutine.infer_config_messenger import InferConfigMessenger
from torch import nn

__all__ = ["print_of_program", "unconditioned"]

_HOLDING = (ConditionMessenger, InitMessenger)
_MARKING = (InferConfigMessenger,)  # such as config_enumerate: neither hides nor adds a site


def unconditioned(model: Any) -> Any:
    """
    What values are held in, by ``poutine.condition`` or where a guide looks for its start.

    :param model: a Pyro model.
    :returns: the model without these handlers around it.
    """
    return _without(model, _HOLDING)


def print_of_program(model: Any) -> str | None:
    """
    A fingerprint of what a model does, the same in another process and elsewhere in a file.

    A function's is of its instructions, constants and names, that of an object of those of its
    ``forward`` or ``__call__``; what these call is not looked at.

    :param model: a Pyro model.
    :returns: hexadecimal digits; None of what has no instructions of its own, or is within a
        handler that may hide sites.
    """
    bare = _without(model, (*_HOLDING, *_MARKING))
    if isinstance(getattr(bare, "func", None), partial):  # another handler, with the model in it
        return None
    if not (inspect.isfunction(bare) or inspect.ismethod(bare)):
        bare = type(bare).forward if isinstance(bare, nn.Module) else type(bare).__call__
    code = getattr(bare, "__code__", None)
    if not isinstance(code, CodeType):
        return None
    digest = hashlib.sha256()
    _take(code, digest)
    return digest.hexdigest()


def _without(model: Any, kinds: tuple[type, ...]) -> Any:
    while isinstance(wrapped := getattr(model, "func", None), partial):
        handler, *inner = wrapped.args or (None,)
        if not (isinstance(handler, kinds) and len(inner) == 1):
            break
        model = inner[0]
    return model


def _take(code: CodeType, digest: Any) -> None:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):  # of a function within
            _take(constant, digest)
        elif isinstance(constant, (int, float, complex, str, bytes, tuple, type(None))):
            digest.update(repr(constant).encode())
    names = (*code.co_names, *code.co_varnames, *code.co_freevars)
    digest.update("\n".join(names).encode() + code.co_code)
