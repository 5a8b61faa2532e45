"""Pyro's logarithm that is safe at 0, of enumerated and Markov states, under ``vmap``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pyro.distributions import coalescent, hmm
from pyro.ops.einsum import torch_log
from torch import Tensor

_MODULES_USING_SAFE_LOG: tuple[Any, ...] = (torch_log, hmm, coalescent)

__all__ = ["mappable_logarithm", "safe_log"]


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
def mappable_logarithm() -> Iterator[None]:
    """
    Lets what takes Pyro's logarithm run under ``vmap``: the same numbers, by :func:`safe_log`.

    Pyro's own is an ``autograd.Function`` without the method that ``torch.func`` asks for.
    """
    before = [user.safe_log for user in _MODULES_USING_SAFE_LOG]
    for user in _MODULES_USING_SAFE_LOG:
        user.safe_log = safe_log
    try:
        yield
    finally:
        for user, own in zip(_MODULES_USING_SAFE_LOG, before, strict=True):
            user.safe_log = own
