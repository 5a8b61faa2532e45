"""The bases of guides are refused at once, and what fills their hooks is not."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
from torch import nn

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.guides import ConditionalGuide, ImplicitGuide


def model() -> Any:
    return pyro.sample("z", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize("base", [ImplicitGuide, ConditionalGuide])
def test_a_base_is_refused_when_it_is_made(base: type[ImplicitGuide]) -> None:
    with pytest.raises(ArgumentError, match=f"{base.__name__} is a base without a generator"):
        base(model)


def test_either_hook_will_do() -> None:
    class ByGenerator(ImplicitGuide):
        def _make_generator(self, output_dim: int, sites: Any, preconditioned: bool) -> Any:
            return MLPGenerator(noise_dim=output_dim, output_dim=output_dim)

    class BySampler(ConditionalGuide):
        def _make_sampler(self, sites: Any, start: Any) -> Any:
            return nn.Identity()

    guide = ByGenerator(model, init_from=None)
    guide()
    assert guide.sample(3)["z"].shape == (3,)
    assert isinstance(BySampler(model), ConditionalGuide)
