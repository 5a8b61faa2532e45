"""What is exported: groups, the variables of each, and the names of their dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pyro_implicit.arviz.chain_draws import ChainDraws
from pyro_implicit.arviz.collect import GUIDE_GROUPS, ExportPlan, make_plan, to_numpy
from pyro_implicit.arviz.compatibility import make_inference_data
from pyro_implicit.arviz.constants import constant_data, constant_slots
from pyro_implicit.arviz.groups import GROUPS, check_size, choose_groups
from pyro_implicit.arviz.labels import Labels, netcdf_names
from pyro_implicit.arviz.program import Program
from pyro_implicit.arviz.sample_stats import SampleStats

__all__ = ["Export"]


class Export:
    """
    The groups of one export.

    :param Program program: the model, and the first of its guides.
    :param groups: names asked for; None for all that can be made.
    :param chains: draws by chain, if the guide has some.
    :param int num_samples: draws, if it has none.
    :param int num_restarts: how many guides are restarts of one; None if there is one guide.
    :raises ArgumentError: for groups that cannot be made.
    """

    def __init__(
        self,
        program: Program,
        groups: Sequence[str] | None,
        chains: ChainDraws | None,
        num_samples: int,
        num_restarts: int | None,
    ) -> None:
        self.program, self.num_restarts = program, num_restarts
        self.constants = constant_data(program)
        statistics = chains is not None and bool(chains.statistics)
        self.chosen, self.notes = choose_groups(program, groups, bool(self.constants), statistics)
        self.num_samples = num_samples if chains is None else chains.num_samples
        self.draws: dict[str, Tensor] | None = None if chains is None else chains.draws
        self._chain_attrs: dict[str, Any] = {} if chains is None else chains.attrs

    def lay_out(
        self,
        stats: SampleStats | None,
        max_bytes: float | None,
        dims: Mapping[str, Any] | None,
        coords: Mapping[str, Any] | None,
    ) -> None:
        """
        Finds the variables of each group, and names their dimensions.

        :param stats: the group ``sample_stats``, if it is made.
        :param float max_bytes: limit for all groups together; None asks nothing.
        :param dims: the user's names of dimensions by variable.
        :param coords: the user's labels by name of dimension.
        :raises ArgumentError: for too much, and for names and labels that do not fit.
        """
        self.plan = make_plan(self.program, self.chosen)
        check_size(self.plan, self.num_samples, max_bytes, self.num_restarts or 1)
        slots: ExportPlan = dict(self.plan)
        if "constant_data" in self.chosen:
            slots["constant_data"] = constant_slots(self.program, self.constants)
        if stats is not None:
            slots["sample_stats"] = stats.slots
        self._labels = Labels(slots, dims, coords, self.num_restarts, GUIDE_GROUPS)
        self._renamed = netcdf_names({name for group in slots.values() for name in group})

    def made(self, arrays: dict[str, dict[str, np.ndarray]], attrs: dict[str, Any]) -> Any:
        """
        The data for ArviZ.

        :param dict arrays: those of each group but the constant data, by variable.
        :param dict attrs: attributes.
        :returns: ``arviz.InferenceData`` or ``xarray.DataTree``.
        """
        if self.num_restarts is not None:
            attrs = attrs | {"num_restarts": self.num_restarts}
        if "constant_data" in self.chosen:
            constants = {name: to_numpy(value) for name, value in self.constants.items()}
            arrays = arrays | {"constant_data": constants}
        names, dims = self._renamed, self._labels.dims
        return make_inference_data(
            {g: {names[n]: a for n, a in arrays[g].items()} for g in GROUPS if g in arrays},
            self._labels.coords,
            {g: {names[n]: d for n, d in ds.items()} for g, ds in dims.items() if g in arrays},
            attrs | self._chain_attrs,
        )
