"""What an ``init_loc_fn`` returns must be a value of its site."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import init_to_value

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import ImplicitError, ShapeError, SiteError


def model() -> None:
    pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("scale", dist.LogNormal(0.0, 1.0))


@pytest.mark.parametrize(
    ("values", "error", "match"),
    [
        ({"w": torch.zeros(3)}, ShapeError, r"shape \(3,\) for latent site 'w', .* \(2,\)"),
        ({"scale": torch.tensor(-1.0)}, SiteError, "'scale' outside of its support"),
        ({"scale": torch.tensor(torch.nan)}, SiteError, "'scale' that is not finite"),
    ],
)
def test_starts_that_are_no_values(values: Any, error: type[ImplicitError], match: str) -> None:
    guide = HyperNetworkGuide(model, init_loc_fn=init_to_value(values=values))
    with pytest.raises(error, match=match):
        guide.setup()


def test_starts_that_are() -> None:
    values = {"w": torch.ones(2), "scale": torch.tensor(2.0)}
    guide = HyperNetworkGuide(model, init_loc_fn=init_to_value(values=values), init_scale=1e-3)
    guide.setup()
    assert torch.allclose(guide.median()["scale"], values["scale"], rtol=0.05)
