"""Chains that left no draw, or whose steps were not tuned, say so."""

from __future__ import annotations

import warnings

import pytest
import torch

from pyro_implicit import refine
from pyro_implicit.chains import HMC, MCLMC
from pyro_implicit.chains.tuning import warn_of_steps
from pyro_implicit.exceptions import ArgumentError
from tests.chains.models import X, Y, line

START = torch.tensor([[0.5, 2.0, -1.0]])


def run(num_steps, kernel, **options):
    options = {"num_chains": 2, "progress": False, "seed": 0} | options
    return refine(line, START, X, Y, num_steps=num_steps, kernel=kernel, **options)


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["mclmc", HMC(thin=50)])
def test_chains_without_a_draw_are_refused(kernel):
    with pytest.raises(
        ArgumentError, match="gradients per chain left no draw: the warm-up takes 6"
    ):
        run(12, kernel)
    chains = run(6, kernel, num_warmup=6)  # to go on
    assert chains.num_draws == 0
    with pytest.raises(ArgumentError, match="left no draw"):
        chains.run(2, progress=False)
    assert run(0, kernel).num_draws == 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("kernel", "found"),
    [
        (
            HMC(step_size=50.0, max_leapfrog=3, precondition=None),
            "proposals are accepted with probability 0",
        ),
        (MCLMC(step_size=50.0, thin=1, precondition=None), "draws follow a refused step"),
        (MCLMC(step_size=0.5, thin=1, precondition=None), "squared energy error per latent is"),
    ],
)
def test_a_step_size_that_does_not_suit_is_told(kernel, found):
    with pytest.warns(
        UserWarning, match=rf"does not suit the posterior: .*{found}.*Give a smaller"
    ):
        chains = run(60, kernel, num_warmup=10)
    with pytest.warns(UserWarning, match="does not suit") as told:
        chains.run(20, progress=False)
    assert told[0].filename == __file__


def test_a_warm_up_that_was_too_short_is_told():
    told = {
        "diverging": torch.ones(2, 5, dtype=torch.bool),
        "step_size": torch.full((2, 5), 2e4),
        "energy_error": torch.zeros(2, 5),
    }
    settings = {"num_warmup": 30, "step_size": None}
    with pytest.warns(
        UserWarning, match=r"step size 2e\+04 .*10 of 10.*of 30 gradients .*too short"
    ):
        warn_of_steps(told, settings, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_steps(told | {"diverging": told["diverging"] & False}, settings, 2)


def test_an_energy_error_that_was_asked_for_is_no_sign():
    told = {
        "diverging": torch.zeros(2, 5, dtype=torch.bool),
        "step_size": torch.ones(2, 5),
        "energy_error": torch.ones(2, 5),  # 0.5 per latent, squared
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_steps(told, {"num_warmup": 30, "energy_error": 0.1}, 2)
    with pytest.warns(UserWarning, match="squared energy error per latent is 0.5"):
        warn_of_steps(told, {"num_warmup": 30, "energy_error": 0.01}, 2)
