"""Plates that have another size in the guide than in the model, of which Pyro says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from pyro import poutine
from pyro.infer import ELBO

from pyro_implicit.handlers.looks.unseen_run import unseen_run
from pyro_implicit.objectives.checks.latent_pairing import check_same_weight
from pyro_implicit.objectives.particle_objective import ParticleObjective
from pyro_implicit.objectives.particles.particle import sample_nodes

__all__ = ["check_plate_sizes", "is_pyros"]


def is_pyros(objective: Any) -> bool:
    """
    Whether an objective is one of Pyro's.

    :param objective: any objective.
    :returns: False for those of this package and for anything else.
    """
    return isinstance(objective, ELBO) and not isinstance(objective, ParticleObjective)


def check_plate_sizes(model: Any, guide: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
    """
    Refuses latents of rows that would weigh more in the guide than in the model, or less.

    Objectives of this package look at each step; Pyro's do not, and end at posteriors that are too
    wide or too narrow.

    :param model: a model.
    :param guide: its guide, which is built.
    :param args: positional arguments of both.
    :param kwargs: keyword arguments of both.
    :raises SiteError: naming the latent and its plate.
    """
    try:
        with unseen_run(), torch.no_grad():
            drawn = poutine.trace(guide).get_trace(*args, **kwargs)
            trace = poutine.trace(poutine.replay(model, trace=drawn)).get_trace(*args, **kwargs)
    except Exception:  # what else there is to say of it, the step will
        return
    check_same_weight(sample_nodes(trace), sample_nodes(drawn))
