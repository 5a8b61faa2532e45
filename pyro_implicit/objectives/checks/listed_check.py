"""Looks once at each model with summed-out latents whether its rows know nothing of each other."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.util import site_is_subsample

from pyro_implicit._program_ref import ProgramRef
from pyro_implicit.handlers.enumeration.listed_rows import check_listed_rows
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.masks.replicates import Replicates
from pyro_implicit.handlers.rows.row_slices import shows_all
from pyro_implicit.objectives.checks.argument_kind import kind_of
from pyro_implicit.objectives.particles.particle import sample_nodes

__all__ = ["ListedCheck"]

#: Batches may all be of other shapes, and a look is several runs of the model.
_MAX_SHAPES_PER_MODE = 4


class ListedCheck:
    """Checks a model at the first steps with another combination of shapes, flags and modes."""

    def __init__(self) -> None:
        self._model: ProgramRef | None = None
        self._passed: dict[Hashable, set[Hashable]] = {}  # shapes by flags and mode

    def __call__(self, model: Any, guide: Any, args: Any, kwargs: Any) -> None:
        """
        Checks a model once for each of the first shapes of arguments, with each set of flags.

        :param model: a model with latents that are summed out.
        :param guide: its guide, which draws the others.
        :param args: positional arguments of both.
        :param kwargs: keyword arguments of both.
        :raises CoupledRowsError: see
            :func:`~pyro_implicit.handlers.enumeration.listed_rows.check_listed_rows`.
        """
        if self._model is None or not self._model.is_of(model):
            self._model, self._passed = ProgramRef(model), {}
        kinds = [*map(kind_of, (*args, *kwargs.values()))]
        shapes = tuple(one for one in kinds if isinstance(one, tuple))
        flags = tuple(one for one in kinds if not isinstance(one, tuple))
        passed = self._passed.setdefault((getattr(model, "training", None), flags), set())
        if shapes in passed or len(passed) == _MAX_SHAPES_PER_MODE:
            return
        with unseen_run(), torch.no_grad(), pyro.validation_enabled(False):
            nodes = sample_nodes(poutine.trace(guide).get_trace(*args, **kwargs))
        values = {
            name: node["value"]
            for name, node in nodes.items()
            if not (site_is_subsample(node) and shows_all(node["value"], node["fn"].size))
        }
        check_listed_rows(Replicates(values)(model), args, kwargs, values, None)
        passed.add(shapes)  # last: what was refused is looked at again

    def __reduce__(self) -> Any:
        return ListedCheck, ()  # weak references cannot be pickled; to check again is harmless
