"""Model and guide in the wrong order are told by every objective, in a loop of one's own too."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import AlphaEnergy, HyperNetworkGuide, KernelDensityRatioELBO, LinearisedELBO
from pyro_implicit.exceptions import ArgumentError

X = torch.randn(4)


def model(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w, 1.0), obs=x)


@pytest.mark.parametrize("kind", [LinearisedELBO, KernelDensityRatioELBO, AlphaEnergy])
@pytest.mark.parametrize("guide", [AutoNormal, HyperNetworkGuide])
@pytest.mark.parametrize("call", ["step", "evaluate_loss", "differentiable_loss"])
def test_swapped(kind: type, guide: type, call: str) -> None:
    objective, other = kind(num_particles=4), guide(model)
    svi = SVI(other, model, pyro.optim.Adam({"lr": 0.01}), objective)
    with pytest.raises(ArgumentError, match=r"model and guide are swapped\. Write SVI\(model, gu"):
        if call == "differentiable_loss":
            objective.differentiable_loss(other, model, X)
        else:
            getattr(svi, call)(X)
