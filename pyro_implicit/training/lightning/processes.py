"""What several processes must share beside the gradients that DDP averages."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from torch import nn

__all__ = ["gather", "share_critics"]


def gather(value: Any) -> list[Any]:
    """``value`` of every process, in the order of their ranks; a list of one without DDP."""
    if not _several():
        return [value]
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def share_critics(objective: Any) -> list[Any]:
    """
    Makes the networks that an objective trains by itself the same in all processes.

    They are ``objective.critics``, with the optimisers ``objective.critic_optims``, and stay the
    same: rank 0's values first, then averaged gradients at each step of their own optimisers.

    :returns: handles whose ``remove()`` ends it; none in a single process.
    """
    critics = getattr(objective, "critics", {})
    if not (critics and _several()):
        return []
    for critic in critics.values():
        for tensor in (*critic.parameters(), *critic.buffers()):
            torch.distributed.broadcast(tensor.data, src=0)
    return [
        optim.register_step_pre_hook(_averaged(critics[name]))
        for name, optim in objective.critic_optims.items()
    ]


def _averaged(critic: nn.Module) -> Any:
    def hook(*_: Any) -> None:
        for parameter in critic.parameters():
            if parameter.grad is not None:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= torch.distributed.get_world_size()

    return hook


def _several() -> bool:
    return (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and (torch.distributed.get_world_size() > 1)
    )
