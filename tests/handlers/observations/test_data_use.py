"""Data that were forgotten, or count too little, are told; models that are in order are not."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from pyro_implicit.handlers.observations.data_use import DataUse

X = torch.tensor([0.5, -1.0])


def model(x: Tensor | None, size: int = 2, subsample: int | None = None) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    pyro.deterministic("twice", 2 * mean)
    with pyro.plate("data", size, subsample_size=subsample):
        pyro.sample("x", dist.Normal(mean, 1.0), obs=x)


def with_factor() -> None:
    pyro.factor("prior", -pyro.sample("a", dist.Normal(0.0, 1.0)).square())


def local() -> None:
    """A latent for each datum, as in a variational autoencoder."""
    with pyro.plate("num_particles_vectorized", 3, dim=-2), pyro.plate("data", 2):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("x", dist.Normal(z, 1.0), obs=X)


def particles() -> None:
    with pyro.plate("num_particles_vectorized", 3, dim=-2):
        model(X)


def nothing() -> None:
    pyro.param("w", torch.zeros(()))


def seen(run: Callable[..., Any], *args: Any) -> DataUse:
    with DataUse() as use:
        run(*args)
    return use


@pytest.mark.parametrize(
    ("run", "args", "said"),
    [
        (model, (None,), r"each of its sample sites, 'mean', 'x', is a latent\. .* f\(x, y\), and"),
        (model, (X,), None),
        (with_factor, (), None),
        (nothing, (), None),
    ],
)
def test_nothing_observed(run: Any, args: Any, said: str | None) -> None:
    told = seen(run, *args).nothing_observed("f(x, y)")
    assert (told is None) == (said is None)
    if said is not None:
        pytest.raises(ValueError, _raise, told).match(said)


def _raise(text: str) -> None:
    raise ValueError(text)


def test_many_sites_are_told_by_the_first() -> None:
    def many() -> None:
        for i in range(8):
            pyro.sample(f"w{i}", dist.Normal(0.0, 1.0))

    assert "'w4' and 3 more, is" in str(seen(many).nothing_observed("f(x)"))


@pytest.mark.parametrize(
    ("run", "args", "is_told"),
    [
        (model, (X,), True),
        (particles, (), True),
        (model, (X, 10, 2), False),
        (poutine.scale(model, scale=5.0), (X,), False),
        (poutine.scale(model, scale=torch.tensor(5.0)), (X,), False),
        (local, (), False),
        (with_factor, (), False),
    ],
)
def test_batches_that_count_as_all_data(run: Any, args: Any, is_told: bool) -> None:
    told = seen(run, *args).unscaled_batches()
    assert (told is not None) == is_told
    if told is not None:
        assert "no observed site ('x') is scaled up" in told
        assert "pyro.plate('data', N, subsample_size=len(x))" in told


@pytest.mark.parametrize(
    ("args", "num_rows", "said"),
    [
        ((X, 20, 2), 2, "'data' has 20 rows, and 2 were handed over.* counts 10 times.*too narrow"),
        ((X, 20, 2), 40, r"20 rows, and 40 were .* counts 0.5 times.*too wide.*'data', 40, sub"),
        ((X, 20, 2), 20, None),  # a batch of all
        ((X, 20, 2), 0, None),  # a stream
        ((X, 2, None), 2, None),
    ],
)
def test_other_rows(args: Any, num_rows: int, said: str | None) -> None:
    told = seen(model, *args).other_rows(num_rows, 2)
    assert (told is None) if said is None else (told and re.search(said, told))


def test_batches_of_several_epochs_are_no_more_rows() -> None:
    assert seen(model, X, 20, 2).other_rows(40, 2, repeated=True) is None
    assert seen(model, X, 20, 2).other_rows(10, 2, repeated=True)


def test_a_plate_that_draws_its_own_rows_is_in_order() -> None:
    def draws() -> None:
        with pyro.plate("data", 8, subsample_size=2) as rows:
            pyro.sample("x", dist.Normal(0.0, 1.0), obs=torch.zeros(8)[rows])

    assert seen(draws).other_rows(8, 8) is None


def test_rows_of_small_batches_that_count_more_against_a_simulation() -> None:
    """The mean of the data where each row weighs as its batch does, in deviations of the mean."""
    sizes = [1000] * 6 + [50]
    weights = torch.cat([torch.full((n,), 6050 / (n * 7)) for n in sizes])
    data = torch.randn(400, 6050, generator=torch.Generator().manual_seed(0))
    shift = ((weights * data).mean(-1) - data.mean(-1)) * math.sqrt(6050)
    told = seen(model, X, 20, 2).uneven_batches(sizes)
    assert told and "50 to 1000 rows" in told and "counts 17.3 times" in told
    found = re.search(r"off by ([0-9.]+) of its deviations", told)
    assert found and abs(float(found[1]) / float(shift.square().mean().sqrt()) - 1) < 0.1


@pytest.mark.parametrize("sizes", [[], [64] * 15 + [40], [10] * 4])
def test_batches_that_are_even_enough(sizes: list[int]) -> None:
    assert seen(model, X, 20, 2).uneven_batches(sizes) is None


def test_uneven_batches_of_rows_with_latents_of_their_own_or_without_a_scale() -> None:
    def local(x: Tensor) -> None:
        with pyro.plate("data", 20, subsample_size=2):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(z, 1.0), obs=x)

    assert seen(local, X).uneven_batches([10, 1]) is None
    assert seen(model, X, 2, None).uneven_batches([10, 1]) is None
    assert "scaled up" in str(seen(model, X, 2, None).several_batches([10, 1]))
