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
_NUM_POINTS_AROUND = 4  # of a point that double precision refuses too
_DISTANCE_AROUND = 1e-11  # of these, in units of the point: some 50 000 times a rounding error
_MIN_SHARE_OUTSIDE = 0.1  # of the points, certain to be outside (two at least), to refuse chains
_MIN_SHARE_IF_UNCERTAIN = 0.5  # counting those that cannot be looked at in double precision


def check_domain(program: Program, sites: list[LatentSite], points: Tensor) -> None:
    """
    Refuses chains at places where the model's distributions have no parameters.

    Chains go by densities without the checks of ``torch.distributions``, as all of their steps
    would wait for these; a probability of 1.2 then has a density, and so has a time before a dead
    time that is learned, and nothing turns a chain back.
    What is refused in single precision alone is rounding, and so is what double precision refuses
    at a point and not all around it: a sum of probabilities above 1, a covariance that is not quite
    symmetric. Where a user has turned checks off they stay so.

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
    again = [_refused_around(wide, point.double()) for point, _ in notes]
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


def _refused_around(density: ChainDensity, point: Tensor) -> str | None:
    """The same of a point and of some that are as good as it is: empty if any of them is taken."""
    generator = torch.Generator(point.device).manual_seed(0)
    said = _refused(density, point)
    for _ in range(_NUM_POINTS_AROUND):
        if not said:
            return said
        moves = torch.randn(
            point.shape, generator=generator, dtype=point.dtype, device=point.device
        )
        said = _refused(density, point + _DISTANCE_AROUND * (1.0 + point.abs()) * moves)
    return said


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
