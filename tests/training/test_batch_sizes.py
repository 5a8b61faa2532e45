"""Rows of each batch, beside those that a loader gives."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pyro_implicit import HyperNetworkGuide, fit
from pyro_implicit.training import ResumableLoader
from pyro_implicit.training.batch_sizes import num_rows_of_loader, sizes_of_loader
from pyro_implicit.training.fitting.arguments import Arguments

DATA = TensorDataset(torch.arange(26.0))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(5))


@pytest.mark.parametrize(("size", "drops"), [(8, False), (8, True), (13, False), (40, False)])
def test_they_are_those_that_it_gives(size: int, drops: bool) -> None:
    loader = DataLoader(DATA, batch_size=size, drop_last=drops)
    resumable = ResumableLoader(DATA, size, drop_last=drops)
    assert sizes_of_loader(loader) == [len(batch[0]) for batch in loader]
    assert num_rows_of_loader(loader) == 26
    assert sizes_of_loader(resumable) == sizes_of_loader(loader)
    assert Arguments((), loader, {}).batch_sizes == sizes_of_loader(loader)


def test_nobody_knows() -> None:
    shuffled = DataLoader(DATA, batch_size=8, shuffle=True)
    assert sizes_of_loader(shuffled) == [] and num_rows_of_loader(shuffled) == 26
    for loader in (DataLoader(Stream()), DataLoader(DATA, batch_size=None), [torch.ones(3)]):
        assert sizes_of_loader(loader) == [] and num_rows_of_loader(loader) == 0


def test_a_fit_tells_of_a_small_last_batch() -> None:
    def model(y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 10.0))
        with pyro.plate("data", 26, subsample_size=len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    def told(batches: Any) -> bool:
        guide = HyperNetworkGuide(model)
        result = fit(model, guide, batches=batches, num_steps=3, seed=0, progress=False)
        return any("the same in each epoch" in text for text in result.warnings)

    rows = torch.randn(26)
    with pytest.warns(UserWarning, match=r"have 2 to 8 rows, the same in .*shuffle=True"):
        assert told([(part,) for part in rows.split(8)])
    with pytest.warns(UserWarning, match=r"have 2 to 8 rows, the same in .*shuffle=True"):
        assert told(DataLoader(TensorDataset(rows), batch_size=8))
    assert not told(DataLoader(TensorDataset(rows), batch_size=8, shuffle=True))
    assert not told([(part,) for part in rows.split(13)])
