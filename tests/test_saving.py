"""States in files: whole or absent, and read only as they were written."""

from __future__ import annotations

import os
import random

import pyro
import pyro.distributions as dist
import pytest
import torch

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import ArgumentError, StateError
from pyro_implicit.saving import load_state, save_state


def guide():
    pyro.set_rng_seed(0)
    return HyperNetworkGuide(lambda: pyro.sample("w", dist.Normal(0.0, 1.0))).setup()


def test_a_guide_to_a_file_and_back(tmp_path):
    path, made = tmp_path / "guide.pt", guide()
    save_state(made.state_dict(), path)
    again = HyperNetworkGuide.from_state_dict(load_state(str(path)))
    for a, b in zip(made.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert os.listdir(tmp_path) == ["guide.pt"]


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_flipped_bit_or_missing_end_is_read_as_something_else(tmp_path, count):
    path = tmp_path / "guide.pt"
    state = {"w": torch.randn(200), "n": list(range(20))}
    save_state(state, path)
    good, draw, refused = path.read_bytes(), random.Random(0), 0
    for trial in range(count):
        content = bytearray(good)
        if trial % 5 == 0:
            content = content[: draw.randrange(len(good))]
        else:
            content[draw.randrange(len(good))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            found = load_state(path)
        except StateError:
            refused += 1
        else:  # a bit that nothing depends on: padding, a date
            assert torch.equal(found["w"], state["w"])
            assert found["n"] == state["n"]
    assert refused > count / 2


def test_what_is_no_state(tmp_path):
    path = tmp_path / "guide.pt"
    save_state({"w": torch.ones(1)}, path)
    with pytest.raises(StateError, match="neither tensor nor plain value"):
        save_state({"w": guide()}, path)
    for other in (lambda: 3, (i for i in ()), [os.listdir, lambda: 3]):
        with pytest.raises(StateError, match="neither tensor nor plain value, and cannot be saved"):
            save_state({"w": other}, path)
    assert load_state(path)["w"] == 1.0
    assert os.listdir(tmp_path) == ["guide.pt"]
    path.write_text("text")
    with pytest.raises(
        StateError, match="guide.pt cannot be read as a checkpoint: it is truncated"
    ):
        load_state(path)
    torch.save(torch.nn.Linear(1, 1), path)
    with pytest.raises(StateError, match="tensors and plain values alone"):
        load_state(path)
    with pytest.raises(FileNotFoundError):
        load_state(tmp_path / "absent")


def test_a_guide_in_place_of_its_state_is_told(tmp_path):
    with pytest.raises(ArgumentError, match=r"is a Linear itself.*linear.state_dict\(\)"):
        save_state(torch.nn.Linear(2, 1), tmp_path / "guide.pt")
    assert not list(tmp_path.iterdir())
