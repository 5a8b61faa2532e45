"""The names of the parameters that a run trains, so that no other run goes on from its result."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyro_implicit._checks import check_names
from pyro_implicit._few import few_of
from pyro_implicit.exceptions import StateError

__all__ = ["SeenParameters"]


class SeenParameters:
    """
    Names of all parameters so far, and of those that every step had.

    They differ where a program meets some of its parameters in some runs only.

    :param state: what :meth:`state` returned, to be compared with the next step.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self._all = set(check_names("all", state["all"])) if state else set()
        self._always = set(check_names("always", state["always"])) if state else set()
        self._is_compared = not self._all

    def add(self, names: Collection[str]) -> None:
        """
        Takes the names of one step.

        :raises StateError: if it is the first after a state, and has other parameters.
        """
        now = set(names)
        if not self._is_compared:
            self._compare(now)
            self._is_compared = True
        self._always = self._always & now if self._all else now
        self._all |= now

    def state(self) -> dict[str, list[str]]:
        """The names, as plain values."""
        return {"all": sorted(self._all), "always": sorted(self._always)}

    def _compare(self, now: set[str]) -> None:
        missing = sorted(self._always - now)
        unknown = sorted(now - self._all) if self._all == self._always else []
        if missing or unknown:
            raise StateError(
                "resume is the result of another model or guide: "
                f"{_described('it has', missing, 'that these have not')}"
                f"{'; ' if missing and unknown else ''}"
                f"{_described('it lacks', unknown, 'that these have')}. Give fit the model and the "
                "guide of that run, or leave resume out."
            )


def _described(before: str, names: list[str], after: str) -> str:
    if not names:
        return ""
    few = few_of([repr(name) for name in names])
    return f"{before} parameter{'s' * (len(names) > 1)} {few}, {after}"
