"""Latents that each row of a plate has: which of them belong to the rows that a plate shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

from pyro_implicit.exceptions import ShapeError
from pyro_implicit.handlers.observations.other_shape import check_batch, check_event
from pyro_implicit.handlers.rows.row_order import BY_PLACE, RowOrder
from pyro_implicit.handlers.rows.row_slices import rows_of, shows_all

__all__ = [
    "AtDraw",
    "Cuts",
    "ParametersAtRows",
    "RowsNotNamed",
    "ShownRows",
    "at_rows",
    "by_number",
    "check_permuted",
    "other_rows",
    "rows_not_named",
]

#: by latent, dimensions and the rows that were taken along them
Cuts = dict[str, list[tuple[int, Any]]]

_ADVICE_ON_NEW_ROWS = (
    "For rows that the guide was not fitted to, make the latent a function of the inputs "
    "(ConditionalHyperNetworkGuide), or leave it to its prior: poutine.block(guide, hide=[name]) "
    "in place of the guide."
)


def rows_not_named(what: str, plate: str, size: int, shown: int) -> ShapeError:
    """
    Says that the values which a latent has at the rows of a call cannot be told.

    :param str what: has a value for each row, such as ``"latent 'level'"``.
    :param str plate: the name of the plate of the rows.
    :param int size: how many rows it has.
    :param int shown: how many the plate has in this call.
    :returns: the error to raise.
    """
    found = f"{what} of the guide has {size} rows in plate {plate!r}, a value for each"
    if shown > size:
        return ShapeError(
            f"{found}, and none for more of them: in this call the plate has {shown}. "
            f"{_ADVICE_ON_NEW_ROWS}"
        )
    return ShapeError(
        f"{found}, and in this call the plate has {shown}: nobody has said which of the {size} "
        f"these are, and their numbers would be drawn at random. Pass all {size} rows in the order "
        f"of the fit; or name them, pyro.plate({plate!r}, {size}, subsample=rows) with rows among "
        f"the arguments of the model. {_ADVICE_ON_NEW_ROWS}"
    )


def other_rows(latent: str, plate: str, size: int, shown: int) -> ShapeError:
    """
    Says that a latent has values for rows of another plate than that of the call.

    :param str latent: its name.
    :param str plate: the name of the plate of the rows.
    :param int size: how many rows the latent has.
    :param int shown: how many the plate has in this call.
    :returns: the error to raise.
    """
    return ShapeError(
        f"latent {latent!r} of the guide has {size} rows in plate {plate!r}, which has {shown} in "
        "this call of the model: it was fitted to other rows, one value for each. Pass those "
        "rows, or make the latent a function of the inputs (ConditionalHyperNetworkGuide). The "
        "times of a forecast, and new groups, want a site and a plate of their own behind these "
        "(docs/howto/forecast.md). Groups that are counted in the rows at hand "
        "(int(group.max()) + 1) are fewer in some of them, as "
        f"in a batch: write their number, pyro.plate({plate!r}, {size}). One "
        "that is part of an AutoGuideList needs plates that follow the rows: AutoGuideList(model, "
        f"create_plates=lambda x, y=None: pyro.plate({plate!r}, N, subsample_size=len(x)))."
    )


class ShownRows:
    """
    Which rows each plate of a run shows, and whether somebody has chosen them.

    A plate of more rows than it has in all counts them from 0: that of a smaller training set.
    """

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.by_chance: set[str] = set()

    def before(self, msg: Any) -> None:
        """
        Looks at a plate's rows before they are drawn, if they are to be.

        :param msg: the message of a plate's rows.
        """
        fn, name = msg["fn"], msg["name"]
        self.by_chance.discard(name)
        if msg["value"] is not None or fn.subsample_size in (None, fn.size):
            return
        self.by_chance.add(name)
        if fn.subsample_size > fn.size:
            msg["value"] = torch.arange(fn.subsample_size, device=fn.device)

    def after(self, msg: Any) -> None:
        """
        Keeps a plate's rows.

        :param msg: the message of a plate's rows, once they are known.
        """
        self.rows[msg["name"]] = msg["value"]

    def cut(self, name: str, value: Tensor, frame: Any, dim: int) -> Tensor:
        """
        Selects what a latent with a value for each row has at the rows that a plate shows.

        :param str name: of the latent.
        :param torch.Tensor value: its values on all rows, of any shape with these along ``dim``.
        :param frame: of the plate.
        :param int dim: negative dimension of the rows in ``value``.
        :returns: the values at the rows shown, of the same shape but for ``dim``.
        :raises ShapeError: if nobody has said which rows these are.
        """
        if frame.name in self.by_chance and value.shape[dim] != 1:
            raise rows_not_named(f"latent {name!r}", frame.name, value.shape[dim], frame.size)
        return rows_of(value, dim, self.rows.get(frame.name))


class AtDraw(Messenger):
    """
    Fixes sites to values, as :func:`pyro.poutine.condition` does, at the rows that plates show.

    :param dict values: by site, of the shape of the site; of a latent that each row has, those of
        all rows of its plate, or of the rows shown.
    :param RowOrder order: which values of as many rows as a plate has are in the order of the
        rows' numbers, even where the plate shows all of them in another order.
    """

    def __init__(self, values: Mapping[str, Tensor], order: RowOrder = BY_PLACE) -> None:
        super().__init__()
        self.values, self.order = values, order
        self.shown = ShownRows()
        self.cuts: Cuts = {}

    def __enter__(self) -> AtDraw:
        self.cuts = {}  # of this run alone
        super().__enter__()
        return self

    def _pyro_sample(self, msg: Any) -> None:
        value = self.values.get(msg["name"])
        if value is not None:
            if not site_is_subsample(msg):
                value = self._at_rows(msg, value)
                check_event(msg, value)
                check_batch(msg, value)
            msg["value"], msg["is_observed"] = value, True
        if site_is_subsample(msg):
            self.shown.before(msg)

    def _at_rows(self, msg: Any, value: Tensor) -> Tensor:
        name = msg["name"]
        for frame in msg["cond_indep_stack"]:
            dim = frame.dim - msg["fn"].event_dim if frame.vectorized else 0
            if not frame.vectorized or -value.dim() > dim:
                continue
            full, size = getattr(frame, "full_size", None) or frame.size, value.shape[dim]
            if size == full and self._is_by_number(name, frame, full):
                cut = self.shown.cut(name, value, frame, dim)
                if cut is not value:
                    self.cuts.setdefault(name, []).append((dim, self.shown.rows[frame.name]))
                value = cut
            elif size not in (1, frame.size) and frame.size > 0:
                raise other_rows(name, frame.name, size, frame.size)
        return value

    def _is_by_number(self, name: str, frame: Any, full: int) -> bool:
        """Whether a latent of all rows of a plate is to be cut by their numbers."""
        if frame.size != full:
            return True
        return self.order.is_numbered(name, frame.name, self.shown.rows.get(frame.name))

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            self.shown.after(msg)


def at_rows(draws: Mapping[str, Tensor], cuts: Cuts) -> dict[str, Tensor]:
    """
    Cuts stacked draws as those of one run were.

    :param dict draws: by site, of the shape of the site with any dimensions in front.
    :param cuts: of an :class:`AtDraw`.
    :returns: draws at the rows that plates showed, of the same shape but for the rows.
    """
    found = dict(draws)
    for name, places in cuts.items():
        for dim, rows in places:
            found[name] = rows_of(found[name], dim, rows)
    return found


def by_number(draws: Mapping[str, Tensor], cuts: Cuts) -> dict[str, Tensor]:
    """
    Takes back what :func:`at_rows` did, where all rows are there.

    :param dict draws: by site, at the rows that plates showed, shape ``(..., *site_shape)``.
    :param cuts: of an :class:`AtDraw`, each of all rows, see :func:`check_permuted`.
    :returns: draws in the order of the rows' numbers, shape ``(..., *site_shape)``.
    """
    found = dict(draws)
    for name in found.keys() & cuts.keys():
        for dim, rows in reversed(cuts[name]):
            found[name] = rows_of(found[name], dim, torch.as_tensor(rows).argsort())
    return found


def check_permuted(cuts: Cuts, sites: Iterable[Any]) -> None:
    """
    Refuses rows that are not all there, each once, where a density is that of all latents.

    :param cuts: of an :class:`AtDraw`.
    :param sites: the latent sites.
    :raises ShapeError: where a plate names some rows twice, and so leaves out others.
    :raises SiteError: where the support of a latent differs by row, and is known in another order.
    """
    for site in sites:
        for _, rows in cuts.get(site.name, ()):
            numbers = torch.as_tensor(rows)
            if not shows_all(numbers.sort().values, len(numbers)):
                missing = len(numbers) - len(numbers.unique())
                raise ShapeError(
                    f"latent {site.name!r} has a value for each of the {len(numbers)} rows of its "
                    f"plate, which names some of them twice and leaves out {missing}. Name each "
                    "row once, in any order."
                )
            if hasattr(site, "check_rows"):
                site.check_rows()


class ParametersAtRows(Messenger):
    """
    Gives parameters of each row to the rows that a plate shows, where these are all of them.

    Pyro cuts parameters that are declared by row (``event_dim``), as those of its autoguides, by
    the numbers of the rows that a plate shows, but where it shows all of them: there they stay as
    they are, whatever the order. What a guide computes from its arguments follows these.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown = ShownRows()

    def _pyro_post_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            self.shown.after(msg)

    def _pyro_post_param(self, msg: Any) -> None:
        event_dim = msg["kwargs"].get("event_dim")
        if event_dim is None:
            return
        for frame in msg["cond_indep_stack"]:
            value, dim = msg["value"], frame.dim - event_dim if frame.vectorized else 0
            if not frame.vectorized or value.dim() < -dim or value.shape[dim] != frame.size:
                continue
            if frame.size != (getattr(frame, "full_size", None) or frame.size):
                continue  # which Pyro has cut
            msg["value"] = rows_of(value, dim, self.shown.rows.get(frame.name))


class RowsNotNamed(Messenger):
    """
    Refuses a guide that cuts parameters of each row to rows which its plates draw at random.

    They are those that are declared by row (``event_dim``), as Pyro's autoguides do. What a guide
    computes from its arguments belongs to their rows, whatever numbers its plates draw.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shown = ShownRows()

    def _pyro_sample(self, msg: Any) -> None:
        if site_is_subsample(msg):
            self.shown.before(msg)

    def _pyro_post_param(self, msg: Any) -> None:
        event_dim, shape = msg["kwargs"].get("event_dim"), msg["value"].shape
        if event_dim is None:
            return
        dims = {f.name: f.dim - event_dim for f in msg["cond_indep_stack"] if f.vectorized}
        plates = [name for name, dim in dims.items() if len(shape) >= -dim and shape[dim] != 1]
        for frame in msg["cond_indep_stack"]:
            if frame.name in plates and frame.name in self.shown.by_chance:
                what = f"parameter {msg['name']!r}"
                raise rows_not_named(what, frame.name, frame.full_size, frame.size)
