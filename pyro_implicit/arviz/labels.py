"""Names and labels of dimensions: from the plates of the model, and from the user."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pyro_implicit._checks import check_names, shown
from pyro_implicit.arviz.site import Slot
from pyro_implicit.exceptions import ArgumentError, SiteError

__all__ = ["RESTART_DIM", "Labels", "netcdf_names"]

SAMPLE_DIMS = ("chain", "draw")
RESTART_DIM = "restart"


def netcdf_names(names: Collection[str]) -> dict[str, str]:
    """
    Gives variables names that netCDF and ``DataTree`` accept: a slash becomes a dot.

    :param names: site names.
    :returns: old name to new name.
    :raises SiteError: if two names become one.
    """
    renamed = {name: name.replace("/", ".") for name in names}
    for name, new in renamed.items():
        if new != name and new in renamed:
            raise SiteError(
                f"sites {name!r} and {new!r} would both be saved as {new!r} (netCDF allows no "
                "slash in a name); rename one of them"
            )
    return renamed


class Labels:
    """
    Names the dimensions of every variable.

    A dimension that belongs to a plate has the plate's name and the labels ``0, 1, ...``; any other
    one is called ``f"{variable}_dim_{i}"``, counting such dimensions from 0. A plate whose name is
    also that of a variable, or ``chain`` or ``draw``, gets ``_dim`` appended: xarray would take the
    variable for the labels. With restarts the groups in question have a first dimension
    ``restart``, a name that is then taken too.

    :param dict plan: group to variable to :class:`Slot`.
    :param dict dims: the user's names of dimensions by variable: of all of them, or of those
        without a plate.
    :param dict coords: the user's labels by name of dimension.
    :param int num_restarts: size of the dimension ``restart``, or None for no such dimension.
    :param restart_groups: the groups that have it.
    :raises ArgumentError: if they do not fit the variables.
    """

    def __init__(
        self,
        plan: Mapping[str, Mapping[str, Slot]],
        dims: Mapping[str, Sequence[str]] | None,
        coords: Mapping[str, Sequence[Any]] | None,
        num_restarts: int | None = None,
        restart_groups: Collection[str] = (),
    ) -> None:
        self.taken = SAMPLE_DIMS if num_restarts is None else (*SAMPLE_DIMS, RESTART_DIM)
        self.variables = {name for slots in plan.values() for name in slots}
        self.user_dims = {
            name: list(check_names(f"dims[{name!r}]", names))
            for name, names in (dims or {}).items()
        }
        self._check_variables()
        self._check_user_dims()
        self.sizes: dict[str, int] = {}
        self._named: dict[str, tuple[str, int]] = {}  # by the user: of which variable and size
        self.plate_sizes: dict[str, int] = {}
        self.dims = {
            group: {name: self._names(name, slot) for name, slot in slots.items()}
            for group, slots in plan.items()
        }
        if num_restarts is not None:
            self._add_restarts(num_restarts, restart_groups)
        self.coords: dict[str, Any] = {n: np.arange(s) for n, s in self.plate_sizes.items()}
        self._add_user_coords(coords or {})

    def _add_restarts(self, num_restarts: int, groups: Collection[str]) -> None:
        """The dimension of the restarts, in front of all others of a variable."""
        if RESTART_DIM in self.variables:
            raise ArgumentError(
                f"a list of guides becomes a dimension {RESTART_DIM!r}, but the model has a site "
                "of that name; rename the site"
            )
        self.sizes[RESTART_DIM] = self.plate_sizes[RESTART_DIM] = num_restarts
        for group in set(groups) & self.dims.keys():
            self.dims[group] = {n: [RESTART_DIM, *names] for n, names in self.dims[group].items()}

    def _check_variables(self) -> None:
        taken = sorted(self.variables & set(SAMPLE_DIMS))
        if taken:
            raise ArgumentError(
                f"the model has a site {taken[0]!r}, and ArviZ calls a dimension of all draws so; "
                "rename the site"
            )

    def _check_user_dims(self) -> None:
        """What can be said before a single dimension is known."""
        unknown = sorted(map(str, self.user_dims.keys() - self.variables))
        if unknown:
            raise ArgumentError(
                f"dims names {unknown}, which are no variables of the result; expected some of "
                f"{sorted(self.variables)}"
            )
        for variable, names in self.user_dims.items():
            taken = sorted(set(names) & (self.variables | set(self.taken)))
            if taken or len(set(names)) < len(names):
                raise ArgumentError(
                    f"dims[{variable!r}] is {names}; expected names that differ from each other, "
                    f"from {self.taken} and from the variables"
                    + (f" (found {taken})" if taken else "")
                )

    def _names(self, variable: str, slot: Slot) -> list[str]:
        """Names of the dimensions of one variable in one group."""
        if slot.of is not None:
            parent = self._names(variable, slot.of)
            return [parent[position] for position in slot.kept]
        names: list[str | None] = [
            None if plate is None else self._plate_name(plate, size)
            for plate, size in zip(slot.plates, slot.shape, strict=True)
        ]
        free = [position for position, name in enumerate(names) if name is None]
        given = self.user_dims.get(variable)
        if given is None:
            given = [f"{variable.replace('/', '.')}_dim_{i}" for i in range(len(free))]
        elif len(given) == len(names):
            free = list(range(len(names)))
        elif len(given) != len(free):
            raise ArgumentError(
                f"dims[{variable!r}] has {len(given)} names; expected {len(names)} (shape "
                f"{slot.shape}), or {len(free)} for the dimensions without a plate"
            )
        for position, name in zip(free, given, strict=True):
            names[position] = name
        full = [str(name) for name in names]
        self._note_sizes(variable, full, slot.shape)
        return full

    def _plate_name(self, plate: str, size: int) -> str:
        """The dimension of a plate, of which Pyro allows one of each name."""
        name = plate.replace("/", ".")
        while name in self.variables or name in self.taken:
            name += "_dim"
        self.plate_sizes[name] = size
        return name

    def _note_sizes(self, variable: str, names: list[str], shape: tuple[int, ...]) -> None:
        """One name is one size, for all variables that the user gave it to."""
        for name, size in zip(names, shape, strict=True):
            known = self.sizes.setdefault(name, size)
            if variable in self.user_dims:
                self._named.setdefault(name, (variable, known))
            if known == size or name not in self._named:
                continue
            given, theirs = self._named[name]
            if variable in self.user_dims:
                given, theirs, size = variable, size, known
            raise ArgumentError(
                f"dims[{given!r}] calls a dimension of size {theirs} {name!r}, which has size "
                f"{size} elsewhere; use another name"
            )

    def _add_user_coords(self, coords: Mapping[str, Sequence[Any]]) -> None:
        """The user's labels, checked."""
        for name, labels in coords.items():
            if name not in self.sizes:
                raise ArgumentError(
                    f"coords names {name!r}, which is no dimension of the result; expected some of "
                    f"{sorted(self.sizes)}, or dims={{variable: [{name!r}]}} as well"
                )
            if not _is_list(labels):
                raise ArgumentError(
                    f"coords[{name!r}]={shown(labels)}; expected a sequence with a label for each "
                    "entry."
                )
            if len(labels) != self.sizes[name]:
                raise ArgumentError(
                    f"coords[{name!r}] has {len(labels)} labels; expected {self.sizes[name]}"
                )
            self.coords[name] = np.asarray(labels)


def _is_list(labels: Any) -> bool:
    """Whether labels are in one row: no number, text, set, iterator or matrix."""
    try:
        return np.ndim(labels) == 1
    except ValueError:  # lists of unequal lengths
        return False
