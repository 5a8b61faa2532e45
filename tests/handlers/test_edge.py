"""Observations at the edge of a support are told by name, where they have no likelihood."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.exceptions import NonFiniteError

KINDS: dict[str, Any] = {
    "Gamma": lambda w: dist.Gamma(w.exp() + 1.5, 1.0),
    "Beta": lambda w: dist.Beta(w.exp() + 1.5, 2.0),
}


def fitted(likelihood: Any, y: torch.Tensor, **around: Any) -> None:
    def model(y: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)), pyro.poutine.mask(mask=around.get("mask", True)):
            pyro.sample("y", likelihood(w), obs=y)

    fit(model, HyperNetworkGuide(model, init_from=None), y, num_steps=2, progress=False, seed=0)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_are_named(kind: str) -> None:
    y = torch.tensor([0.0, 0.5, 0.25, 0.0])
    with pytest.raises(NonFiniteError, match=f"'y' observes 2 values at the edge .* {kind} .*0"):
        fitted(KINDS[kind], y)


def test_rows_that_are_masked_do_not_count() -> None:
    y = torch.tensor([0.0, 0.5, 0.25])
    fitted(KINDS["Gamma"], y, mask=torch.tensor([False, True, True]))


def test_an_exponential_by_its_gamma_has_zeros() -> None:
    fitted(lambda w: dist.Gamma(torch.ones(()), w.exp()), torch.tensor([0.0, 0.5, 0.25]))
