"""What goes with held-out arguments, of the keyword arguments of training."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, fit, log_predictive_density
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.training.fitting.validation import held_keywords

X, Y = torch.randn(8, 2), torch.randn(8)
X_HELD, Y_HELD = torch.randn(8, 2), torch.randn(8)


def model(x: Tensor, y: Tensor | None = None, scale: float = 1.0, mask: Any = True) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        mean = (x * w[..., None, :]).sum(-1)
        pyro.sample("y", dist.Normal(mean, scale).mask(mask), obs=y)


def test_a_held_out_argument_stands_for_the_keyword_of_training() -> None:
    guide = HyperNetworkGuide(model)
    options: Any = {"num_steps": 100, "seed": 0, "progress": False, "scale": 2.0}
    result = fit(model, guide, X, y=Y, validation=(X_HELD, Y_HELD), **options)
    score = log_predictive_density(
        model, guide, X_HELD, Y_HELD, scale=2.0, num_samples=50, seed=0
    ).mean()
    assert result.scores[100] == pytest.approx(float(score))


def by_name(*, x: Tensor, y: Tensor | None = None, scale: float = 1.0) -> None:
    model(x, y, scale)


@pytest.mark.parametrize("either", [model, by_name])
def test_a_dictionary_is_held_out_arguments_by_name(either: Any) -> None:
    guide = HyperNetworkGuide(either)
    options: Any = {"num_steps": 100, "seed": 0, "progress": False, "scale": 2.0}
    result = fit(either, guide, x=X, y=Y, validation={"x": X_HELD, "y": Y_HELD}, **options)
    score = log_predictive_density(
        either, guide, x=X_HELD, y=Y_HELD, scale=2.0, num_samples=50, seed=0
    ).mean()
    assert result.scores[100] == pytest.approx(float(score))
    with pytest.raises(ArgumentError, match=r"y= is what the model observed in training"):
        fit(either, guide, x=X, y=Y, validation={"x": X_HELD}, **options)


@pytest.mark.parametrize("validation", [{}, {0: X}, (), [X, Y], 3])
def test_what_is_no_arguments_is_refused(validation: Any) -> None:
    with pytest.raises(ArgumentError, match=r"expected held-out arguments .* \{'x': x_validation"):
        fit(model, HyperNetworkGuide(model), X, Y, validation=validation, progress=False)


@pytest.mark.parametrize("y", [Y, torch.stack([Y, Y])[0]])
def test_held_out_rows_are_not_compared_with_data_of_training(y: Tensor) -> None:
    guide = HyperNetworkGuide(model)
    with pytest.raises(ArgumentError, match=r"y= is what the model observed in training"):
        fit(model, guide, X, y=y, validation=(X_HELD,), num_steps=100, progress=False)


def test_what_else_is_kept() -> None:
    mask = torch.tensor([True, False] * 4)
    assert held_keywords(model, (X, Y, 1.0, mask), (X,), {"y": Y, "mask": mask}) == {}
    kept = held_keywords(model, (X_HELD, Y_HELD), (X, Y), {"scale": 2.0})
    assert kept == {"scale": 2.0}
    kept = held_keywords(model, (X,), (X,), {"y": Y, "mask": mask})  # the same rows, masked
    assert set(kept) == {"y", "mask"}
    kept = held_keywords(model, (None,), (X,), {"y": Y})  # told by the first score
    assert set(kept) == {"y"}
    score = held_keywords(model, lambda: 0.0, (X,), {"y": Y})
    assert set(score) == {"y"}


def test_names_behind_args_have_no_place() -> None:
    def rest(*data: Tensor, scale: float = 1.0) -> None:
        model(*data, scale=scale)

    assert held_keywords(rest, (X_HELD, Y_HELD), (X, Y), {"scale": 0.1}) == {"scale": 0.1}


def test_observations_of_no_row_and_sparse_ones_go_along() -> None:
    def side_model(x: Tensor, y: Tensor | None = None, *, side: Tensor, graph: Any = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("side", dist.Normal(w, 1.0).expand([8]).to_event(1), obs=side)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x[:, 0] * w, 1.0), obs=y)

    kwargs: Any = {"side": torch.randn(8), "graph": torch.eye(8).to_sparse()}
    assert held_keywords(side_model, (X_HELD, Y_HELD), (X, Y), kwargs) == kwargs


def test_a_dictionary_of_other_names_is_refused() -> None:
    def of_one(data: dict[str, Tensor]) -> None:
        model(data["x"], data["y"])

    batch = {"x": X, "y": Y}
    options: Any = {"num_steps": 3, "progress": False}
    told = r"validation has x, y, and the model takes data.*validation=\(held,\)"
    with pytest.raises(ArgumentError, match=told):
        fit(of_one, HyperNetworkGuide(of_one), batch, validation=batch, **options)
    fit(of_one, HyperNetworkGuide(of_one), batch, validation=(batch,), **options)
