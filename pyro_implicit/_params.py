"""Show the parameters of a plain ``nn.Module`` to Pyro, without giving them away."""

from __future__ import annotations

import weakref

import pyro
import torch
from pyro.distributions import constraints
from pyro.poutine.runtime import effectful

__all__ = ["emit_params"]


def emit_params(prefix: str, module: torch.nn.Module) -> None:
    """
    Makes one Pyro ``param`` statement for each trainable parameter of ``module``.

    ``SVI`` optimises the parameters that it sees in such statements. :func:`pyro.module` would do
    nearly the same, but when the global store already holds a parameter of that name (an earlier
    guide of the same class, say) it reports *that* one: the optimiser then trains the old tensor
    and the module never changes. Here the module owns its parameters and the store only mirrors
    them: a stale entry is replaced. With ``module_local_params`` nothing is written to the global
    store.

    :param str prefix: start of the parameters' names, ``f"{prefix}.{name}"``.
    :param torch.nn.Module module: any module.
    """
    mirror = not pyro.settings.get("module_local_params")
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        full_name = f"{prefix}.{name}"
        if mirror:
            _mirror(full_name, parameter)
        _emit(full_name, parameter)


def _mirror(full_name: str, parameter: torch.nn.Parameter) -> None:
    """Lets the global store hold ``parameter`` itself, so that optimisers find its name."""
    store = pyro.get_param_store()
    if full_name in store:
        if store.param_name(parameter) == full_name:
            return
        del store[full_name]
    if parameter.is_contiguous():  # the store would keep a copy of any other
        store[full_name] = parameter


def _emit(full_name: str, parameter: torch.nn.Parameter) -> None:
    """
    A ``param`` message whose value leads back to ``parameter``.

    The value is an alias because Pyro hangs a weak reference on it, and a parameter with a weak
    reference on it can no longer be pickled.
    """
    alias = parameter.detach()
    alias.unconstrained = weakref.ref(parameter)  # type: ignore[attr-defined]
    _statement(full_name, alias, constraint=constraints.real, name=full_name)


@effectful(type="param")
def _statement(_: str, alias: torch.Tensor, **__: object) -> torch.Tensor:
    return alias
