"""Medians and quantiles from draws, for every kind of guide that has draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import EnsembleGuide, HyperNetworkGuide, refine
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.guides import draw_quantiles
from pyro_implicit.guides.draw_quantiles import DrawQuantiles


class _Fixed(DrawQuantiles):
    """Draws that are there."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def sample(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:  # type: ignore[override]
        return {"w": self.values[:num_samples]}


@pytest.mark.parametrize("most", [1, 7, 60, 2**23])
def test_they_are_those_of_numpy_whatever_is_taken_at_once(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draw_quantiles, "_MAX_NUMBERS_AT_ONCE", most)
    values = torch.randn(11, 3, 4)
    found = _Fixed(values).quantiles([0.1, 0.5, 0.83], num_samples=11)["w"]
    expected = np.quantile(values.numpy(), [0.1, 0.5, 0.83], axis=0)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)
    median = _Fixed(values[:, 0, 0]).median(num_samples=11)["w"]
    assert median.shape == () and median == values[:, 0, 0].median()


@pytest.mark.long
def test_more_numbers_than_torch_takes_at_once() -> None:
    values = torch.arange(3.0)[:, None].expand(3, 6_000_000)
    assert values.numel() > 2**24
    assert bool((_Fixed(values).median(num_samples=3)["w"] == 1).all())


@pytest.mark.long
def test_chains_and_ensembles_have_them() -> None:
    def model(y: Tensor) -> None:
        scale = pyro.sample("scale", dist.LogNormal(0.0, 0.1))
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("y", dist.Normal(w, 0.1 * scale).to_event(1), obs=y)

    y = torch.tensor([0.5, -0.5])
    chains = refine(model, 4, y, num_steps=20, num_warmup=10, mode_steps=100, progress=False)
    guide = HyperNetworkGuide(model).setup(y)
    for drawn in (chains, EnsembleGuide([guide, guide])):
        assert drawn.median(y, num_samples=30)["w"].shape == (2,)
        assert drawn.quantiles([0.2, 0.8], y, num_samples=30)["scale"].shape == (2,)
    assert torch.allclose(chains.median()["w"], y, atol=0.1)


@pytest.mark.parametrize("levels", [0.5, "half", [1.5], [None]])
def test_levels_are_numbers_between_0_and_1(levels: Any) -> None:
    with pytest.raises(ArgumentError, match="quantiles"):
        _Fixed(torch.zeros(3)).quantiles(levels)


def test_medians_and_quantiles_agree_and_leave_random_numbers_alone():
    def model():
        pyro.sample("a", dist.LogNormal(torch.zeros(3), 1.0).to_event(1))

    guide = HyperNetworkGuide(model, init_from=None).setup()
    pyro.set_rng_seed(5)
    expected = torch.rand(2)
    pyro.set_rng_seed(5)
    median, quantiles = guide.median(), guide.quantiles([0.1, 0.5])
    assert torch.equal(median["a"], quantiles["a"][1])
    assert torch.equal(guide.median()["a"], median["a"])
    assert torch.equal(torch.rand(2), expected)
