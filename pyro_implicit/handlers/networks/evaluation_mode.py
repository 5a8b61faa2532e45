"""Networks in evaluation mode while a model is looked at, and as they were after it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import register_module_forward_pre_hook

from pyro_implicit._warn import warn
from pyro_implicit.handlers.networks.called_networks import note_call

__all__ = [
    "evaluation_mode",
    "is_random_function",
    "note_told",
    "random_layers_told",
    "was_training",
]

_state = threading.local()


@contextmanager
def evaluation_mode() -> Iterator[Mapping[str, nn.Module]]:
    """
    Puts every ``torch.nn.Module`` that is called within, with all its parts, in evaluation mode.

    Each gets its own mode back: a prediction must not move the running statistics of a BatchNorm,
    nor depend on which rows are evaluated together. However the model holds its networks, none is
    missed, because calls are what is watched.

    A layer that would have drawn random numbers is named in a warning: those of a dropout that is
    meant to stay on (as in Monte Carlo dropout) belong to ``F.dropout(x, p, training=True)``, which
    has no mode.

    Contexts within each other are one. Other threads are left alone.

    :returns: the random layers that were met in training mode so far, by what they are called.
    :warns UserWarning: for random layers that were in training mode, but for those of
        :func:`note_told`.
    """
    if getattr(_state, "entered", False):
        yield {}
        return
    switched: list[nn.Module] = []
    silenced: dict[str, nn.Module] = {}
    thread = threading.get_ident()

    def before(module: nn.Module, _: Any) -> None:
        if threading.get_ident() != thread:
            return
        note_call(module)
        if not module.training:
            return
        for name, part in module.named_modules():
            if part.training:
                part.training = False  # not .eval(), which a class may override
                switched.append(part)
                if _is_random(part):
                    silenced[f"{name or 'itself'} of {type(module).__name__}"] = part

    hook = register_module_forward_pre_hook(before)
    _state.entered, _state.switched = True, switched
    try:
        yield silenced
    finally:
        _state.entered, _state.switched = False, ()
        hook.remove()
        for module in switched:
            module.training = True
    told = getattr(_state, "told", None) or ()
    left = [name for name, part in silenced.items() if all(part is not one for one in told)]
    if left:
        warn(
            f"random layers in training mode were evaluated without their randomness: "
            f"{', '.join(left)}. Call .eval() on the network beforehand to say so; for noise "
            "that is to stay (Monte Carlo dropout) write F.dropout(x, p, training=True)."
        )


@contextmanager
def random_layers_told() -> Iterator[None]:
    """Within it :func:`evaluation_mode` names no layers that :func:`note_told` was given."""
    before = getattr(_state, "told", None)
    _state.told = []
    try:
        yield
    finally:
        _state.told = before


def note_told(layers: Iterable[nn.Module]) -> None:
    """
    Keeps random layers that whoever is within :func:`random_layers_told` has told of, or need not.

    :param layers: as they were called.
    """
    if getattr(_state, "told", None) is not None:
        _state.told.extend(layers)


def was_training(module: Any) -> bool:
    """
    Tells whether a module was in training mode when the context began that this thread is in.

    :param module: a module, or anything else.
    :returns: False, too, outside of a context.
    """
    return any(one is module for one in getattr(_state, "switched", ()))


def is_random_function(module: Any) -> bool:
    """
    Tells layers that call one of torch's random functions and do nothing else.

    :param module: a module, or anything else.
    :returns: True for a dropout of any kind, and for a random leaky rectifier.
    """
    return isinstance(module, (nn.RReLU, _DropoutNd))


def _is_random(module: nn.Module) -> bool:
    """Whether a layer draws random numbers in training mode."""
    if isinstance(module, nn.RReLU):
        return True
    if isinstance(module, _DropoutNd):
        return module.p > 0
    if isinstance(module, (nn.MultiheadAttention, nn.RNNBase)):
        return float(module.dropout) > 0
    return False
