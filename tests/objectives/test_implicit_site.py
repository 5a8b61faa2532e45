"""What the hook of an objective sees of one site: made by hand, it is looked at."""

from __future__ import annotations

import pytest
import torch

from pyro_implicit import ImplicitDistribution
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.objectives import ImplicitSite


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool])
def test_draws_are_real_numbers(dtype: torch.dtype) -> None:
    fn = ImplicitDistribution(MLPGenerator(2, 2, (3,)), scale=0.1)
    with pytest.raises(ArgumentError, match=f"value is of type {dtype}; expected the site's draws"):
        ImplicitSite("w", fn, torch.zeros(2, dtype=dtype), ("w",))
