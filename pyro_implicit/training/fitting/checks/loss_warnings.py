"""What the losses of a run tell a user, in words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pyro_implicit.training.fitting.pace.stall import Slope

__all__ = ["note_of_limit", "note_of_other_run", "note_of_resolution", "note_of_rise"]

_MIN_NATS_TO_TELL = 1.0  # a smaller rise or jump of the loss, or a smaller hidden gain, is not told
_NUM_FIRST_STEPS = 3  # whose mean is the loss that a run begins with
_MIN_STEPS_TO_TELL_RISE = 30
_MAX_STEPS_BEFORE_RESUME = 50  # last steps of the resumed run, which the first ones are held to
_MAX_JUMP_IN_SDS = 10.0  # of the losses of these steps: more is another model, or other data


def note_of_limit(num_steps: int, slope: Slope | None, level_at: int | None = None) -> str:
    """
    Says that the steps were too few, and what the last of them at the full rate brought.

    :param int num_steps: the limit.
    :param slope: of the loss at the full rate, or None of a run too short for one.
    :param level_at: the step at which the loss was level and deviations were off, if the run went
        on for that.
    :returns: what to say.
    """
    if level_at is not None:
        return (
            f"the objective was level after {level_at} steps, where importance weights told that "
            "the guide was not at the posterior; the run went on, and the limit of "
            f"{num_steps} steps came before it was level again: more steps may bring more"
        )
    text = f"the limit of {num_steps} steps came before the objective was seen to be level"
    if slope is None:
        return f"{text}: more steps may bring more"
    gain, error = max(slope.gain, 0.0), slope.standard_error
    brought = (
        f"the last quarter at the full rate brought {_short(gain, 2)} +- {_short(error, 1)} nats"
    )
    if gain <= 2 * error:
        return f"{text}, and {brought}"
    return f"{text}: more steps may bring more ({brought})"


def _short(number: float, digits: int) -> str:
    """So many digits, with an exponent of very large and small numbers alone."""
    return f"{float(f'{number:.{digits}g}'):.10g}"


def note_of_rise(history: Sequence[float]) -> list[str]:
    """
    Says that a run ended above where it began, as those do whose rate is too high.

    :param history: the loss of each step.
    :returns: what to say, if anything.
    """
    last = history[-max(len(history) // 10, 1) :]
    if len(history) < _MIN_STEPS_TO_TELL_RISE:
        return []
    begin, end = statistics.fmean(history[:_NUM_FIRST_STEPS]), statistics.fmean(last)
    if end - begin <= max(3 * statistics.pstdev(last), _MIN_NATS_TO_TELL):
        return []
    return [
        f"the loss ended {end - begin:.3g} above that of the first steps ({begin:.5g}): the start "
        "was better than what came of it. Try a lower lr, or more steps"
    ]


def note_of_resolution(slope: Slope | None) -> list[str]:
    """
    Says what the noise of batches may hide.

    :param slope: of the loss, or None of a run too short for one.
    :returns: what to say, if anything.
    """
    if slope is None or slope.tolerance <= _MIN_NATS_TO_TELL:
        return []
    return [
        "each step sees some of the rows, and the noise of that hides gains of less than "
        f"{slope.tolerance:.2g} nats: the loss is level as far as can be told, but deviations may "
        "be off. Larger batches or more steps (resume) tell more"
    ]


def note_of_other_run(history: Sequence[float], begun: int) -> list[str]:
    """
    Says that a run does not go on where the one that it resumes ended: of another model, or data.

    :param history: the loss of each step of both.
    :param int begun: the steps of the run that is resumed; 0 if there is none.
    :returns: what to say, if anything.
    """
    before = history[max(begun - _MAX_STEPS_BEFORE_RESUME, 0) : begun]
    first = history[begun : begun + _NUM_FIRST_STEPS]
    if len(before) < _NUM_FIRST_STEPS or not first:
        return []
    level, now = statistics.fmean(before), statistics.fmean(first)
    if abs(now - level) <= max(_MAX_JUMP_IN_SDS * statistics.pstdev(before), _MIN_NATS_TO_TELL):
        return []
    return [
        f"the run that was resumed ended at a loss of {level:.5g}, and this one began at "
        f"{now:.5g}: model, data, objective, guide or learning rate are not those of that run. "
        "That is right for more data of the same model; fit another model with a new guide, "
        "without resume"
    ]
