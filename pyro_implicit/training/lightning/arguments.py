"""Checks of what LightningVI is given."""

from __future__ import annotations

from typing import Any

from pyro.optim import PyroOptim
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from pyro_implicit._checks import check_callable, check_choice, check_instance, check_model
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.guides.argument_order import check_order

__all__ = ["as_call", "check_arguments", "check_modules", "check_rises", "interval_of"]

_EXPECTED_GUIDE = (
    "a module, such as HyperNetworkGuide(model) or one of pyro.infer.autoguide: the parameters of "
    "a function are not seen"
)
_EXPECTED_OPTIMIZER = (
    "a function from parameters to an optimiser of torch, such as partial(torch.optim.Adam, "
    "lr=3e-3) (those of pyro.optim are for SVI)"
)
_EXPECTED_SCHEDULER = (
    "a function from the optimiser to a schedule, such as partial(CosineAnnealingLR, T_max=10_000)"
)


def check_arguments(
    model: Any, guide: Any, objective: Any, optimizer: Any, lr_scheduler: Any, interval: str | None
) -> None:
    """
    Refuses arguments that LightningVI cannot train with.

    :raises ArgumentError: for anything that LightningVI cannot train with.
    """
    check_model(model)
    check_order(model, "LightningVI(model, guide, ...)")
    check_instance("guide", guide, nn.Module, _EXPECTED_GUIDE)
    if isinstance(objective, type) or not hasattr(objective, "differentiable_loss"):
        raise ArgumentError(
            f"objective is {objective!r}; expected an instance of an objective, such as "
            "LinearisedELBO(num_particles=8)."
        )
    if isinstance(optimizer, PyroOptim):
        raise ArgumentError(
            f"optimizer is a {type(optimizer).__name__}; expected {_EXPECTED_OPTIMIZER}."
        )
    if optimizer is not None:
        check_callable("optimizer", optimizer, _EXPECTED_OPTIMIZER)
    if lr_scheduler is not None:
        check_callable("lr_scheduler", lr_scheduler, _EXPECTED_SCHEDULER)
    check_choice("lr_scheduler_interval", interval, (None, "step", "epoch"))


def as_call(found: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """
    Reads what ``batch_to_args`` returned.

    :param found: arguments of the model by place, and by name.
    :returns: the same.
    :raises ArgumentError: for anything else.
    """
    if isinstance(found, (tuple, list)) and len(found) == 2:
        args, kwargs = found
        if isinstance(args, (tuple, list)) and isinstance(kwargs, dict):
            return tuple(args), kwargs
    several = isinstance(found, (tuple, list))
    kinds = [type(one).__name__ for one in found] if several else [type(found).__name__]
    raise ArgumentError(
        f"batch_to_args returned {', '.join(kinds) or 'nothing'}; expected the model's arguments "
        "by place, and those by name: return (x, y), {}."
    )


def check_rises(scheduler: Any) -> None:
    """
    Refuses a schedule that takes a better validation score for a worse one.

    :raises ArgumentError: for a ``ReduceLROnPlateau`` that waits for the score to fall.
    """
    if isinstance(scheduler, ReduceLROnPlateau) and scheduler.mode != "max":
        raise ArgumentError(
            f"lr_scheduler makes a ReduceLROnPlateau with mode={scheduler.mode!r}; it watches "
            "val_log_predictive, which is better the higher it is, and would lower the rate while "
            'the fit improves. Write partial(ReduceLROnPlateau, mode="max", ...).'
        )


def interval_of(scheduler: Any, interval: str | None) -> str:
    """
    When a schedule is stepped.

    :param scheduler: of ``torch.optim.lr_scheduler``.
    :param interval: what was asked for; None for the schedule's own.
    :returns: ``"step"`` or ``"epoch"``.
    :raises ArgumentError: for a ``ReduceLROnPlateau`` that would step where there is no score.
    """
    waits = isinstance(scheduler, ReduceLROnPlateau)
    if waits and interval == "step":
        raise ArgumentError(
            "lr_scheduler makes a ReduceLROnPlateau, which watches val_log_predictive, and "
            "lr_scheduler_interval='step' asks for it before the first validation. Write "
            "lr_scheduler_interval='epoch', or leave it out."
        )
    return interval or ("epoch" if waits else "step")


def check_modules(modules: Any) -> list[nn.Module]:
    """
    One or several modules as a list, or an error.

    :param modules: one module, or several.
    :returns: them in a list.
    :raises ArgumentError: for anything else.
    """
    if isinstance(modules, nn.Module):
        return [modules]
    check_instance("modules", modules, (list, tuple, nn.ModuleList), "a module, or several")
    return [
        check_instance(f"modules[{i}]", module, nn.Module, "an nn.Module")
        for i, module in enumerate(modules)
    ]
