"""The plates of a guide, by its ``create_plates`` and by the model's run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyro
from pyro.infer.autoguide import AutoGuide

from pyro_implicit.exceptions import ArgumentError

__all__ = ["created_plates"]


def created_plates(
    guide: AutoGuide, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """
    Makes the plates of one call, as Pyro's autoguides do.

    :param AutoGuide guide: the guide, with or without a master.
    :param tuple args: arguments of the model.
    :param dict kwargs: keyword arguments of the model.
    :returns: plates by name.
    :raises ArgumentError: if ``create_plates`` returns something else.
    """
    try:
        return dict(guide._create_plates(*args, **kwargs))
    except (AssertionError, TypeError, ValueError) as error:
        make = guide.create_plates
        made = make(*args, **kwargs) if make is not None else ()
        whole = isinstance(made, Iterable) and not isinstance(made, dict)
        if isinstance(made, pyro.plate) or (
            whole and all(isinstance(one, pyro.plate) for one in made)
        ):
            raise  # of the function, or of the user's own plates
        raise ArgumentError(
            f"create_plates returned {type(made).__name__}: {made!r}, where a plate of the model "
            "is expected, or a list of them. Return what the model enters, as in "
            'create_plates=lambda x: pyro.plate("data", len(x), subsample_size=10).'
        ) from error
