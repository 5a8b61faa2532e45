"""Which sites of a model cannot be evaluated on some rows at a time, from two small runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_implicit._memory import check_fits
from pyro_implicit.handlers.rows.row_slices import changed_dims
from pyro_implicit.handlers.wrapped import without_events
from pyro_implicit.ops.largest_tensor import LargestTensor

__all__ = [
    "Observed",
    "RowsTogether",
    "all_batches",
    "can_be_looked_at",
    "check_rows_fit",
    "coupled_sites",
    "distribution_of",
    "draws_of_little",
    "drawn_jointly",
    "numbers_of_a_row",
    "rows_of_little",
    "rows_to_look_at",
    "same_first_draw",
    "tensors_of",
]


_TOLERANCE_IN_ULPS = 64  # of the largest number
_MAX_NUMBERS_OF_ARGUMENTS = 4_000_000  # of models that may be run on all rows at once
_MAX_NUMBERS_OF_A_LOOK = 2**26  # those that all operations make of a run that is only looked at
_MAX_NUMBERS_OF_DRAWS = 2**22  # those of several draws at once; more of them save nothing
_MAX_NUMBERS_OF_SMALL_RUN = 2**20  # of a run that may take all rows, whatever the batches


@dataclass(frozen=True)
class Observed:
    """
    What a site observes, beside the distributions of a run that is looked at.

    :param torch.Tensor values: of any shape; a model may have made them of all rows of its data.
    """

    values: Tensor


class RowsTogether(Exception):  # noqa: N818 (a signal within one call, never shown)
    """A latent of all rows is one event, which cannot be cut."""


def distribution_of(site: Any) -> Any:
    """
    What a site is looked at by.

    :param dict site: a message, or a node of a trace.
    :returns: its distribution; the bare value of ``pyro.deterministic``, which makes an event of it
        within each plate around it.
    """
    if site["infer"].get("_deterministic") and isinstance(site["value"], Tensor):
        return dist.Delta(site["value"])
    return site["fn"]


def drawn_jointly(fn: Any, row_dim: int | None) -> bool:
    """
    Whether the rows of a distribution are drawn in one event.

    :param fn: a distribution.
    :param int row_dim: negative dimension of the rows in a value, if it has rows.
    :returns: whether rows are within one event, such as those of a Gaussian process.
    """
    base = without_events(fn)
    if row_dim is None or isinstance(base, dist.Delta):  # pyro.deterministic draws nothing
        return False
    within: bool = row_dim >= -base.event_dim
    return within


def can_be_looked_at(args: Iterable[Any]) -> bool:
    """
    Whether a model may be run on all rows at once to see what a cut into batches changes.

    :param args: all arguments of the model.
    :returns: whether the tensors among them have at most four million numbers.
    """
    return sum(one.numel() for one in args if isinstance(one, Tensor)) <= _MAX_NUMBERS_OF_ARGUMENTS


def numbers_of_a_row(run: Callable[[int], Any], few: int) -> float:
    """
    Counts the numbers that operations of a run make of a row, in a run on few rows and on half.

    :param run: the model on as many of the first rows.
    :param int few: rows to count with, two at least.
    :returns: their number; NaN if it cannot be counted.
    """
    made = []
    try:
        for count in (few, few // 2):
            with LargestTensor() as counted:
                run(count)
            made.append(counted.total)
    except Exception:  # whatever a model does in another mode
        return math.nan
    by_row: float = (made[0] - made[1]) / (few - few // 2)
    return by_row


def rows_to_look_at(by_row: float, size: int, rows: int) -> int:
    """
    How many of the first rows are run at once to see what a cut into batches changes.

    Batches are small where memory is: a run on all rows may take what they were to save.

    :param float by_row: numbers that a run makes of a row; NaN for few.
    :param int size: of a batch.
    :param int rows: number of rows.
    :returns: all of them, or those that make 67 million numbers, but two batches at least.
    """
    if not by_row * rows > _MAX_NUMBERS_OF_A_LOOK:
        return rows
    return min(rows, max(int(_MAX_NUMBERS_OF_A_LOOK / by_row), 2 * size))


def rows_of_little(by_row: float, unit: int) -> int:
    """
    How many rows take so little memory that there is nothing to save by fewer of them.

    :param float by_row: numbers that a run makes of a row; NaN if nobody knows.
    :param int unit: of rows.
    :returns: as many units as make a million numbers; 0 if that is less than one.
    """
    return int(_MAX_NUMBERS_OF_SMALL_RUN / by_row) // unit * unit if by_row > 0 else 0


def draws_of_little(by_row: float, rows: int) -> float:
    """
    How many draws at once save time, because one of them makes so few numbers.

    :param float by_row: numbers that a run makes of a row; NaN if nobody knows.
    :param int rows: number of rows.
    :returns: as many as make four million numbers; infinity if nobody knows.
    """
    return _MAX_NUMBERS_OF_DRAWS / (by_row * rows) if by_row > 0 and rows else math.inf


def all_batches(rows: int, size: int) -> list[tuple[int, int]]:
    """
    The batches that are held to a run on all rows.

    Of rows that belong to few others (twins) any edge may part some.

    :param int rows: number of rows.
    :param int size: of a batch.
    :returns: first row of each, and one past its last.
    """
    return [(start, min(start + size, rows)) for start in range(0, rows, size)]


def coupled_sites(
    fewer: Mapping[str, Any], more: Mapping[str, Any], row_dims: Mapping[str, int], first: int
) -> list[str]:
    """
    Finds the sites whose rows depend on other rows.

    These are those drawn in one event, those that only exist for some rows (loops over time), and
    those whose distribution at a row is another one once others are left out. The latter are models
    that standardise or smooth over rows, and networks with random layers. What only some rows tell
    the others (their largest) shows where those are left out: two parts of the rows show all of it
    between them.

    :param dict fewer: distributions of the sites in a run on some of the rows, one after the other.
    :param dict more: in the run on all of them, of the same latents.
    :param dict row_dims: dimension of the rows in values of the sites.
    :param int first: the first of these rows.
    :returns: their names.
    """
    found = [name for name in more if name not in fewer]
    found += [name for name in fewer if name not in more]
    for name in more.keys() & fewer.keys():
        if drawn_jointly(more[name], row_dims.get(name)):
            found.append(name)
        elif any(not _same(a, b, first) for a, b in _pairs(fewer[name], more[name])):
            found.append(name)
    return sorted(found)


def same_first_draw(one: Any, other: Any, nesting: int) -> bool:
    """
    Whether a site has the same distribution at the first of several draws in two runs.

    :param one: its distribution in a run with a plate of draws around all others.
    :param other: in a run with another second draw.
    :param int nesting: number of the model's own plate dimensions.
    :returns: whether its tensors are the same there; those without draws as a whole.
    """
    for a, b in _pairs(one, other):
        if a.shape != b.shape:
            return False
        if a.dim() > nesting and len(a) > 1:
            a, b = a[0], b[0]
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return False
        elif not torch.allclose(a, b, rtol=1e-3, atol=1e-5, equal_nan=True):
            return False
    return True


def check_rows_fit(
    fewer: Mapping[str, Any], more: Mapping[str, Any], sites: Iterable[str], times: float
) -> None:
    """
    Checks that sites of which all rows are needed have as many as there are.

    :param dict fewer: distributions of the sites in a run on some of the rows.
    :param dict more: in the run on all of them.
    :param sites: names of those of which all rows are needed at once.
    :param float times: how many times the rows of that run are all rows.
    :raises OutOfMemoryError: if a tensor of a distribution of all rows will not fit into memory.
    """
    for name in set(sites) & more.keys() & fewer.keys():
        for small, large in _pairs(fewer[name], more[name]):
            grown = sum(a != b for a, b in zip(small.shape, large.shape, strict=True))
            check_fits(
                math.ceil(large.numel() * times**grown),
                large.dtype,
                large.device,
                f"the distribution of site {name!r}, whose rows cannot be drawn apart,",
                "Pass fewer rows; batch_size cannot help, since rows of different batches would "
                "be drawn independently.",
            )


def _pairs(fewer: Any, more: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """The tensors of two distributions that are alike but for the number of rows."""
    small, large = dict(tensors_of(fewer)), dict(tensors_of(more))
    for path in small.keys() & large.keys():
        if small[path].dim() == large[path].dim():
            yield small[path], large[path]


def tensors_of(fn: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """
    The tensors that a distribution holds, and those of the ones it is made from.

    :param fn: a distribution.
    :param str path: in front of their names.
    :returns: names and tensors, of any shape.
    """
    for name, value in vars(fn).items():
        if isinstance(value, Tensor):
            yield f"{path}.{name}", value
        elif isinstance(value, torch.distributions.Distribution):
            yield from tensors_of(value, f"{path}.{name}")


def _same(fewer: Tensor, more: Tensor, first: int) -> bool:
    """Whether the rows of both are equal up to rounding."""
    changed = changed_dims(fewer.shape, more.shape)
    if changed is None:
        return True
    if len(changed) > 1:
        return False  # pairs of rows, of which a cut would leave those within a batch
    if changed:
        if first + fewer.shape[changed[0]] > more.shape[changed[0]]:
            return True  # a dimension of another size, that shrinks otherwise than the rows do
        more = more.narrow(changed[0], first, fewer.shape[changed[0]])
    if fewer.shape != more.shape or torch.equal(fewer, more):
        return True
    if not more.is_floating_point():
        return False
    tolerance = _tolerance(more)
    if float((fewer - more).abs().max()) <= tolerance:  # neither has a NaN
        return True
    return torch.allclose(fewer, more, rtol=0.0, atol=tolerance, equal_nan=True)


def _tolerance(values: Tensor) -> float:
    """What rounding may change: a little of what differs between rows, and of what is common."""
    low, high = map(float, values.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        finite = values[values.isfinite()]
        if not finite.numel():
            return 0.0
        low, high = map(float, finite.aminmax())
    eps = float(torch.finfo(values.dtype).eps)
    return math.sqrt(eps) * (high - low) + _TOLERANCE_IN_ULPS * eps * max(-low, high)
