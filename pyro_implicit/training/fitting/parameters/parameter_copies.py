"""Copies of parameters by name, and the way back to them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["copied", "set_to"]


def copied(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """
    Copies parameters.

    :param dict params: by name, of any shapes.
    :returns: the copies, of the same shapes.
    """
    return {str(name): param.detach().clone() for name, param in params.items()}


@torch.no_grad()
def set_to(params: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """
    Sets parameters in place; the same if it is called twice.

    :param dict params: by name, of any shapes; what has no value stays.
    :param dict values: by name, of the same shapes.
    """
    for name, param in params.items():
        if name in values:
            param.copy_(values[name])
