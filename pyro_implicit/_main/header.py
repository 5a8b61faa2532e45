"""What a table's first row and first column are, where the numbers alone must tell."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

__all__ = ["index_note", "is_index", "numeric_header"]

PATTERN_OF_WHOLE_NUMBERS = re.compile(r"\s*[+-]?\d+\s*\Z")
PATTERN_OF_NO_NAME = re.compile(r"(unnamed: \d+(\.\d+)?)?\Z")  # as pandas calls such columns
INDEX_NAMES = frozenset(["id", "index", "no", "nr", "row", "rowid", "rownames", "#"])


def numeric_header(first: Sequence[str], below: np.ndarray) -> tuple[bool, str]:
    """
    Whether a first row of numbers is a header: years, wavelengths, or 0, 1, 2, ...

    It is taken for one if its cells are different whole numbers and the columns below hold (almost)
    only fractions; or if they count up by one, where the next row does not, and are no values that
    the columns below could have (or are too many to do so by chance).

    :param first: the cells of the first row.
    :param numpy.ndarray below: the other rows, shape ``(rows, columns)``.
    :returns: whether it is one, and what to tell of it; empty if there is nothing to tell.
    """
    if not all(PATTERN_OF_WHOLE_NUMBERS.match(cell) for cell in first) or len(below) == 0:
        return False, ""
    numbers = np.array([float(cell) for cell in first])
    shown = ", ".join(cell.strip() for cell in first[:3]) + (", ..." if len(first) > 3 else "")
    as_header = f"the first row ({shown}) was read as a header; say --header no if it is data"
    fractions = (np.mod(below, 1.0) != 0.0).mean(axis=0)
    if len(set(numbers)) == len(numbers) and (fractions >= 0.9).all():
        return True, as_header
    counts = len(numbers) >= 3 and _counts_up(numbers) and not _counts_up(below[0])
    if not counts:
        return False, ""
    outside = (numbers < below.min(axis=0)) | (numbers > below.max(axis=0)) | (fractions > 0.5)
    if outside.any() or len(numbers) >= 5:
        return True, as_header
    return False, f"the first row ({shown}) was read as data; say --header yes if it is a header"


def is_index(name: str, column: np.ndarray) -> bool:
    """
    Whether a column numbers the rows.

    :param str name: of the first column, from the header.
    :param numpy.ndarray column: its values.
    :returns: whether it numbers the rows: different whole numbers under no name (as pandas writes
        an index), or all of ``a, a + 1, ...`` in any order under the name of an index.
    """
    ordered = np.sort(column)
    if (np.mod(column, 1.0) != 0.0).any() or (np.diff(ordered) == 0.0).any():
        return False
    name = name.strip().lower()
    if PATTERN_OF_NO_NAME.match(name):
        return True
    return re.sub(r"[\s_.]", "", name) in INDEX_NAMES and _counts_up(ordered)


def index_note(column: np.ndarray) -> str:
    """
    Tells whether a first column without a telling name counts the rows.

    :param numpy.ndarray column: the first column, which no header calls an index.
    :returns: what to tell if it counts the rows all the same; empty if it does not.
    """
    if not _counts_up(column):
        return ""
    return (
        f"the first column counts the rows ({column[0]:.0f}, {column[1]:.0f}, ...) and was read as "
        "a feature; take it out of the file if it is an index"
    )


def _counts_up(values: np.ndarray) -> bool:
    return bool((np.diff(values) == 1.0).all() and float(values[0]).is_integer())
