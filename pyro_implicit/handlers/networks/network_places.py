"""Where a network of PyTorch keeps what its forward pass may find."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from pyro_implicit.handlers.looks.kept_place import (
    CONTENTS_KEY,
    GONE,
    LENGTH_KEY,
    VALUE_TYPES,
    Place,
)

__all__ = ["network_places"]

_HOOK_DICTS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def network_places(part: nn.Module, where: str) -> Iterator[Place]:
    """
    All places of one layer, without those of layers in it.

    Entries, and how many there are: a new one may hide what has its name elsewhere, as an attribute
    of Python hides a parameter. Parameters are trained in place; another in the place of one is
    none that Pyro's store knows.

    :param torch.nn.Module part: the layer.
    :param str where: its name, for messages.
    :returns: the places, with what is there.
    """
    held = part.__dict__
    for key, value in held.items():
        if isinstance(value, VALUE_TYPES):
            yield Place(f"{where}.{key}", held, key, value)
    yield Place(f"{where}.forward", held, "forward", held.get("forward", GONE))
    yield Place(f"the attributes of {where}", held, LENGTH_KEY, len(held))
    layers, buffers, parameters = part._modules, part._buffers, part._parameters
    for kind, entries in (("layers", layers), ("buffers", buffers), ("parameters", parameters)):
        yield Place(f"the {kind} of {where}", entries, LENGTH_KEY, len(entries))
        for key, entry in entries.items():
            yield Place(f"{where}.{key}", entries, key, entry)
    for hooks in (getattr(part, name) for name in _HOOK_DICTS):
        yield Place(f"the hooks of {where}", hooks, CONTENTS_KEY, dict(hooks))
    for key, parameter in parameters.items():
        if parameter is not None and not parameter.requires_grad:  # others are trained
            yield Place(f"{where}.{key}.requires_grad", parameter, "requires_grad", False)
