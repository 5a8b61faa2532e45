"""
Bad arguments to every public name: each argument of a valid call is replaced by each value of a
list of nonsense. What comes is an error of our own tree, or a result that the value deserves; never
a raw TypeError from the depths, and never nonsense taken for an argument.

Names are found by inspection: a new one fails here until it has a valid call in ``entries.py``.
"""

from __future__ import annotations

import inspect
import typing
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyro
import pytest
import torch

import pyro_implicit
from pyro_implicit.exceptions import ImplicitError
from tests.sweeps.entries import (
    CLASSES,
    FUNCTIONS,
    HANDED_OUT,
    HOOKS,
    METHODS,
    MODULES,
    RECEIVERS,
    Entry,
)
from tests.sweeps.nonsense import VALUES, belongs

#: values for each argument in the default run
FEW = 4

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Sweep:
    """
    One public callable with its valid call.

    :param hints: type of each argument that is swept.
    :param leading: arguments that go before ``*args``.
    """

    entry: Entry
    function: Callable[..., Any]
    hints: dict[str, Any]
    leading: tuple[str, ...]

    def run(self, **changes: Any) -> Any:
        pyro.clear_param_store()
        torch.manual_seed(0)
        arguments = self.entry.valid() | changes
        first = [arguments.pop(name) for name in self.leading if name in arguments]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.entry.use(self.function(*first, *self.entry.args, **arguments))


def _own(found: Any) -> bool:
    return callable(found) and getattr(found, "__module__", "").startswith("pyro_implicit")


def _public() -> dict[str, Any]:
    names = {n: getattr(pyro_implicit, n) for n in dir(pyro_implicit) if not n.startswith("_")}
    for module in MODULES:
        names |= {name: getattr(module, name) for name in module.__all__}
    return {name: found for name, found in names.items() if _own(found) and name not in HANDED_OUT}


def _methods(kind: type) -> Iterator[tuple[str, type]]:
    """Names of the public methods of a class, and the class that defines each."""
    for name in dir(kind):
        owner = next(c for c in kind.__mro__ if name in vars(c) or c is object)
        function = inspect.getattr_static(kind, name)
        if (
            name.startswith(("_", "on_"))
            or HOOKS & {name, f"{owner.__name__}.{name}"}
            or not _own(owner)
        ):
            continue
        if isinstance(function, property) or getattr(function, "__isabstractmethod__", False):
            continue
        if callable(getattr(kind, name)) and _hints(getattr(kind, name)):
            yield name, owner


def _hints(function: Any) -> dict[str, Any]:
    signature = inspect.signature(function)
    try:
        hints = typing.get_type_hints(function)
    except NameError:
        hints = {}
    return {
        name: hints.get(name, Any)
        for name, p in signature.parameters.items()
        if p.kind not in _VARIABLE and name not in ("self", "_instance")
    }


def _constructor_hints(kind: type) -> dict[str, Any]:
    """Those of the bases too, as far as ``**options`` reach."""
    hints: dict[str, Any] = {}
    for base in kind.__mro__:
        if not _own(base):
            break
        if "__init__" in vars(base):
            hints = _hints(base.__init__) | hints
            kinds = [p.kind for p in inspect.signature(base.__init__).parameters.values()]
            if inspect.Parameter.VAR_KEYWORD not in kinds:
                break
    return hints


def _leading(function: Any) -> tuple[str, ...]:
    parameters = [p for n, p in inspect.signature(function).parameters.items() if n != "self"]
    names = [p.name for p in parameters]
    kinds = [p.kind for p in parameters]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return ()
    return tuple(names[: kinds.index(inspect.Parameter.VAR_POSITIONAL)])


def _receiver(kind: type, owner: type, name: str) -> Any:
    for known in (f"{owner.__name__}.{name}", owner.__name__):
        if known in RECEIVERS:
            return RECEIVERS[known]()
    entry = CLASSES[kind.__name__]
    return (entry.target or kind)(**entry.valid())


def _method_sweep(kind: type, owner: type, name: str) -> Sweep:
    def function(*args: Any, **kwargs: Any) -> Any:
        return getattr(_receiver(kind, owner, name), name)(*args, **kwargs)

    method = getattr(owner, name)
    entry = METHODS[f"{owner.__name__}.{name}"]
    return Sweep(entry, function, _hints(method), _leading(method))


def _sweeps() -> tuple[dict[str, Sweep], list[str]]:
    """Everything that is swept, and public names without a valid call."""
    found: dict[str, Sweep] = {}
    missing: list[str] = []
    for name, public in _public().items():
        is_class = inspect.isclass(public)
        entry = (CLASSES if is_class else FUNCTIONS).get(name)
        if entry is None:
            missing.append(f"{'CLASSES' if is_class else 'FUNCTIONS'}[{name!r}]")
            continue
        target = entry.target or public
        hints = _constructor_hints(public) if is_class else _hints(public)
        found[name] = Sweep(entry, target, hints, _leading(public.__init__ if is_class else public))
        for method, owner in _methods(public) if is_class else ():
            key = f"{owner.__name__}.{method}"
            if key not in METHODS:
                missing.append(f"METHODS[{key!r}]")
            elif key not in found:
                found[key] = _method_sweep(public, owner, method)
    return found, sorted(set(missing))


SWEEPS, MISSING = _sweeps()


def test_every_public_name_has_a_valid_call():
    assert not MISSING, (
        f"public names without a valid call: add {', '.join(MISSING)} to tests/sweeps/entries.py, "
        "the smallest arguments that work, so that bad ones are swept; or the method to HOOKS, if "
        "no user calls it."
    )


@pytest.mark.parametrize("name", SWEEPS)
def test_the_valid_calls_are_valid(name):
    SWEEPS[name].run()


def _failure(sweep: Sweep, argument: str, told: str) -> str | None:
    """What is wrong with how one bad argument ends, or None."""
    value = VALUES[told]()
    takes = sweep.entry.takes.get(argument)
    if takes is not None and takes(value):
        sweep.run(**{argument: value})
        return None
    if argument in sweep.entry.long and _is_default(sweep, argument, value):
        return None
    try:
        sweep.run(**{argument: value})
    except ImplicitError:
        return None
    except Exception as error:
        if belongs(argument, sweep.hints[argument], value) and callable(value):
            return None  # what a function of the user's own does is the user's
        if argument in sweep.entry.passed_on and isinstance(value, (torch.Tensor, list, dict)):
            return None
        return f"{argument} = {told}: raw {type(error).__name__}: {error}"
    if belongs(argument, sweep.hints[argument], value) or _is_default(sweep, argument, value):
        return None
    return f"{argument} = {told}: accepted"


def _is_default(sweep: Sweep, argument: str, value: Any) -> bool:
    """Whether it is what the argument is by default."""
    for function in (sweep.function, *getattr(sweep.function, "__mro__", ())):
        try:
            parameter = inspect.signature(function).parameters.get(argument)
        except (TypeError, ValueError):
            continue
        if parameter is not None and parameter.default is not parameter.empty:
            default = parameter.default
            return type(default) is type(value) and default == value
    return False


def _report(name: str, few: int | None) -> list[str]:
    """Failures; with ``few`` of so many values of each argument, others for each."""
    sweep, failures = SWEEPS[name], []
    told = list(VALUES)
    for place, argument in enumerate(sweep.hints):
        step = len(told) if few is None else few
        start = 0 if few is None else (7 * place + len(name)) % len(told)
        chosen = [told[(start + i * (len(told) // step)) % len(told)] for i in range(step)]
        failures += filter(None, (_failure(sweep, argument, one) for one in chosen))
    return failures


@pytest.mark.parametrize("name", SWEEPS)
def test_some_bad_arguments_are_refused_by_name(name):
    failures = _report(name, FEW)
    assert not failures, "\n".join([name, *failures])


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_all_bad_arguments_are_refused_by_name(name):
    failures = _report(name, None)
    assert not failures, "\n".join([name, *failures])
