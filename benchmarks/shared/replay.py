"""
A training loop that records one step as a graph of tensor operations and replays it.

A step of a small network spends more time in Pyro's handlers than in arithmetic. The recording
holds forward and backward pass, random draws included, and gives the same numbers bit for bit. It
is valid only while no shapes or plates change: full batches, or minibatches of one size, whose rows
are copied to where the recording reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any
from unittest import mock

import pyro
import torch
from pyro.infer import ELBO, trace_elbo
from torch import Tensor
from tqdm.auto import trange

from pyro_implicit.ops.graphs.recording import lighten, trace_operations

__all__ = ["cosine", "flat_then_cosine", "record", "train"]

Step = Callable[[], tuple[Tensor, ...]]
Schedule = Callable[[float], float]


def cosine(progress: float) -> float:
    """From 1 to 0.02 of the learning rate."""
    return 0.02 + 0.49 * (1 + math.cos(math.pi * progress))


def flat_then_cosine(progress: float) -> float:
    """Flat for 30% of the steps, then the cosine."""
    return cosine(max(0.0, progress - 0.3) / 0.7)


def record(
    loss: Callable[[], Tensor], parameters: Sequence[Tensor], *, light: bool = False
) -> Step:
    """
    :param loss: makes the loss. Nothing may read a number back from a tensor: Pyro's validation is
        off while it is recorded.
    :param parameters: tensors that the graph will read anew at each step.
    :param bool light: take out of the graph what changes no value, which makes it up to twice as
        fast; the random numbers may then be others.
    :returns: a function that gives the loss and its gradients, with fresh random numbers.
    """

    def step() -> tuple[Tensor, ...]:
        value = loss()
        return value.detach(), *torch.autograd.grad(value, parameters)

    with pyro.validation_enabled(False), _pyro_objectives_without_numbers():
        graph = trace_operations(step)
    if light:
        lighten(graph)
    else:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return torch.no_grad()(graph)


@contextmanager
def _pyro_objectives_without_numbers() -> Iterator[None]:
    """``Trace_ELBO`` reads its value only to report it; here it stays a tensor."""

    def keep(value: Any) -> Any:
        return value.detach() if isinstance(value, Tensor) else value

    with mock.patch.multiple(trace_elbo, torch_item=keep, warn_if_nan=lambda *_: None):
        yield


def _shown(
    data: tuple[Tensor, ...], batch_size: int | None
) -> tuple[tuple[Tensor, ...], Iterator[None]]:
    """The data of a step, and what puts the next rows there: each once, then shuffled anew."""
    size = len(data[0])
    if batch_size is None or batch_size >= size:
        return data, repeat(None)
    shown = tuple(values[:batch_size].clone() for values in data)

    def renew() -> Iterator[None]:
        while True:
            for rows in torch.randperm(size)[: size - size % batch_size].split(batch_size):
                for place, values in zip(shown, data, strict=True):
                    place.copy_(values[rows])
                yield

    return shown, renew()


def train(
    model: Any,
    guide: Any,
    objective: ELBO,
    data: tuple[Tensor, ...],
    *,
    num_steps: int,
    rate: float,
    schedule: Schedule,
    bar: str | None = None,
    batch_size: int | None = None,
    light: bool = False,
) -> float:
    """
    Adam on the full data, or on minibatches.

    :param data: the model's arguments.
    :param float rate: learning rate at the start, times ``schedule(step / num_steps)``.
    :param bar: title of the progress bar, None for no bar.
    :param batch_size: rows of a step, all by default: the model has to weigh them by itself.
    :param bool light: see :func:`record`.
    :returns: minus the mean loss of the last tenth of the steps.
    :raises FloatingPointError: if one of these is not finite.
    """
    loss_module = objective(model, guide)
    data, rows = _shown(data, batch_size)
    with pyro.validation_enabled(False):
        loss_module(*data)  # makes the parameters
        parameters = list(loss_module.parameters())
        adam = torch.optim.Adam(parameters, lr=rate)
        rates = torch.optim.lr_scheduler.LambdaLR(adam, lambda t: schedule(t / num_steps))
        step = record(lambda: loss_module(*data), parameters, light=light)
        tail: list[float] = []
        for index in trange(num_steps, desc=bar, disable=bar is None, leave=False, mininterval=2):
            next(rows)
            value, *gradients = step()
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            adam.step()
            rates.step()
            if index >= num_steps - max(1, num_steps // 10):
                tail.append(float(value))
        if not math.isfinite(sum(tail)):
            raise FloatingPointError(f"the loss of {bar or type(guide).__name__} is not finite")
    return -sum(tail) / len(tail)
