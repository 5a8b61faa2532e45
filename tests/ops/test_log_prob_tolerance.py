"""Half precision is compared by a tolerance of its own, wherever it comes from."""

from __future__ import annotations

import pytest
import torch

from pyro_implicit.ops.log_prob_tolerance import is_half_precision, log_prob_tolerance


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_of_either_value(dtype: torch.dtype) -> None:
    one, half = torch.zeros(2), torch.zeros(2, dtype=dtype)
    assert not is_half_precision(one) and not is_half_precision(one.double())
    assert is_half_precision(half, one) and is_half_precision(one, half)
    assert log_prob_tolerance(one) < log_prob_tolerance(one, half)


def test_what_was_made_within_autocast_may_have_been() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert is_half_precision(torch.zeros(2))
