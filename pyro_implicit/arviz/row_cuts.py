"""What a cut of the data into batches of rows would change, in sites and their shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyro_implicit.arviz.site import Site, Slot
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.handlers.rows.row_coupling import coupled_sites, drawn_jointly
from pyro_implicit.handlers.rows.row_slices import changed_dims

__all__ = ["grown", "is_local", "on_all_rows", "refuse_coupled", "refuse_local"]


def refuse_local(guide_sites: dict[str, Any], num_rows: int) -> None:
    """
    A latent of its own for each row cannot be cut into row batches.

    :param dict guide_sites: sites of the guide by name.
    :param int num_rows: number of rows.
    :raises ArgumentError: for one that has a value for each.
    """
    for name, site in guide_sites.items():
        if any(frame.vectorized and frame.size == num_rows for frame in site["cond_indep_stack"]):
            raise is_local(name, num_rows)


def is_local(name: str, num_rows: int) -> ArgumentError:
    """
    The error for a latent that has a value for each row.

    :param str name: of the site.
    :param int num_rows: number of rows.
    :returns: the error, to be raised.
    """
    return ArgumentError(
        f"batch_size was given, but the latent site {name!r} has a value for each of the "
        f"{num_rows} rows; leave batch_size out"
    )


def refuse_coupled(
    sites: dict[str, Site], fewer: dict[str, Any], more: dict[str, Any], first: int = 0
) -> None:
    """
    Rows that depend on each other, or are drawn as one event, cannot be taken in batches.

    :param dict sites: all sites.
    :param dict fewer: distributions in a run on some rows.
    :param dict more: in a run on more of them.
    :param int first: the first of the fewer rows among these.
    :raises ArgumentError: for such rows, naming the site.
    """
    row_dims = {name: s.value.row_dim for name, s in sites.items() if s.value.row_dim is not None}
    if any(site.kind == "free" for site in sites.values()):  # drawn anew in each of the two runs
        found = [name for name in more if drawn_jointly(more[name], row_dims.get(name))]
    else:
        found = coupled_sites(fewer, more, row_dims, first)
    if found:
        raise ArgumentError(
            f"batch_size was given, but the rows of site {found[0]!r} depend on each other: they "
            "are one event, or come out otherwise without another row (rows standardised within "
            "the model, random numbers of its own). Leave batch_size out"
        )


def on_all_rows(site: Site, other: Site | None, num_rows: int, here: int) -> Site:
    """
    A site with the shapes on all rows, from two runs on different numbers of them.

    :param Site site: on ``here`` rows.
    :param Site other: on another number of them, or None if it is not there.
    :param int num_rows: all rows.
    :param int here: rows of the first run.
    :returns: the site.
    :raises ArgumentError: if it is not there, or does not have one entry for each row.
    """
    if other is None:
        raise ArgumentError(
            f"batch_size was given, but site {site.name!r} is absent from a run on fewer rows; "
            "leave batch_size out"
        )
    value = grown(site.name, site.value, other.value, num_rows)
    if value.row_dim is not None and site.value.shape[value.row_dim] != here:
        raise ArgumentError(
            f"batch_size was given, but site {site.name!r} has "
            f"{site.value.shape[value.row_dim]} entries on {here} rows, as of y[1:] or windows: "
            "those between two batches would be lost. Leave batch_size out"
        )
    if site.log_prob is None or other.log_prob is None:
        return replace(site, value=value)
    log_prob = grown(site.name, site.log_prob, other.log_prob, num_rows)
    if log_prob.row_dim is None:
        raise ArgumentError(
            f"batch_size was given, but the log-probability of the observed site {site.name!r} "
            f"keeps its shape {site.log_prob.shape} on fewer rows; expected the rows to be in a "
            "plate whose size comes from the arguments, such as "
            "pyro.plate('data', num_data, subsample_size=len(x)). Or leave batch_size out"
        )
    return replace(site, value=value, log_prob=replace(log_prob, of=value))


def grown(name: str, slot: Slot, other: Slot, num_rows: int) -> Slot:
    """
    A slot on all rows; its row dimension is the one in which two runs differ.

    :param str name: of the site, for a message.
    :param Slot slot: what it is on some rows.
    :param Slot other: what it is on another number of rows.
    :param int num_rows: all rows.
    :returns: the slot.
    :raises ArgumentError: if more than one dimension follows the rows.
    """
    dims = changed_dims(other.shape, slot.shape)
    if dims is None or len(dims) > 1:
        raise ArgumentError(
            f"batch_size was given, but site {name!r} has shape {slot.shape} on one number of rows "
            f"and {other.shape} on another; expected at most one dimension to follow the rows. "
            "Leave batch_size out"
        )
    if not dims:
        return slot
    shape = list(slot.shape)
    shape[dims[0]] = num_rows
    return replace(slot, shape=tuple(shape), row_dim=dims[0])
