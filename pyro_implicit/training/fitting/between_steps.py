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
    #: all parameters are set to their mean, to be cooled from there
    GO_TO_MEAN = "mean"
    #: all parameters are set to those of the start, to go on from there at a lower rate
    RESTART_SLOWER = "slower"
    #: all parameters are set to those of the start, to end there
    GO_TO_START = "start"
    #: the parameters are taken into their mean
    ADD_TO_MEAN = "add"
    #: the objective's terms are evaluated
    EVALUATE_TERMS = "terms"
    #: the validation score is taken
    EVALUATE_SCORE = "score"
    #: the validation score is taken, and counts as that of the start
    EVALUATE_START_SCORE = "score start"

    @property
    def moves(self) -> bool:
        """Whether it sets all parameters."""
        return self in (Due.RETREAT, Due.GO_TO_MEAN, Due.RESTART_SLOWER, Due.GO_TO_START)
