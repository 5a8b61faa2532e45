"""The root: what is there, what needs Lightning, and where all other names are."""

from __future__ import annotations

import pytest

import pyro_implicit


def test_no_other_name_is_made_up():
    with pytest.raises(AttributeError, match="module 'pyro_implicit' has no attribute 'NoSuch'"):
        pyro_implicit.NoSuch  # noqa: B018


@pytest.mark.parametrize(
    "home, name",
    [("generators", "MLPGenerator"), ("training", "EarlyStopping"), ("diagnostics", "khat")],
)
def test_names_that_are_not_of_daily_use_say_where_they_are(home, name):
    with pytest.raises(AttributeError, match=f"{name!r}; it is in pyro_implicit.{home}$"):
        getattr(pyro_implicit, name)
    assert hasattr(getattr(pyro_implicit, home), name)


def test_with_lightning():
    lightning = pytest.importorskip("lightning.pytorch", reason="needs the extra 'lightning'")
    assert issubclass(pyro_implicit.LightningVI, lightning.LightningModule)
    from pyro_implicit.training.lightning import Anneal

    assert issubclass(Anneal, lightning.Callback)
