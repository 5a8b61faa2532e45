"""What a guide knows of the call that it was built with, in its saved state: no data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyro_implicit._checks import shown
from pyro_implicit._plain import check_like
from pyro_implicit.exceptions import StateError
from pyro_implicit.guides.argument_dims import Shape
from pyro_implicit.guides.held_data import HeldData
from pyro_implicit.guides.model_parameters import ModelParameters
from pyro_implicit.guides.model_statistics import ModelStatistics
from pyro_implicit.handlers.known_call import KnownCall
from pyro_implicit.handlers.rows.same_rows import Fingerprint

__all__ = ["FIRST_CALL_KEY", "FirstCall"]

#: the key of this entry of a guide's extra state
FIRST_CALL_KEY = "first_call"
#: what a saved state must be like, where None stands for anything
_EXAMPLE_STATE: dict[str, Any] = {
    "shapes": [],
    "rows": None,
    "arguments": [],
    "observed": {},
    "parameters": {},
    "statistics": {},
}


class FirstCall(KnownCall):
    """
    Shapes of arguments, fingerprints of rows and observations, and the model's parameters.

    :param shapes: of positional arguments; None for what is no tensor.
    :param rows: fingerprint of the first argument, or None.
    :param HeldData held: arguments and observations.
    :param ModelParameters parameters: of the model.
    :param names: of the model's arguments by place, for a guide that is loaded without it.
    """

    names: Sequence[str] = ()  # of what was pickled before

    def __init__(
        self,
        shapes: tuple[Shape | None, ...],
        rows: Fingerprint | None,
        held: HeldData,
        parameters: ModelParameters,
        names: Sequence[str] = (),
    ) -> None:
        self.shapes, self.rows, self.held, self.parameters = shapes, rows, held, parameters
        self.names = list(names)

    def to_state(self) -> dict[str, Any]:
        """
        All of it as plain values.

        :returns: numbers, names and lists.
        """
        observed = {name: _listed(one) for name, one in self.held.observed.items()}
        return {
            "shapes": [_listed(shape) for shape in self.shapes],
            "rows": _listed(self.rows),
            "names": list(self.names),
            "arguments": sorted(list(one) for one in self.held.arguments),
            "observed": observed,
            "sampled": None if self.held.sampled is None else sorted(self.held.sampled),
            "program": self.held.program,
            "parameters": self.parameters.to_state(),
            "statistics": {n: list(one) for n, one in self.parameters.statistics.now().items()},
        }

    @classmethod
    def from_state(cls, state: Any) -> FirstCall:
        """
        The inverse of :meth:`to_state`.

        :param state: what that returned.
        :returns: the same.
        :raises StateError: if it is anything else.
        """
        check_like(state, _EXAMPLE_STATE, FIRST_CALL_KEY)
        # older states have none of these, nor "names"
        sampled, program = state.get("sampled"), state.get("program")
        if not isinstance(program, (str, type(None))):
            raise StateError(f"program in {FIRST_CALL_KEY!r} of the state is {shown(program)}.")
        held = HeldData.from_prints(
            {_print(one, "arguments") for one in state["arguments"] if one is not None},
            {name: _print(one, "observed") for name, one in state["observed"].items()},
            None if sampled is None else frozenset(_names(sampled)),
            program,
        )
        prints = {n: _print(one, "statistics") for n, one in state["statistics"].items()}
        saved = {name: one for name, one in prints.items() if one is not None}
        parameters = ModelParameters(state["parameters"], ModelStatistics(saved=saved))
        for name, one in state["parameters"].items():
            parameters.saved[name] = _print(one, "parameters")
        return cls(
            tuple(map(_shape, state["shapes"])),
            _print(state["rows"], "rows"),
            held,
            parameters,
            _names(state.get("names", [])),
        )


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or any(type(name) is not str for name in value):
        raise StateError(f"names in {FIRST_CALL_KEY!r} of the state are {shown(value)}.")
    return value


def _listed(value: Any) -> list[Any] | None:
    return None if value is None else list(value)


def _shape(value: Any) -> Shape | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or any(type(n) is not int or n < 0 for n in value):
        raise StateError(f"a shape in {FIRST_CALL_KEY!r} of the state is {shown(value)}.")
    return tuple(value)


def _print(value: Any, where: str) -> Fingerprint | None:
    if value is None:
        return None
    check_like(value, [1, 1.0, 1.0, 1.0], f"{FIRST_CALL_KEY}[{where!r}]")
    if len(value) != 4:
        raise StateError(f"{where} in {FIRST_CALL_KEY!r} of the state has {shown(value)}.")
    count, total, squares, weighted = value
    return count, total, squares, weighted
