"""What LightningVI adds to a checkpoint, and all checks that come before any of it is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from pyro_implicit.exceptions import StateError

__all__ = ["KEY", "VERSION", "check_header", "check_optimizer", "check_tensors", "finish_epoch"]

KEY = "pyro_implicit"
VERSION = 1


def check_header(checkpoint: dict[str, Any], objective: str) -> dict[str, Any]:
    """
    :param dict checkpoint: as read from a file.
    :param str objective: class name of the objective.
    :returns: our part of it.
    :raises StateError: if there is none, or it is of another version or objective.
    """
    header = checkpoint.get(KEY)
    if not isinstance(header, dict):
        raise StateError(
            f"not a checkpoint of LightningVI: it has no entry {KEY!r}, only "
            f"{sorted(map(str, checkpoint))}. It was saved by another Lightning module."
        )
    if header.get("version") != VERSION:
        raise StateError(
            f"the checkpoint has format version {header.get('version')!r}; this release reads "
            f"version {VERSION}. Go on with the release that wrote it, or start anew."
        )
    missing = {"objective", "objective_state", "optimizers", "random"} - header.keys()
    if missing:
        raise StateError(f"the checkpoint is incomplete: {KEY!r} lacks {sorted(missing)}.")
    if header["objective"] != objective:
        raise StateError(
            f"the checkpoint was written while training with {header['objective']}; this objective "
            f"is {objective}."
        )
    return header


def check_tensors(found: Any, expected: dict[str, Any]) -> None:
    """
    :param found: the ``state_dict`` of a checkpoint.
    :param dict expected: that of the module which is to load it.
    :raises StateError: unless names, shapes, dtypes and guides' structure are the same.
    """
    if not isinstance(found, dict):
        raise StateError(
            f"the checkpoint's state_dict is a {type(found).__name__}; expected a dict."
        )
    absent, foreign = sorted(expected.keys() - found), sorted(found.keys() - expected)
    if absent or foreign:
        raise StateError(
            f"the checkpoint is of another model or guide: it lacks {absent or 'nothing'} and has "
            f"{foreign or 'nothing'} beside what is expected."
        )
    for name, value in expected.items():
        ours, theirs = _describe(value), _describe(found[name])
        if ours != theirs:
            raise StateError(
                f"the checkpoint is of another model or guide: {name} is {theirs} there and {ours} "
                "here."
            )


def _describe(value: Any) -> str:
    return f"{tuple(value.shape)} {value.dtype}" if isinstance(value, Tensor) else repr(value)


def check_optimizer(
    checkpoint: dict[str, Any],
    header: dict[str, Any],
    names: list[str],
    schedulers: int,
    parameters: Iterable[nn.Parameter],
) -> None:
    """
    :param names: class names of the optimisers that are to load their states.
    :param int schedulers: number of learning-rate schedules.
    :param parameters: those that the optimiser is for.
    :raises StateError: if optimiser or schedules are absent from the checkpoint or of another kind.
    """
    if (
        "optimizer_states" not in checkpoint
        or "lr_schedulers" not in checkpoint
        or "loops" not in checkpoint
    ):
        raise StateError(
            "the checkpoint has no optimiser state: it was saved with save_weights_only=True, and "
            "training cannot go on from it."
        )
    if header["optimizers"] != names:
        raise StateError(
            f"the checkpoint was written with the optimiser {header['optimizers']}; here it is "
            f"{names}."
        )
    if len(checkpoint["lr_schedulers"]) != schedulers:
        raise StateError(
            f"the checkpoint has {len(checkpoint['lr_schedulers'])} learning-rate schedules; here "
            f"there are {schedulers}."
        )
    shapes = [parameter.shape for parameter in parameters]
    for state in checkpoint["optimizer_states"]:
        count = sum(len(group["params"]) for group in state["param_groups"])
        if count != len(shapes):
            raise StateError(
                f"the checkpoint's optimiser is for {count} parameters; here there are "
                f"{len(shapes)}."
            )
        for index, entry in state["state"].items():
            for name, value in entry.items():
                if isinstance(value, Tensor) and value.dim() and value.shape != shapes[index]:
                    raise StateError(
                        f"{name} of parameter {index} has shape {tuple(value.shape)} in the "
                        f"checkpoint's optimiser; the parameter has {tuple(shapes[index])}."
                    )


def finish_epoch(checkpoint: dict[str, Any]) -> None:
    """
    Lets a loader that was left at the end of an epoch go on with the next one, also if
    ``limit_train_batches`` made that end come early.
    """
    fit = checkpoint.get("loops", {}).get("fit_loop", {})
    if not fit.get("epoch_loop.batch_progress", {}).get("is_last_batch"):
        return
    for place in fit.get("state_dict", {}).get("combined_loader", []):
        if set(place) == {"seed", "epoch", "batch"} and place["batch"]:
            place.update(epoch=place["epoch"] + 1, batch=0)
