"""The guides that a guide is a mixture of."""

from __future__ import annotations

from typing import Any

__all__ = ["members_of"]


def members_of(guide: Any) -> list[Any]:
    """
    The guides of an ensemble.

    :param guide: any guide.
    :returns: the list that it has in ``guides``; empty for any other guide.
    """
    parts = getattr(guide, "guides", None)
    return parts if isinstance(parts, list) else []
