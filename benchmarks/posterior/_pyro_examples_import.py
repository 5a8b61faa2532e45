"""Modules of Pyro's examples, from a checkout."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer import config_enumerate

__all__ = ["load_example", "load_notebook"]

#: what some examples import to draw pictures or to fetch data, and need not be installed
_STAND_INS = ("visdom", "wget", "seaborn")


def load_example(clone: Path, file: str) -> ModuleType:
    """
    Imports an example; modules beside it are found as if it were run.

    :param Path clone: a checkout of Pyro.
    :param str file: below its folder ``examples``.
    :returns: the module. Handlers of logging, the default dtype and the list of modules are as
        before.
    """
    path = _file(clone, Path("examples") / file)
    spec = importlib.util.spec_from_file_location(f"pyro_example_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with _as_before(path.parent):
        spec.loader.exec_module(module)
    return module


def load_notebook(clone: Path, file: str, beginnings: Sequence[str]) -> ModuleType:
    """
    Runs some cells of a tutorial.

    :param Path clone: a checkout of Pyro.
    :param str file: below its folder ``tutorial/source``.
    :param beginnings: how the cells begin that are run, the others are left out.
    :returns: a module with what they define.
    """
    path = _file(clone, Path("tutorial") / "source" / file)
    module: Any = ModuleType(f"pyro_tutorial_{path.stem}")
    module.torch, module.pyro, module.dist, module.poutine = (
        torch,
        pyro,
        pyro.distributions,
        poutine,
    )
    module.config_enumerate = config_enumerate
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    for beginning in beginnings:
        (text,) = [text for text in texts if text.startswith(beginning)]
        exec(compile(text, str(path), "exec"), vars(module))
    return module


def _file(clone: Path, name: Path) -> Path:
    if not (clone / name).is_file():
        raise SystemExit(
            f"error: there is no {name} in {clone}: --pyro takes a checkout of Pyro at the version "
            "that is installed"
        )
    return clone / name


@contextmanager
def _as_before(folder: Path) -> Iterator[None]:
    """The folder's modules can be imported within, and nothing of it is left afterwards."""
    root, modules, dtype = logging.getLogger(), set(sys.modules), torch.get_default_dtype()
    handlers, level = list(root.handlers), root.level
    missing = [name for name in _STAND_INS if importlib.util.find_spec(name) is None]
    sys.modules.update({name: ModuleType(name) for name in missing})
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - modules:
            found = getattr(sys.modules[name], "__file__", None)
            if name in missing or (found is not None and Path(found).is_relative_to(folder)):
                del sys.modules[name]
        root.handlers[:] = handlers
        root.setLevel(level)
        torch.set_default_dtype(dtype)
