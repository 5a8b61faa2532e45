"""A loss is level when its gain is known to be small, not when nothing is known of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.training.fitting.pace.stall import slope_of

seeds = st.integers(0, 2**20)


def _noise(seed: int, length: int, memory: float = 0.0) -> np.ndarray:
    e = np.random.default_rng(seed).normal(size=length)
    for i in range(1, length if memory else 0):
        e[i] = memory * e[i - 1] + np.sqrt(1 - memory**2) * e[i]
    return e


@given(seed=seeds, scale=st.sampled_from([1.0, 1e3]))
def test_a_level_loss_is_level_once_the_windows_tell(seed: int, scale: float) -> None:
    assert slope_of(scale * _noise(seed, 40_000)).is_flat
    assert not slope_of(scale * _noise(seed, 80)).is_flat  # too short to know


@given(seed=seeds, length=st.integers(400, 4000))
def test_a_falling_loss_is_not(seed: int, length: int) -> None:
    """Two windows of the noise itself: 0.4 nats a window are told at any length."""
    falling = -np.arange(length) * 4 * 0.4 / length
    falling -= 5 * np.sqrt(8 / length) * np.arange(length) * 4 / length  # five errors more
    assert not slope_of(_noise(seed, length) + falling).is_flat


@pytest.mark.long
@given(seed=seeds)
def test_the_error_allows_for_autocorrelation(seed: int) -> None:
    memory = 0.9
    slope = slope_of(_noise(seed, 8000, memory))
    truth = np.sqrt(2 / 2000 * (1 + memory) / (1 - memory))
    assert 0.4 * truth < slope.standard_error < 2.0 * truth


@pytest.mark.parametrize("size", [1.0, 1e5])
def test_without_noise_a_floor_decides(size: float) -> None:
    assert slope_of([size] * 400).is_flat
    assert slope_of(size - 1e-5 * np.arange(400)).is_flat
    assert not slope_of(size - 0.02 * np.arange(400)).is_flat
    gain = 0.03 if size == 1.0 else 0.3  # nats of a quarter; the floor is 0.02, or the rounding
    assert not slope_of(size - gain * np.arange(400) / 100).is_flat


@pytest.mark.parametrize(("num_latents", "floor"), [(0, 0.02), (20, 0.02), (30, 0.03), (90, 0.05)])
def test_the_floor_rises_with_the_latents_to_a_twentieth(num_latents: int, floor: float) -> None:
    assert slope_of([1.0] * 400, num_latents).tolerance == pytest.approx(floor)


def test_a_rising_loss_is_told() -> None:
    rising = _noise(0, 1000) + np.arange(1000) * 0.02
    slope = slope_of(rising)
    assert slope.is_rising and slope.gain == pytest.approx(-5.0, abs=0.3)
    assert not slope_of(-rising).is_rising
    assert not slope_of(_noise(0, 1000)).is_rising


def test_the_first_steps_are_forgotten() -> None:
    losses = _noise(0, 4000)
    losses[:1900] += 1e6
    assert slope_of(losses).gain == slope_of(_noise(0, 4000)).gain


@given(seed=seeds)
def test_an_outlier_hides_no_slope(seed: int) -> None:
    losses = _noise(seed, 2000)
    plain = slope_of(losses)
    losses[[600, 1200, 1700]] = 1e4
    slope = slope_of(losses)
    assert slope.gain == pytest.approx(plain.gain, abs=0.05)
    assert slope.tolerance == pytest.approx(plain.tolerance, rel=0.05)
    assert slope.standard_error < 1.5 * plain.standard_error
