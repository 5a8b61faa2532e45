"""The learning rate: level, then down to a hundredth, within the limit."""

from __future__ import annotations

import pytest

from pyro_implicit.training.fitting.pace.learning_rate import LearningRate


def test_it_is_level_until_the_last_third() -> None:
    rate = LearningRate(0.1, 300)
    rates = []
    for step in range(300):
        if rate.is_due(step):
            rate.cool(step, step)
        rates.append(rate.at(step))
    assert rates[:200] == [0.1] * 200
    ratios = [b / a for a, b in zip(rates[200:], rates[201:], strict=False)]
    assert ratios == pytest.approx([0.01 ** (1 / 100)] * 99)
    assert rate.at(300) == 0.001


def test_cooling_takes_a_third_of_what_came_before_it() -> None:
    rate = LearningRate(0.1, 10_000)
    rate.cool(900, 900)
    rate.cool(1000, 1000)  # has begun already
    assert (rate.at(899), rate.at(900), rate.at(1200)) == pytest.approx((0.1, 0.1, 0.001))
    assert rate.at(1050) == pytest.approx(0.01)
    assert [rate.is_cold(step) for step in (0, 1199, 1200)] == [False, False, True]


@pytest.mark.parametrize(("step", "warm", "length"), [(30, 30, 100), (950, 900, 50)])
def test_cooling_is_neither_hasty_nor_beyond_the_limit(step: int, warm: int, length: int) -> None:
    rate = LearningRate(0.1, 1000)
    rate.cool(step, warm)
    assert rate.length == length
