"""Scores of a datum follow its density, also where that is far off or of a user's own class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit import evaluate

_logits = st.lists(st.floats(-300.0, 300.0, width=32), min_size=3, max_size=3)

FAMILIES: dict[str, Callable[[Tensor], Any]] = {
    "bernoulli": lambda at: dist.Bernoulli(logits=at[:, 0]),
    "categorical": lambda at: dist.Categorical(logits=at),
    "one hot": lambda at: dist.OneHotCategorical(logits=at),
    "mixture": lambda at: dist.MixtureSameFamily(
        dist.Categorical(logits=torch.tensor([0.3, -40.0])),
        dist.Categorical(logits=torch.stack([at, at.flip(-1)], -2)),
    ),
}


def scores(fn: Callable[[Tensor], Any], at: Tensor, y: Tensor, num_samples: int = 1) -> Any:
    def model(at: Tensor, y: Tensor | None = None) -> None:
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(at)):
            pyro.sample("y", fn(at + shift), obs=y)

    def guide(at: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("shift", dist.Normal(0.0, 1.0))

    return evaluate(model, guide, at, y, num_samples=num_samples, seed=0).sites["y"].rows


@pytest.mark.parametrize("family", sorted(FAMILIES))
@given(at=_logits, num_samples=st.integers(1, 3), label=st.integers(0, 2))
def test_the_nll_of_a_class_is_minus_its_density(
    family: str, at: list[float], num_samples: int, label: int
) -> None:
    y = torch.tensor([min(label, 1)] * 2).float() if family == "bernoulli" else None
    y = torch.eye(3)[[label] * 2] if family == "one hot" else y
    y = torch.tensor([label] * 2) if y is None else y
    rows = scores(FAMILIES[family], torch.tensor([at, at[::-1]]), y, num_samples)
    assert bool(rows["nll"].isfinite().all())
    assert torch.allclose(rows["nll"], -rows["log_density"].double(), rtol=1e-5, atol=1e-5)


class Shifted(dist.Normal):
    """Draws and a density of its own, and the mean of the class that it was made from."""

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return super().rsample(torch.Size(sample_shape)) + 3.0

    def log_prob(self, value: Tensor) -> Tensor:
        return super().log_prob(value - 3.0)


class ShiftedWithMean(Shifted):
    @property
    def mean(self) -> Tensor:
        return self.loc + 3.0


@pytest.mark.parametrize("kind", [Shifted, ShiftedWithMean])
@pytest.mark.parametrize("is_event", [False, True])
def test_a_mean_that_is_not_of_its_density_is_no_prediction(kind: Any, is_event: bool) -> None:
    def fn(at: Tensor) -> Any:
        return kind(0.0 * at, 0.1).to_event(int(is_event))

    at = torch.zeros(4, 1) if is_event else torch.zeros(4)
    rows = scores(fn, at, at + 3.0, num_samples=50)
    assert float(rows["squared_error"].mean().sqrt()) < 0.1
