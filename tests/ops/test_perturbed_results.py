"""Results that are moved in their last digits."""

from __future__ import annotations

import pytest
import torch

from pyro_implicit.ops.perturbed_results import PerturbedResults, perturbed

EPS = torch.finfo(torch.float32).eps


def test_numbers_move_in_their_last_digits_and_integers_stay() -> None:
    x = torch.randn(1000)
    moved = perturbed(x, 0) - x
    assert 0 < moved.abs().max() and bool((moved.abs() <= 6 * EPS * x.abs()).all())
    whole = torch.arange(3)
    assert perturbed(whole, 0) is whole


def test_what_cancels_moves_by_what_was_rounded() -> None:
    x = torch.ones(1000, requires_grad=True)
    with PerturbedResults(seed=0):
        large = (x + 1e4) - 1e4
        small = x + 1.0
    assert 1e-4 < (large - 1.0).abs().max() < 1e-1
    assert (small - 2.0).abs().max() < 1e-5


def test_what_follows_from_no_gradient_stays() -> None:
    codes = torch.arange(3).float()
    with PerturbedResults(seed=0):
        assert torch.equal(codes * 3.0 / 3.0, codes)
        assert torch.equal(torch.ones(3, requires_grad=True).detach() + codes, 1.0 + codes)


def test_views_and_what_is_written_in_place_are_kept() -> None:
    x = torch.ones(2, requires_grad=True)
    with PerturbedResults(seed=0):
        table = torch.zeros(2, 2)
        table[0] = x
        table.view(-1)[3:].fill_(7.0)
        first, second = (2.0 * x).unbind(0)  # of a result that has moved
    assert table[1, 1] == 7.0 and bool(((table[0] - 1.0).abs() < 1e-5).all())
    assert float((first + second).detach()) == pytest.approx(4.0, abs=1e-4)


def test_within_a_map_nothing_moves() -> None:
    x = torch.randn(3, 2, requires_grad=True)
    with PerturbedResults(seed=0):
        mapped = torch.func.vmap(lambda row: row * 2.0)(x)
    assert torch.allclose(mapped, 2.0 * x, rtol=1e-5)


def test_global_random_numbers_are_those_of_a_run_without_it() -> None:
    x = torch.ones(3, requires_grad=True)
    torch.manual_seed(0)
    expected = torch.randn(3)
    torch.manual_seed(0)
    with PerturbedResults(seed=0):
        y = 2.0 * x
        assert torch.equal(torch.randn(3), expected)
    with PerturbedResults(seed=1):
        assert not torch.equal(2.0 * x, y)


def test_choices_are_not_rounded() -> None:
    x = torch.randn(9, requires_grad=True)
    with PerturbedResults(seed=0):
        chosen = [x.median(), torch.max(x), x.sort().values[2], torch.where(x > 0, x, -x).min()]
        picked = x[torch.tensor([3, 1])]
        steps = [(10 * x).floor(), (10 * x).round(), (10 * x).trunc(), x.sign()]
    assert all(bool((one.abs() == x.abs()).any()) for one in chosen)
    assert all(torch.equal(one, one.round()) for one in steps)
    assert torch.equal(picked, x[torch.tensor([3, 1])])
