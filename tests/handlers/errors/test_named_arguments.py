"""Arguments by what they are called in messages."""

from __future__ import annotations

import torch

from pyro_implicit.handlers.errors.named_arguments import named_arguments, tensors_among


def test_by_place_or_by_name() -> None:
    x, y = torch.zeros(2), torch.ones(3)
    given = named_arguments((x, None), {"y": y, "k": 3})
    assert list(given) == ["argument 0", "argument 1", "y", "k"] and given["k"] == 3
    found = tensors_among((x, None), {"y": y, "k": 3})
    assert list(found) == ["argument 0", "y"] and found["y"] is y
