"""Graphs are those of PyTorch's own tracer."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_implicit.ops.graphs.operation_tracer import is_tracing
from pyro_implicit.ops.graphs.recording import trace_operations
from tests.ops.graphs.test_graph_passes import COLUMNS, ROWS, program

HELD, NUMBER, PARAM = torch.randn(3, 3), torch.tensor(3.0), nn.Parameter(torch.randn(3, 3))
ARRAY = np.ones(2, dtype=np.float32)
NETWORK = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.LayerNorm(4), nn.Softplus())


def operations(graph: fx.GraphModule) -> list[Any]:
    """
    In their order, with the places of their operands; a detached tensor is what the other tracer
    calls an alias.
    """
    place = {node: number for number, node in enumerate(graph.graph.nodes)}
    return [
        (node.op, str(node.target).replace("alias", "detach"))
        + fx.node.map_arg((node.args, node.kwargs), lambda one: ("node", place[one]))
        for node in graph.graph.nodes
    ]


def assert_same_graph(function: Callable[..., Any], *example: Tensor) -> None:
    torch.manual_seed(0)
    found = trace_operations(function, *example)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    expected = make_fx(lambda *tensors: function(*tensors))(*example)
    assert operations(found) == operations(expected)
    assert torch.equal(state, torch.get_rng_state())
    held = {name: tensor.data_ptr() for name, tensor in expected.named_buffers()}
    held |= {name: param.data_ptr() for name, param in expected.named_parameters()}
    drawn = [*found.named_buffers(), *found.named_parameters()]
    fresh = "lift_fresh_copy" in expected.code  # a number of the program is a new tensor each time
    assert fresh or {name: tensor.data_ptr() for name, tensor in drawn} == held


def _gradients(x: Tensor) -> tuple[Tensor, ...]:
    loss = (NETWORK(x) * torch.randn(3, 4)).square().sum()
    return loss.detach(), *torch.autograd.grad(loss, [x, *NETWORK.parameters()])


def _written(x: Tensor) -> Tensor:
    y = torch.zeros(3, 3)
    y[1:] += x[:2] * HELD[0]
    y.mul_(2.0).clamp_(min=0.1)
    return y


def _cast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ PARAM) @ PARAM


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "gradients": _gradients,
    "gradients of gradients": lambda x: torch.autograd.grad(
        torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0].square().sum(), x
    ),
    "several results": lambda x: (*torch.linalg.qr(x), x.sort(-1)[1], torch.split(x, 2)),
    "what is held": lambda x: (x @ HELD @ PARAM, HELD, PARAM @ HELD, x),
    "numbers of the program": lambda x: x * torch.tensor(2.0) + torch.tensor([1.0, 2.0, 3.0]),
    "a number that is read": lambda x: x * float(torch.tensor(2.0) + 1.0) + float(NUMBER),
    "written into": _written,
    "transforms": lambda x: torch.func.vmap(torch.func.jacrev(torch.tanh))(x),
    "forwards": lambda x: torch.func.jvp(torch.exp, (x,), (x,)),
    "a structure": lambda x: {"a": [x + 1, None], "b": (x * 2, 3.0)},
    "indices": lambda x: x[x > 0] + x[torch.tensor([0, 1])].sum() + x[:, None, 0].sum(),
    "casts": _cast,
    "factories": lambda x: torch.arange(3.0, device=x.device) + torch.full_like(x, float("inf")),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_it_is_that_of_the_other_tracer(kind: str) -> None:
    assert_same_graph(FUNCTIONS[kind], torch.randn(3, 3, requires_grad=True))


@pytest.mark.long
@settings(max_examples=8)
@given(seed=st.integers(0, 10**9), draws=st.booleans())
def test_it_is_of_random_programs(seed: int, draws: bool) -> None:
    torch.manual_seed(seed % 1000)
    assert_same_graph(program(seed, torch.ones(ROWS, COLUMNS), draws), torch.randn(ROWS, COLUMNS))


def test_without_autograd_operations_are_taken_apart_as_well() -> None:
    layer = nn.Linear(3, 4)
    with torch.inference_mode():
        graph = trace_operations(layer, torch.ones(2, 3))
    kinds = {str(node.target) for node in graph.graph.nodes if node.op == "call_function"}
    assert kinds == {"aten.t.default", "aten.addmm.default"}


def test_memory_of_values_that_nobody_needs_is_free_while_it_runs() -> None:
    gone = []

    def function(x: Tensor) -> Tensor:
        first = x + 1
        gone.append(weakref.ref(first))
        second = first * 2
        del first
        gone.append(gone[0]())
        return second

    trace_operations(function, torch.ones(3))
    assert gone[1] is None


@pytest.mark.parametrize("read", [lambda x: float(x.sum()), lambda x: bool((x > 0).all())])
def test_a_number_of_an_argument_is_not_read(read: Callable[[Tensor], Any]) -> None:
    with pytest.raises(RuntimeError, match="data-dependent number"):
        trace_operations(lambda x: x * read(x), torch.ones(3))
    assert not is_tracing()


@pytest.mark.parametrize(
    "made",
    [
        lambda w: nn.Parameter(w, requires_grad=False),
        lambda w: nn.ParameterList([w])[0],
        lambda w: (w * 2).as_subclass(nn.Parameter),
        lambda w: _with_data(w),
    ],
)
def test_tensors_made_of_others_without_an_operation_are_refused(
    made: Callable[[Tensor], Tensor],
) -> None:
    """A graph would hold the numbers of the one run."""
    with pytest.raises(RuntimeError, match="made of another one without an operation"):
        trace_operations(lambda x: x + made((x > 0).float()), torch.ones(3))
    with pytest.raises(RuntimeError, match="made of another one without an operation"):
        trace_operations(lambda x: x + made(x), torch.ones(3))


@pytest.mark.parametrize("start", [0, 1])
def test_memory_that_was_lent_and_taken_back_is_refused(start: int) -> None:
    def again(x: Tensor) -> Tensor:
        return torch.from_dlpack(torch.utils.dlpack.to_dlpack(x[start:]))

    for function in (lambda x: again(x) + 1, lambda x: again((x > 0).float()) + 1):
        with pytest.raises(RuntimeError, match="made of another one without an operation"):
            trace_operations(function, torch.ones(3))


def test_copies_of_arguments_lie_as_they_do() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    for x in (whole.T[1:], whole[:, 1:3], whole[0].expand(2, 4), whole[:0], whole[1, 2]):
        found: list[Tensor] = []
        trace_operations(found.append, x)
        assert torch.equal(found[0], x) and found[0].stride() == x.stride()
        assert not x.numel() or found[0].data_ptr() != x.data_ptr()


def _with_data(w: Tensor) -> Tensor:
    other = torch.zeros_like(w)
    other.data = w
    return other


def test_tensors_that_were_there_before_may_share_memory_with_arguments() -> None:
    x = torch.ones(4)
    part = x[:2]
    for _ in range(20):  # memory that an operation has left is used again
        graph = trace_operations(
            lambda y: y[:2] * 2 + part + torch.tensor([0.5, 0.5]) + torch.from_numpy(ARRAY), x
        )
    graph.recompile()
    assert torch.equal(graph(x), torch.tensor([4.5, 4.5]))


@pytest.mark.parametrize(
    "write",
    [
        lambda t, c: t.__setitem__(0, c),
        lambda t, c: t.view(()).copy_(c),
        lambda t, c: torch._foreach_add_([t], c),
        lambda t, c: torch.add(c[None], 0.0, out=t),
    ],
)
def test_a_constant_that_was_written_into_is_none(write: Callable[[Tensor, Tensor], Any]) -> None:
    def function(x: Tensor) -> Tensor:
        t = torch.tensor([0.0])
        write(t, x.sum())
        return x * 2 if t > 0 else x

    with pytest.raises(RuntimeError, match="data-dependent number"):
        trace_operations(function, torch.ones(3))
    trace_operations(lambda x: x * 2 if torch.tensor([1.0]) > 0 else x, torch.ones(3))


def test_arguments_that_no_graph_holds_are_refused() -> None:
    own = torch.Generator()
    with pytest.raises(TypeError, match="Generator among the arguments of an operation"):
        trace_operations(lambda x: x + torch.randn(3, generator=own), torch.ones(3))


def test_tensors_of_other_kinds_have_operations_of_their_own() -> None:
    class Doubled(Tensor):
        """Twice a tensor that it holds."""

        @staticmethod
        def __new__(cls, inner: Tensor) -> Doubled:
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape)  # type: ignore[no-any-return]

        def __init__(self, inner: Tensor) -> None:
            self.inner = inner

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            plain = [one.inner * 2 if isinstance(one, Doubled) else one for one in args]
            return func(*plain, **(kwargs or {}))

    graph = trace_operations(lambda x: Doubled(x) + 1.0, torch.ones(3))
    graph.recompile()
    assert torch.equal(graph(torch.ones(3)), torch.full((3,), 3.0))


def test_it_is_known_while_it_goes_on_and_casts_are_kept_again_afterwards() -> None:
    seen = []
    torch.set_autocast_cache_enabled(True)
    trace_operations(
        lambda x: seen.append((is_tracing(), torch.is_autocast_cache_enabled())) or x, torch.ones(2)
    )
    assert seen == [(True, False)]
    assert not is_tracing() and torch.is_autocast_cache_enabled()
