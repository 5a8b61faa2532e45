"""Checks of what Lightning saved of a training: loops, optimiser, schedules, callbacks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from pyro_implicit._checks import shown
from pyro_implicit._plain import as_state_error, check_like, non_finite
from pyro_implicit.exceptions import StateError

__all__ = ["check_callbacks", "check_loops", "check_training"]

_COUNTERS_IN_ORDER = ("ready", "started", "processed", "completed")  # none is above those before it


def check_loops(checkpoint: dict[str, Any], trainer: Any) -> None:
    """
    Checks the saved counters of Lightning's loops.

    :raises StateError: if a counter is absent, no count, or in contradiction to another one.
    """
    loops = checkpoint["loops"]
    names = ("fit_loop", "validate_loop", "test_loop", "predict_loop")
    check_like(loops, {name: getattr(trainer, name).state_dict() for name in names}, "loops")
    for name, loop in loops.items():
        _check_counts(loop, f"loops[{name!r}]")
    for name in ("epoch", "global_step"):
        if not _is_count(checkpoint.get(name)):
            raise StateError(f"{name} of the checkpoint is {shown(checkpoint.get(name))}.")


def _check_counts(value: Any, where: str) -> None:
    """Everything counts something, is a flag, or a loader's place, which that loader checks."""
    if isinstance(value, dict):
        steps = [value[name] for name in _COUNTERS_IN_ORDER if name in value]
        for name, entry in value.items():
            if name == "state_dict" or name.endswith(".state_dict"):
                _check_places(entry, f"{where}[{name!r}]")
            else:
                _check_counts(entry, f"{where}[{name!r}]")
        if not all(later <= earlier for earlier, later in zip(steps, steps[1:], strict=False)):
            raise StateError(f"{where} of the checkpoint contradicts itself: {shown(value)}.")
    elif not (isinstance(value, bool) or _is_count(value)):
        raise StateError(f"{where} of the checkpoint is {shown(value)}; expected a count.")


def _check_places(value: Any, where: str) -> None:
    check_like(value, {}, where)
    places = value.get("combined_loader", [])
    check_like(places, [], where)
    for place in places:
        for name in ("seed", "epoch", "batch"):
            if isinstance(place, dict) and place.keys() >= {"seed", "epoch", "batch"}:
                ok = _is_count(place[name]) or (name == "seed" and type(place[name]) is int)
                if not ok:
                    raise StateError(
                        f"{name} in {where} of the checkpoint is {shown(place[name])}."
                    )


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def check_training(vi: Any, checkpoint: dict[str, Any], found: list[str]) -> None:
    """
    Checks the saved states of optimiser and schedule.

    :param vi: the module, whose optimiser and schedule are made once more, to compare with.
    :param dict checkpoint: all of it.
    :param found: class names of the optimisers that were saved.
    :raises StateError: if optimiser or schedule are others, or damaged.
    """
    made = vi.configure_optimizers()
    made = made if isinstance(made, dict) else {"optimizer": made}
    trained = {name: p for name, p in vi.named_parameters() if p.requires_grad}
    names, parameters = list(trained), list(trained.values())
    _check_optimizer(checkpoint, found, made["optimizer"], parameters, names)
    _check_scheduler(checkpoint, made.get("lr_scheduler", {}).get("scheduler"))


def _check_optimizer(
    checkpoint: dict[str, Any],
    found: list[str],
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    names: Sequence[str],
) -> None:
    """
    Checks the saved state of one optimiser.

    :param dict checkpoint: all of it.
    :param found: class names of the optimisers that were saved.
    :param optimizer: a fresh one, which is changed.
    :param parameters: those that it is for.
    :param names: of theirs.
    :raises StateError: if its saved state is absent, of another kind, or not finite.
    """
    if any(name not in checkpoint for name in ("optimizer_states", "lr_schedulers", "loops")):
        raise StateError(
            "the checkpoint has no optimiser state: it was saved with save_weights_only=True, and "
            "training cannot go on from it."
        )
    kind = type(optimizer).__name__
    if found != [kind]:
        raise StateError(
            f"the checkpoint was written with the optimiser {found}; here it is {[kind]}."
        )
    states = checkpoint["optimizer_states"]
    check_like(states, [{"state": {}, "param_groups": []}], "optimizer_states")
    if len(states) != 1:
        raise StateError(f"the checkpoint has {len(states)} optimiser states; expected one.")
    (state,) = states
    count = sum(len(group["params"]) for group in state["param_groups"])
    if count != len(parameters):
        raise StateError(
            f"the checkpoint's optimiser is for {count} parameters; here there are "
            f"{len(parameters)}."
        )
    _check_groups(state["param_groups"], optimizer.state_dict()["param_groups"])
    _check_moments(state["state"], _moments(optimizer, parameters), parameters, names)
    optimizer.load_state_dict(copy.deepcopy(state))


def _check_groups(found: list[Any], expected: list[Any]) -> None:
    check_like(found, expected, "param_groups")
    for ours, theirs in zip(expected, found, strict=True):
        bad = non_finite(theirs)
        for name, value in ours.items():
            is_pair = isinstance(value, (list, tuple)) and len(theirs[name]) == len(value)
            # an option that is None by default may be a number or a flag
            is_plain = not isinstance(theirs[name], (Tensor, dict, list, tuple))
            if name in bad or not (is_pair or is_plain or isinstance(value, Tensor)):
                raise StateError(f"{name} of the checkpoint's optimiser is {shown(theirs[name])}.")


def _check_moments(
    found: dict[Any, Any],
    expected: dict[Any, Any] | None,
    parameters: Sequence[nn.Parameter],
    names: Sequence[str],
) -> None:
    for index, entry in found.items():
        if type(index) is not int or not 0 <= index < len(parameters):
            raise StateError(f"the checkpoint's optimiser has a state for parameter {index!r}.")
        check_like(entry, {}, f"the optimiser's state of {names[index]}")
        for name, value in entry.items():
            shape = parameters[index].shape
            if isinstance(value, Tensor) and value.dim() and value.shape != shape:
                raise StateError(
                    f"{name} of parameter {index} has shape {tuple(value.shape)} in the "
                    f"checkpoint's optimiser; the parameter has {tuple(shape)}."
                )
        if expected is not None:
            check_like(entry, expected.get(index), f"the optimiser's state of {names[index]}")
        bad = [name for name in non_finite(entry) if _has_nan(entry[name])]
        if bad:
            raise StateError(
                f"{bad[0]} of parameter {names[index]} in the checkpoint's optimiser is no number; "
                "take an older checkpoint."
            )


def _has_nan(value: Any) -> bool:
    return bool(torch.as_tensor(value).isnan().any())


def _moments(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> dict[Any, Any] | None:
    """What the optimiser keeps for each parameter after a step, without memory for it."""
    places = {id(parameter): index for index, parameter in enumerate(parameters)}
    groups = []
    for group in optimizer.param_groups:
        stand_ins = []
        for parameter in group["params"]:
            stand_in = nn.Parameter(torch.empty_like(parameter, device="meta"))
            stand_in.grad = torch.empty_like(stand_in)
            stand_ins.append((places[id(parameter)], stand_in))
        groups.append((group, stand_ins))
    with suppress(Exception):  # an optimiser that cannot (LBFGS wants a closure) is not looked at
        options = [{**group, "params": [p for _, p in pairs]} for group, pairs in groups]
        kind: Any = type(optimizer)
        trial = kind(options)
        trial.step()
        return {index: trial.state[p] for _, pairs in groups for index, p in pairs}
    return None


def _check_scheduler(checkpoint: dict[str, Any], scheduler: Any) -> None:
    """
    Checks the saved state of the learning-rate schedule.

    :param scheduler: a fresh one, which is changed, or None.
    :raises StateError: if the saved schedules are others.
    """
    states, count = checkpoint["lr_schedulers"], int(scheduler is not None)
    check_like(states, [], "lr_schedulers")
    if len(states) != count:
        raise StateError(
            f"the checkpoint has {len(states)} learning-rate schedules; here there are {count}."
        )
    if scheduler is not None:
        fresh = scheduler.state_dict()
        check_like(states[0], fresh, "lr_schedulers[0]", False)
        absent = [
            k for k, v in fresh.items() if states[0][k] is None and isinstance(v, (int, float))
        ]
        if absent:
            raise StateError(
                f"{absent[0]} of the checkpoint's schedule is None; expected a number."
            )
        bad = non_finite(states[0])
        if bad and not non_finite(fresh):
            raise StateError(f"{bad[0]} of the checkpoint's schedule is {states[0][bad[0]]}.")
        scheduler.load_state_dict(copy.deepcopy(states[0]))


def check_callbacks(checkpoint: dict[str, Any], trainer: Any) -> None:
    """
    Checks the saved states of callbacks and precision.

    :raises StateError: if a state of one of Lightning's own callbacks or of the precision is not
        like the one that it has; a user's callback checks its own.
    """
    states = checkpoint.get("callbacks")
    check_like(states, {}, "callbacks")
    owners = {c.state_key: c for c in trainer.callbacks if _is_lightnings(c)}
    for key, owner in owners.items():
        if states and key in states:
            with as_state_error(f"callbacks[{key!r}] of the checkpoint"):
                check_like(states[key], owner.state_dict(), f"callbacks[{key!r}]", False)
    precision = trainer.precision_plugin
    name = type(precision).__qualname__
    if name in checkpoint:
        check_like(checkpoint[name], precision.state_dict(), name)


def _is_lightnings(callback: Any) -> bool:
    return type(callback).__module__.startswith(("lightning.", "pytorch_lightning."))
