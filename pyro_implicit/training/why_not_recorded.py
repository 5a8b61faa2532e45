"""Why steps are not recorded, in words."""

from __future__ import annotations

from typing import Any

from pyro_implicit.objectives.lanczos import MAX_NOISE_DIM_WATCHED, LanczosELBO
from pyro_implicit.objectives.linearised import LinearisedELBO

__all__ = ["REASON_OF_READ_NUMBERS", "what_differs", "why_it_fails", "why_not_recorded"]

#: what keeps most models from being recorded
REASON_OF_READ_NUMBERS = "it reads a number from a tensor, as a branch on its value does"
#: by the part of :meth:`StepCall.kind` that differs; that of the first is told argument by argument
_REASONS_BY_PART_OF_KIND = (
    "",
    "arguments with more than four structures (numbers of entries, keys)",
    "more than four combinations of layers in training and evaluation mode",
    "more than four combinations of settings (of the objective, validation, default dtype)",
    "more than four pairs of model and guide",
)


def what_differs(known: list[Any], new: Any) -> str:
    """
    Tells what made more kinds of steps than are recorded.

    :param list known: what each of them is for, of :meth:`StepCall.kind`.
    :param new: that of a step beside these.
    :returns: the reason.
    """
    changed = {i for i, part in enumerate(new) if any(part != one[i] for one in known)}
    if changed != {0}:
        return f"it is given {_REASONS_BY_PART_OF_KIND[min(changed - {0}, default=4)]}"
    for number, leaf in enumerate(new[0]):
        others = [one[0][number] for one in known if len(one[0]) == len(new[0])]
        if isinstance(leaf, str) and any(leaf != other for other in others):
            return (
                f"an argument that is no tensor has more than four values, {leaf} the last "
                "(give torch.tensor(value) in its place)"
            )
    return "its arguments have more than four combinations of shapes, strides, dtypes and devices"


def why_not_recorded(objective: Any, guide: Any) -> str:
    """
    Tells why the steps of an objective are not the same at all times.

    :param objective: what is minimised.
    :param guide: the guide, built.
    :returns: the reason, or an empty text.
    """
    if type(objective) not in (LinearisedELBO, LanczosELBO):
        return f"{type(objective).__name__} may do something else from step to step"
    if not objective.vectorize_particles:
        return "its draws are made one after the other (vectorize_particles=False)"
    if _watches(objective, guide):
        return "it watches the generator for folds (watch_folds=0 leaves that out)"
    return ""


def _watches(objective: Any, guide: Any) -> bool:
    """Whether an objective looks for folds of a guide; a Lanczos objective of few noises alone."""
    if not objective.watch_folds or getattr(guide, "never_folds", False):
        return False
    if not isinstance(objective, LanczosELBO):
        return True
    samplers = getattr(guide, "samplers", None)
    return samplers is None or any(
        one.generator.noise_dim <= MAX_NOISE_DIM_WATCHED for one in samplers
    )


def why_it_fails(error: Exception) -> str:
    """
    Tells what keeps a step from being recorded.

    :param error: of the tracer, or of a model under it.
    :returns: a line.
    """
    said = str(error).strip()
    if "value out of a tracing tensor" in said or "data-dependent" in said:
        return REASON_OF_READ_NUMBERS
    return f"{type(error).__name__}: {(said.splitlines() or [''])[0][:200]}"
