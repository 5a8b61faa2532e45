"""
Recurrent layers of torch, step by step, where many draws of their weights meet at once.

`torch.func.vmap` has no rule for the fused functions behind `nn.RNN`, `nn.LSTM` and `nn.GRU`, but
one for each of the products and sums that they are made of.
"""

# Shape legend: N sequences, T steps, D inputs, H hidden units, K outputs (H, or a projection of
# them), G gates, R layers times directions.
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

__all__ = ["steps_of_recurrence"]

State: TypeAlias = tuple[Tensor, ...]  # of a layer, each (N, K) or (N, H); the output is the first
Step: TypeAlias = Callable[[Tensor, Tensor, State], State]


def steps_of_recurrence(module: nn.Module) -> Callable[[], AbstractContextManager[Any]]:
    """
    A context in which recurrent layers can be mapped over draws of their weights.

    They stay fused where torch can do it. Packed sequences, whose lengths differ, stay refused.

    :param torch.nn.Module module: what is called inside.
    :returns: what makes the context; it does nothing for a module without recurrent layers.
    """
    has_any = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
    return _Unfused if has_any else nullcontext


class _Unfused(TorchFunctionMode):
    """Takes the place of fused functions that vmap refuses."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kind = _STEPS_BY_FUSED_FUNCTION.get(getattr(func, "__name__", ""))
        if kind is None:
            return func(*args, **(kwargs or {}))
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            is_packed = isinstance(args[3], (list, tuple))  # lengths stand before the first state
            if is_packed or "atching rule" not in str(error):
                raise
        return _unfused(kind, *args)


# ---- one step of each kind, from the products with the inputs and with the last output


def _gru(inputs: Tensor, hidden: Tensor, state: State) -> State:
    reset_in, update_in, new_in = inputs.chunk(3, -1)
    reset_hidden, update_hidden, new_hidden = hidden.chunk(3, -1)
    reset = (reset_in + reset_hidden).sigmoid()
    update = (update_in + update_hidden).sigmoid()
    new = (new_in + reset * new_hidden).tanh()
    return (new + update * (state[0] - new),)


def _lstm(inputs: Tensor, hidden: Tensor, state: State) -> State:
    enter, forget, cell, leave = (inputs + hidden).chunk(4, -1)
    kept = forget.sigmoid() * state[1] + enter.sigmoid() * cell.tanh()
    return leave.sigmoid() * kept.tanh(), kept


def _rnn_tanh(inputs: Tensor, hidden: Tensor, state: State) -> State:
    return ((inputs + hidden).tanh(),)


def _rnn_relu(inputs: Tensor, hidden: Tensor, state: State) -> State:
    return ((inputs + hidden).relu(),)


_STEPS_BY_FUSED_FUNCTION: dict[str, Step] = {
    "gru": _gru,
    "lstm": _lstm,
    "rnn_tanh": _rnn_tanh,
    "rnn_relu": _rnn_relu,
}


# ---- all steps, layers and directions


def _unfused(
    step: Step,
    x: Tensor,
    first: Tensor | tuple[Tensor, ...],
    weights: list[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """What the fused function returns: outputs, and the last states of all layers, (R, N, .)."""
    x = x.transpose(0, 1) if batch_first else x
    starts = list(zip(*(one.unbind(0) for one in _as_states(first)), strict=True))
    size = len(weights) // len(starts)  # tensors of each layer and direction
    last: list[State] = []
    for layer in range(num_layers):
        if layer and dropout:
            x = F.dropout(x, dropout, training)
        outputs = []
        for direction in range(2 if bidirectional else 1):
            index = len(last)
            own = weights[index * size : (index + 1) * size]
            output, end = _run(step, x, starts[index], own, has_biases, direction == 1)
            outputs.append(output)
            last.append(end)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
    ends = (torch.stack(same) for same in zip(*last, strict=True))
    return (x.transpose(0, 1) if batch_first else x, *ends)


def _as_states(first: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (first,) if isinstance(first, Tensor) else tuple(first)


def _run(
    step: Step, x: Tensor, state: State, own: list[Tensor], has_biases: bool, backwards: bool
) -> tuple[Tensor, State]:
    """One layer in one direction: outputs (T, N, K), and the last state."""
    bias_in, bias_hidden = (own[2], own[3]) if has_biases else (None, None)
    projection = own[-1] if len(own) in (3, 5) else None
    inputs = F.linear(x, own[0], bias_in).unbind(0)  # (N, G * H) for each step
    outputs = []
    for one in reversed(inputs) if backwards else inputs:
        state = step(one, F.linear(state[0], own[1], bias_hidden), state)
        if projection is not None:
            state = (F.linear(state[0], projection), *state[1:])
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if backwards else outputs), state
