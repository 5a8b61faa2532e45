"""The tree of errors, and an import that does nothing but import."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import pyro_implicit
from pyro_implicit import exceptions

ROOT = Path(pyro_implicit.__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "pyro_implicit").rglob("*.py")
    if path.stem != "__main__"
)


def _python(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


WARNINGS = {"PerformanceHint"}


def test_hints_are_warnings_of_users_and_no_errors() -> None:
    for name in WARNINGS:
        kind = getattr(exceptions, name)
        assert issubclass(kind, UserWarning) and not issubclass(kind, exceptions.ImplicitError)


@pytest.mark.parametrize("name", sorted({*exceptions.__all__} - WARNINGS))
def test_every_error_is_ours_and_a_builtin_one(name: str) -> None:
    error = getattr(exceptions, name)
    assert issubclass(error, exceptions.ImplicitError)
    assert error.__doc__
    if error is not exceptions.ImplicitError:
        builtin = [base for base in error.__mro__ if base.__module__ == "builtins"]
        assert builtin[0] is not Exception


def test_all_errors_are_listed() -> None:
    found = [
        name
        for name, value in vars(exceptions).items()
        if inspect.isclass(value) and value.__module__ == exceptions.__name__
    ]
    assert sorted(found) == exceptions.__all__


def test_everything_promised_is_importable() -> None:
    assert sorted(pyro_implicit.__all__) == pyro_implicit.__all__
    for name in pyro_implicit.__all__:
        assert getattr(pyro_implicit, name).__doc__, name


def test_import_brings_in_no_optional_package_and_changes_nothing() -> None:
    """
    Nor does that of the export, or of the checks for others, and a recording loads no compiler;
    without Lightning, what needs it says what to install.
    """
    output = _python(
        "import sys, warnings, random\n"
        "import numpy, pyro, torch\n"
        "def state():\n"
        "    return (torch.get_default_dtype(), torch.is_grad_enabled(), pyro.settings.get(),\n"
        "            torch.get_rng_state().sum().item(), random.getstate(),\n"
        "            str(numpy.random.get_state()), list(pyro.get_param_store().keys()),\n"
        "            list(warnings.filters))\n"
        "before = state()\n"
        "import pyro_implicit\n"
        "assert state() == before\n"
        "optional = ['arviz', 'xarray', 'sklearn', 'matplotlib', 'torchvision', 'stochman',\n"
        "            'lightning', 'pandas', 'h5netcdf', 'IPython']\n"
        "def loaded():\n"
        "    return [name for name in optional if name in sys.modules]\n"
        "assert not loaded(), loaded()\n"
        "import pyro_implicit.arviz.to_arviz\n"
        "assert not loaded(), loaded()\n"
        "from pyro_implicit.ops.graphs.recording import trace_operations\n"
        "trace_operations(lambda x: x.exp() + torch.randn(2), torch.ones(2))\n"
        "assert 'torch._dynamo' not in sys.modules  # a second or two\n"
        "import pyro_implicit.testing  # which needs no test runner\n"
        "optional += ['pytest', 'hypothesis']\n"
        "assert not loaded(), loaded()\n"
        "sys.modules['lightning'] = None  # as if it were not installed\n"
        "from pyro_implicit import *\n"
        "assert 'LightningVI' in dir(pyro_implicit)\n"
        "pyro_implicit.training.linear_schedule(0.0, 1.0, 5)\n"
        "pyro_implicit.training.ResumableLoader([1, 2])\n"
        "try:\n"
        "    pyro_implicit.LightningVI\n"
        "except pyro_implicit.exceptions.MissingExtraError as error:\n"
        "    print(error)\n"
        "del sys.modules['lightning']\n"
        "assert not [name for name in sys.modules if name.startswith('lightning')]\n"
    )
    assert "pip install 'pyro_implicit[lightning]'" in output


# ---- who imports whom


@cache
def _imports(module: str, nested: bool) -> set[str]:
    """Modules that ``module`` imports on loading, or with ``nested`` also inside of functions."""
    path = Path(ROOT, *module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree)) if nested else list(tree.body)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (below & set(MODULES)) or {node.module}
    return found


def test_no_module_imports_itself_in_a_circle() -> None:
    graph = {name: _imports(name, nested=False) & set(MODULES) for name in MODULES}
    try:
        order = list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"circular import: {' -> '.join(error.args[1])}")
    assert set(order) == set(MODULES)


def _uses(layer: str, what: str) -> list[str]:
    """Modules of ``layer`` that import ``what`` or something below it."""
    return [
        f"{module} imports {name}"
        for module in MODULES
        if module.startswith(f"pyro_implicit.{layer}.")
        for name in _imports(module, nested=True)
        if name == what or name.startswith(f"{what}.")
    ]


#: from the ground up; those on one line are siblings, which do not know each other
FLOORS = (
    ("ops",),
    ("handlers",),
    ("generators", "bayesian"),
    ("distributions",),
    ("processes",),
    ("guides", "objectives"),
    ("inference",),
    ("arviz",),
    ("diagnostics", "training", "chains"),
    ("testing",),
)
ROOMS = [room for floor in FLOORS for room in floor]


def test_every_room_has_a_floor() -> None:
    found = {m.split(".")[1] for m in MODULES if m.count(".") > 1} - {"_main"}
    assert found == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_knowledge_goes_downwards_only(room: str) -> None:
    floor = next(i for i, names in enumerate(FLOORS) if room in names)
    for other in {name for names in FLOORS[floor:] for name in names} - {room}:
        assert _uses(room, f"pyro_implicit.{other}") == []


def test_operations_never_import_pyro() -> None:
    assert _uses("ops", "pyro") == []


def test_the_layers_are_found_at_all() -> None:
    assert _uses("guides", "pyro")
    assert _uses("distributions", "pyro_implicit.generators")
