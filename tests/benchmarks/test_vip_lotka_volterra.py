"""Lotka-Volterra: the simulator, its mean field, and a few steps of every method."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.papers.vip import vip_lotka_volterra
from benchmarks.papers.vip._lotka_volterra import (
    DEFAULT,
    RATES,
    STARTS,
    STEP,
    MeanField,
    simulate,
)

START = STARTS[DEFAULT]


def times(count: int) -> torch.Tensor:
    return STEP * torch.arange(count)[:, None]


def exact_field(count: int) -> torch.Tensor:
    return MeanField(RATES, 1e-9, torch.zeros(2), torch.ones(2))(times(count), 1)[0].detach()


def test_the_simulation_starts_where_it_says_and_follows_its_seed() -> None:
    path = simulate(40, seed=0)
    assert tuple(path[:, 0]) == START
    np.testing.assert_array_equal(path, simulate(40, seed=0))
    assert not np.array_equal(path, simulate(40, seed=1))
    assert (path == path.round()).all() and (path >= 0).all()


@pytest.mark.long
def test_simulations_have_the_mean_field_at_first() -> None:
    mean = np.mean([simulate(16, seed=seed) for seed in range(150)], axis=0)
    field = exact_field(16).numpy()
    np.testing.assert_allclose(mean, field, rtol=0.06)


def test_the_mean_field_keeps_what_it_must() -> None:
    predators, prey = exact_field(600).double()
    first, death, birth, second = RATES
    kept = first * prey - death * prey.log() + second * predators - birth * predators.log()
    assert (kept - kept[0]).abs().max() < 0.03 * kept[0].abs()


def test_outputs_are_standardised_and_rates_are_random() -> None:
    prior = MeanField(RATES, 0.2, torch.tensor([10.0, 20.0]), torch.tensor([2.0, 4.0]))
    values = prior(times(20), 7)
    assert values.shape == (7, 2, 20)
    start = (torch.tensor(START) - torch.tensor([10.0, 20.0])) / torch.tensor([2.0, 4.0])
    torch.testing.assert_close(values[:, :, 0], start.expand(7, 2))
    assert values[:, 0, -1].std() > 0
    values.sum().backward()
    assert prior.loc.grad is not None and bool((prior.loc.grad != 0).all())


def test_tables_are_by_data_and_method() -> None:
    scores = {"rmse": 1.0, "nll": 2.0, "rmse_predators": 1.0, "rmse_prey": 1.0, "cpu_seconds": 1.0}
    base = {"data": "stochastic", "steps": 3, **scores}
    rows = []
    for seed in (0, 1):
        medians = [rate * (1 + seed) for rate in RATES]
        rows.append({**base, "method": "simulator", "seed": seed, "medians": medians})
        rows.append({**base, "method": "network, collapsed", "seed": seed, "nll": 3.0 + seed})
    assert len(vip_lotka_volterra.table(rows).splitlines()) == 4
    (line,) = vip_lotka_volterra.differences(rows).splitlines()[2:]
    assert "| simulator | " in line and "-1.50 ± 0.50" in line and "2 of 2" in line
    (line,) = vip_lotka_volterra.rates(rows).splitlines()[2:]
    assert line.count("1.5000 ± 0.5000") == 4


def test_starts_are_told_beside_the_data() -> None:
    assert vip_lotka_volterra._name({"data": "stochastic", "start": DEFAULT}) == "stochastic"
    scores = {"rmse_predators": 1.0, "rmse_prey": 1.0, "cpu_seconds": 1.0, "coverage": 0.5}
    base = {"data": "stochastic", "steps": 3, "method": "simulator", **scores}
    rows = [
        {**base, "start": start, "seed": seed, "rmse": 1.0 + place, "nll": 2.0 - place}
        for place, start in enumerate((DEFAULT, "far"))
        for seed in (0, 1)
    ]
    (_, far) = vip_lotka_volterra.table(rows).splitlines()[2:]
    assert "| stochastic, far | simulator |" in far and "0.50 ± 0.00" in far
    (line,) = vip_lotka_volterra.of_starts(rows).splitlines()[2:]
    assert "| stochastic, simulator | far " in line and "-1.00 ± 0.00" in line


@pytest.mark.long
@pytest.mark.parametrize("name", STARTS)
def test_both_kinds_of_data_begin_at_a_start(name: str) -> None:
    case = vip_lotka_volterra._case("stochastic", name, times(600), 0)
    field = vip_lotka_volterra._case("mean-field", name, times(600), 0)
    for one in (case, field):
        mean, scale = one.scales
        begun = one.y[:, 0] * scale + mean
        torch.testing.assert_close(begun, torch.tensor(STARTS[name]).float(), rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(one.y[:, :500].mean(1), torch.zeros(2), atol=1e-4, rtol=0)
