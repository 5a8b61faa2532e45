"""The judge of guides of latents of each row, against what is known exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from torch import Tensor

from benchmarks.common import fixed_seed
from benchmarks.posterior import own_guides
from benchmarks.posterior._own_guides_digits import digits, mnist
from benchmarks.posterior._own_guides_fits import LOOPED, METHODS, fitted, rehearsed
from benchmarks.posterior._own_guides_judge import judged
from benchmarks.posterior._own_guides_problem import Problem
from benchmarks.posterior._own_guides_sequences import MarkovModel, sequences
from pyro_implicit import ConditionalHyperNetworkGuide, fit


def _from_the_prior(known: MarkovModel, x: Tensor, num: int) -> Tensor:
    """Log evidence by a large sample of the prior: nothing is resampled, nothing is proposed."""
    z, total = torch.randn(num, 2), torch.zeros(len(x), num)
    for step in range(known.num_steps):
        z = z if step == 0 else known.moved(z).sample()
        bits = known.shown(z).logits.unsqueeze(0)
        total += torch.distributions.Bernoulli(logits=bits).log_prob(x[:, step, None]).sum(-1)
    return total.logsumexp(-1) - math.log(num)


@pytest.fixture(scope="module")
def brute() -> tuple[Tensor, Tensor]:
    """Log evidence of twelve sequences of three steps, and the state of torch's generator then."""
    with fixed_seed(0):
        found = _from_the_prior(MarkovModel(3, 12), sequences(3, 12, 1).train, 200_000)
        return found, torch.get_rng_state()


@pytest.fixture()
def short(brute: tuple[Tensor, Tensor]) -> Iterator[tuple[Problem, Tensor]]:
    """Those sequences, and their log evidence."""
    found, state = brute
    with fixed_seed(0):
        problem = sequences(3, 12, 1)
        torch.set_rng_state(state)
        yield problem, found


@pytest.mark.long
def test_the_filter_agrees_with_a_large_sample_of_the_prior(short: Any) -> None:
    """A filter is right in the mean of likelihoods, and now and then a tenth of a nat low."""
    problem, brute = short
    filtered = torch.stack([problem.evidence(problem.train) for _ in range(16)])
    assert torch.allclose(filtered.logsumexp(0) - math.log(16), brute, atol=0.04)


@pytest.mark.long
@pytest.mark.parametrize("whose", ["own", "ours"])
def test_the_judge_agrees_with_a_large_sample_of_the_prior(whose: str, short: Any) -> None:
    problem, brute = short
    x = problem.train
    guide = problem.own if whose == "own" else ConditionalHyperNetworkGuide(problem.model)
    bound_of_pyro = Trace_ELBO(8, vectorize_particles=True, max_plate_nesting=1)
    objective = bound_of_pyro if whose == "own" else None
    fit(problem.model, guide, x, objective=objective, num_steps=100, lr=0.02, progress=False)
    evidence, bound = judged(problem, guide, x, 4000)
    assert evidence == pytest.approx(float(brute.mean()), abs=0.1)
    assert bound < evidence
    told = -bound_of_pyro.loss(problem.model, guide, x) / len(problem.train)
    assert bound == pytest.approx(told, abs=0.5)


@pytest.mark.long
def test_rows_are_judged_by_their_own_values() -> None:
    with fixed_seed(0):
        problem = digits()
        guide = METHODS["AutoNormal"].guide(problem)
        numbers = torch.arange(len(problem.train))
        guide(problem.train, numbers)
        with torch.no_grad():
            guide.locs.z[60:] += 5.0  # far from the prior
        near, far = slice(0, 60), slice(60, 120)
        scores = [judged(problem, guide, problem.train[s], 10, numbers[s])[1] for s in (near, far)]
    assert scores[1] < scores[0] - 30


@pytest.mark.long
@pytest.mark.parametrize("method", [m for m in METHODS if m != "AutoNormal"])
def test_fits_learn_encoder_and_decoder(method: str) -> None:
    settings = own_guides.SETTINGS | {"cpu_seconds": 0.5, "rehearsal": 8}
    with fixed_seed(1):
        pace = rehearsed(digits(), method, settings)
    assert (pace is None) == (method in LOOPED)
    assert pace is None or (pace[0] >= 0 and pace[1] > 0)
    with fixed_seed(0):
        problem = digits()
        guide, found = fitted(problem, method, settings, pace)
        after = judged(problem, guide, problem.held[:50], 5)[1]
    assert found["steps"] >= 2 and found["cpu_seconds"] > 0
    assert after > -64 * math.log(2) - 1  # better than coins, about


def test_mnist_has_the_sizes_of_the_example(tmp_path: Path) -> None:
    images = np.zeros((6, 28, 28), np.uint8)
    images[3:, 0, 0] = 128
    parts = {f"x_{part}": images for part in ("train", "test")}
    np.savez(tmp_path / "mnist.npz", **parts, y_train=np.arange(6), y_test=np.arange(6))
    with fixed_seed(0):
        problem = mnist(tmp_path)
        trace = poutine.trace(problem.model).get_trace(problem.train)
    assert trace.nodes["z"]["value"].shape == (6, 50)
    assert problem.train.sum() == problem.held.sum() == 3
    assert own_guides.settings_of("mnist")["batch"] == 256
    assert "of_mnist" not in own_guides.settings_of("digits")


def test_table() -> None:
    shared = {"model": "sequences", "seed": 0, "exact_held_out": -4.0, "exact_train": -4.5}
    numbers = {"train": -4.6, "train_bound": -5.0, "steps": 10, "cpu_seconds": 2.0}
    own = shared | numbers | {"method": "own", "held_out": -4.1, "held_out_bound": -4.25}
    normal = own | {"method": "AutoNormal", "held_out": None, "held_out_bound": None}
    ours = own | {"method": "ours", "held_out": -4.3, "held_out_bound": -4.5}
    lines = own_guides.table([own, ours, normal]).splitlines()
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    assert cells[2][2:5] == ["-4.10 ± 0.00", "", "0.25 ± 0.00"]
    assert cells[3][2:5] == ["-4.30 ± 0.00", "-0.20 ± 0.00", "0.50 ± 0.00"]
    assert cells[4][2:6] == ["", "", "", "-4.60 ± 0.00"]
    assert cells[4][6:] == ["0.50 ± 0.00", "10", "2.0"]
