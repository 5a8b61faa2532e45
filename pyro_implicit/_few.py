"""A few of many names, in words."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["few_of"]


def few_of(names: Sequence[str], most: int = 3) -> str:
    """
    The first of some names, and how many there are besides.

    :param names: texts, as they are to be shown.
    :param int most: as many as are shown.
    :returns: such as ``"a, b, c and 2 more"``.
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
