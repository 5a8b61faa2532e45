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
