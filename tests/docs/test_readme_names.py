"""What README.md lists as a name can be written as it stands there."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import pyro_implicit

README = Path(__file__).parents[2] / "README.md"
LISTED = README.read_text(encoding="utf-8").split("## What there is")[1].split("\n[docs/]")[0]
#: what stands before the colon of an item, or in its whole if that has none
HEADS = [item.split(":")[0] for item in re.split(r"\n- ", LISTED)[1:]]
NAMES = sorted({name for head in HEADS for name in re.findall(r"`([A-Za-z_][\w.]*)`", head)})


def test_there_are_some() -> None:
    assert {"HyperNetworkGuide", "diagnostics.khat", "objectives.KPG"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_listed_name_is_where_it_says(name: str) -> None:
    package, _, last = name.rpartition(".")
    place = importlib.import_module(f"pyro_implicit.{package}") if package else pyro_implicit
    assert hasattr(place, last)  # LightningVI is imported when it is asked for
