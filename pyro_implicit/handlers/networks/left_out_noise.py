"""Functions whose noise a network in evaluation mode leaves out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from pyro_implicit.handlers.networks.evaluation_mode import is_random_function, was_training

__all__ = ["LeftOutNoise", "calling_module", "given_argument"]

#: By random function of torch: the positions of its arguments for the probability (None if it has
#: none) and for whether it is training.
_POSITIONS_OF_P_AND_TRAINING: dict[Callable[..., Any], tuple[int | None, int]] = {
    **{one: (1, 2) for one in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)},
    **{one: (1, 2) for one in (F.alpha_dropout, F.feature_alpha_dropout)},
    F.rrelu: (None, 3),
}


_MAX_FRAMES_TO_MODULE = 12  # between a function of torch and the method of a module that calls it


class LeftOutNoise(TorchFunctionMode):
    """
    Notes which of torch's random functions are called and told to leave their noise out.

    Within ``evaluation_mode`` these are those that the methods of a module call which was in
    training mode before: layers, and functions that a network's own ``self.training`` is handed to.
    A function that is told so by anything else makes no noise in training mode either, which
    :meth:`only_where` tells by a second run.

    :param bool is_heard: whether to note functions that do make noise instead, of any module.
    :ivar dict layers: the layers that are nothing but such a function.
    """

    def __init__(self, *, is_heard: bool = False) -> None:
        super().__init__()
        self.is_heard = is_heard
        self.layers: dict[nn.Module, None] = {}
        self._calls: dict[tuple[Callable[..., Any], nn.Module], None] = {}

    @property
    def functions(self) -> list[str]:
        """What functions that are no layers are called, in the order of the calls."""
        return list(dict.fromkeys(f"F.{func.__name__}" for func, _ in self._calls))

    def only_where(self, heard: LeftOutNoise) -> None:
        """
        Forgets functions that make no noise in training mode either.

        :param LeftOutNoise heard: what was noted of a run in the networks' own modes.
        """
        self._calls = {call: None for call in self._calls if call in heard._calls}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func in _POSITIONS_OF_P_AND_TRAINING:
            where, training = _POSITIONS_OF_P_AND_TRAINING[func]
            is_on = bool(given_argument(args, options, training, "training", True))
            rate = 1.0 if where is None else given_argument(args, options, where, "p", 0.5)
            module = calling_module() if rate and is_on == self.is_heard else None
            if module is not None and (self.is_heard or was_training(module)):
                self._note(func, module)
        return func(*args, **options)

    def _note(self, func: Callable[..., Any], module: nn.Module) -> None:
        if is_random_function(module):
            self.layers[module] = None
        else:
            self._calls[func, module] = None


def calling_module() -> Any:
    """
    Finds out, within a mode of torch's functions, who has called one.

    :returns: the module whose method has called, or None.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_MAX_FRAMES_TO_MODULE):
        if frame is None or isinstance(frame.f_locals.get("self"), nn.Module):
            break
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("self")


def given_argument(
    args: Any, options: Mapping[str, Any], place: int, name: str, default: Any = None
) -> Any:
    """
    Finds an argument of a call.

    :param args: positional arguments.
    :param options: keyword arguments.
    :param int place: of the argument among the positional ones.
    :param str name: of the argument.
    :param default: what it is if it was not given.
    :returns: the argument.
    """
    return args[place] if len(args) > place else options.get(name, default)
