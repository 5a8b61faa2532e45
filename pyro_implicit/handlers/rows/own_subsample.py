"""Plates that draw some of their rows at random: densities of their data belong to no row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample

from pyro_implicit.exceptions import SiteError

__all__ = [
    "OwnSubsample",
    "RowsOfABatch",
    "refuse_own_subsample",
    "refuse_random_rows",
    "sizes_of_arguments",
]


def sizes_of_arguments(args: Iterable[Any], kwargs: Mapping[str, Any]) -> frozenset[int]:
    """
    Collects the numbers of rows that a model is given.

    :param args: positional arguments of a model.
    :param kwargs: its keyword arguments.
    :returns: the first size of each array among them, in lists, tuples and dictionaries too.
    """
    return frozenset(_first_sizes([*args, *kwargs.values()]))


def _first_sizes(values: Iterable[Any]) -> Iterator[int]:
    for value in values:
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple) and shape:
            yield int(shape[0])
        elif isinstance(value, Mapping):
            yield from _first_sizes(value.values())
        elif isinstance(value, (list, tuple)):
            yield from _first_sizes(value)


def refuse_own_subsample(site: Any, sizes: Collection[int], full_size: int | None = None) -> None:
    """
    Refuses a plate that is about to show some of its rows at random.

    A plate that shows as many as the arguments have is one of a minibatch: nobody uses the numbers
    that it draws.

    :param site: the message of a plate's rows, before they are drawn.
    :param sizes: numbers of rows of the arguments.
    :param int full_size: of the plate, if the model is run on a part of its rows.
    :raises SiteError: if each run would show other rows.
    """
    shown, size = site["fn"].subsample_size, site["fn"].size if full_size is None else full_size
    if site["value"] is not None or shown is None or shown >= size or shown in sizes:
        return
    raise SiteError(
        f"plate {site['name']!r} draws {shown} of its {size} rows at random, other ones in each "
        "run of the model: densities and predictions of different rows would be taken for those "
        f"of one. Expected the rows that are passed: pyro.plate({site['name']!r}, {size}, "
        "subsample_size=len(x)) with a minibatch x and its observations as arguments, "
        "subsample=numbers of rows that you choose, or a model without subsample_size here."
    )


class OwnSubsample(Messenger):
    """
    Refuses plates that show some of their rows at random, see :func:`refuse_own_subsample`.

    :param sizes: numbers of rows of the arguments.
    :param int here: number of rows, if the model is run on some of them.
    :param int rows: number of all rows, if so.
    """

    def __init__(
        self, sizes: Collection[int], here: int | None = None, rows: int | None = None
    ) -> None:
        super().__init__()
        self.sizes = sizes if here is None else {*sizes, here}
        self.here, self.rows = here, rows

    def _pyro_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            is_cut = self.here is not None and msg["fn"].size == self.here
            refuse_own_subsample(msg, self.sizes, self.rows if is_cut else None)


class RowsOfABatch(Messenger):
    """
    Refuses plates that number the rows of a batch at random, for guides with latents of each row.

    Such a plate shows as many rows as the arguments have, so that these are the rows, while the
    numbers that it draws are those of others. A plate by whose numbers the model takes its data
    shows the same number by chance.

    :param plates: names of the plates whose rows have latents.
    :param sizes: numbers of rows of the arguments.
    :param takes_data_by: tells by its name whether the model takes its data by a plate's numbers;
        asked only where there is something to refuse.
    """

    def __init__(
        self,
        plates: Collection[str],
        sizes: Collection[int],
        takes_data_by: Callable[[str], bool],
    ) -> None:
        super().__init__()
        self.plates, self.sizes, self.takes_data_by = plates, sizes, takes_data_by

    def _pyro_sample(self, msg: Any) -> None:
        if not site_is_subsample(msg) or msg["value"] is not None or msg["name"] not in self.plates:
            return
        shown, size = msg["fn"].subsample_size, msg["fn"].size
        if shown is None or shown >= size or shown not in self.sizes:
            return
        if not self.takes_data_by(msg["name"]):
            refuse_random_rows(msg)


def refuse_random_rows(site: Any) -> None:
    """
    Refuses a plate whose rows have latents, and are numbered at random.

    :param site: the site of the plate's row numbers.
    :raises SiteError: always.
    """
    name, shown, size = site["name"], site["fn"].subsample_size, site["fn"].size
    raise SiteError(
        f"the guide has latents of each row of plate {name!r}, which shows {shown} of "
        f"its {size} rows: as many as the arguments have, but with numbers that it draws at "
        "random, so that the latents of other rows would be trained. Pass the numbers of the "
        f"rows, and write pyro.plate({name!r}, {size}, subsample=rows) in model and "
        "create_plates; or take a guide that is conditional on the data."
    )
