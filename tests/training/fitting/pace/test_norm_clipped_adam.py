"""Adam by name: torch's own where nothing is clipped, and the same bits when taken up again."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.exceptions import StateError
from pyro_implicit.training.fitting.pace.norm_clipped_adam import NormClippedAdam


def _params(more: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    sizes = (("a", 3 + more), ("b", 2 + more))
    return {n: torch.randn(k, generator=g).requires_grad_() for n, k in sizes}


def _grad(params: dict[str, Tensor], step: int, size: float = 1.0, silent: int = 0) -> None:
    g = torch.Generator().manual_seed(step)
    for param in params.values():
        param.grad = size * torch.randn(param.shape, generator=g)
        param.grad[:silent] = 0.0


def _steps(
    adam: NormClippedAdam, params: dict[str, Tensor], numbers: range, silent: int = 0
) -> None:
    for step in numbers:
        _grad(params, step, silent=silent)
        assert adam.step(params, 0.1)


def test_it_is_adam() -> None:
    params, other = _params(), _params()
    _steps(NormClippedAdam(), params, range(20))
    adam = torch.optim.Adam(other.values(), lr=0.1)
    for step in range(20):
        _grad(other, step)
        adam.step()
    torch.testing.assert_close(params, other)
    assert all(param.grad is None for param in params.values())


@pytest.mark.parametrize("size", [1e3, 1e8])
def test_a_gradient_out_of_proportion_is_cut(size: float) -> None:
    """Once it has seen some: afterwards the moments are those of one ten times as long as usual."""
    params = _params()
    adam = NormClippedAdam()
    _steps(adam, params, range(30))
    before = adam.state()["moments"]["a"]["exp_avg"]
    _grad(params, 30, size)
    adam.step(params, 0.1)
    after = adam.state()["moments"]["a"]["exp_avg"]
    assert (after - 0.9 * before).norm() < 0.1 * 10 * 5
    _grad(params, 31, 1e-3)  # short ones stay as they are
    grad = params["a"].grad.clone()
    adam.step(params, 0.1)
    last = adam.state()["moments"]["a"]["exp_avg"]
    torch.testing.assert_close(last, 0.9 * after + 0.1 * grad)


@pytest.mark.long
@given(sizes=st.lists(st.floats(-3, 3), min_size=10, max_size=30))
def test_gradients_are_cut_as_torch_cuts_them(sizes: list[float]) -> None:
    """Bit for bit, also those that are about as long as allowed."""
    params, other = _params(), _params()
    adam, plain = NormClippedAdam(), torch.optim.Adam(other.values(), lr=0.1, fused=True)
    for step, size in enumerate(sizes):
        _grad(params, step, 10**size), _grad(other, step, 10**size)
        limit = adam._limit()
        torch.nn.utils.clip_grad_norm_(other.values(), limit)
        plain.step()
        adam.step(params, 0.1)
        assert all(params[name].equal(other[name]) for name in params)


def test_parameters_may_come_later_and_be_tied() -> None:
    params = _params()
    adam = NormClippedAdam()
    _steps(adam, {"a": params["a"]}, range(3))
    before = params["b"].detach().clone()
    _steps(adam, params | {"tied": params["a"]}, range(3, 6))
    moments = adam.state()["moments"]
    assert {name: int(m["step"]) for name, m in moments.items()} == {"a": 6, "b": 3}
    assert not params["b"].equal(before)


def test_what_has_no_gradient_stays() -> None:
    params = _params() | {"count": torch.tensor(3), "fixed": torch.ones(2)}
    adam = NormClippedAdam()
    assert adam.step(params, 0.1)
    params["a"].grad = torch.ones(3)
    b = params["b"].detach().clone()
    assert adam.step(params, 0.1)
    assert params["b"].equal(b) and params["fixed"].equal(torch.ones(2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    params = _params()
    adam = NormClippedAdam()
    _steps(adam, params, range(3))
    before, state = {n: p.detach().clone() for n, p in params.items()}, adam.state()
    _grad(params, 3)
    params["b"].grad[1] = bad
    assert not adam.step(params, 0.1)
    torch.testing.assert_close({n: p.detach() for n, p in params.items()}, before, rtol=0, atol=0)
    torch.testing.assert_close(adam.state()["moments"], state["moments"], rtol=0, atol=0)
    assert adam.state()["norm"] == state["norm"]


def test_the_state_is_a_copy_and_gives_the_same_bits() -> None:
    whole, params = _params(), _params()
    _steps(NormClippedAdam(), whole, range(20))
    first = NormClippedAdam()
    _steps(first, params, range(12))
    state = first.state()
    second = NormClippedAdam(state)
    _steps(second, params, range(12, 20))
    assert all(whole[name].equal(params[name]) for name in whole)
    assert int(state["moments"]["a"]["step"]) == 12
    unused = NormClippedAdam(state).state()["moments"]  # before any step: still all there
    torch.testing.assert_close(unused, state["moments"])


def test_a_state_of_other_parameters_is_refused() -> None:
    adam = NormClippedAdam()
    _steps(adam, _params(), range(2))
    other = {"a": torch.zeros(5, requires_grad=True)}
    other["a"].grad = torch.ones(5)
    with pytest.raises(StateError, match=r"'a' has shape \(5,\), and had shape \(3,\)"):
        NormClippedAdam(adam.state()).step(other, 0.1)


def test_parameters_of_another_rate_move_as_far_as_it_says() -> None:
    params, other = _params(), _params()
    _steps(NormClippedAdam(times=lambda p: 2.5 if p is params["b"] else 1.0), params, range(20))
    adam = torch.optim.Adam(
        [{"params": [other["a"]]}, {"params": [other["b"]], "lr": 0.25}], lr=0.1
    )
    for step in range(20):
        _grad(other, step)
        adam.step()
    torch.testing.assert_close(params, other)


@pytest.mark.parametrize("silent", [0, 300])
@pytest.mark.parametrize("taken", [0, 5])
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_an_interrupted_step_is_taken_whole_or_not_at_all(
    when: str, taken: int, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Of parameters at two rates, which torch moves one group after the other.

    It may be the first step, and the first entries of a parameter may have no gradient.
    """
    whole, params, last = _params(silent), _params(silent), taken + 1
    adam = NormClippedAdam(times=lambda p: 2.5 if p is whole["b"] else 1.0)
    _steps(adam, whole, range(last), silent)
    adam = NormClippedAdam(times=lambda p: 2.5 if p is params["b"] else 1.0)
    _steps(adam, params, range(taken), silent)
    module, calls = sys.modules[torch.optim.Adam.__module__], []
    real = module.adam

    def broken(*args: Any, **kwargs: Any) -> None:
        calls.append(1)
        here = {"before": 1, "between": 2, "after": 2}[when]
        if len(calls) == here and when != "after":
            raise KeyboardInterrupt
        real(*args, **kwargs)
        if len(calls) == here and when == "after":
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "adam", broken)
    _grad(params, taken, silent=silent)
    adam.has_stepped = False
    with pytest.raises(KeyboardInterrupt):
        adam.step(params, 0.1)
    monkeypatch.undo()
    assert adam.has_stepped is (when != "before")
    if when == "before":
        _steps(adam, params, range(taken, last), silent)
    assert all(whole[name].equal(params[name]) for name in whole)
    moments = adam.state()["moments"]
    assert moments["a"]["step"] == moments["b"]["step"] == last


def test_moments_are_taken_to_the_type_of_the_parameters() -> None:
    """And to their device: a file is read on another one."""
    params, adam = _params(), NormClippedAdam()
    _steps(adam, params, range(3))
    double = {name: param.detach().double().requires_grad_() for name, param in params.items()}
    taken_up = NormClippedAdam(adam.state())
    for param in double.values():
        param.grad = torch.ones_like(param)
    assert taken_up.step(double, 0.1)
    moments = taken_up.state()["moments"]
    assert {one["exp_avg"].dtype for one in moments.values()} == {torch.float64}
