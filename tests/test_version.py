"""The version that the package tells of itself."""

from __future__ import annotations

import configparser
import importlib
from importlib import metadata
from pathlib import Path

import pytest

import pyro_implicit


def test_it_is_that_of_the_installed_package() -> None:
    assert pyro_implicit.__version__ == metadata.version("pyro-implicit")
    config = configparser.ConfigParser()
    config.read(Path(__file__).parents[1] / "setup.cfg")
    assert pyro_implicit.__version__ == config["metadata"]["version"]


def test_a_checkout_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", missing)
        version = importlib.reload(pyro_implicit).__version__
    assert version == "0+unknown"
    assert importlib.reload(pyro_implicit).__version__ == metadata.version("pyro-implicit")
