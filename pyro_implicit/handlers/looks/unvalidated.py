"""A model without the checks of its distributions, whoever asked for them."""

from __future__ import annotations

import copy
from typing import Any

from pyro.poutine.messenger import Messenger

__all__ = ["Unvalidated"]


class Unvalidated(Messenger):
    """
    Takes the validation off all distributions of a model while it runs.

    Those made before :func:`pyro.validation_enabled` was turned off keep their checks, which read
    numbers back from tensors: nothing that vectorises a model or records it can follow. The
    distributions themselves are left as they are; copies are evaluated.
    """

    def _pyro_sample(self, msg: Any) -> None:
        if _validates(msg["fn"]):
            msg["fn"] = _without_checks(msg["fn"])


def _validates(fn: Any) -> bool:
    while fn is not None:
        if getattr(fn, "_validate_args", False):
            return True
        fn = getattr(fn, "base_dist", None)
    return False


def _without_checks(fn: Any) -> Any:
    changed = copy.copy(fn)
    if getattr(fn, "base_dist", None) is not None:
        changed.base_dist = _without_checks(fn.base_dist)
    changed._validate_args = False  # after its base, which an Independent hands this on to
    return changed
