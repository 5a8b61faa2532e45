"""What a guide made of chains has beside its draws: which chain each is of, and how it was made."""

# Shape legend: C chains, T draws of each.
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pyro_implicit.arviz.site import Slot

__all__ = ["ChainDraws", "chain_draws"]


@dataclass(frozen=True)
class ChainDraws:
    """
    Draws by chain.

    :param draws: by site, shape ``(C, T, *site_shape)``.
    :param statistics: of each draw, by name, shape ``(C, T)``.
    :param attrs: what is to be noted of the chains.
    """

    draws: dict[str, Tensor]
    statistics: dict[str, Tensor]
    attrs: dict[str, str | int | float]

    @property
    def num_samples(self) -> int:
        """How many draws there are in all."""
        first = next(iter(self.draws.values()))
        return first.shape[0] * first.shape[1]

    @property
    def slots(self) -> dict[str, Slot]:
        """What the statistics look like."""
        return {name: Slot((), value.dtype, ()) for name, value in self.statistics.items()}


def chain_draws(guide: Callable[..., Any], num_samples: int) -> ChainDraws | None:
    """
    The draws of a guide by chain, if it knows chains.

    :param guide: a guide; one with a method ``draws_by_chain`` has chains.
    :param int num_samples: at most so many of all chains together.
    :returns: None for any other guide.
    """
    by_chain = getattr(guide, "draws_by_chain", None)
    if not callable(by_chain):
        return None
    draws, statistics = by_chain(num_samples)
    attrs: dict[str, str | int | float] = {
        "num_gradients": int(guide.num_gradients),  # type: ignore[attr-defined]
        "kernel_settings": json.dumps(guide.settings, default=str),  # type: ignore[attr-defined]
    }
    return ChainDraws(draws, statistics, attrs)
