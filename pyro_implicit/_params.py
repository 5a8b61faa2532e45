"""Show the parameters of a plain ``nn.Module`` to Pyro, without giving them away."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import pyro
import torch
from pyro.distributions import constraints
from pyro.poutine.runtime import effectful

from pyro_implicit._warn import warn

__all__ = ["emit_params", "take_loaded", "unconstrained"]

#: what this process has put into the store, by identity: another entry was loaded into it
_put: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


def emit_params(prefix: str, module: torch.nn.Module, *, is_whole: bool = True) -> None:
    """
    Makes one Pyro ``param`` statement for each trainable parameter of ``module``.

    ``SVI`` optimises the parameters that it sees in such statements. :func:`pyro.module` would do
    nearly the same, but when the global store already holds a parameter of that name (an earlier
    guide of the same class, say) it reports *that* one: the optimiser then trains the old tensor
    and the module never changes. Here the module owns its parameters and the store only mirrors
    them: a stale entry is replaced. One that was loaded into the store is another matter, see
    :func:`take_loaded`. With ``module_local_params`` nothing is written to the global store.

    :param str prefix: start of the parameters' names, ``f"{prefix}.{name}"``.
    :param torch.nn.Module module: any module.
    :param bool is_whole: see :func:`take_loaded`.
    :warns UserWarning: see there.
    """
    named = list(module.named_parameters())
    _take(prefix, named, is_whole)
    mirror = not pyro.settings.get("module_local_params")
    for name, parameter in named:
        if not parameter.requires_grad:
            continue
        full_name = f"{prefix}.{name}"
        if mirror:
            _mirror(full_name, parameter)
        _emit(full_name, parameter)


def take_loaded(prefix: str, module: torch.nn.Module, *, is_whole: bool) -> None:
    """
    Takes values over that ``pyro.get_param_store().load(...)`` has put into the global store.

    A module that was there before takes its own values again. Any other one does, too, if its
    parameters are all that it is; of a guide the store lacks the rest (locations, scales, noise),
    so that its values would mean something else in a new one.

    :param str prefix: as for :func:`emit_params`.
    :param torch.nn.Module module: any module.
    :param bool is_whole: whether its parameters are all that it is.
    :warns UserWarning: for loaded values that are others than the module's, and are not taken.
    """
    _take(prefix, module.named_parameters(), is_whole)


def _take(prefix: str, named: Iterable[tuple[str, torch.nn.Parameter]], is_whole: bool) -> None:
    """See :func:`take_loaded`."""
    if pyro.settings.get("module_local_params"):
        return
    held, lost = pyro.get_param_store()._params, []
    for name, parameter in named:
        loaded = held.get(f"{prefix}.{name}")
        if loaded is None or loaded is parameter or _is_put(loaded):
            continue
        if not parameter.requires_grad:
            continue
        same_shape = loaded.shape == parameter.shape
        if same_shape and (is_whole or _is_put(parameter)):
            with torch.no_grad():
                parameter.copy_(loaded)
        elif not same_shape or not torch.equal(loaded.detach().to(parameter), parameter):
            lost.append(f"{prefix}.{name}")
        _mirror(f"{prefix}.{name}", parameter)
    if lost:
        warn(_not_taken(lost, is_whole))


def _not_taken(names: list[str], is_whole: bool) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    begin = f"Pyro's parameter store was given other values of {names[0]!r}{more}, which are not "
    if is_whole:
        return begin + "taken over: their shapes are others than those of the network's parameters."
    return begin + (
        "taken over: the store holds no locations, scales and noise of a guide, without which they "
        "make other draws. Save a guide by save_state(guide.state_dict(), path), of "
        "pyro_implicit.saving, and load it by from_state_dict(load_state(path)) of its class. "
        "Where another guide is meant, write pyro.clear_param_store() before it is built."
    )


def _is_put(parameter: torch.Tensor) -> bool:
    return _put.get(id(parameter)) is parameter


def _mirror(full_name: str, parameter: torch.nn.Parameter) -> None:
    """Lets the global store hold ``parameter`` itself, so that optimisers find its name."""
    store = pyro.get_param_store()
    held = store._params.get(full_name)
    if held is parameter:
        return
    if held is not None:
        del store[full_name]
    if parameter.is_contiguous():  # the store would keep a copy of any other
        store[full_name] = parameter
        _put[id(parameter)] = parameter


def _emit(full_name: str, parameter: torch.nn.Parameter) -> None:
    """
    A ``param`` message whose value leads back to ``parameter``.

    The value is an alias because Pyro hangs a weak reference on it, and a parameter with a weak
    reference on it can no longer be pickled.
    """
    alias = parameter.detach()
    alias.unconstrained = weakref.ref(parameter)  # type: ignore[attr-defined]
    _statement(full_name, alias, constraint=constraints.real, name=full_name)


def unconstrained(value: Any) -> torch.Tensor:
    """
    Gives what an optimiser changes of a parameter that a trace has met.

    :param torch.Tensor value: of a ``param`` site. With ``module_local_params`` a plain
        ``nn.Parameter`` of a PyroModule is told of as itself, and nothing leads from it to itself.
    :returns: the unconstrained tensor.
    """
    found: torch.Tensor = value.unconstrained() if hasattr(value, "unconstrained") else value
    return found


@effectful(type="param")
def _statement(_: str, alias: torch.Tensor, **__: object) -> torch.Tensor:
    return alias
