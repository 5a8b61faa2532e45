"""Names that need Lightning; what holds without it is in tests/test_exceptions.py."""

from __future__ import annotations

import pytest

import pyro_implicit


def test_no_other_name_is_made_up():
    with pytest.raises(AttributeError, match="module 'pyro_implicit' has no attribute 'NoSuch'"):
        pyro_implicit.NoSuch  # noqa: B018


def test_with_lightning():
    lightning = pytest.importorskip("lightning.pytorch", reason="needs the extra 'lightning'")
    assert issubclass(pyro_implicit.LightningVI, lightning.LightningModule)
    from pyro_implicit.training.lightning import Anneal

    assert issubclass(Anneal, lightning.Callback)
