"""The tree of errors, and an import that does nothing but import."""

from __future__ import annotations

import inspect
import subprocess
import sys
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


@pytest.mark.parametrize("name", exceptions.__all__)
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
        "print([name for name in optional if name in sys.modules])\n"
    )
    assert output == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("module", MODULES)
def test_every_module_can_be_imported_first(module: str) -> None:
    """No circular import that only the usual order of imports hides."""
    _python(f"import {module}")


def test_ops_do_not_know_pyro() -> None:
    for module in MODULES:
        if module.startswith("pyro_implicit.ops"):
            text = Path(ROOT, *module.split(".")).with_suffix(".py")
            if text.exists():
                assert "import pyro\n" not in text.read_text()
                assert "from pyro " not in text.read_text()
                assert "from pyro." not in text.read_text()


def test_guides_do_not_know_objectives() -> None:
    for module in MODULES:
        if module.startswith("pyro_implicit.guides"):
            path = Path(ROOT, *module.split(".")).with_suffix(".py")
            assert not path.exists() or "pyro_implicit.infer" not in path.read_text()
