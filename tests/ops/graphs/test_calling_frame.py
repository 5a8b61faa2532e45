"""The program that asks is told from the library that checks, through any mode."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_implicit.ops.graphs.calling_frame import calling_frame, is_of_library


class _Frames(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = calling_frame(sys._getframe(1))
        self.found.append((frame.f_code.co_name, is_of_library(frame)))
        return func(*args, **(kwargs or {}))


def asks(value: Tensor) -> float:
    return value.item()


def test_a_program_is_found_through_several_modes() -> None:
    with _Frames() as outer, _Frames() as inner:
        asks(torch.ones(()))
    assert ("asks", False) in outer.found and ("asks", False) in inner.found


def test_a_library_is_one() -> None:
    frames = _Frames()
    with frames:
        torch.distributions.Normal(torch.zeros(()), torch.ones(()), validate_args=True)
    assert frames.found and all(is_library for _, is_library in frames.found[2:])
    assert calling_frame(None) is None
