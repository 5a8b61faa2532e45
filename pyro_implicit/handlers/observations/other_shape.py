"""Sites that are given a value of another shape than the model gives them."""

from __future__ import annotations

import re
from itertools import pairwise, zip_longest
from typing import Any

from torch import Tensor

from pyro_implicit.exceptions import ShapeError

__all__ = ["OtherShape", "check_batch", "check_event", "of_another_model", "sites_of_other_shape"]

#: name, shape of the distribution, shape of the value
OtherShape = tuple[str, tuple[int, ...], tuple[int, ...]]

_PATTERN_OF_DIST_LINE = re.compile(r"^ *(\S.*?) dist +([\d ]*)\|([\d ]*)$")
_PATTERN_OF_VALUE_LINE = re.compile(r"^ +value +([\d ]*)\|([\d ]*)$")


def check_event(site: Any, value: Tensor) -> None:
    """
    Refuses a value whose event is not one of the site.

    :param site: the message of a latent site of a model.
    :param torch.Tensor value: what it is to take, shape ``(*any, *event)``.
    :raises ShapeError: if the guide or the draws that it comes from are of another model.
    """
    event = tuple(site["fn"].event_shape)
    found = tuple(value.shape[max(value.dim() - len(event), 0) :])
    if found != event:
        raise of_another_model(site["name"], event, found)


def check_batch(site: Any, value: Tensor) -> None:
    """
    Refuses a value that would make a latent of one draw into several, by broadcasting.

    :param site: the message of a latent site of a model, within all of its plates.
    :param torch.Tensor value: what it is to take, shape ``(*batch, *event)``.
    :raises ShapeError: if the batch has dimensions that the site has not.
    """
    fn = site["fn"]
    here = tuple(fn.batch_shape)
    found = tuple(value.shape[: value.dim() - fn.event_dim])
    pairs = zip_longest(reversed(here), reversed(found), fillvalue=1)
    if any(now != 1 and own != now for own, now in pairs):
        event = tuple(fn.event_shape)
        raise of_another_model(site["name"], here + event, tuple(value.shape))


def of_another_model(name: str, expected: tuple[int, ...], found: tuple[int, ...]) -> ShapeError:
    """
    Says that a latent has another shape in the guide than in the model.

    :param str name: of the latent.
    :param tuple expected: its shape in the model.
    :param tuple found: that of the value.
    :returns: the error to raise.
    """
    return ShapeError(
        f"latent {name!r} has shape {expected} in the model, and the value that it is given has "
        f"{found}: the guide, or the draws, are of another model. Make a guide of this one."
    )


def sites_of_other_shape(message: str) -> list[OtherShape]:
    """
    Reads the table of shapes that Pyro adds to the errors of a model.

    :param str message: of an error.
    :returns: sites whose value is not one of their distribution (more dimensions to the left, as
        of draws at once, are), with both shapes; none of a message without a table.
    """
    found = []
    for line, after in pairwise(message.splitlines()):
        fn, value = _PATTERN_OF_DIST_LINE.match(line), _PATTERN_OF_VALUE_LINE.match(after)
        if fn is None or value is None:
            continue
        ours, theirs = _sizes(fn[2], fn[3]), _sizes(value[1], value[2])
        if not _fits(ours, theirs):
            found.append((fn[1], sum(ours, ()), sum(theirs, ())))
    return found


def _sizes(batch: str, event: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(map(int, batch.split())), tuple(map(int, event.split()))


def _fits(
    fn: tuple[tuple[int, ...], tuple[int, ...]], value: tuple[tuple[int, ...], tuple[int, ...]]
) -> bool:
    """Whether the event is the same and the batch, from the right, can be broadcast."""
    batches = zip(reversed(fn[0]), reversed(value[0]), strict=False)
    return fn[1] == value[1] and all(a == b or 1 in (a, b) for a, b in batches)
