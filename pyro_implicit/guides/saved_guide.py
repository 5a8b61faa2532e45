"""A guide that is saved, copied and pickled without its model and without the data."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pyro.infer.autoguide import AutoGuide
from torch import Tensor, nn

from pyro_implicit._checks import check_flag, check_state
from pyro_implicit._plain import as_state_error
from pyro_implicit._signature import places_of
from pyro_implicit.exceptions import StateError
from pyro_implicit.guides.first_call import FIRST_CALL_KEY, FirstCall
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.guides.saved_state import (
    STATE_VERSION,
    check_fits,
    check_guide_class,
    check_justified,
    check_same,
    check_sizes,
    check_structure,
    check_version,
)
from pyro_implicit.guides.serialization import sampler_from_state, sampler_state

__all__ = ["SavedGuide"]

_Self = TypeVar("_Self", bound="SavedGuide")


class SavedGuide(AutoGuide):
    """
    A guide whose ``state_dict`` holds all that it is built from.

    What it knows of its latents stands there as plain values, beside the tensors. What is not plain
    (the model, the prototype trace with the data in it, another guide that this one started from)
    is left out of a state and of a pickle; a copy shares all of it but the trace.
    """

    _sites: list[LatentSite] | None
    _parts: list[tuple[str, int]]
    _init_from: list[Any]
    _bare_model: list[Any]

    _first_call: FirstCall | None = None

    @property
    def first_call(self) -> FirstCall | None:
        """What is known of the call that the guide was built with; None before it."""
        return self._first_call

    @abstractmethod
    def _build(
        self,
        sites: list[LatentSite],
        parts: list[tuple[str, int]],
        samplers: Sequence[nn.Module],
    ) -> None:
        """
        Takes the sites and their samplers into the guide.

        :param sites: the latent sites, those of one part together.
        :param parts: name (``""`` if there is but one) and number of sites of each part.
        :param samplers: one for each part.
        """

    def _own_generator(self, output_dim: int) -> Any:
        """The user's own generator, which a saved state cannot hold by value, or None."""
        return None

    def get_extra_state(self) -> dict[str, Any]:
        """Structure of the guide as plain values, so that loading needs neither model nor data."""
        if self._sites is None:
            return {"version": STATE_VERSION, "sites": None}
        known = self._first_call
        return {
            "version": STATE_VERSION,
            "guide": type(self).__name__,
            "parts": [list(part) for part in self._parts],
            "sites": [site.to_state() for site in self._sites],
            "samplers": [self._sampler_state(sampler) for _, _, sampler in self._groups()],
            FIRST_CALL_KEY: None if known is None else known.to_state(),
        }

    def set_extra_state(self, state: Any) -> None:
        """
        Builds the guide from what :meth:`get_extra_state` returned, unless it is built already.

        :raises StateError: if the state is of another version or guide class, or does not match.
        """
        check_version(state, type(self).__name__)
        with as_state_error(f"the state of {type(self).__name__}"):
            self._set_extra_state(state)

    def _set_extra_state(self, state: dict[str, Any]) -> None:
        if state["sites"] is None:
            return
        check_structure(state)
        known = state.get(FIRST_CALL_KEY)
        call = None if known is None else FirstCall.from_state(known)
        if self._sites is not None:
            check_same(state, self.get_extra_state())
            self._first_call = call or self._first_call
            return
        check_guide_class(state, type(self).__name__)
        sites = [LatentSite.from_state(site) for site in state["sites"]]
        samplers = [self._sampler_from_state(s) for s in state["samplers"]]
        parts = [(name, size) for name, size in state["parts"]]
        check_sizes(sites, parts, state["samplers"])
        self._build(sites, parts, samplers)
        self._first_call = call
        if call is not None and self._bare_model[0] is not None:  # whose arguments may have others
            call.names = places_of(self._bare_model[0])

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """
        See ``torch.nn.Module``.

        A guide that is not built is built; one that is must be of the same structure.

        :raises StateError: if the state is damaged or of another guide, naming what differs.
        """
        check_state(self, state_dict)
        check_flag("strict", strict)
        check_flag("assign", assign)
        was_built = self._sites is not None
        try:
            loaded = super().load_state_dict(state_dict, strict, assign)
            self._note_statistics()
            return loaded
        except RuntimeError as error:
            if not was_built:
                self._sites, self._parts = None, []
                self._first_call = None
                self._modules.pop("_samplers", None)
            if isinstance(error, StateError):
                raise
            raise StateError(f"not a state of {type(self).__name__}: {error}") from error

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Checks, before anything is loaded, that tensors and their description agree."""
        mine = {k.removeprefix(prefix): v for k, v in state_dict.items() if k.startswith(prefix)}
        state = mine.get("_extra_state")
        tensors = {name: value for name, value in mine.items() if isinstance(value, Tensor)}
        with as_state_error(f"the state of {type(self).__name__}"):
            if self._sites is not None:
                known = self._first_call
                if state is not None:
                    self.set_extra_state(state)  # compares
                loaded = self._first_call
                self._first_call = known
                if known is not None and loaded is not None:
                    known.parameters.statistics = loaded.parameters.statistics
                check_fits(tensors, self, type(self).__name__, partly=True)
            elif isinstance(state, dict) and state.get("guide") == type(self).__name__:
                check_structure(state)
                check_justified(self, state, tensors)
        super()._load_from_state_dict(state_dict, prefix, *args)
        if self._first_call is not None:
            self._first_call.parameters.statistics.note_saved(tensors)

    def _note_statistics(self) -> None:
        if self._first_call is not None:
            self._first_call.parameters.statistics.note(self)

    def _sampler_state(self, sampler: Any) -> dict[str, Any]:
        """The structure of one sampler as plain values."""
        return sampler_state(sampler)

    def _sampler_from_state(self, state: dict[str, Any]) -> nn.Module:
        """The inverse of :meth:`_sampler_state`."""
        return sampler_from_state(state, self._own_generator)

    @classmethod
    def from_state_dict(cls: type[_Self], state_dict: dict[str, Any]) -> _Self:
        """
        A guide that draws what the saved one drew, made without any model.

        :param dict state_dict: what ``guide.state_dict()`` returned, for example read by
            :func:`~pyro_implicit.saving.load_state`.
        :raises StateError: if it is damaged, or a part of it cannot be stored by value.
        """
        guide = cls(lambda: None)
        guide._model, guide._bare_model = (None,), [None]
        guide.load_state_dict(check_state(cls, state_dict))
        return guide

    def __getstate__(self) -> dict[str, Any]:
        # Pyro's AutoGuide erases the model of the live object here; work on a copy instead. Models
        # are often local functions, which cannot be pickled, and the trace holds the data.
        self._note_statistics()
        state = self.__dict__.copy()
        state.update(_model=None, master=None, prototype_trace=None)
        state.update(_init_from=[None], _bare_model=[None])
        return state

    def __deepcopy__(self: _Self, memo: dict[int, Any]) -> _Self:
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        clone.__setstate__(copy.deepcopy(self.__getstate__(), memo))  # type: ignore[no-untyped-call]
        clone.__dict__["_model"] = self._model
        clone.__dict__["_init_from"] = list(self._init_from)
        clone.__dict__["_bare_model"] = list(self._bare_model)
        return clone
