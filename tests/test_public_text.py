"""What ``help`` shows of every public name stands alone: words, shapes, sources."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import pyro_implicit
from pyro_implicit.objectives import ParticleObjective

ROOT = Path(__file__).resolve().parents[1]


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


def _shown() -> tuple[set[str], set[str]]:
    """Modules beside the sub-packages that have a page of the reference, and rooms of such."""
    pages = ast.parse((ROOT / "docs" / "_ext" / "reference_pages.py").read_text())
    lists = {
        node.targets[0].id: set(ast.literal_eval(node.value))
        for node in pages.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    return lists["MODULES"], lists["SHOWN"]


def _exported() -> dict[str, Any]:
    """What has a page of the reference: all that a sub-package lists, or a module shown there."""
    found = {}
    beside, rooms = _shown()
    for info in pkgutil.walk_packages(pyro_implicit.__path__, "pyro_implicit."):
        shown = info.ispkg or info.name in beside or info.name.rpartition(".")[0] in rooms
        if "._" not in info.name and shown:
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
            function = member.func if isinstance(member, functools.cached_property) else function
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


def _signature(value: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):  # a value; a builtin one, of an enumeration or an exception
        return []


def _parameters(value: Any) -> set[str]:
    return {parameter.name for parameter in _signature(value)}


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


#: a shape, such as ``(N, D)``, ``{site: (n, *shape)}`` or shape ``batch``; or that any will do
SHAPE = re.compile(
    r"``(\{\w+: )?\((|\.\.\.|\*\w+|[^`]*,[^`]*)\)\}?``"
    r"|\bshapes? (``|of\b)|\b(any|same|that|batch)\s+shape\b"
)


def _field(text: str, head: str) -> re.Match[str] | None:
    """A field of a docstring: what follows ``:head:`` up to the next one."""
    return re.search(rf"^:({head}):(.*?)(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)


def _type_name(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def _is_tensor(kind: str) -> bool:
    """Whether an annotation is that of a tensor, or of several; a function of them is none."""
    return re.search(r"\bTensor\b", kind) is not None and "Callable" not in kind


def _is_property(value: Any, part: str) -> bool:
    kinds = (property, functools.cached_property)
    return inspect.isclass(value) and isinstance(vars(value).get(part[1:]), kinds)


def _results(name: str, value: Any) -> Iterator[str]:
    """What returns something says what, and of which shape a tensor is."""
    for part, function in _own_parts(value):
        if inspect.isclass(function):
            continue
        text = inspect.cleandoc(function.__doc__ or "")
        kind, told = _type_name(inspect.signature(function).return_annotation), text
        if not _is_property(value, part):
            field = _field(text, "returns")
            told = field[2] if field else ""
            nothing = re.match(r"(None|NoReturn|_?Self|Iterator\b.*|_?T)$", kind)
            if not field and not nothing:
                yield f"{name}{part} returns {kind} and does not tell"
                continue
        if _is_tensor(kind) and not SHAPE.search(told):
            yield f"{name}{part} does not tell the shape of what it returns"


def _shapes(name: str, value: Any) -> Iterator[str]:
    """Arguments that are tensors have a shape, or are told to take any."""
    for part, function in _own_parts(value):
        text = inspect.cleandoc(function.__doc__ or "")
        for argument in _signature(function):
            field = _field(text, rf"param [^:\n]*\b{re.escape(argument.name)}")
            if field is None:
                continue  # told by the check of arguments
            kind = _type_name(argument.annotation)
            if (_is_tensor(kind) or "Tensor" in field[1]) and not SHAPE.search(field[2]):
                yield f"{name}{part} does not tell the shape of {argument.name}"


@pytest.mark.long
@pytest.mark.parametrize(
    "check", [_arguments, _errors, _results, _shapes], ids=lambda check: check.__name__
)
def test_help_of_what_users_import(check: Callable[[str, Any], Iterator[str]]) -> None:
    assert len(EXPORTED) > 200
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

    def ratio(self) -> float:
        """The ratio of two numbers."""
        return 1.0

    def scaled(self, z: Tensor) -> Tensor:
        """
        Scales a tensor.

        :param torch.Tensor z: what to scale.
        :returns: the scaled one.
        """
        return 2.0 * z


@pytest.mark.parametrize(
    ("check", "faults"),
    [
        (_leans, ["by number", "say distribution", "leans on something", "none has no docstring"]),
        (_cites, ["cites without a title"]),
        (_counts, ["takes {'n_mc_draws'}", "does not take num_particles"]),
        (_arguments, ["does not tell of n_mc_draws"]),
        (_errors, ["Leaning raises and does not tell"]),
        (_results, ["ratio returns float", "scaled does not tell the shape of what"]),
        (_shapes, ["scaled does not tell the shape of z"]),
    ],
    ids=["leans", "cites", "counts", "arguments", "errors", "results", "shapes"],
)
def test_faults_are_told(check: Callable[[str, Any], Iterator[str]], faults: list[str]) -> None:
    found = list(check("pyro_implicit.objectives.Leaning", Leaning))
    assert len(found) == len(faults)
    for fault, told in zip(faults, found, strict=True):
        assert fault in told


def _without_a_word(module: Any) -> Iterator[tuple[str, str]]:
    """Public values of a module that are assigned in it and have no comment ``#:``."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and target.id in module.__all__:
                around = lines[node.lineno - 2].lstrip(), lines[node.end_lineno - 1]
                if not around[0].startswith("#:") and "  #: " not in around[1]:
                    said = f"{module.__name__}.{target.id} has no comment '#:' above it"
                    yield target.id, said


def _shown_values() -> set[str]:
    """Names of values, neither classes nor functions, on the pages of the reference."""
    beside, rooms = _shown()
    found = set()
    for info in pkgutil.walk_packages(pyro_implicit.__path__, "pyro_implicit."):
        shown = info.ispkg or info.name in beside or info.name.rpartition(".")[0] in rooms
        if "._" not in info.name and shown:
            module = importlib.import_module(info.name)
            values = {name: getattr(module, name) for name in getattr(module, "__all__", ())}
            found |= {
                name
                for name, value in values.items()
                if not (inspect.isclass(value) or inspect.isfunction(value))
            }
    return found


@pytest.mark.long
def test_every_public_value_has_a_word() -> None:
    # the site refuses it too, but sphinx is no package of the tests
    shown, found = _shown_values(), []
    assert shown
    for info in pkgutil.walk_packages(pyro_implicit.__path__, "pyro_implicit."):
        if "._main" not in info.name and not info.name.endswith("__main__"):
            module = importlib.import_module(info.name)
            if hasattr(module, "__all__"):
                found += [said for name, said in _without_a_word(module) if name in shown]
    assert not found
