"""Stop a fit when a score on held-out data no longer improves, and go back to its best state."""

from __future__ import annotations

import copy
import math
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_implicit._checks import (
    check_choice,
    check_count,
    check_instance,
    check_number,
    check_state,
)
from pyro_implicit._plain import first_difference
from pyro_implicit.exceptions import NonFiniteError, StateError
from pyro_implicit.guides.first_call import FIRST_CALL_KEY

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """
    Tracks a score on validation data, and keeps the parameters that had the best one.

    For any loop, whatever the objective. The state that is kept is that of Pyro's parameter store
    and of the modules that are handed over (guides with own parameters, priors, networks)::

        stopping = EarlyStopping(patience=10)
        for step in range(10_000):
            svi.step(x, y)
            if step % 50 == 0 and stopping.step(validation_score(), guide):
                break
        stopping.restore(guide)

    Parameters are put back in place: modules, optimisers and the store go on with the tensors that
    they have. The state of optimisers is not kept; to train on from the best state, make a new one.

    :param int patience: scores in a row without an improvement after which to stop, at least 1.
    :param float min_delta: an improvement must be larger than this, at least 0.
    :param str mode: ``"min"`` for scores that should fall (a loss), ``"max"`` for others.
    :ivar float best_score: the best score so far, None before the first.
    :ivar int best_step: its number, counting from 0, None before the first.
    :ivar int num_steps: scores so far.
    :raises ArgumentError: for values outside of these.
    """

    def __init__(self, patience: int = 10, *, min_delta: float = 0.0, mode: str = "min") -> None:
        self.patience = check_count("patience", patience)
        self.min_delta = check_number("min_delta", min_delta, minimum=0)
        self.mode = check_choice("mode", mode, ("min", "max"))
        self.best_score: float | None = None
        self.best_step: int | None = None
        self.num_steps = 0
        self._waited = 0  # scores since the best one
        self._state: _State | None = None

    def step(self, score: float | Tensor, *modules: nn.Module) -> bool:
        """
        Takes one score, and a copy of all parameters if it is the best.

        :param score: a number, or a tensor with one entry, of any shape.
        :param torch.nn.Module modules: whose state to keep beside the parameter store.
        :returns: whether to stop: ``patience`` scores have brought no improvement.
        :raises ArgumentError: for anything else.
        :raises NonFiniteError: if the score is NaN or infinite; the best state is kept.
        """
        value = check_number("score", score, finite=False)
        _check_modules(modules)
        if not math.isfinite(value):
            best = "" if self.best_step is None else f" The best so far is {self.best_score:g}."
            raise NonFiniteError(
                f"score {self.num_steps} is {value}: the fit has diverged, or the score is not "
                f"defined on these data.{best} restore() brings the best state back."
            )
        if self._improves(value):
            self._state = _State.of(modules)  # first: if it fails, nothing else has changed
            self.best_score, self.best_step, self._waited = value, self.num_steps, 0
        else:
            self._waited += 1
        self.num_steps += 1
        return self.is_over

    @property
    def is_over(self) -> bool:
        """Whether ``patience`` scores have brought no improvement."""
        return self._waited >= self.patience

    def restore(self, *modules: nn.Module) -> None:
        """
        Puts the best state back: all of it, or nothing if something does not fit.

        :param torch.nn.Module modules: in the order in which :meth:`step` was given them.
        :raises ArgumentError: for anything but modules.
        :raises StateError: before the first score, for other modules, or if the parameter store
            has gained or lost parameters since.
        """
        _check_modules(modules)
        if self._state is None:
            raise StateError("there is no state to restore; call step(score, ...) first.")
        self._state.restore(modules)

    def state_dict(self) -> dict[str, Any]:
        """
        What was kept and counted, the best parameters too.

        :returns: tensors and plain values, which :meth:`load_state_dict` reads.
        """
        best = self._state
        return {
            "best_score": self.best_score,
            "best_step": self.best_step,
            "num_steps": self.num_steps,
            "waited": self._waited,
            "best": None if best is None else {"params": best.params, "modules": best.modules},
        }

    def load_state_dict(self, state: Any) -> None:
        """
        Goes on from what :meth:`state_dict` returned.

        :param state: that dictionary.
        :raises StateError: for anything else; then nothing has changed.
        """
        check_state(self, state)
        try:
            best = state["best"]
            kept = None if best is None else _State(dict(best["params"]), list(best["modules"]))
            score = None if kept is None else float(state["best_score"])
            step = None if kept is None else int(state["best_step"])
            num_steps, waited = int(state["num_steps"]), int(state["waited"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"not a state of EarlyStopping ({error!r}); expected what its state_dict() "
                "returned."
            ) from error
        self._state, self.best_score, self.best_step = kept, score, step
        self.num_steps, self._waited = num_steps, waited

    def _improves(self, value: float) -> bool:
        if self.best_score is None:
            return True
        gain = self.best_score - value if self.mode == "min" else value - self.best_score
        return gain > self.min_delta


class _State:
    """A copy of the parameter store and of modules."""

    def __init__(self, params: dict[str, Tensor], modules: list[dict[str, Any]]) -> None:
        self.params, self.modules = params, modules

    @classmethod
    def of(cls, modules: tuple[nn.Module, ...]) -> _State:
        """As they are now."""
        return cls(
            {name: value.detach().clone() for name, value in _stored().items()},
            [copy.deepcopy(module.state_dict()) for module in modules],
        )

    def restore(self, modules: tuple[nn.Module, ...]) -> None:
        """Everything is checked before anything is written."""
        if len(modules) != len(self.modules):
            raise StateError(
                f"restore was given {len(modules)} modules, and step {len(self.modules)}; give it "
                "the same ones in the same order."
            )
        stored = _stored()
        _check_fits("the parameter store", self.params, stored)
        for module, saved in zip(modules, self.modules, strict=True):
            _check_fits(type(module).__name__, saved, module.state_dict())
        with torch.no_grad():
            for name, value in self.params.items():
                stored[name].copy_(value)
        for module, saved in zip(modules, self.modules, strict=True):
            module.load_state_dict(copy.deepcopy(saved))


def _check_modules(modules: tuple[nn.Module, ...]) -> None:
    for module in modules:
        check_instance("one of modules", module, nn.Module, "an nn.Module")


def _stored() -> dict[str, Tensor]:
    """The unconstrained tensors of the parameter store, themselves."""
    return dict(pyro.get_param_store().get_state()["params"])


def _check_fits(where: str, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """The same names, and tensors of the same shapes."""
    changed = sorted(saved.keys() ^ now.keys())
    if changed:
        raise StateError(
            f"{where} had other entries when its best state was kept: {changed} came or went. "
            "Run the model and guide once before the first score, and clear nothing since."
        )
    for name, value in saved.items():
        if isinstance(value, Tensor) and value.shape != now[name].shape:
            raise StateError(
                f"{name!r} of {where} has shape {tuple(now[name].shape)}; expected that of "
                f"its best state, {tuple(value.shape)}."
            )
        notes = (
            None
            if isinstance(value, Tensor)
            else first_difference(now[name], value, name, (FIRST_CALL_KEY,))
        )
        if notes:
            raise StateError(f"{where} has another structure than its best state: {notes}.")
