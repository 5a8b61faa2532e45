"""Recurrent layers, mapped over draws of their weights, against torch's fused functions."""

from __future__ import annotations

import warnings
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_leaves

from pyro_implicit.bayesian import BayesianModule
from pyro_implicit.bayesian.recurrence import steps_of_recurrence
from pyro_implicit.exceptions import LayerError
from pyro_implicit.processes import RandomNetwork

S = 3  # draws


def draws_for(module: nn.Module, lead: tuple[int, ...] = (S,)) -> dict[str, Tensor]:
    return {n: torch.randn(*lead, *p.shape).double() for n, p in module.named_parameters()}


def mapped(module: nn.Module, draws: dict[str, Tensor], *inputs: Any) -> Any:
    def one(draw: dict[str, Tensor]) -> Any:
        with steps_of_recurrence(module)():
            return functional_call(module, draw, inputs)

    return vmap(one, randomness="different")(draws)


@pytest.mark.long
@given(
    kind=st.sampled_from(["GRU", "LSTM", "tanh", "relu"]),
    sizes=st.tuples(st.integers(1, 3), st.integers(2, 4), st.integers(1, 4), st.integers(1, 3)),
    num_layers=st.integers(1, 3),
    flags=st.tuples(*[st.booleans()] * 3),
    has_state=st.booleans(),
    is_projected=st.booleans(),
    is_batched=st.booleans(),
)
def test_outputs_states_and_gradients_are_those_of_the_fused_layer(
    kind: str,
    sizes: tuple[int, int, int, int],
    num_layers: int,
    flags: tuple[bool, bool, bool],
    has_state: bool,
    is_projected: bool,
    is_batched: bool,
) -> None:
    num_inputs, hidden, num_steps, rows = sizes
    bias, bidirectional, batch_first = flags
    options: dict[str, Any] = {"num_layers": num_layers, "bias": bias}
    options |= {"bidirectional": bidirectional, "batch_first": batch_first}
    if kind == "LSTM" and is_projected:
        options["proj_size"] = hidden - 1
    if kind in ("tanh", "relu"):
        options["nonlinearity"] = kind
    layer = {"GRU": nn.GRU, "LSTM": nn.LSTM}.get(kind, nn.RNN)(num_inputs, hidden, **options)
    layer = layer.double()
    batch = (rows,) if is_batched else ()
    lead = (*batch, num_steps) if batch_first else (num_steps, *batch)
    x = torch.randn(*lead, num_inputs).double()
    width = options.get("proj_size", hidden)
    states = [torch.randn(num_layers * (1 + bidirectional), *batch, w) for w in (width, hidden)]
    first = [state.double() for state in states]
    inputs: tuple[Any, ...] = (x,)
    if has_state:
        inputs = (x, tuple(first) if kind == "LSTM" else first[0])
    draws = {name: value.requires_grad_() for name, value in draws_for(layer).items()}
    found = tree_leaves(mapped(layer, draws, *inputs))
    each = [
        tree_leaves(functional_call(layer, {n: d[i] for n, d in draws.items()}, inputs))
        for i in range(S)
    ]
    wanted = [torch.stack(same) for same in zip(*each, strict=True)]
    gradients = []
    for outputs in (found, wanted):
        total = sum(((i + 1) * out.sin()).sum() for i, out in enumerate(outputs))
        gradients.append(torch.autograd.grad(total, list(draws.values())))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients[0], gradients[1])


def test_dropout_between_layers_is_drawn_for_each_draw_and_in_training_alone() -> None:
    layer = nn.GRU(2, 5, num_layers=2, dropout=0.5).double()
    same = {n: v[:1].expand(S, *v.shape[1:]) for n, v in draws_for(layer).items()}
    x = torch.randn(4, 3, 2).double()
    outputs = mapped(layer, same, x)[0]
    assert not torch.allclose(outputs[0], outputs[1])
    outputs = mapped(layer.eval(), same, x)[0]
    torch.testing.assert_close(outputs[0], outputs[1])
    wanted = functional_call(layer, {name: value[0] for name, value in same.items()}, x)[0]
    torch.testing.assert_close(outputs[0], wanted)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(2, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 2]), batch_first=True)
        return self.layer(packed)[1][0]


def test_packed_sequences_are_looped_over_with_a_warning() -> None:
    net = BayesianModule(Packed(), dist.Normal(0.0, 1.0))
    x = torch.randn(2, 4, 2)
    draws = {n: v.float()[:, None] for n, v in draws_for(Packed()).items()}
    with pytest.warns(UserWarning, match="vmap cannot evaluate Packed"):
        assert poutine.condition(net, draws)(x).shape == (S, 2, 3)


def test_a_process_of_packed_sequences_says_how_to_loop() -> None:
    x = torch.randn(2, 4, 2)
    with pytest.raises(LayerError, match="cannot evaluate Packed.*vectorize='loop'"):
        RandomNetwork(Packed())(x, 3)
    assert RandomNetwork(Packed(), vectorize="loop")(x, 3).shape == (3, 3, 2)


def test_a_process_of_recurrent_networks_draws_them_at_once() -> None:
    values = []
    module = Last()
    for vectorize in ("vmap", "loop"):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            values.append(RandomNetwork(module, vectorize=vectorize)(torch.ones(4, 5, 2), 6))
    torch.testing.assert_close(*values)


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def test_errors_of_the_layer_itself_stay() -> None:
    layer = nn.GRU(2, 3).double()
    with pytest.raises(RuntimeError, match="input.size"):
        mapped(layer, draws_for(layer), torch.ones(4, 1, 5).double())
    cell: Any = steps_of_recurrence(nn.Linear(1, 1))()
    with cell as nothing:
        assert nothing is None
