"""A loader whose batches depend on seed, epoch and place alone."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from pyro_implicit.exceptions import ArgumentError, StateError
from pyro_implicit.training import ResumableLoader


class Noisy(Dataset):
    """Random augmentation by three libraries."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        return index, torch.rand(()), np.random.rand(), random.random()


def loader(rows=10, seed=0, **options):
    return ResumableLoader(Noisy(rows), batch_size=3, shuffle=True, seed=seed, **options)


def epochs(loader, count):
    """All batches as nested lists, with other draws in between."""
    found = []
    for _ in range(count):
        for batch in loader:
            torch.rand(3), np.random.rand(), random.random()
            found.append([part.tolist() for part in batch])
    return found


def test_it_is_a_data_loader():
    found = [row for batch in epochs(loader(), 1) for row in batch[0]]
    assert sorted(found) == list(range(10)) != found
    assert isinstance(loader(), DataLoader)
    assert len(loader()) == 4
    x = torch.arange(6)
    plain = ResumableLoader(TensorDataset(x), batch_size=4)
    assert [batch[0].tolist() for batch in plain] == [[0, 1, 2, 3], [4, 5]]


def test_batches_depend_on_the_seed_and_the_epoch_alone():
    first = epochs(loader(), 2)
    torch.rand(100)
    assert epochs(loader(), 2) == first
    assert first[:4] != first[4:]
    assert epochs(loader(seed=1), 2) != first


def test_nobody_elses_random_numbers_change():
    torch.manual_seed(0)
    expected = torch.rand(5)
    torch.manual_seed(0)
    epochs_left = iter(loader())
    found = []
    for _ in range(5):
        found.append(torch.rand(()))
        next(epochs_left, None)
    assert torch.equal(torch.stack(found), expected)


@pytest.mark.long
@settings(max_examples=25)
@given(st.integers(1, 11), st.integers(0, 30))
def test_it_goes_on_from_any_place(rows, batches):
    whole = loader(rows)
    everything = itertools.chain.from_iterable(iter(lambda: list(whole), None))
    for _ in range(batches % (3 * len(whole)) + 1):
        next(everything)
    again = loader(rows)
    # the place of the last batch that was given, as Lightning would save it there
    count = batches % (3 * len(whole))
    reached = {"epoch": count // len(whole), "batch": count % len(whole) + 1}
    again.load_state_dict(again.state_dict() | reached)
    left = epochs(again, 3 - reached["epoch"] - (reached["batch"] == len(again)))
    assert left == epochs(loader(rows), 3)[count + 1 :]


def test_the_place_is_that_of_the_batch_last_given():
    made = loader()
    start = {"seed": 0, "epoch": 0, "batch": 0, "batches": 4, "rows": 10, "batch_size": 3}
    assert made.state_dict() == start
    batches = iter(made)
    next(batches), next(batches)
    assert made.state_dict() == start | {"batch": 2}
    list(batches)
    next(iter(made))
    assert made.state_dict() == start | {"epoch": 1, "batch": 1}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:os.fork")  # of jax, where another test has imported it
def test_with_workers():
    """Their seeds come from the same stream."""
    whole = epochs(loader(num_workers=2), 2)
    again = loader(num_workers=2)
    again.load_state_dict(again.state_dict() | {"batch": 3})
    assert epochs(again, 2) == whole[3:]


def test_other_states_are_refused():
    with pytest.raises(StateError, match=r"saved with seed=1; this loader has seed=0"):
        loader().load_state_dict(loader(seed=1).state_dict())
    for state in ({}, {"epoch": 0}, None):
        with pytest.raises(StateError, match="not the place of a ResumableLoader: .*; expected"):
            loader().load_state_dict(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 4}, "saved with batch_size=4; this loader has batch_size=3"),
        ({"rows": 11}, "saved with rows=11; this loader has rows=10"),
        ({"batch": -1}, "batch is -1; expected integers >= 0"),
        ({"epoch": -1}, "epoch is -1"),
        ({"epoch": 1.0}, "epoch is 1.0"),
        ({"batch": True}, "batch is True"),
        ({"batch": 10**9}, "no more batches than the epoch has"),
        ({"seed": "0"}, "saved with seed='0'"),
    ],
)
def test_the_place_of_another_loader_is_refused(change, message):
    made = loader()
    before = made.state_dict()
    with pytest.raises(StateError, match=message):
        made.load_state_dict(before | change)
    assert made.state_dict() == before


class Endless(IterableDataset):
    def __iter__(self):
        return itertools.count()


def test_what_cannot_be_resumed_is_refused():
    with pytest.raises(ArgumentError, match="Endless is an iterable dataset"):
        ResumableLoader(Endless())
    with pytest.raises(ArgumentError, match="generator= was given.*seed="):
        loader(generator=torch.Generator())
    with pytest.raises(ArgumentError, match="persistent_workers=True"):
        loader(num_workers=1, persistent_workers=True)
