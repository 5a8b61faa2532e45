"""What ``help`` shows of every public name stands alone: words, shapes, sources."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
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
            if getattr(value, "__module__", None) == info.name:
                found[f"{info.name}.{name}"] = value
    return found


PUBLIC = _public()


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


@pytest.mark.parametrize("name", PUBLIC)
def test_help_stands_alone(name: str) -> None:
    for part, text in _texts(PUBLIC[name]).items():
        assert text, f"{name}{part} has no docstring"
        prose = _prose(text)
        assert not re.search(r"\[\d\]", prose), f"{name}{part} cites by number"
        assert not re.search(r"\(\w+, \)|(?<!\w)\[[A-Z](, ?[A-Z])*\]", text), (
            f"{name}{part}: shapes are written (N,) and (N, D)"
        )
        assert not re.search(r"\blaws?\b", prose), f"{name}{part}: say distribution"
        assert not re.match(r"(Of|As|Under|Whether it does|The same|The hook)\b\W", text), (
            f"{name}{part}: the summary leans on something that help does not show"
        )


@pytest.mark.parametrize("name", PUBLIC)
def test_who_cites_names_the_paper(name: str) -> None:
    text = _texts(PUBLIC[name])[""]
    if re.search(r"[a-z] \(?(19|20)\d\d\b", text) and (
        inspect.isclass(PUBLIC[name]) or ".ops." not in name
    ):
        assert re.search(r"^Sources?: ?(`|$)", text, re.MULTILINE), f"{name} cites without a title"


def _parameters(value: Any) -> set[str]:
    try:
        return set(inspect.signature(value).parameters)
    except ValueError:  # a builtin one, of an enumeration or an exception
        return set()


@pytest.mark.parametrize("name", PUBLIC)
def test_numbers_of_draws_have_one_name(name: str) -> None:
    """``num_particles`` for the draws of an objective, ``num_samples`` for all others."""
    value, objectives = PUBLIC[name], name.startswith("pyro_implicit.objectives.")
    for part, function in _parts(value):
        found = _parameters(function)
        other = {p for p in found if re.match(r"n_|num_draws$|.*(n|num)_(mc|posterior)_", p)}
        assert not other, f"{name}{part} takes {other}"
        assert objectives or "num_particles" not in found, f"{name}{part}: say num_samples"
    if inspect.isclass(value) and issubclass(value, ParticleObjective):
        takes = inspect.signature(value).parameters
        assert "num_particles" in takes or any(p.kind == p.VAR_KEYWORD for p in takes.values())
