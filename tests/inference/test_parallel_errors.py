"""A model that does not vectorise is told to leave parallel out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, predict
from pyro_implicit.exceptions import ArgumentError, SiteError
from pyro_implicit.inference.parallel_errors import blames_parallel

X = torch.randn(60, 2)
GROUP = torch.arange(60) % 4


def _latents() -> Tensor:
    w: Tensor = pyro.sample("w", dist.Normal(torch.zeros(4, 2), 1.0).to_event(2))
    return w


MEANS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "by index": lambda w, x: w[GROUP[: len(x)], 0],
    "one entry": lambda w, x: w[0] @ x.mT,
    "products": lambda w, x: torch.stack([w[0, 0] * x[:, 0], w[1, 1] * x[:, 1]]).sum(0),
}


@pytest.mark.parametrize("rows", [20, 60])
@pytest.mark.parametrize("kind", MEANS)
def test_errors_of_shapes(kind: str, rows: int) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        mean = MEANS[kind](_latents(), x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup(X, X[:, 0])
    assert predict(model, guide, X[:rows], num_samples=3)["y"].shape == (3, rows)
    with pytest.raises(SiteError, match="leave parallel out"):
        predict(model, guide, X[:rows], num_samples=3, parallel=True)


@pytest.mark.parametrize("parallel", [False, True])
def test_what_is_no_matter_of_shapes_stays_as_it_is(parallel: bool) -> None:
    clear, parameter = ArgumentError("clear"), ValueError("Expected parameter loc ...")
    for error in (clear, parameter, torch.linalg.LinAlgError("singular"), KeyError("w")):
        with pytest.raises(type(error)) as found, blames_parallel(parallel):
            raise error
        assert found.value is error


def test_without_parallel_nothing_is_blamed() -> None:
    with pytest.raises(IndexError), blames_parallel(False):
        raise IndexError


def test_the_message_of_torch_is_kept() -> None:
    error: Any = IndexError("too many indices.")
    with pytest.raises(SiteError, match=r"fails with parallel=True, .*\(too many indices\)"):
        with blames_parallel(True):
            raise error
