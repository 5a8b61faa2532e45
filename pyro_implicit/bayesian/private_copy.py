"""A copy of the user's module in which only what is trained directly is still a parameter."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from pyro_implicit.exceptions import ArgumentError, LayerError

__all__ = [
    "aliases",
    "deep_copy",
    "has_running_statistics",
    "owner_of",
    "private_copy",
    "refuse_running_statistics",
    "to_buffers",
]

_COMPRESSED_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def private_copy(module: nn.Module) -> nn.Module:
    """
    A deep copy of ``module``.

    :raises ArgumentError: for something that is no module, for uninitialised (lazy) parameters, and
        for a module whose parameters Pyro manages already.
    """
    if not isinstance(module, nn.Module):
        raise ArgumentError(
            f"module is {module!r} of type {type(module).__name__}; expected a torch.nn.Module."
        )
    lazy = [name for name, parameter in module.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ArgumentError(
            f"the parameters {lazy} are not initialised, so they have no shape yet. Run the module "
            "once on a batch of inputs before it is wrapped."
        )
    for name, child in module.named_modules():
        if isinstance(child, PyroModule) and (child._pyro_samples or child._pyro_params):
            where = f"submodule '{name}'" if name else "the module"
            raise ArgumentError(
                f"{where} is a PyroModule with PyroSample or PyroParam attributes, so it has "
                "priors or constraints of its own. Call it directly in the model, or pass a plain "
                "nn.Module."
            )
    return deep_copy(module)


def deep_copy(module: nn.Module) -> nn.Module:
    """A deep copy, also of sparse tensors without a storage, which ``copy.deepcopy`` refuses."""
    memo: dict[int, Any] = {}
    for child in module.modules():
        for value in (*child._buffers.values(), *vars(child).values()):
            if isinstance(value, Tensor) and value.layout in _COMPRESSED_LAYOUTS:
                memo[id(value)] = value.clone()
    return copy.deepcopy(module, memo)


def aliases(module: nn.Module) -> dict[str, tuple[str, ...]]:
    """
    The names of each parameter tensor, by the first of them: tied parameters have several.

    Of the names that a layer has which is used in several places, one is enough.
    """
    names: dict[int, list[str]] = {}
    places: set[tuple[int, str]] = set()
    for name, parameter in module.named_parameters(remove_duplicate=False):
        owner, attribute = owner_of(module, name)
        if (id(owner), attribute) not in places:
            places.add((id(owner), attribute))
            names.setdefault(id(parameter), []).append(name)
    return {same[0]: tuple(same) for same in names.values()}


def owner_of(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The submodule that holds a parameter or buffer, and what it is called there."""
    path, _, attribute = name.rpartition(".")
    return module.get_submodule(path), attribute


def to_buffers(module: nn.Module, names: Iterable[str]) -> None:
    """
    Turns parameters into buffers of the same name and value, so that nothing trains them.

    Names in the ``state_dict`` stay.
    """
    for name in names:
        owner, attribute = owner_of(module, name)
        value = owner.get_parameter(attribute).detach().clone()
        del owner._parameters[attribute]
        owner.register_buffer(attribute, value)


def has_running_statistics(module: nn.Module) -> bool:
    """Whether some layer of the module keeps running statistics."""
    return any(
        isinstance(layer, _NormBase) and layer.running_mean is not None
        for layer in module.modules()
    )


def refuse_running_statistics(module: nn.Module) -> None:
    """
    Raises when a normalisation layer would update its running statistics.

    Each draw of the parameters would have its own statistics, but the layer can keep only one.

    :raises LayerError: names the layer.
    """
    for name, layer in module.named_modules():
        if not (isinstance(layer, _NormBase) and layer.training and layer.track_running_stats):
            continue
        if layer.running_mean is None:
            continue
        kind = type(layer).__name__
        raise LayerError(
            f"layer '{name}' ({kind}) is in training mode and would update its running statistics "
            "with several draws of the parameters at once; they belong to one. One after the other "
            "they move them too, and predictions by what is left may be far off. Three ways out: "
            "(1) call .eval() on the BayesianModule, to use the statistics it has; (2) use "
            f"nn.GroupNorm, which keeps none; (3) build the layer as {kind}(..., "
            "track_running_stats=False), to normalise by each batch."
        )
