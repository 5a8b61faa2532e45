"""A mixture density guide for the latents of rows beside an implicit one for those of all."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuideList
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, MixtureDensityGuide, fit

NUM_ROWS = 20
X = torch.randn(NUM_ROWS, 2, generator=torch.Generator().manual_seed(0))
Y = X[:, 0] + 0.3


def rows(x: Tensor, y: Tensor | None = None) -> Any:
    return pyro.plate("rows", NUM_ROWS, subsample_size=len(x))


def model(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with rows(x):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        return pyro.sample("y", dist.Normal(w * x[:, 0] + 0.5 * z, 0.3), obs=y)


def test_a_fit_of_both_has_a_result() -> None:
    guide = AutoGuideList(model, create_plates=rows)
    guide.append(HyperNetworkGuide(poutine.block(model, hide=["z"]), init_from=None))
    part = MixtureDensityGuide(poutine.block(model, hide=["w"]))
    guide.append(part)
    result = fit(model, guide, X, Y, num_steps=3, progress=False, seed=0)
    assert len(result.history) == 3
    assert not part.is_bijective and not part.is_bijective_given_context
    assert not LinearisedELBO().is_bound_for(guide)
