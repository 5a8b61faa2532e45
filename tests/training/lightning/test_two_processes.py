"""Two processes: equal parameters, different noise, the gradient of the union of their batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning", reason="needs the extra 'lightning'")

from tests.training.lightning.problem import BATCH, ROWS, data, fit_module, flat

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]


def seen_by_ranks(folder, which, *names):
    """By name of the run, what each of the two processes saw."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.lightning.two_processes", str(folder), which],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {
        name: [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in (0, 1)]
        for name in names
    }


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Each process with batches of its own."""
    return seen_by_ranks(tmp_path_factory.mktemp("union"), "union", "union")["union"]


@pytest.fixture(scope="module")
def critics(tmp_path_factory):
    """Particles spread over processes: the same batches for both; with a critic; and resumed."""
    folder = tmp_path_factory.mktemp("critic")
    return seen_by_ranks(folder, "critic", "same batches", "resumed")


def gradient(batch, noise=None):
    """Of the same fit at its start, in this process."""
    vi = fit_module()
    vi.warm_up(data()[:BATCH])
    if noise is not None:
        torch.set_rng_state(noise)
    loss = vi(*batch)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(vi.parameters()))])


def assert_equal_and_noisy(first, second):
    assert torch.equal(first["start"], second["start"])
    assert torch.equal(first["grad"], second["grad"])
    assert torch.equal(first["end"], second["end"])
    assert not torch.equal(first["end"], first["start"])
    assert not torch.equal(first["noise"], second["noise"])


def test_parameters_are_the_same_bits_and_noise_is_not(ranks):
    assert_equal_and_noisy(*ranks)
    vi = fit_module()
    vi.warm_up(data()[:BATCH])
    assert torch.equal(flat(vi), ranks[0]["start"])


def test_the_noise_is_that_of_seed_plus_rank(ranks):
    for rank, seen in enumerate(ranks):
        assert torch.equal(seen["noise"], torch.Generator().manual_seed(5 + rank).get_state())


def test_the_batches_are_disjoint(ranks):
    rows = [{tuple(x.tolist()) for x in seen["batch"][0]} for seen in ranks]
    assert len(rows[0]) == len(rows[1]) == BATCH
    assert not rows[0] & rows[1]


def test_the_gradient_is_the_mean_of_both(ranks):
    """Each with its own batch and noise: so both scales are right, of data and of KL."""
    both = [gradient(seen["batch"], seen["noise"]) for seen in ranks]
    torch.testing.assert_close(ranks[0]["grad"], (both[0] + both[1]) / 2)


def test_that_mean_is_the_gradient_of_the_union_in_expectation(ranks):
    """At every noise, so in expectation over it: the mean over halves is the whole."""
    halves = [seen["batch"] for seen in ranks]
    union = [torch.cat(parts) for parts in zip(*halves, strict=True)]
    assert len(union[0]) == 2 * BATCH < ROWS
    noise = torch.Generator().manual_seed(0).get_state()
    mean = (gradient(halves[0], noise) + gradient(halves[1], noise)) / 2
    torch.testing.assert_close(mean, gradient(union, noise), rtol=1e-4, atol=1e-3)


def test_particles_spread_over_processes(critics):
    """The same batches, different noise, and a critic that stays the same."""
    first, second = critics["same batches"]
    assert_equal_and_noisy(first, second)
    assert all(torch.equal(a, b) for a, b in zip(first["batch"], second["batch"], strict=True))
    assert len(first["critic"]) == 1
    assert torch.equal(first["critic"][0], second["critic"][0])


def test_two_processes_resume_exactly(critics):
    for before, after in zip(critics["same batches"], critics["resumed"], strict=True):
        assert torch.equal(before["end"], after["end"])
        assert torch.equal(before["critic"][0], after["critic"][0])
        assert not torch.equal(before["noise"], after["noise"])  # it went on, each its own way
