"""Guides and objectives of a few operations, where only the loop is looked at."""

from __future__ import annotations

import math
from typing import Any

import pyro
import torch


def model(*args: Any, **kwargs: Any) -> None:
    """The objective below asks nothing of it but a parameter."""
    pyro.param("of_model", torch.tensor(-2.0))


def guide(*args: Any, **kwargs: Any) -> Any:
    return pyro.param("w", torch.zeros(2))


class Bowl:
    """
    A noisy quadratic function of the parameters; minus infinity nats cannot be had.

    :param events: what happens in which call: an exception to raise, or a loss to return.
    """

    def __init__(self, noise: float = 0.3, events: dict[int, Any] | None = None) -> None:
        self.noise, self.events = noise, events or {}
        self.calls = 0
        self.seen: list[Any] = []

    def loss_and_grads(self, model: Any, guide: Any, *args: Any, **kwargs: Any) -> float:
        self.calls += 1
        self.seen.append(args or kwargs)
        model(*args, **kwargs)
        w = guide(*args, **kwargs)
        at = pyro.param("of_model")
        loss = (w - 1.0).square().sum() + at.square() + self.noise * torch.randn(())
        event = self.events.get(self.calls)
        if isinstance(event, BaseException):
            raise event
        if event is not None:
            (loss * event).backward()
            return float(event)
        (loss + (self.noise * torch.randn_like(w) * w).sum()).backward()
        return loss.item()

    def __repr__(self) -> str:
        return "Bowl()"


def value() -> tuple[float, ...]:
    return (*pyro.param("w").tolist(), pyro.param("of_model").item())


def is_finite() -> bool:
    return all(map(math.isfinite, value()))
