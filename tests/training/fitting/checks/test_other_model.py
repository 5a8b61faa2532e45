"""A guide that was made for another model is blamed where that fails."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.exceptions import GuideError, ShapeError, SiteError

X = torch.randn(10, 2)
Y = X.sum(-1)


def line(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x * w).sum(-1), 1.0), obs=y)


def of_three(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def of_one_argument(x: Tensor) -> None:
    pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))


def of_others(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("v", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize("kind", [HyperNetworkGuide, AutoNormal])
@pytest.mark.parametrize("other", [of_three, of_one_argument])
def test_its_model_does_not_run(kind: Any, other: Any) -> None:
    with pytest.raises(GuideError, match=rf"another model \({other.__name__}\), which"):
        fit(line, kind(other), X, Y, num_steps=2, progress=False)


@pytest.mark.parametrize("kind", [HyperNetworkGuide, AutoNormal])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_its_latents_have_other_shapes(kind: Any, is_loaded: bool) -> None:
    """Which the model indexes before anybody compares them."""

    def number(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x[:, 0] * w, 1.0), obs=y)

    def indexed(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x[:, 0] * w[..., 0] + w[..., 1], 1.0), obs=y)

    guide = kind(number)
    guide(X, Y)
    if is_loaded and kind is HyperNetworkGuide:
        guide = kind.from_state_dict(guide.state_dict())
    with pytest.raises(ShapeError, match=r"latent 'w' has shape \(2,\) in the model"):
        fit(indexed, guide, X, Y, num_steps=2, progress=False)


@pytest.mark.filterwarnings("ignore:Found")
def test_it_draws_nothing_of_the_model() -> None:
    with pytest.raises(SiteError, match=r"the guide draws \['v'\], none of which"):
        fit(line, AutoNormal(of_others), X, Y, num_steps=2, progress=False)


def test_errors_of_the_model_itself_stay() -> None:
    for guide in (HyperNetworkGuide(of_three), HyperNetworkGuide(line)):
        with pytest.raises(ShapeError):
            fit(of_three, guide, X, Y, num_steps=2, progress=False)
