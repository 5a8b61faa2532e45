"""What a guide knows of its first call, asked of anything."""

from __future__ import annotations

from typing import Any

__all__ = ["KnownCall", "known_call_of"]


class KnownCall:
    """What a guide of this package has as its ``first_call``; others may have what they like."""


def known_call_of(guide: Any) -> Any:
    """
    What a guide knows of the call that it was built with.

    :param guide: any guide, or a part of one.
    :returns: a ``FirstCall``; None of what has none.
    """
    known = getattr(guide, "first_call", None)
    return known if isinstance(known, KnownCall) else None
