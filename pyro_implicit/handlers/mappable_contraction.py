"""Pyro's contraction of enumerated latents under ``torch.func.vmap``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pyro.ops.einsum import torch_log as _torch_log
from torch import Tensor

_pyros: Any = _torch_log

__all__ = ["mappable_contraction", "safe_log"]


class _SafeLog(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.log()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        found: Tensor = grad / x.clamp(min=torch.finfo(x.dtype).eps)
        return found


def safe_log(x: Tensor) -> Tensor:
    """
    A logarithm whose gradient at 0 is large, not infinite: :func:`pyro.ops.special.safe_log`.

    :param torch.Tensor x: not below 0, of any shape.
    :returns: the logarithm, of the same shape.
    """
    found: Tensor = _SafeLog.apply(x)
    return found


@contextmanager
def mappable_contraction() -> Iterator[None]:
    """
    Lets Pyro's contraction run under ``vmap``: the same numbers, by :func:`safe_log` of here.

    Pyro's own is an ``autograd.Function`` without the method that ``torch.func`` asks for.
    """
    before = _pyros.safe_log
    _pyros.safe_log = safe_log
    try:
        yield
    finally:
        _pyros.safe_log = before
