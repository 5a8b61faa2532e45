"""Graphs that are simplified and called the short way: the bits of the program, whatever it is."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.ops.graphs.graph_passes import drop_unused, is_functional
from pyro_implicit.ops.graphs.quick_calls import _QUICK_BY_OVERLOAD
from pyro_implicit.ops.graphs.recording import lighten, record, trace_operations

ROWS, COLUMNS = 3, 4
UNARY: list[Callable[[Tensor], Tensor]] = [
    lambda a: a.tanh(),
    lambda a: a.exp().clamp(max=9.0),
    lambda a: a.abs().sqrt(),
    lambda a: a.sigmoid().log(),
    lambda a: a * 2,
    lambda a: 3.3 - a,
    lambda a: a / 7,
    lambda a: a + 0.1,
    lambda a: a - 1,
    lambda a: a * 1.0,
    lambda a: a.square() ** 1,
    lambda a: a * torch.ones(ROWS, COLUMNS),
    lambda a: a - torch.zeros(COLUMNS),
    lambda a: a.contiguous().view(COLUMNS, ROWS).view(ROWS, COLUMNS),
    lambda a: a.t().t(),
    lambda a: a.t().contiguous().t(),
    lambda a: a.expand(ROWS, COLUMNS),
    lambda a: a[:, :1].expand(ROWS, COLUMNS),
    lambda a: a.flip(0).detach(),
    lambda a: a.sum(-1, keepdim=True) + torch.zeros_like(a),
    lambda a: a.softmax(-1),
    lambda a: a.tril() + a.triu(1),
    lambda a: torch.where(a > 0, a, -a),
    lambda a: torch.empty(ROWS, COLUMNS).fill_(2.0) * a,
    lambda a: a.clone().masked_fill_(a > 1, 1.0),
    lambda a: torch.nn.functional.softplus(a),
    lambda a: a.unsqueeze(0).squeeze(0).transpose(0, 1).transpose(0, 1),
    lambda a: torch.cat([a[:1], a[1:]]),
    lambda a: torch.stack([a, a.neg()]).mean(0),
]
DRAWS: list[Callable[[Tensor], Tensor]] = [
    lambda a: a + torch.randn(ROWS, COLUMNS),
    lambda a: a * torch.empty(ROWS, COLUMNS).normal_(),
    lambda a: a - torch.rand_like(a),
]
BINARY: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a - 2 * b,
    lambda a, b: a * b,
    lambda a, b: a / (b.abs() + 1),
    lambda a, b: torch.add(a, b, alpha=3),
    lambda a, b: a @ b.mT @ b,
    lambda a, b: torch.maximum(a, b),
]


def program(seed: int, held: Tensor, draws: bool) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """A random program with the gradients of what it gives; some results are views of others."""
    choose = random.Random(seed)
    steps = [(choose.random(), choose.randrange(10**6)) for _ in range(choose.randrange(2, 14))]

    def run(x: Tensor) -> tuple[Tensor, ...]:
        made = [x, held * 1.0]
        for kind, number in steps:
            a = made[number % len(made)]
            if draws and kind < 0.15:
                new = DRAWS[number % len(DRAWS)](a)
            elif kind < 0.65:
                new = UNARY[number % len(UNARY)](a)
            else:
                new = BINARY[number % len(BINARY)](a, made[(number // 7) % len(made)])
            made.append(new)
        return tuple(made[1:])

    def with_gradients(x: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            made = run(x)
            loss = sum((one.sum() for one in made), x.sum())
            (gradient,) = torch.autograd.grad(loss, x)
        kept = [one.detach() for one in made[-2:]]
        return (loss.detach(), gradient, *kept)

    return with_gradients


def same_bits(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in pairs)


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**9), draws=st.booleans())
def test_the_bits_of_random_programs(seed: int, draws: bool) -> None:
    check_bits(seed, draws)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**9), draws=st.booleans())
def test_the_bits_of_many_random_programs(seed: int, draws: bool) -> None:
    check_bits(seed, draws)


def check_bits(seed: int, draws: bool) -> None:
    torch.manual_seed(seed % 1000)
    held = torch.randn(ROWS, COLUMNS)
    function = program(seed, held, draws)
    example = torch.randn(ROWS, COLUMNS)
    graph = trace_operations(function, example)
    lighten(graph, example)
    for _ in range(3):
        held.copy_(torch.randn(ROWS, COLUMNS))  # it is read anew, whatever it was
        x = torch.randn(ROWS, COLUMNS)
        before, number = (x.clone(), held.clone()), int(torch.randint(10**6, ()))
        torch.manual_seed(number)
        expected, after = function(x), torch.get_rng_state()
        torch.manual_seed(number)
        with torch.no_grad():
            found = graph(x)
        assert same_bits(found, expected)
        assert torch.equal(torch.get_rng_state(), after)
        assert torch.equal(x, before[0]) and torch.equal(held, before[1])


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_no_result_is_another(seed: int) -> None:
    """Whoever clips one gradient in place leaves the others, and the next step, as they are."""
    function = program(seed, torch.ones(ROWS, COLUMNS), draws=False)
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed))
    graph = trace_operations(function, x)
    lighten(graph, x)
    with torch.no_grad():
        found = graph(x)
        expected = [one.clone() for one in found]
        for place, one in enumerate(found):
            assert torch.equal(one.nan_to_num(7.0), expected[place].nan_to_num(7.0))
            one.zero_()
        assert same_bits(graph(x), tuple(expected))


def test_what_is_asked_twice_is_evaluated_once() -> None:
    def function(u: Tensor) -> tuple[Tensor, Tensor]:
        return (u.exp() * 2).sum(-1), u.exp() + u.exp()

    graph = trace_operations(function, torch.ones(2, 3))
    lighten(graph, torch.ones(2, 3))
    assert sum("exp" in str(node.target) for node in graph.graph.nodes) == 1


def test_a_constant_that_is_returned_is_a_copy() -> None:
    recorded = record(lambda u: (u.sum(-1), torch.ones(3) * 2), torch.ones(2, 3))
    assert recorded is not None
    recorded(torch.ones(2, 3))[1].zero_()
    assert torch.equal(recorded(torch.ones(2, 3))[1], torch.full((3,), 2.0))


@pytest.mark.parametrize("overload", sorted(_QUICK_BY_OVERLOAD, key=str), ids=str)
def test_quick_calls_have_the_arguments_of_the_schema(overload: object) -> None:
    """Every short name that the table has is there, and stands for the operation of its name."""
    name = overload.overloadpacket.__name__  # type: ignore[attr-defined]
    assert _QUICK_BY_OVERLOAD[overload].__name__ == name


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**9), draws=st.booleans(), kept=st.integers(0, 3))
def test_what_is_dropped_changes_no_result_that_is_kept(seed: int, draws: bool, kept: int) -> None:
    """Of results that are made of no draw: then there is none left."""
    function = program(seed, torch.ones(ROWS, COLUMNS), draws)
    x = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed))
    graph = trace_operations(function, x)
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    output.args = ((output.args[0][kept],),)
    drop_unused(graph)
    graph.recompile()
    if is_functional(graph, draws=False):
        assert same_bits(graph(x), (function(x)[kept],))
    else:
        assert draws


def test_draws_and_writes_that_nobody_reads_are_dropped() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        torch.randperm(3)
        kept, read, unread = x.clone(), x.clone(), x.clone()
        view = kept[0]
        view.add_(1.0)  # through a view: it stays
        read.mul_(2.0)
        total = unread.sum()  # before it is written into
        unread.zero_()
        return kept, read, total

    x = torch.ones(2, 3)
    graph = trace_operations(function, x)
    drop_unused(graph)
    graph.recompile()
    targets = {str(node.target) for node in graph.graph.nodes}
    assert not any("randperm" in one or "zero_" in one for one in targets)
    assert same_bits(graph(x), function(x))
