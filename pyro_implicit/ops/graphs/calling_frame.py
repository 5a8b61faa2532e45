"""The frame of a program that has called a function of torch."""

from __future__ import annotations

from typing import Any

__all__ = ["calling_frame", "is_of_library"]

_DISPATCHING_MODULES = ("torch._tensor", "torch.overrides")  # between a program and a tensor
_LIBRARY_PACKAGES = frozenset({"torch", "pyro", "pyro_implicit"})


def calling_frame(frame: Any) -> Any:
    """
    Skips the frames of torch's dispatch, and those of modes that are within.

    :param frame: the innermost frame to look at, or None.
    :returns: the first one outward that asks for itself; None if there is none.
    """
    while frame is not None and (
        frame.f_globals.get("__name__") in _DISPATCHING_MODULES
        or frame.f_code.co_name == "__torch_function__"
    ):
        frame = frame.f_back
    return frame


def is_of_library(frame: Any) -> bool:
    """
    Whether a frame is of torch, Pyro or this package, which ask for values to check them.

    :param frame: a frame.
    :returns: whether it is.
    """
    name: str = frame.f_globals.get("__name__", "")
    return name.partition(".")[0] in _LIBRARY_PACKAGES
