"""Checks of what LightningVI is given."""

from __future__ import annotations

from typing import Any

from pyro.optim import PyroOptim
from torch import nn

from pyro_implicit.exceptions import ArgumentError

__all__ = ["check_arguments"]


def check_arguments(
    guide: Any, objective: Any, optimizer: Any, lr_scheduler: Any, interval: str
) -> None:
    """
    :raises ArgumentError: for anything that LightningVI cannot train with.
    """
    if not isinstance(guide, nn.Module):
        raise ArgumentError(
            f"guide is a {type(guide).__name__}; expected a module, such as "
            "HyperNetworkGuide(model) or one of pyro.infer.autoguide: the parameters of a function "
            "are not seen."
        )
    if isinstance(objective, type) or not hasattr(objective, "differentiable_loss"):
        raise ArgumentError(
            f"objective is {objective!r}; expected an instance of an objective, such as "
            "LinearisedELBO(num_particles=8)."
        )
    if isinstance(optimizer, PyroOptim) or not (optimizer is None or callable(optimizer)):
        raise ArgumentError(
            f"optimizer is a {type(optimizer).__name__}; expected a function from parameters to an "
            "optimiser of torch, such as partial(torch.optim.Adam, lr=3e-3). (Those of pyro.optim "
            "are for SVI.)"
        )
    if not (lr_scheduler is None or callable(lr_scheduler)):
        raise ArgumentError(
            f"lr_scheduler is a {type(lr_scheduler).__name__}; expected a function from the "
            "optimiser to a schedule, such as partial(CosineAnnealingLR, T_max=10_000)."
        )
    if interval not in ("step", "epoch"):
        raise ArgumentError(f"lr_scheduler_interval={interval!r}; expected 'step' or 'epoch'.")
