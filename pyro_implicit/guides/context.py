"""What a conditional guide looks at: rows of context, read from the model's arguments."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from pyro_implicit.exceptions import ArgumentError, ShapeError

__all__ = ["check_context", "read_context"]

_PATTERN_OF_ARGUMENT_ERRORS = re.compile(
    r"takes \d+ positional arguments? but \d+|unexpected keyword argument"
)


def check_context(context: Any) -> None:
    """
    Checks that ``context`` is None or a function.

    :raises ArgumentError: unless it is None or callable.
    """
    if context is not None and not callable(context):
        raise ArgumentError(
            f"context={context!r}; expected a function of the model's arguments (an nn.Module is "
            "trained with the guide) that returns a tensor with one row per datum, or None for the "
            "model's first argument. Write context=lambda x, y=None: x."
        )


def read_context(
    context: Callable[..., Any] | nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """
    Reads the context of each row from a model's arguments.

    :param context: a function of the model's arguments; None for the first of them.
    :param tuple args: the model's arguments.
    :param dict kwargs: its keyword arguments.
    :returns: shape ``(rows, k)``; whatever else a row has is flattened.
    :raises ArgumentError: if there is no such tensor, if its numbers are complex, or if a function
        of one's own reads an argument that is None.
    :raises ShapeError: if it has no rows.
    """
    if context is not None:
        value = _called(context, args, kwargs)
    elif args or kwargs:
        value = args[0] if args else next(iter(kwargs.values()))
    else:
        raise ArgumentError(
            "a conditional guide reads its context from the model's arguments, and was called "
            "without any. Call it with those of the model, e.g. guide(x) or guide.sample(100, x)."
        )
    if not isinstance(value, Tensor):
        raise ArgumentError(
            f"the context is a {type(value).__name__}; expected a tensor with one row per datum. "
            "Write context=lambda x, y=None: x (a function of the model's arguments)."
        )
    if value.dim() == 0 or value.numel() == 0:
        raise ShapeError(
            f"the context has shape {tuple(value.shape)}; expected (rows, ...) with at least one "
            "row and one entry in it."
        )
    if value.is_complex():
        raise ArgumentError(
            f"the context is of type {value.dtype}; expected real numbers. Write "
            "context=lambda x, y=None: torch.view_as_real(x)."
        )
    return value.reshape(len(value), -1)


def _called(context: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a context function returns; one that reads what was left out is told of that."""
    try:
        return context(*args, **kwargs)
    except (AttributeError, TypeError) as error:
        if _PATTERN_OF_ARGUMENT_ERRORS.search(str(error)) is not None:
            raise ArgumentError(
                f"the context function of the guide does not take the model's arguments ({error}). "
                "Write one that takes them all, context=lambda x, y=None: x for def model(x, "
                "y=None)."
            ) from error
        if "None" not in str(error):
            raise
        raise ArgumentError(
            f"the context function of the guide fails ({error}): it reads an argument that is None "
            "in this call, such as observations that are left out. Latents that are made from the "
            "observations cannot predict them: give a context of the inputs alone, or hand the "
            "observations over."
        ) from error
