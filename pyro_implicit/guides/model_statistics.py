"""Running statistics of the model's networks, which a guide's state does not hold."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from pyro_implicit.handlers.networks.called_networks import names_of
from pyro_implicit.handlers.rows.same_rows import Fingerprint, are_alike, fingerprint

__all__ = ["ModelStatistics"]

#: of the guide's parameters, looked at to tell whether it was trained since
_MAX_NUMBERS_PER_PARAMETER = 10_000
_SEPARATOR = " of "  # between the names of a statistic and of its network
_Found = dict[str, Fingerprint]


class ModelStatistics:
    """
    What running statistics of the model's networks are like, as those of BatchNorm.

    A guide that was loaded, or is a copy, knows what they were like and no network, until a call
    has met networks with the same. If it was trained before that, it knows nothing.

    :param networks: those that the model calls.
    :param saved: what their statistics were like when the guide was saved, by name.
    :param guide: what the guide's parameters were like then; None if nobody knows yet.
    """

    def __init__(
        self,
        networks: Iterable[nn.Module] = (),
        saved: Mapping[str, Fingerprint] | None = None,
        guide: Mapping[str, Fingerprint] | None = None,
    ) -> None:
        self._networks: list[tuple[str, weakref.ref[nn.Module]]] = []
        self.take(networks)
        self._saved: _Found = dict(saved or {})
        self._guide = None if guide is None else dict(guide)

    def __deepcopy__(self, memo: Any) -> ModelStatistics:
        return ModelStatistics(saved=self.now(), guide=self._guide)

    def __getstate__(self) -> dict[str, Any]:
        return {"_networks": [], "_saved": self.now(), "_guide": self._guide}

    def take(self, networks: Iterable[nn.Module]) -> None:
        """
        Takes these networks for the model's from now on.

        :param networks: those that it calls.
        """
        some = [one for one in networks if _statistics_of(one)]
        self._networks = [(n, weakref.ref(o)) for n, o in zip(names_of(some), some, strict=True)]
        self._saved = {}

    def note(self, guide: nn.Module) -> None:
        """
        Notes what the guide's parameters are like, before it is saved or copied, or once loaded.

        :param guide: the guide.
        """
        self.is_loaded(guide)
        self._guide = _parameters_of(guide)

    def note_saved(self, tensors: Mapping[str, Tensor]) -> None:
        """
        Notes what the guide's parameters are like in the state that is being loaded.

        :param dict tensors: all of the state, by name; parameters are among them.
        """
        self._guide = _likeness(tensors)

    def is_loaded(self, guide: nn.Module) -> bool:
        """
        Tells whether nobody has seen yet that the networks have what was saved.

        :param guide: the guide; one that was trained since it was loaded has forgotten what was.
        """
        if self._saved:
            now = _parameters_of(guide)
            if self._guide is None:
                self._guide = now
            elif not _are_same(now, self._guide):
                self._saved = {}
        return bool(self._saved)

    def now(self) -> dict[str, Fingerprint]:
        """
        What each is like.

        :returns: by name; what was saved of a guide that was loaded and not used yet.
        """
        found = dict(self._saved)
        for name, reference in self._networks:
            network = reference()
            if network is not None:
                statistics = _statistics_of(network).items()
                found |= {f"{n}{_SEPARATOR}{name}": one for n, one in statistics}
        return found

    def lost(self, called: Iterable[nn.Module]) -> list[str]:
        """
        Names of statistics that are not what they were when the guide was saved.

        Once they have been seen to be the same, the guide's fits tell of what moves.

        :param called: the networks that a call has met.
        :returns: none of networks that it has not met.
        """
        called = list(called)
        there, saved = _by_class(ModelStatistics(called).now()), _by_class(self._saved)
        found, whole = [], True
        for kind, before in saved.items():
            now = there.get(kind, {})
            whole = whole and len(now) == len(before)
            for place, (name, one) in enumerate(now.items()):
                # a call that met fewer of them than the fit does not tell which they are
                some = list(before.values())
                some = [some[place]] if len(now) == len(before) else some
                found += _fewest([_others(name, one, like) for like in some])
        if whole and not found:
            self.take(called)
        return found


def _by_class(found: _Found) -> dict[str, dict[str, _Found]]:
    """By the class of a network, and by its name."""
    sorted_out: dict[str, dict[str, _Found]] = defaultdict(lambda: defaultdict(dict))
    for key, one in found.items():
        statistic, _, network = key.partition(_SEPARATOR)
        sorted_out[network.partition(" ")[0]][network][statistic] = one
    return sorted_out


def _fewest(lists: list[list[str]]) -> list[str]:
    return min(lists, key=len)


def _others(name: str, now: _Found, before: _Found) -> list[str]:
    """Names of what is not alike."""
    return [
        f"{n}{_SEPARATOR}{name}"
        for n, one in before.items()
        if n in now and not are_alike(now[n], one)
    ]


def _statistics_of(network: nn.Module) -> _Found:
    found = {}
    for name, value in network.named_buffers():
        if name.rpartition(".")[2].startswith("running_") and value.is_floating_point():
            like = fingerprint((value.detach().reshape(-1),))
            if like is not None:
                found[name] = like
    return found


def _are_same(one: _Found, other: _Found) -> bool:
    """Of the guide's parameters now, and those noted, which may have buffers among them."""
    return all(n in other and are_alike(like, other[n]) for n, like in one.items())


def _parameters_of(guide: nn.Module) -> _Found:
    return _likeness(dict(guide.named_parameters()))


def _likeness(tensors: Mapping[str, Tensor]) -> _Found:
    parts = {n: v.detach().reshape(-1)[:_MAX_NUMBERS_PER_PARAMETER] for n, v in tensors.items()}
    found = {name: fingerprint((part,)) for name, part in parts.items()}
    return {name: one for name, one in found.items() if one is not None}
