"""
A training loop that records one step as a graph of tensor operations and replays it.

A step of a small network spends more time in Pyro's handlers than in arithmetic. The recording
holds forward and backward pass, random draws included, and gives the same numbers bit for bit. It
is valid only while no data, shapes or plates change: full batches, fixed arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pyro
import torch
from pyro.infer import ELBO, trace_elbo
from torch import Tensor
from tqdm.auto import trange

from pyro_implicit.ops.recording import trace_operations

__all__ = ["cosine", "flat_then_cosine", "record", "train"]

Step = Callable[[], tuple[Tensor, ...]]
Schedule = Callable[[float], float]


def cosine(progress: float) -> float:
    """From 1 to 0.02 of the learning rate."""
    return 0.02 + 0.49 * (1 + math.cos(math.pi * progress))


def flat_then_cosine(progress: float) -> float:
    """Flat for 30% of the steps, then the cosine."""
    return cosine(max(0.0, progress - 0.3) / 0.7)


def record(loss: Callable[[], Tensor], parameters: Sequence[Tensor]) -> Step:
    """
    :param loss: makes the loss. Nothing may read a number back from a tensor: Pyro's validation is
        off while it is recorded.
    :param parameters: tensors that the graph will read anew at each step.
    :returns: a function that gives the loss and its gradients, with fresh random numbers.
    """

    def step() -> tuple[Tensor, ...]:
        value = loss()
        return value.detach(), *torch.autograd.grad(value, parameters)

    with pyro.validation_enabled(False), _pyro_objectives_without_numbers():
        graph = trace_operations(step)
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
) -> float:
    """
    Adam on the full data.

    :param data: the model's arguments.
    :param float rate: learning rate at the start, times ``schedule(step / num_steps)``.
    :param bar: title of the progress bar, None for no bar.
    :returns: minus the mean loss of the last tenth of the steps.
    """
    loss_module = objective(model, guide)
    with pyro.validation_enabled(False):
        loss_module(*data)  # makes the parameters
        parameters = list(loss_module.parameters())
        adam = torch.optim.Adam(parameters, lr=rate)
        rates = torch.optim.lr_scheduler.LambdaLR(adam, lambda t: schedule(t / num_steps))
        step = record(lambda: loss_module(*data), parameters)
        tail: list[float] = []
        for index in trange(num_steps, desc=bar, disable=bar is None, leave=False, mininterval=2):
            value, *gradients = step()
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            adam.step()
            rates.step()
            if index >= num_steps - max(1, num_steps // 10):
                tail.append(float(value))
        if not math.isfinite(sum(tail)):
            raise SystemExit(f"error: the loss of {bar or type(guide).__name__} is not finite")
    return -sum(tail) / len(tail)
