"""What ``help`` shows of every public name stands alone: words, shapes, sources."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyro_implicit
from pyro_implicit.objectives import ParticleObjective


def _public() -> dict[str, Any]:
    """All that some module lists in ``__all__``, by its full name, the main job left out."""
    found = {}
    for info in pkgutil.walk_packages(pyro_implicit.__path__, "pyro_implicit."):
        if "._main" in info.name or info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if callable(value) and getattr(value, "__module__", None) == info.name:
                found[f"{info.name}.{name}"] = value
    return found


PUBLIC = _public()


def _exported() -> dict[str, Any]:
    """What users import: all that a sub-package lists, or one of the modules beside them."""
    found = {}
    beside = ("pyro_implicit.diagnostics.plots", "pyro_implicit.saving")
    for info in pkgutil.walk_packages(pyro_implicit.__path__, "pyro_implicit."):
        if "._" not in info.name and (info.ispkg or info.name in beside):
            module = importlib.import_module(info.name)
            for name in getattr(module, "__all__", ()):
                value = getattr(module, name)
                is_protocol = getattr(value, "_is_protocol", False)  # nobody makes one
                if (inspect.isclass(value) and not is_protocol) or inspect.isfunction(value):
                    found[f"{info.name}.{name}"] = value
    return found


EXPORTED = _exported()


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """A public function; or a class and its public methods and properties."""
    yield "", value
    if inspect.isclass(value):
        for name, member in vars(value).items():
            function = member.fget if isinstance(member, property) else member
            function = getattr(function, "__func__", function)
            if not name.startswith("_") and inspect.isfunction(function):
                yield f".{name}", function


def _texts(value: Any) -> dict[str, str]:
    return {name: inspect.cleandoc(part.__doc__ or "") for name, part in _parts(value)}


def _prose(text: str) -> str:
    """Without what is code or mathematics."""
    return re.sub(r"``.*?``|:math:`.*?`|^\s+.*=.*$", "", text, flags=re.DOTALL | re.MULTILINE)


def test_there_is_something_to_read() -> None:
    assert len(PUBLIC) > 100


def _leans(name: str, value: Any) -> Iterator[str]:
    for part, text in _texts(value).items():
        prose = _prose(text)
        if not text:
            yield f"{name}{part} has no docstring"
        if re.search(r"\[\d\]", prose):
            yield f"{name}{part} cites by number"
        if re.search(r"\(\w+, \)|(?<!\w)\[[A-Z](, ?[A-Z])*\]", text):
            yield f"{name}{part}: shapes are written (N,) and (N, D)"
        if re.search(r"\blaws?\b", prose):
            yield f"{name}{part}: say distribution"
        if re.match(r"(Of|As|Under|Whether it does|The same|The hook)\b\W", text):
            yield f"{name}{part}: the summary leans on something that help does not show"


def _cites(name: str, value: Any) -> Iterator[str]:
    """The paper is named where it is cited."""
    text = _texts(value)[""]
    if not (inspect.isclass(value) or ".ops." not in name):
        return
    cited = re.search(r"[a-z] \(?(19|20)\d\d\b", text)
    if cited and not re.search(r"^Sources?: ?(`|$)", text, re.MULTILINE):
        yield f"{name} cites without a title"


def _parameters(value: Any) -> set[str]:
    try:
        return set(inspect.signature(value).parameters)
    except (TypeError, ValueError):  # a value; a builtin one, of an enumeration or an exception
        return set()


def _counts(name: str, value: Any) -> Iterator[str]:
    """``num_particles`` for the draws of an objective, ``num_samples`` for all others."""
    objectives = name.startswith("pyro_implicit.objectives.")
    for part, function in _parts(value):
        found = _parameters(function)
        other = {p for p in found if re.match(r"n_|num_draws$|.*(n|num)_(mc|posterior)_", p)}
        if other:
            yield f"{name}{part} takes {other}"
        if not objectives and "num_particles" in found:
            yield f"{name}{part}: say num_samples"
    if inspect.isclass(value) and issubclass(value, ParticleObjective):
        takes = inspect.signature(value).parameters
        if "num_particles" not in takes and not any(
            p.kind == p.VAR_KEYWORD for p in takes.values()
        ):
            yield f"{name} does not take num_particles"


def _own_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Without what fills a hook of a base class or a protocol, where its arguments are told."""
    for part, function in _parts(value):
        bases = value.__mro__[1:] if part else ()
        hook = any(part[1:] in vars(base) for base in bases)
        if not (hook or re.match(r"See :class:", function.__doc__ or "")):
            yield part, function


def _arguments(name: str, value: Any) -> Iterator[str]:
    """Every argument of what users import has a field."""
    for part, function in _own_parts(value):
        text = inspect.cleandoc(function.__doc__ or "")
        for argument in sorted(_parameters(function) - {"self", "cls"}):
            told = re.search(rf"^:param [^:]*\b{re.escape(argument)}:", text, re.MULTILINE)
            if not (told or argument.startswith("_")):
                yield f"{name}{part} does not tell of {argument}"


def _refuses(function: Any) -> bool:
    """Whether a function, or the making of an object, raises by itself or checks an argument."""
    if inspect.isclass(function):
        function = vars(function).get("__init__")
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # made by a decorator, as those of data classes are
        return False
    return re.search(r"^\s+raise \w+Error|(?<!def )\bcheck_\w+\(", source, re.MULTILINE) is not None


def _errors(name: str, value: Any) -> Iterator[str]:
    """What refuses something says so."""
    for part, function in _own_parts(value):
        text = inspect.cleandoc(function.__doc__ or "")
        told = re.search(r"^:raises \w+Error:", text, re.MULTILINE)
        if _refuses(function) and not told:
            yield f"{name}{part} raises and does not tell"


@pytest.mark.parametrize("check", [_arguments, _errors], ids=lambda check: check.__name__)
def test_help_of_what_users_import(check: Callable[[str, Any], Iterator[str]]) -> None:
    assert len(EXPORTED) > 80
    faults = [fault for name, value in EXPORTED.items() for fault in check(name, value)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("check", [_leans, _cites, _counts], ids=lambda check: check.__name__)
def test_help_of_every_public_name(check: Callable[[str, Any], Iterator[str]]) -> None:
    faults = [fault for name, value in PUBLIC.items() for fault in check(name, value)]
    assert not faults, "\n".join(faults)


class Leaning(ParticleObjective):
    """Of a law with z[D], as in [1] by Somebody 1999."""

    def __init__(self, n_mc_draws: int) -> None:
        if n_mc_draws < 0:
            raise ValueError("too few")
        super().__init__(n_mc_draws)

    def none(self) -> None: ...


@pytest.mark.parametrize(
    ("check", "faults"),
    [
        (_leans, ["by number", "say distribution", "leans on something", "none has no docstring"]),
        (_cites, ["cites without a title"]),
        (_counts, ["takes {'n_mc_draws'}", "does not take num_particles"]),
        (_arguments, ["does not tell of n_mc_draws"]),
        (_errors, ["Leaning raises and does not tell"]),
    ],
    ids=["leans", "cites", "counts", "arguments", "errors"],
)
def test_faults_are_told(check: Callable[[str, Any], Iterator[str]], faults: list[str]) -> None:
    found = list(check("pyro_implicit.objectives.Leaning", Leaning))
    assert len(found) == len(faults)
    for fault, told in zip(faults, found, strict=True):
        assert fault in told
