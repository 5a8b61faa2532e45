"""Streams of random numbers."""

from __future__ import annotations

import ast
import io
import random
from pathlib import Path

import numpy as np
import pyro
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pyro_implicit
from pyro_implicit._random import (
    RandomStream,
    own_numbers,
    plain_state,
    read_random_state,
    seed_all,
    seed_torch,
    state_from_plain,
    torch_seeder,
    write_random_state,
)
from pyro_implicit.exceptions import StateError


def numbers():
    return torch.rand(()).item(), float(np.random.rand()), random.random()


def test_outside_goes_on_as_if_nothing_had_been_drawn():
    before = read_random_state()
    expected = [numbers() for _ in range(3)]
    write_random_state(before)
    stream, found = RandomStream(1), []
    for _ in range(3):
        with stream:
            numbers()
        found.append(numbers())
    assert found == expected


def test_inside_goes_on_where_it_was():
    first, second = RandomStream(1), RandomStream(1)
    with first:
        expected = [numbers() for _ in range(3)]
    found = []
    for _ in range(3):
        with second:
            found.append(numbers())
        numbers()
    assert found == expected
    with RandomStream(2):
        assert numbers() != expected[0]


def test_an_error_inside_leaves_the_outside_state():
    before = read_random_state()["torch"]
    with pytest.raises(KeyError), RandomStream(1):
        numbers()
        raise KeyError
    assert torch.equal(read_random_state()["torch"], before)


@pytest.mark.parametrize("used", [0, 3])
def test_own_numbers_take_one_of_the_others(used):
    torch.manual_seed(0)
    torch.randint(2**62, ())
    expected = torch.rand(())
    torch.manual_seed(0)
    with own_numbers() as seed:
        found = torch.rand(used)
    assert torch.equal(torch.rand(()), expected)
    assert torch.equal(found, torch.rand(used, generator=torch.Generator().manual_seed(seed)))


def test_leaving_twice_changes_nothing():
    stream = RandomStream(1)
    stream.__exit__()
    before = numbers()
    assert before != numbers()


def test_states_inside_and_outside_are_told_apart():
    stream = RandomStream(1)
    outside = read_random_state()
    with stream:
        torch.rand(())
        assert torch.equal(stream.outside["torch"], outside["torch"])
        assert torch.equal(stream.state["torch"], torch.get_rng_state())
    assert torch.equal(stream.outside["torch"], outside["torch"])
    other = RandomStream(5)
    other.state = stream.state
    with stream:
        expected = numbers()
    with other:
        assert numbers() == expected


def test_a_file_of_plain_values_brings_it_back():
    np.random.standard_normal()  # leaves half of a pair in NumPy's state
    random.gauss(0, 1)
    file = io.BytesIO()
    torch.save(plain_state(read_random_state()), file)
    expected = numbers(), np.random.standard_normal(), random.gauss(0, 1)
    file.seek(0)
    write_random_state(state_from_plain(torch.load(file, weights_only=True)))
    assert (numbers(), np.random.standard_normal(), random.gauss(0, 1)) == expected


@pytest.mark.parametrize("plain", [None, {}, {"numpy": [1], "random": [1, 2, 3]}])
def test_anything_else_is_refused(plain):
    with pytest.raises(StateError, match="the saved random state is not readable"):
        state_from_plain(plain)


@pytest.mark.parametrize("seed", [0, 7, 2**62 - 1])
def test_seeding_torch_gives_the_numbers_of_its_own_function(seed):
    seed_torch(seed)
    found = torch.get_rng_state(), torch.randn(3)
    torch.manual_seed(seed)
    assert torch.equal(found[0], torch.get_rng_state())
    assert torch.equal(found[1], torch.randn(3))


def test_seeding_torch_seeds_all_devices_where_there_are_others(monkeypatch):
    seeds = []
    monkeypatch.setattr(torch, "manual_seed", seeds.append)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    seed_torch(5)
    torch_seeder()(6)
    assert seeds == [5, 6]


@given(seed=st.integers(0, 2**32 - 1))
def test_quick_seeds_are_those_of_torch_and_pyro(seed: int) -> None:
    drawn = []
    for set_seed in (torch.manual_seed, seed_torch, pyro.set_rng_seed, seed_all):
        pyro.set_rng_seed(1)
        set_seed(seed)
        drawn.append(numbers())
    assert drawn[0] == drawn[1] and drawn[2] == drawn[3]


def test_a_stream_sets_all_devices_and_puts_all_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seed is set on all of them: what only the current one got back was lost to the others."""
    devices = [torch.Generator().manual_seed(number) for number in (7, 8)]
    cuda = torch.cuda
    monkeypatch.setattr(cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)
    monkeypatch.setattr(cuda, "get_rng_state_all", lambda: [one.get_state() for one in devices])
    monkeypatch.setattr(
        cuda, "set_rng_state", lambda state, number: devices[number].set_state(state)
    )

    def seed_everything(seed: int) -> None:
        for one in (torch.default_generator, *devices):
            one.manual_seed(seed)

    monkeypatch.setattr(torch, "manual_seed", seed_everything)
    before = [one.get_state() for one in devices]
    stream, drawn = RandomStream(3), []
    for _ in range(2):
        with stream:
            drawn.append([torch.rand(2, generator=one) for one in devices])
        assert all(map(torch.equal, before, cuda.get_rng_state_all()))
    assert torch.equal(drawn[0][0], drawn[0][1]) and not torch.equal(drawn[0][0], drawn[1][0])


def test_saved_states_of_devices_are_read_as_one_or_several() -> None:
    state = plain_state(read_random_state())
    one = torch.arange(4)
    assert state_from_plain(state | {"cuda": one})["cuda"][0] is one
    assert len(state_from_plain(state | {"cuda": [one, one]})["cuda"]) == 2


@pytest.mark.long
def test_numbers_of_a_generator_are_made_on_its_device() -> None:
    """Else on torch's default device, which ``torch.set_default_device("cuda")`` changes."""
    root, found = Path(pyro_implicit.__file__).parent, 0
    makers = ("rand", "randn", "randint", "randperm", "normal")
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            given = {keyword.arg for keyword in node.keywords}
            if node.func.attr in makers and "generator" in given:
                found += 1
                assert "device" in given, f"{path.relative_to(root)}:{node.lineno}"
            assert node.func.attr != "Generator" or node.args, f"{path.name}:{node.lineno}"
    assert found >= 8
