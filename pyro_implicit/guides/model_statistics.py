"""Running statistics of the model's networks, which a guide's state does not hold."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from pyro_implicit.handlers.same_rows import Fingerprint, are_alike, fingerprint

__all__ = ["ModelStatistics", "statistics_of"]


class ModelStatistics:
    """
    What running statistics of the model's networks are like, as those of BatchNorm.

    :param networks: those that the model calls.
    :param saved: what their statistics were like when the guide was saved, by name.
    """

    def __init__(
        self, networks: Iterable[nn.Module] = (), saved: Mapping[str, Fingerprint] | None = None
    ) -> None:
        self._networks = [weakref.ref(one) for one in networks]
        self._saved = dict(saved or {})

    def __deepcopy__(self, memo: Any) -> ModelStatistics:
        alive = [one for one in (reference() for reference in self._networks) if one is not None]
        return ModelStatistics(alive, self._saved)

    def __getstate__(self) -> dict[str, Any]:
        return {"_networks": [], "_saved": self.now()}

    @property
    def is_loaded(self) -> bool:
        """Whether nobody has seen yet that the networks have what was saved."""
        return bool(self._saved)

    def now(self) -> dict[str, Fingerprint]:
        """
        What each is like.

        :returns: by name; what was saved of a guide that was loaded and not used yet.
        """
        found = dict(self._saved)
        for reference in self._networks:
            network = reference()
            found |= {} if network is None else statistics_of(network)
        return found

    def lost(self, called: Mapping[nn.Module, dict[str, Fingerprint]]) -> list[str]:
        """
        Names of statistics that are not what they were when the guide was saved.

        Once they have been seen to be the same, the guide's fits tell of what moves.

        :param called: the networks that a call has met, and :func:`statistics_of` each before it.
        :returns: none of networks that it has not met.
        """
        there = {name: one for found in called.values() for name, one in found.items()}
        found = [n for n, one in self._saved.items() if n in there and not are_alike(there[n], one)]
        if not found and self._saved.keys() <= there.keys():
            self._networks, self._saved = [weakref.ref(one) for one in called], {}
        return found


def statistics_of(network: nn.Module) -> dict[str, Fingerprint]:
    """
    What the running statistics of a network are like.

    :param network: any module.
    :returns: by name, which ends with that of its class.
    """
    found = {}
    for name, value in network.named_buffers():
        if name.rpartition(".")[2].startswith("running_") and value.is_floating_point():
            like = fingerprint((value.detach().reshape(-1),))
            if like is not None:
                found[f"{name} of {type(network).__name__}"] = like
    return found
