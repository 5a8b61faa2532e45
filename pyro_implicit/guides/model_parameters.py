"""Parameters of the model, which a guide's state knows by name and does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyro
import torch
from torch import Tensor, nn

from pyro_implicit._few import few_of
from pyro_implicit.guides.model_statistics import ModelStatistics
from pyro_implicit.guides.since_fit import moved_since_fit
from pyro_implicit.handlers.known_call import known_call_of
from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.handlers.networks.called_networks import CalledNetworks
from pyro_implicit.handlers.rows.same_rows import Fingerprint, are_alike, fingerprint

__all__ = ["ModelParameters", "WatchedParameters"]

_MAX_NAMES_SHOWN = 4
_WARNING_OF_LOST_PARAMETERS = (
    "the model's parameters {} have the values that they begin with, not those of "
    "the guide's fit: they are the model's, and no part of the guide's state. "
    "Save and load them beside it: pyro.get_param_store().save(path) and .load(path) "
    "before the first call; for a network, save_state(net.state_dict(), path)."
)
_WARNING_OF_LOST_STATISTICS = (
    "{} of the model are not what they were when the guide was "
    "saved: running statistics are the network's, and no part of the guide's state. Save "
    "and load them beside it: save_state(net.state_dict(), path), "
    "net.load_state_dict(load_state(path))."
)


class ModelParameters:
    """
    Names of what a model makes by ``pyro.param``, or trains of its networks, and what it was like.

    :param names: of these parameters in Pyro's store.
    :param ModelStatistics statistics: of its networks.
    """

    def __init__(self, names: Iterable[str], statistics: ModelStatistics | None = None) -> None:
        self.statistics = statistics or ModelStatistics()
        #: what each was like when the guide was saved; None if nobody knows
        self.saved: dict[str, Fingerprint | None] = dict.fromkeys(names)
        #: what each was like where a call had to make it
        self.made: dict[str, Fingerprint | None] = {}

    def to_state(self) -> dict[str, list[Any] | None]:
        """What each is like now, or was like when the guide was saved; of the values no more."""
        now = {name: _like(name) or saved for name, saved in self.saved.items()}
        return {name: None if one is None else list(one) for name, one in now.items()}


class WatchedParameters:
    """
    Tells of parameters that a call makes anew, whose values in the guide's fit were others.

    Those of a model that was trained on since then, with another guide, are told too.

    :param guide: any guide; one that is not of this package knows nothing.
    """

    def __init__(self, guide: Any) -> None:
        parts = guide.modules() if isinstance(guide, nn.Module) else getattr(guide, "guides", ())
        found = ((part, known_call_of(part)) for part in parts)
        store = pyro.get_param_store()
        self._guide = guide
        self._known: dict[Any, ModelParameters] = {
            p: one.parameters for p, one in found if one is not None
        }
        self._called: CalledNetworks | None = None
        if any(one.statistics.is_loaded(part) for part, one in self._known.items()):
            self._called = CalledNetworks()
        self._absent = {
            name for one in self._known.values() for name in one.saved if name not in store
        }

    def look(self, model: Callable[..., Any], args: Any, kwargs: Any) -> list[str]:
        """
        Runs the model once, if only a run can tell.

        :param model: a Pyro model.
        :param args: its positional arguments.
        :param kwargs: its keyword arguments.
        :returns: what :meth:`warnings` then has.
        """
        if self._called or any(name not in pyro.get_param_store() for name in self._absent):
            with unseen_run(evaluates=True), torch.no_grad():
                model(*args, **kwargs)
                return self.warnings()  # before what it has made is taken back
        return self.warnings()

    def warnings(self) -> list[str]:
        """
        What a user should know once the model was run, in evaluation mode.

        :returns: one text for each matter.
        """
        found = moved_since_fit(self._guide)
        lost = self._lost_statistics()
        if lost:
            found.append(_WARNING_OF_LOST_STATISTICS.format(few_of(lost, _MAX_NAMES_SHOWN)))
        names = sorted({name for known in self._known.values() for name in self._lost(known)})
        return [*found, _WARNING_OF_LOST_PARAMETERS.format(names)] if names else found

    def remember(self) -> None:
        """Takes parameters as they are now for those of the fit, where a state told of others."""
        for known in self._known.values():
            known.saved = {
                name: None if saved is None else _like(name) or saved
                for name, saved in known.saved.items()
            }

    def _lost_statistics(self) -> list[str]:
        if self._called is None:
            return []
        called, self._called = self._called.outermost(), None
        loaded = [one.statistics for p, one in self._known.items() if one.statistics.is_loaded(p)]
        return [name for one in loaded for name in one.lost(called)]

    def _lost(self, known: ModelParameters) -> list[str]:
        lost = []
        for name, saved in known.saved.items():
            now = _like(name)
            if now is None or are_alike(now, saved) or (saved is None and _has_owner(name)):
                continue
            if name in self._absent:
                known.made[name] = now
            if are_alike(now, known.made.get(name)):  # also in the calls that follow
                lost.append(name)
        return lost


def _like(name: str) -> Fingerprint | None:
    store = pyro.get_param_store()
    value = store[name].detach() if name in store else None
    return fingerprint((value.reshape(-1),)) if isinstance(value, Tensor) else None


def _has_owner(name: str) -> bool:
    """Whether it is a parameter of a module, which keeps its value when the store is cleared."""
    return isinstance(pyro.get_param_store()._params[name], nn.Parameter)
