"""
Where a run was when a checkpoint was made, in one of two forms that Lightning takes up exactly.

Lightning saves its counters as they are when the file is written: after a batch, a validation or an
epoch, or when ``max_steps`` ended an epoch early. Its loops tell these apart by differences between
counters, and take some of them up in the wrong place: they repeat the data of an epoch, or count
one too many. All of them are one of two things, "``k`` batches into epoch ``e``" and "before epoch
``e``"; here they are written as such.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.loops.loop import _Loop
from torch import nn

from pyro_implicit._plain import check_like

__all__ = ["accumulated_gradients", "continue_loops", "normalise_loops", "restore_gradients"]

_KEY_OF_BATCH_PROGRESS = "epoch_loop.batch_progress"
_KEY_OF_VALIDATION_PROGRESS = "epoch_loop.val_loop.batch_progress"
_KEY_OF_OPTIMIZER_PROGRESS = "epoch_loop.automatic_optimization.optim_progress"
_KEYS_OF_LOADER_PLACE = {"seed", "epoch", "batch"}


def normalise_loops(fit: dict[str, Any], accumulate: int) -> int:
    """
    Changes the counters and the loaders' places in place.

    :param dict fit: state of Lightning's fit loop, checked already.
    :param int accumulate: batches per step of the optimiser.
    :returns: number of batches of the current epoch that are done; 0 before an epoch.
    """
    batches, epochs = fit[_KEY_OF_BATCH_PROGRESS], fit["epoch_progress"]
    done: int = batches["current"]["processed"]
    in_flight = batches["current"]["ready"] - done
    ended = bool(batches["is_last_batch"]) and done > 0
    for count in epochs.values():
        _set_epochs(count, done, ended)
    _set_places(fit, in_flight, ended)
    if ended:
        done = 0
    batches["is_last_batch"] = False
    for which, count in batches.items():
        if which != "is_last_batch":
            _set_all(count, done if which == "current" else count["processed"])
            # how Lightning saves after a batch: it completes that one by itself
            count["completed"] -= int(done > 0)
    for which, count in fit[_KEY_OF_VALIDATION_PROGRESS].items():
        if which != "is_last_batch":
            _set_all(count, count["completed"] if done else 0)
    steps = fit[_KEY_OF_OPTIMIZER_PROGRESS]["optimizer"]["step"]["total"]["completed"]
    if steps:  # not with manual optimisation; one less if Lightning is to add the last batch
        stepped = done > 0 and done % accumulate == 0
        fit["epoch_loop.state_dict"]["_batches_that_stepped"] = steps - int(stepped)
    return done


def continue_loops(loop: Any, done: int) -> None:
    """
    To be called when training starts, with the loops reset for a restart.

    :param loop: Lightning's fit loop.
    :param int done: what :func:`normalise_loops` returned.
    """
    places = loop._combined_loader_states_to_load
    if places:  # Lightning leaves them where it sees no restart, as before an epoch
        loop._combined_loader._load_state_dicts(places)
        loop._combined_loader_states_to_load = []
        iter(loop._data_fetcher)
    if done:
        # only the loop over batches is in the middle: schedules at the end of the epoch are due
        loop._restarting = False
    else:
        _Loop.restarting.fset(loop, False)  # type: ignore[attr-defined]


def accumulated_gradients(trainer: Any, parameters: Sequence[nn.Parameter]) -> list[Any] | None:
    """
    Collects gradients whose optimiser step is still to come.

    :returns: gradients of batches whose step is still to come (``accumulate_grad_batches``), or
        None between steps.
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    done = progress.current.processed
    if progress.is_last_batch or done % trainer.accumulate_grad_batches == 0:
        return None
    return [None if p.grad is None else p.grad.detach().clone() for p in parameters]


def check_gradients(gradients: list[Any], parameters: Sequence[nn.Parameter]) -> None:
    """
    Checks that saved gradients are those of the parameters.

    :param gradients: what :func:`accumulated_gradients` returned in each process.
    :raises StateError: if they are not those of the parameters.
    """
    for each in gradients:
        if each is not None:
            given = [
                p for p, gradient in zip(parameters, each, strict=True) if gradient is not None
            ]
            expected = [torch.empty_like(p, device="meta") for p in given]
            check_like([g for g in each if g is not None], expected, "gradients")


def restore_gradients(gradients: list[Any] | None, parameters: Sequence[nn.Parameter]) -> None:
    """Puts back what :func:`accumulated_gradients` returned."""
    if gradients is not None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter)


def _set_epochs(count: dict[str, int], done: int, ended: bool) -> None:
    """
    Sets the numbers of epochs that were begun and processed.

    The number begun is right wherever it is saved; how many are processed is not, for an epoch that
    ``max_steps`` ends counts too.
    """
    if ended:
        _set_all(count, count["started"])
    elif done:
        _set_all(count, count["started"])
        count["processed"] = count["completed"] = count["started"] - 1
    else:
        _set_all(count, count["processed"])


def _set_all(count: dict[str, int], value: int) -> None:
    count.update({name: value for name in count})


def _set_places(fit: dict[str, Any], in_flight: int, ended: bool) -> None:
    """
    Sets the places of the loaders at which training goes on.

    A loader left at the end of an epoch goes on with the next one, also if ``limit_train_batches``
    made that end come early; one that has given a batch which was not processed gives it again.
    """
    for place in fit["state_dict"].get("combined_loader", []):
        if not (isinstance(place, dict) and place.keys() >= _KEYS_OF_LOADER_PLACE):
            continue  # of another class of loaders
        if ended and place["batch"]:
            place.update(epoch=place["epoch"] + 1, batch=0)
        else:
            place["batch"] = max(0, place["batch"] - in_flight)
