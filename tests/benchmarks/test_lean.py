"""All ways to move parameters are the optimiser they are named after."""

from __future__ import annotations

import copy

import pyro
import pytest
import torch

from benchmarks.common import fixed_seed
from benchmarks.cost import lean
from benchmarks.shared.images import NETWORKS, classifier
from pyro_implicit import CMMNNGuide, LanczosELBO


@pytest.mark.long
@pytest.mark.parametrize("name", lean.OPTIMISERS)
def test_inside_the_backward_pass_parameters_move_as_outside(name: str) -> None:
    make, shape = NETWORKS["perceptron"]
    found = []
    with fixed_seed(0):
        data = torch.randn(4, *shape), torch.arange(4), torch.arange(4)
        model, _ = classifier(make())
        first = CMMNNGuide(model, init_from=None).setup(*data)
        for way in (name, f"{name}, in backward"):
            guide = copy.deepcopy(first)
            step = lean.step_of(way, model, guide, LanczosELBO(max_plate_nesting=1), 1e-2)
            pyro.set_rng_seed(1)
            for _ in range(3):
                step(*data)
            assert all(param.grad is None for param in guide.parameters())
            found.append([param.detach() for param in guide.parameters()])
            pyro.clear_param_store()
    assert not torch.equal(found[0][0], next(first.parameters()))
    torch.testing.assert_close(*found)


def test_adam_by_svi_is_adam() -> None:
    make, shape = NETWORKS["perceptron"]
    found = []
    with fixed_seed(0):
        data = torch.randn(4, *shape), torch.arange(4), torch.arange(4)
        model, _ = classifier(make())
        first = CMMNNGuide(model, init_from=None).setup(*data)
        for way in (lean.SVI_WAY, "Adam"):
            guide = copy.deepcopy(first)
            step = lean.step_of(way, model, guide, LanczosELBO(max_plate_nesting=1), 1e-2)
            pyro.set_rng_seed(1)
            step(*data)
            found.append([param.detach() for param in guide.parameters()])
            pyro.clear_param_store()
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_differences_are_by_seed() -> None:
    row = {"part": "loss", "rate": 0.1}
    rows = [row | {"way": "Adam", "seed": s, "loss": float(s)} for s in (1, 2)]
    rows += [row | {"way": "Adafactor", "seed": s, "loss": s + 0.5} for s in (2, 1)]
    assert "+0.500 (0.000)" in lean.loss_table(rows)
