"""What a step of a run brings with it, done before the next one."""

from __future__ import annotations

from enum import Enum

__all__ = ["Due"]


class Due(str, Enum):
    """
    One thing to be done; states keep its value.

    A run that is interrupted in between does it again: each is the same if it is done twice.
    """

    #: all parameters go back to where they still were good
    RETREAT = "retreat"
    #: to their mean, to be cooled from there
    MEAN = "mean"
    #: to those of the start, to go on from there at a lower rate
    SLOWER = "slower"
    #: to those of the start, to end there
    START = "start"
    #: parameters belong into their mean
    ADD = "add"
    #: the objective's terms are evaluated
    TERMS = "terms"
    #: the validation score is taken
    SCORE = "score"
    #: the same, as that of the start
    SCORE_START = "score start"

    @property
    def moves(self) -> bool:
        """Whether it sets all parameters."""
        return self in (Due.RETREAT, Due.MEAN, Due.SLOWER, Due.START)
