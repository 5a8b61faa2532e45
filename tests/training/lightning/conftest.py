"""What Lightning says of any small run on a CPU; everything else it warns of stays an error."""

from __future__ import annotations

import pytest

_EXPECTED = (
    # advice on speed, for data that are in memory
    "ignore:The '.*' does not have many workers",
    # most fits here have no validation data
    "ignore:You defined a `validation_step` but have no `val_dataloader`",
    # all tests ask for the CPU, also where there is a GPU
    "ignore:GPU available but not used",
    # resumed runs write their checkpoints elsewhere, so as not to touch those of the first run
    "ignore:The dirpath has changed from",
    # Lightning 2.6 with torch 2.15: its own use of torch's pytree
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "training" in item.path.parts:
            for text in _EXPECTED:
                item.add_marker(pytest.mark.filterwarnings(text))
