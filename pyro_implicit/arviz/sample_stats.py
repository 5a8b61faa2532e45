"""The group ``sample_stats``: what is known of each draw beside its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pyro_implicit.arviz.chain_draws import ChainDraws
from pyro_implicit.arviz.collect import to_numpy
from pyro_implicit.arviz.densities import SLOTS_OF_DENSITIES, check_densities, densities
from pyro_implicit.arviz.site import Slot

__all__ = ["SampleStats", "sample_stats"]

Arrays = dict[str, np.ndarray]


class SampleStats(NamedTuple):
    """
    The variables of the group, and how they are made.

    :param dict slots: what each looks like.
    :param arrays: from the arrays of ``posterior`` to those of the group.
    """

    slots: dict[str, Slot]
    arrays: Callable[[Arrays], Arrays]


def sample_stats(
    chosen: tuple[str, ...],
    chains: ChainDraws | None,
    guides: Sequence[Callable[..., Any]],
    restarts: bool,
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
) -> SampleStats | None:
    """
    Makes the group: of chains what happened at each draw, of a guide the densities there.

    :param tuple chosen: the groups that are made.
    :param chains: draws by chain, if the guide has some.
    :param guides: the guides to export.
    :param bool restarts: whether they are restarts.
    :param call: the model and its arguments.
    :returns: None if the group is not made.
    :raises ArgumentError: for restarts, for a guide without a density, and without the draws.
    """
    if "sample_stats" not in chosen:
        return None
    if chains is not None:
        statistics = chains.statistics
        return SampleStats(
            chains.slots, lambda _: {name: to_numpy(value) for name, value in statistics.items()}
        )
    model, args, kwargs = call
    guide = check_densities(list(guides), chosen, restarts)
    return SampleStats(
        SLOTS_OF_DENSITIES, lambda posterior: densities(model, guide, posterior, args, kwargs)
    )
