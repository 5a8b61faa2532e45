"""The root: what is there, what needs Lightning, and where all other names are."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import pyro_implicit


def test_no_other_name_is_made_up():
    with pytest.raises(AttributeError, match="module 'pyro_implicit' has no attribute 'NoSuch'"):
        pyro_implicit.NoSuch  # noqa: B018


def test_names_that_are_not_of_daily_use_say_where_they_are():
    for home in pyro_implicit._SUBMODULES:
        package = importlib.import_module(f"pyro_implicit.{home}")
        for name in set(package.__all__) - set(vars(pyro_implicit)) - {"LightningVI"}:
            with pytest.raises(AttributeError, match=rf"{name!r}; it is in pyro_implicit\.\w+$"):
                getattr(pyro_implicit, name)
            assert hasattr(package, name)


def test_every_package_is_a_home():
    found = {one.name for one in pkgutil.iter_modules(pyro_implicit.__path__)}
    of_nobody = {"handlers", "ops"}  # whose names nobody needs by themselves
    assert {one for one in found if one[0] != "_"} - of_nobody == set(pyro_implicit._SUBMODULES)


def test_nothing_else_is_listed():
    listed = {name for name in dir(pyro_implicit) if name[:2] != "__"}
    assert listed == set(pyro_implicit.__all__) - {"__version__"} | {
        *pyro_implicit._SUBMODULES,
        "LightningVI",
    }


def test_with_lightning():
    lightning = pytest.importorskip("lightning.pytorch", reason="needs the extra 'lightning'")
    assert issubclass(pyro_implicit.LightningVI, lightning.LightningModule)
    from pyro_implicit.training.lightning import Anneal

    assert issubclass(Anneal, lightning.Callback)


def test_what_is_listed_is_there_without_another_import():
    """Seen by another process: here the tests before have imported all packages."""
    program = (
        "import pyro_implicit as package\n"
        "names = set(dir(package)) - {'LightningVI'}\n"
        "print(sorted(name for name in names if not hasattr(package, name)))"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
