"""Latents with an entropy and no prior are told of outside of fit too."""

from __future__ import annotations

import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, PosteriorPredictiveLoss, fit
from pyro_implicit.objectives import IWAE

KEEP = torch.tensor([True, True, False, True])
Y = torch.tensor([1.5, -0.3, -2.2, 0.6])
TOLD = "latent site 'a' is masked in 1 places, where its entropy counts"


def model(y: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 4), poutine.mask(mask=KEEP):
        a = pyro.sample("a", dist.Normal(w, 1.0))
        pyro.sample("y", dist.Normal(a, 0.5), obs=y)


@pytest.mark.parametrize("guide", [HyperNetworkGuide, AutoNormal])
@pytest.mark.parametrize("vectorise", [True, False])
def test_masked_latents_are_told_once(guide: Any, vectorise: bool) -> None:
    options: dict[str, Any] = {"init_from": None} if guide is HyperNetworkGuide else {}
    objective = (LinearisedELBO if guide is HyperNetworkGuide else IWAE)(
        2, vectorize_particles=vectorise
    )
    svi = SVI(model, guide(model, **options), pyro.optim.Adam({"lr": 0.01}), objective)
    with pytest.warns(UserWarning, match=TOLD) as caught:
        for _ in range(3):
            svi.step(Y)
    assert sum(TOLD in str(one.message) for one in caught) == 1


def test_a_guide_that_is_masked_too_and_a_loss_without_an_entropy_are_not() -> None:
    def masked(y: Tensor) -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 4), poutine.mask(mask=KEEP):
            pyro.sample("a", dist.Normal(0.5 * y, 0.5))

    guide = HyperNetworkGuide(model, init_from=None).setup(Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IWAE(2).loss(model, masked, Y)
        PosteriorPredictiveLoss(2).loss(model, guide, Y)


def _masked_by_method(y: Tensor) -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 4):
        pyro.sample("a", dist.Normal(0.5 * y, 0.5).mask(KEEP))


def _masked_nowhere(y: Tensor) -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 4), poutine.mask(mask=torch.ones(4, dtype=torch.bool)):
        pyro.sample("a", dist.Normal(0.5 * y, 0.5))


def _points(y: Tensor) -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 4):
        pyro.sample("a", dist.Delta(0.5 * y))


@pytest.mark.parametrize(
    ("guide", "told"),
    [
        (_masked_by_method, False),
        (_masked_nowhere, True),
        (_points, False),
        (AutoDelta(model), False),
        (AutoNormal(model), True),
    ],
)
def test_only_an_entropy_that_counts_is_told(guide: Any, told: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        IWAE(2).loss(model, guide, Y)
    assert any(TOLD in str(one.message) for one in caught) == told


def test_fit_tells_it_once() -> None:
    guide = HyperNetworkGuide(model, init_from=None)
    with pytest.warns(UserWarning, match=TOLD):
        result = fit(model, guide, Y, num_steps=3, progress=False)
    assert sum(TOLD in text for text in result.warnings) == 1
