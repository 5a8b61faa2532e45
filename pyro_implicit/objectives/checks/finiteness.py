"""Which term of an objective is not finite, and which site is to blame."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.handlers.supports.support_edge import warning_of_edge
from pyro_implicit.objectives.particles.particle import Particle

__all__ = ["check_finite"]


def _number(value: Any) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _refuse_edge(particles: Sequence[Particle]) -> None:
    """
    Tells of data that no parameters give a density.

    :raises NonFiniteError: if there are any.
    """
    for node in particles[0].model.nodes.values():
        if node.get("is_observed") and not math.isfinite(_number(node.get("log_prob_sum", 0.0))):
            notes = warning_of_edge(node)
            if notes is not None:
                raise NonFiniteError(notes)


def check_finite(terms: dict[str, Any], particles: Sequence[Particle]) -> None:
    """
    Refuses terms that are NaN or infinite.

    :raises NonFiniteError: naming the term and, if one is to blame, the site.
    """
    bad = [name for name, value in terms.items() if not math.isfinite(_number(value))]
    if not bad:
        return
    _refuse_edge(particles)
    sites = [
        f"{name!r} of the {side}"
        for particle in particles
        for side, trace in (("model", particle.model), ("guide", particle.guide))
        for name, node in trace.nodes.items()
        if "log_prob_sum" in node and not math.isfinite(_number(node["log_prob_sum"]))
    ]
    blame = f" Look at site {', '.join(dict.fromkeys(sites))}." if sites else ""
    if not sites:
        blame = f" Every log-density is finite; look at the scale of {list(particles[0].implicit)}."
    if "entropy" in bad and _number(terms["entropy"]) == -math.inf:
        blame += (
            " Draws that fill no volume have this entropy: the Jacobian of the generator is "
            "singular there. If it is from the first step on, write scale=0.01 or "
            "learn_scale='scalar' in the guide."
        )
    found = ", ".join(str(_number(terms[name])) for name in bad)
    raise NonFiniteError(
        f"{' and '.join(bad)} {'is' if len(bad) == 1 else 'are'} not finite ({found}).{blame} "
        "Common causes: a learning rate that is too high, a likelihood scale that reached zero, or "
        "data with NaN."
    )
