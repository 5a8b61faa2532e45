"""A guide that takes another one's parameters, by their names in Pyro's store, is told so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoMultivariateNormal, AutoNormal
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, fit

X = torch.linspace(-1, 1, 10)


def model(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    u = pyro.sample("u", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(w * x + u, 0.1), obs=y)


def fitted(guide: Any, **options: Any) -> Any:
    return fit(model, guide, X, X, num_steps=3, progress=False, **options)


@pytest.mark.parametrize("kind", [AutoNormal, AutoDelta, AutoMultivariateNormal])
@pytest.mark.parametrize("objective", [None, Trace_ELBO()])
def test_the_second_guide_of_a_class_takes_the_parameters_of_the_first(
    kind: type, objective: Any
) -> None:
    first = kind(model)
    fitted(first)
    with pytest.warns(UserWarning, match="those of another guide of the same class") as told:
        result = fitted(kind(model), objective=objective)
    assert str(told[0].message) in result.warnings
    assert ("and 1 more" in result.warnings[-1]) == (kind is AutoNormal)


@pytest.mark.long
def test_guides_with_names_of_their_own_are_left_alone() -> None:
    fitted(AutoNormal(model))
    fitted(AutoMultivariateNormal(model))
    fitted(HyperNetworkGuide(model))
    fitted(HyperNetworkGuide(model))
    pyro.clear_param_store()
    guide = AutoNormal(model)
    fitted(guide)
    fitted(guide)  # the same once more


@pytest.mark.long
def test_a_store_of_a_file_is_meant_to_be_taken(tmp_path: Path) -> None:
    guide = AutoNormal(model)
    fitted(guide)
    moved = guide.locs.w.detach().clone()
    pyro.get_param_store().save(str(tmp_path / "store"))
    pyro.clear_param_store()
    pyro.get_param_store().load(str(tmp_path / "store"))
    after = AutoNormal(model)
    fitted(after)
    assert (after.locs.w - moved).abs() < 0.1


def test_functions_are_left_alone() -> None:
    def guide(x: Tensor, y: Tensor | None = None) -> None:
        loc = pyro.param("loc", torch.tensor(0.0))
        pyro.sample("w", dist.Normal(loc, 1.0))
        pyro.sample("u", dist.Normal(loc, 1.0))

    for _ in range(2):
        fitted(guide)
