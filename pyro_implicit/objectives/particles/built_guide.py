"""Guides that make their parameters when they are first run: from the caller's random numbers."""

from __future__ import annotations

from typing import Any

import torch
from pyro import poutine
from torch import nn

from pyro_implicit.handlers.networks.still_statistics import still_statistics

__all__ = ["build"]


def build(guide: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """
    Runs a guide that has no parameters yet, as a step that draws one by one does first.

    A look from random numbers of its own would begin every run at one point, whatever the seed.

    :param guide: any guide; only a module is run, and only one without a parameter.
    :param args: its positional arguments.
    :param kwargs: its keyword arguments.
    """
    if isinstance(guide, nn.Module) and next(guide.parameters(), None) is None:
        with poutine.block(), torch.no_grad(), still_statistics():
            guide(*args, **kwargs)
