"""The learning rate that a guide is trained with unless one is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide, AutoGuideList
from torch import nn

from pyro_implicit.generators.autoregressive import AutoregressiveGenerator
from pyro_implicit.generators.conditional_autoregressive import ConditionalAutoregressiveGenerator
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.training.fitting.arguments import Arguments

__all__ = ["default_rate", "rate_times"]

_USUAL = 0.005
# Chosen on four bent pairs, a hierarchical model and two networks of 62 latents, where the loss at
# 0.005 stays 3 to 16 nats above that at 0.002 until the rate is cooled, and some runs diverge.
_RESTLESS = 0.002
# Chosen on four posteriors of one latent (a correlation, Gamma, Beta, Cauchy), whose tails are
# learned by small steps alone at 0.002: a divergence of 0.117 nats after 1500 steps and of 0.015
# at 0.02 (Cauchy). From two latents on a ring is lost at 0.02, and others end no nearer.
_SINGLE = 0.02


@torch.no_grad()
def default_rate(guide: Callable[..., Any], arguments: Arguments) -> float:
    """
    Chooses the first learning rate by the generators of a guide.

    :param guide: the guide; one with networks is built by this.
    :param Arguments arguments: those of the next step.
    :returns: the rate.
    """
    if not isinstance(guide, nn.Module):
        return _USUAL
    args, kwargs = arguments.peek()
    with poutine.block():
        guide(*args, **kwargs)
    kinds = (AutoregressiveGenerator, ConditionalAutoregressiveGenerator)
    sizes = [int(part.output_dim) for part in guide.modules() if isinstance(part, kinds)]
    if not sizes:
        return _USUAL
    return _SINGLE if max(sizes) == 1 else _RESTLESS


def rate_times(guide: Callable[..., Any], rate: float) -> dict[int, float]:
    """
    What the first learning rate is multiplied by for parts of a list that are Pyro's guides.

    An ``AutoDelta`` or ``AutoNormal`` beside a generator goes its own way at its own rate: at that
    of the generator it has to go farther than it gets, or is driven about by that of one latent.

    :param guide: the guide, built.
    :param float rate: what :func:`default_rate` chose.
    :returns: factors by the ``id`` of an unconstrained parameter; 1 for all others.
    """
    if not isinstance(guide, nn.Module) or rate == _USUAL:
        return {}
    ours = (ImplicitGuide, ConditionalGuide, AutoGuideList)
    parts = [p for p in guide.modules() if isinstance(p, AutoGuide) and not isinstance(p, ours)]
    return {id(param): _USUAL / rate for part in parts for param in part.parameters()}
