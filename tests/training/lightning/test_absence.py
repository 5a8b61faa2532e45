"""Without Lightning all the rest works, and what needs it says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pyro_implicit

WITHOUT = """
import sys
sys.modules["lightning"] = None  # as if it were not installed
import pyro_implicit
from pyro_implicit import *
assert {"LightningVI", "Anneal"} <= set(dir(pyro_implicit))
linear_schedule(0.0, 1.0, 5), ResumableLoader([1, 2])
try:
    pyro_implicit.LightningVI
except pyro_implicit.exceptions.MissingExtraError as error:
    print(error)
del sys.modules["lightning"]
assert not [name for name in sys.modules if name.startswith("lightning")]
"""


def test_without_lightning():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip install 'pyro_implicit[lightning]'" in done.stdout


def test_no_other_name_is_made_up():
    with pytest.raises(AttributeError, match="module 'pyro_implicit' has no attribute 'NoSuch'"):
        pyro_implicit.NoSuch  # noqa: B018


def test_with_lightning():
    lightning = pytest.importorskip("lightning.pytorch", reason="needs the extra 'lightning'")
    assert issubclass(pyro_implicit.LightningVI, lightning.LightningModule)
    assert issubclass(pyro_implicit.Anneal, lightning.Callback)
