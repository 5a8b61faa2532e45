"""Parameters that a guide takes from another one, since Pyro's store knows both by one name."""

from __future__ import annotations

from typing import Any

import pyro
from torch import nn

from pyro_implicit._few import few_of
from pyro_implicit.guides.since_fit import was_trained

__all__ = ["AdoptedParameters"]


class AdoptedParameters:
    """
    Tells of a guide that begins with the parameters of another guide, and moves them.

    Pyro's own guides are known to its store by the names of their classes: the second
    ``AutoNormal`` of a program takes the parameters of the first. A store that was read from a file
    is meant to be taken, and is not told.

    :param guide: a guide, before it is called.
    """

    def __init__(self, guide: Any) -> None:
        self._guide = guide if isinstance(guide, nn.Module) else None
        own = {id(value) for value in self._own()}
        store = pyro.get_param_store()
        self._others = {
            name: value
            for name, value in store._params.items()
            if was_trained(value) and id(value) not in own
        }

    def notes(self) -> list[str]:
        """
        What a user should know once the guide was called.

        :returns: at most one text.
        """
        own = {id(value) for value in self._own()}
        names = [name for name, value in self._others.items() if id(value) in own]
        if not names:
            return []
        return [
            f"the guide's parameters {few_of(names)} were in Pyro's store "
            "already, as those of another guide of the same class: this fit began where that one "
            "had ended, and moved it too. Write pyro.clear_param_store() before the guide is made, "
            "and each time before the other of the two is used."
        ]

    def _own(self) -> list[nn.Parameter]:
        return [] if self._guide is None else list(self._guide.parameters())
