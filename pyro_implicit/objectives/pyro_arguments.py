"""The arguments that every objective of Pyro takes, and what they mean here."""

from __future__ import annotations

from typing import Any

from pyro.infer.autoguide import AutoGuide

from pyro_implicit._checks import check_flag, check_number, shown
from pyro_implicit.exceptions import ArgumentError

__all__ = ["check_not_swapped", "check_pyro_arguments"]


def check_not_swapped(model: Any, kind: str) -> None:
    """
    Refuses a guide in the place of the model.

    :param model: what was given as the model.
    :param str kind: the name of the objective.
    :raises ArgumentError: if it is an autoguide.
    """
    if isinstance(model, AutoGuide):
        raise ArgumentError(
            f"the model is a guide, {type(model).__name__}: model and guide are swapped. Write "
            f"SVI(model, guide, optim, {kind}(...)), the model first."
        )


def check_pyro_arguments(
    kind: str,
    strict_enumeration_warning: Any,
    ignore_jit_warnings: Any,
    jit_options: Any,
    tail_adaptive_beta: Any,
) -> None:
    """
    Takes what has nothing to do here, and refuses what would silently do nothing.

    :param str kind: the name of the objective.
    :param bool strict_enumeration_warning: taken: latents are summed out where they are marked, and
        nothing is warned of.
    :param bool ignore_jit_warnings: taken: nothing is traced by ``torch.jit``.
    :param jit_options: refused, unless None.
    :param float tail_adaptive_beta: refused, unless Pyro's default, -1.
    :raises ArgumentError: for what is refused.
    """
    check_flag("strict_enumeration_warning", strict_enumeration_warning)
    check_flag("ignore_jit_warnings", ignore_jit_warnings)
    if jit_options is not None:
        raise ArgumentError(
            f"jit_options={shown(jit_options)}: {kind} is not traced by torch.jit, so that options "
            "for it would do nothing. Leave them out."
        )
    if check_number("tail_adaptive_beta", tail_adaptive_beta) != -1.0:
        raise ArgumentError(
            f"tail_adaptive_beta={shown(tail_adaptive_beta)}: it belongs to Pyro's "
            f"TraceTailAdaptive_ELBO, and {kind} has no tail weights. Leave it out, or write "
            "AlphaEnergy(alpha=...) for what lies between the ELBO and the predictive likelihood."
        )
