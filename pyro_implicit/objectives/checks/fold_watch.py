"""A look, now and then while training, at whether a generator folds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pyro_implicit._warn import warn
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.modes import evaluated
from pyro_implicit.objectives.every_kth_step import StepCounts
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.ops.logdet import is_zero

__all__ = ["FoldWatch", "can_tell"]

_MIN_NOISES_PER_LOOK = 4  # a step's own come first
_LOOKS_COUNTED_TOGETHER = 10
_MIN_SHARE_OF_RARER_SIGN = 0.01  # of all noises of these looks, that is told as a fold


@dataclass
class _Seen:
    """
    The latest looks at one site.

    :param looks: for each the noises with the rarer sign, and all whose sign was certain.
    :param bool warned: whether the warning was given.
    :param int number: of all looks so far, each of which has noises of its own.
    """

    looks: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=_LOOKS_COUNTED_TOGETHER)
    )
    warned: bool = False
    number: int = 0


class FoldWatch:
    r"""
    Compares the signs of :math:`\det J` at the noises of every k-th training step of a site.

    The determinant of a continuous map that is one to one has one sign. Where both are seen, the
    map folds, and a linearised entropy counts mass twice. It is told, once for each site of each
    guide, when the rarer sign has two noises and 1% of those in the latest ten looks. Where there
    is no output noise and no determinant is certain, the Jacobian has not full rank: the entropy is
    minus infinity, and what the objective has for it is of rounding; that is told too.

    Looked at are generators that are not certain to be bijective, with as many standard normal
    noises as outputs; signs that rounding or output noise may have turned do not count, and for
    parameters made from rows of data the noises of one row are compared. Gradients, modes of
    modules and the random stream stay as they are. Nothing is kept alive or saved.
    """

    def __init__(self) -> None:
        self._step_counts = StepCounts()
        self._seen: WeakKeyDictionary[Generator, dict[str, _Seen]] = WeakKeyDictionary()

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        FoldWatch.__init__(self)

    def __call__(self, step: Any, site: ImplicitSite, every: int, pooled: bool) -> None:
        """
        Counts a training step of a site, and looks if it is its turn.

        :param step: the training step, or None outside of one.
        :param ImplicitSite site: the site with its draws.
        :param int every: ``k``; 0 never looks.
        :param bool pooled: whether the first dimension of the draws are particles.
        :warns UserWarning: if both signs were found; if there is no output noise, and no noise at
            which rounding leaves a determinant.
        """
        if not every or step is None:
            return
        turn = self._step_counts.take(step.number, step.guide, site)
        if turn % every != every - 1 or not can_tell(site):
            return
        sites = self._seen.setdefault(site.distribution.generator.origin, {})
        seen = sites.setdefault(site.name, _Seen())
        if seen.warned:
            return
        seen.number += 1
        seen.looks.append(_look(site, seen.number, pooled))
        rare, count = (sum(numbers) for numbers in zip(*seen.looks, strict=True))
        if rare >= max(2, _MIN_SHARE_OF_RARER_SIGN * count):
            seen.warned = True
            _warn(site.name, rare, count)
        elif not count and is_zero(site.distribution.scale):
            seen.warned = True
            _warn_of_singular(site.name)


def can_tell(site: ImplicitSite) -> bool:
    """
    Whether a change of sign would be a fold that has mass on both sides.

    :param ImplicitSite site: an implicit site.
    :returns: False for generators that cannot fold, and where no determinant tells.
    """
    fn = site.distribution
    if fn.generator.never_folds or fn.generator.is_bijective:  # which looks at parameters
        return False
    square = fn.generator.noise_dim == fn.event_shape[-1]
    return square and not isinstance(fn.base_entropy(), Tensor)


@torch.no_grad()
def _look(site: ImplicitSite, seed: int, pooled: bool) -> tuple[int, int]:
    """How many noises have the rarer sign, and how many a sign."""
    fn = site.distribution
    generator = fn.generator
    noise = site.noise.detach()
    if generator.origin is generator:  # one map for all draws
        noise = noise.reshape(-1, *generator.noise_shape)
    elif not pooled:
        noise = noise[None]
    missing = _MIN_NOISES_PER_LOOK - len(noise)
    if missing > 0:
        stream, shape = torch.Generator("cpu").manual_seed(seed), (missing, *noise.shape[1:])
        fresh = torch.randn(shape, generator=stream, dtype=torch.float64, device="cpu")
        noise = torch.cat([noise, fresh.to(noise)])
    with evaluated(generator), torch.autocast(noise.device.type, enabled=False):
        signs = generator.det_sign(noise, fn.scale)
    negative, positive = (signs < 0).sum(0), (signs > 0).sum(0)
    rare = torch.minimum(negative, positive).sum()
    return int(rare), int((negative + positive).sum())


def _warn_of_singular(name: str) -> None:
    warn(
        f"implicit site {name!r}: the Jacobian of the generator is singular, up to rounding, at "
        "all noises that were looked at, and there is no output noise: draws fill no volume, their "
        "entropy is minus infinity, and the objective has a number made of rounding. Write "
        "scale=0.01 or learn_scale='scalar' in the guide, or build the generator without what "
        "takes a dimension away (a normalisation at its end, units that are never active). (Shown "
        "once for each site of a guide; watch_folds=0 switches it off.)"
    )


def _warn(name: str, rare: int, count: int) -> None:
    warn(
        f"implicit site {name!r}: the generator folds. The determinant of its Jacobian has one "
        f"sign at {rare} and the other at {count - rare} of {count} noises "
        f"({rare / count:.1%} on the rarer side), so that several noises lead to one draw. The "
        "linearised entropy counts that mass twice: the objective may exceed the evidence, and "
        "training is drawn to it. Use a generator that cannot fold (leave generator out, or write "
        "generator=AutoregressiveGenerator), or SemiImplicitELBO with output noise; look at "
        "entropy_report(guide). (Shown once for each site of a guide; watch_folds=0 switches it "
        "off.)"
    )
