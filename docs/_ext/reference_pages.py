"""Pages of the reference, written from ``__all__``: a new public name is in it by itself."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.pycode import ModuleAnalyzer

import pyro_implicit

#: modules beside the sub-packages that users import from
MODULES = (
    "pyro_implicit.diagnostics.plots",
    "pyro_implicit.exceptions",
    "pyro_implicit.guides.initialization.gaussian_start",
    "pyro_implicit.guides.initialization.start_report",
    "pyro_implicit.guides.sampler",
    "pyro_implicit.saving",
    "pyro_implicit.training.lightning",
    "pyro_implicit.training.lightning.checkpoint_io",
)
SHOWN = {"pyro_implicit.ops"}  # its modules, name by name; handlers are nobody's to import


def public_modules() -> dict[str, ModuleType]:
    """What has a page: sub-packages, then some modules, then the modules of rooms without names."""
    found = {}
    for info in pkgutil.walk_packages(pyro_implicit.__path__, "pyro_implicit."):
        room = info.name.rpartition(".")[0]
        if "._" in info.name:
            continue
        if (info.ispkg and room == "pyro_implicit") or info.name in MODULES or room in SHOWN:
            module = importlib.import_module(info.name)
            if getattr(module, "__all__", ()):
                found[info.name] = module
    return dict(sorted(found.items()))


def is_data(value: Any) -> bool:
    """Whether a public value has no docstring of its own."""
    return not (inspect.isclass(value) or inspect.isfunction(value))


def described(module: ModuleType, name: str) -> str:
    """A public value that has no docstring of its own, with the comment above its definition."""
    for other in sys.modules.copy():
        if other == module.__name__ or other.startswith(f"{module.__name__}."):
            found = ModuleAnalyzer.for_module(other).find_attr_docs().get(("", name))
            if found:
                text = "\n   ".join(found)
                return f".. py:data:: {module.__name__}.{name}\n\n   {text}\n"
    raise ValueError(f"{module.__name__}.{name} has no comment '#:' above its definition.")


def page(name: str, module: ModuleType) -> str:
    """A module's docstring and a table of its names, each with a page of its own."""
    text = inspect.cleandoc(module.__doc__ or "")
    words = text.partition("\nReferences\n")[0].strip()
    public = sorted(module.__all__, key=str.lower)
    data = [one for one in public if is_data(getattr(module, one))]
    names = "\n".join(f"   ~{name}.{one}" for one in public if one not in data)
    title = name.removeprefix("pyro_implicit.")
    return (
        f"{title}\n{'=' * len(title)}\n\n{words}\n\n"
        f".. autosummary::\n   :toctree: names\n   :nosignatures:\n\n{names}\n\n"
        + "\n".join(described(module, one) for one in data)
    )


def file_names() -> dict[str, str]:
    """Pages whose names differ in the case of letters alone, and cannot be files everywhere."""
    names = [f"{m}.{n}" for m, module in public_modules().items() for n in module.__all__]
    count = Counter(name.lower() for name in names)
    return {
        name: f"{name}-class"
        for name in names
        if count[name.lower()] > 1 and inspect.isclass(look_up(name))
    }


def look_up(name: str) -> Any:
    """The value of a public name of a module."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def root_table() -> str:
    """Names of daily use, with links to their pages."""
    rows = []
    for name in pyro_implicit.__all__:
        value = getattr(pyro_implicit, name)
        if not name.startswith("__"):
            kind = "class" if inspect.isclass(value) else "func"
            summary = inspect.cleandoc(value.__doc__ or "").partition("\n")[0]
            rows.append(f"   * - :{kind}:`~pyro_implicit.{name}`\n     - {summary}")
    return ".. list-table::\n   :widths: auto\n\n" + "\n".join(rows) + "\n"


def write(app: Sphinx, config: Config) -> None:
    """Writes the pages that have changed."""
    config.autosummary_filename_map = file_names()
    folder = Path(app.srcdir) / "reference"
    texts = {"_root.inc": root_table()}
    for name, module in public_modules().items():
        texts[name.removeprefix("pyro_implicit.").replace(".", "_") + ".rst"] = page(name, module)
    # by name: pages that are new in this build are not yet known to Sphinx
    config.autosummary_generate = [f"reference/{file}" for file in texts if file.endswith(".rst")]
    for file, text in texts.items():
        target = folder / file
        if not target.exists() or target.read_text() != text:
            target.write_text(text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tells Sphinx of it."""
    app.connect("config-inited", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
