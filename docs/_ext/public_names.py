"""
References to a public name, by whichever of its paths, lead to the one page that it has.

What is in the package and has no page, as a type in a signature may be, is shown as plain text.
What is not there at all stays unresolved, and Sphinx warns of it.
"""

from __future__ import annotations

import importlib
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def look_up(path: str) -> tuple[Any, str] | None:
    """The object at a dotted path, and what of the path is inside its class."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        try:
            for part in parts[cut:]:
                found = getattr(found, part)
        except AttributeError:
            return None
        return found, path
    return None


def names_of(path: str) -> list[str]:
    """Other paths under which the object at a path may have its page."""
    found = look_up(path)
    if found is None:
        return []
    value = found[0]
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is None or name is None:
        owner = look_up(path.rpartition(".")[0])
        if owner is None or not isinstance(owner[0], type):
            return []
        module, name = owner[0].__module__, f"{owner[0].__qualname__}.{path.rpartition('.')[2]}"
    packages = [module.rpartition(".")[0]]
    while "." in packages[-1]:
        packages.append(packages[-1].rpartition(".")[0])
    return [f"{module}.{name}", *(f"{package}.{name}" for package in packages)]


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element
) -> nodes.Element | None:
    """See ``missing-reference`` of Sphinx."""
    target = node.get("reftarget", "")
    if node.get("refdomain") != "py" or not target.startswith("pyro_implicit"):
        return None
    domain = env.get_domain("py")
    names = names_of(target)
    for name in names:
        if name in domain.objects:  # type: ignore[attr-defined]
            return domain.resolve_xref(
                env, node["refdoc"], app.builder, "obj", name, node, contnode
            )
    return contnode if names else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Tells Sphinx of it."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
