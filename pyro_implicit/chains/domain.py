"""Parameters and data of a model that leave their domain where chains are."""

# Shape legend: m unconstrained latents.
from __future__ import annotations

import warnings

import torch
from torch import Tensor

from pyro_implicit.chains.density import ChainDensity
from pyro_implicit.chains.program import Program
from pyro_implicit.chains.supports import evenly
from pyro_implicit.exceptions import SiteError
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.errors.value_errors import is_outside_support, refuses_parameter

__all__ = ["check_domain"]

_NUM_POINTS = 32  # each is looked at by a run of the model or two
_MIN_SHARE_OUTSIDE = 0.1  # of the points, certain to be outside (two at least), to refuse chains
_MIN_SHARE_IF_UNCERTAIN = 0.5  # counting those that cannot be looked at in double precision


def check_domain(program: Program, sites: list[LatentSite], points: Tensor) -> None:
    """
    Refuses chains at places where the model's distributions have no parameters.

    Chains go by densities without the checks of ``torch.distributions``, as all of their steps
    would wait for these; a probability of 1.2 then has a density, and so has a time before a dead
    time that is learned, and nothing turns a chain back.
    What is refused in single precision alone is rounding: a sum of probabilities above 1, a
    covariance that is not quite symmetric. Where a user has turned checks off they stay so.

    :param Program program: the model and its data.
    :param sites: its latents.
    :param torch.Tensor points: where chains are or were, shape ``(N, m)``, out of
        :meth:`ChainDensity.ready`.
    :raises SiteError: if a tenth of some points are outside.
    """
    chosen = evenly(points, _NUM_POINTS)
    density = program.density(sites, points.dtype)
    notes = [(point, text) for point in chosen if (text := _refused(density, point))]
    if len(notes) < 2:
        return
    wide = program.density(sites, torch.float64)
    again = [_refused(wide, point.double()) for point, _ in notes]
    num_certain = sum(bool(text) for text in again)
    num_uncertain = sum(text is None for text in again)
    is_wrong = num_certain >= max(2, _MIN_SHARE_OUTSIDE * len(chosen))
    if is_wrong or num_certain + num_uncertain >= max(2, _MIN_SHARE_IF_UNCERTAIN * len(chosen)):
        raise SiteError(
            f"at {num_certain + num_uncertain} of {len(chosen)} points of the chains that were "
            f"looked at the model has no density: {notes[-1][1]} Its distribution would go on with "
            "any number there, and chains with it. Let no value of the latents lead out of the "
            "domain: logits= in place of probs=, f.exp() for a rate or a scale, scale_tril= in "
            "place of a covariance, or priors on what is allowed, as y.min() less what has a "
            "Gamma for a limit of the data."
        )


def _refused(density: ChainDensity, point: Tensor) -> str | None:
    """What a distribution says of its numbers; empty if it takes them, None if nobody knows."""
    try:
        with torch.no_grad(), density.typed(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            density.log_joint(point)
    except ValueError as error:
        if refuses_parameter(error) or is_outside_support(error):
            return " ".join(str(error).partition(", but found")[0].split()) + "."
        return None
    except Exception:  # what a model does there in its own precision was told where chains began
        return None
    return ""
