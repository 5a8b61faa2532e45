"""Counts of training steps by guide and site, kept weakly."""

from __future__ import annotations

import gc

import torch

from pyro_implicit import ImplicitDistribution
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.objectives.every_kth_step import StepCounts
from pyro_implicit.objectives.implicit_site import ImplicitSite


class Guide:
    pass


def site(generator: Generator, name: str = "w") -> ImplicitSite:
    fn = ImplicitDistribution(generator, torch.zeros(generator.noise_shape))
    return ImplicitSite(name, fn, torch.zeros(2), (name,))


def test_each_site_of_each_guide_is_counted_once_per_step() -> None:
    turns, guide, other = StepCounts(), Guide(), Guide()
    a, b = (site(MLPGenerator(2, 2, (3,)), name) for name in "ab")
    for step in range(1, 4):
        for _ in range(2):  # particles
            assert turns.take(step, guide, a) == step - 1
            assert turns.take(step, guide, b) == step - 1
    assert turns.take(4, other, a) == 0  # shares the generator
    assert turns.take(5, guide, a) == 3
    assert turns.state() == [3, 2, 0] and len(turns) == 3


def test_a_wrapped_generator_is_the_one_within() -> None:
    turns, generator = StepCounts(), MLPGenerator(3, 2, (3,))
    for step in range(1, 4):
        wrapped = Conditioned(generator, torch.zeros(1))
        assert turns.take(step, Guide(), site(wrapped)) == step - 1


def test_nothing_is_kept_alive_and_a_state_goes_to_the_next_guide() -> None:
    turns, guide = StepCounts(), Guide()
    turns.take(1, guide, site(MLPGenerator(2, 2, (3,))))
    state = turns.state()
    del guide
    gc.collect()
    assert len(turns) == 0 and turns.state() == []
    turns.load(state)
    assert turns.state() == [0]
    guide = Guide()
    assert turns.take(7, guide, site(MLPGenerator(2, 2, (3,)))) == 1
    assert turns.state() == [1]
