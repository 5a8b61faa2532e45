"""What networks in training mode do in the steps of a fit, and not in predictions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.masks.replicates import Replicates
from pyro_implicit.handlers.networks.drawn_norms import (
    NormInputs,
    OtherLatents,
    PlainRun,
    warning_of_drawn_norms,
)
from pyro_implicit.handlers.networks.evaluation_mode import (
    evaluation_mode,
    is_random_function,
    note_told,
)
from pyro_implicit.handlers.networks.left_out_noise import LeftOutNoise

__all__ = ["NetworksInTraining"]


class NetworksInTraining:
    """
    Watches one run of a model, in which its networks are in evaluation mode.

    :meth:`warnings` then tells of random layers, and of layers that normalise what is drawn.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._noise, self._norms = LeftOutNoise(), NormInputs()
        self._silenced: Mapping[str, nn.Module] = {}

    def __enter__(self) -> NetworksInTraining:
        self._silenced = self._stack.enter_context(evaluation_mode())
        self._stack.enter_context(self._noise)
        self._stack.enter_context(self._norms)
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            note_told(self._silenced.values())
        self._stack.__exit__(*error)

    def warnings(self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
        """
        Looks once more where there is something to tell, which leaves no trace.

        :param model: the model that was run.
        :param args: its positional arguments.
        :param kwargs: its keyword arguments.
        :returns: what to write, for warnings.
        """
        if self._noise.functions:
            heard = LeftOutNoise(is_heard=True)
            with unseen_run(), heard:
                if _runs(model, args, kwargs):
                    self._noise.only_where(heard)
        texts: list[str | None] = [_told_of(self._silenced, self._noise)]
        if self._norms.inputs:
            some, others, plain = NormInputs(), NormInputs(), PlainRun()
            with unseen_run(evaluates=True), plain, some:
                _runs(model, args, kwargs)
            with unseen_run(evaluates=True), OtherLatents(plain), others:
                _runs(model, args, kwargs)
            texts.append(warning_of_drawn_norms(some, others))
        return [text for text in texts if text]


def _runs(model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a model can be run, as it cannot with a batch norm in training mode of one row."""
    try:
        with torch.no_grad():
            Replicates()(model)(*args, **kwargs)
    except Exception:
        return False
    return True


def _told_of(silenced: Mapping[str, nn.Module], noise: LeftOutNoise) -> str:
    """Of noise that the steps have, and predictions do not."""
    called = [
        name
        for name, part in silenced.items()
        if part in noise.layers or not is_random_function(part)
    ]
    listed = ", ".join([*called, *noise.functions])
    if not listed:
        return ""
    return (
        f"random layers in training mode ({listed}): the steps draw their randomness, which counts "
        "as noise of the data, and predict leaves it out, so that intervals come out too wide. "
        "Before fit call .eval() on what the model calls: net.eval() of a BayesianModule, which "
        "has a copy of your network, so that network.eval() changes nothing (the prior of the "
        "weights is what regularises it). Or write F.dropout(x, p, training=True), which predict "
        "keeps."
    )
