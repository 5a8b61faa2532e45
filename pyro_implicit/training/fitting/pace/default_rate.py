"""The learning rate that a guide is trained with unless one is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import AutoGuide, AutoGuideList
from torch import Tensor, nn

from pyro_implicit.generators.autoregressive import AutoregressiveGenerator
from pyro_implicit.generators.conditional_autoregressive import ConditionalAutoregressiveGenerator
from pyro_implicit.guides.base import ImplicitGuide
from pyro_implicit.guides.conditional_base import ConditionalGuide
from pyro_implicit.training.fitting.arguments import Arguments

__all__ = ["default_rate", "rate_times"]

_USUAL_RATE = 0.005
# Chosen on four bent pairs, a hierarchical model and two networks of 62 latents, where the loss at
# 0.005 stays 3 to 16 nats above that at 0.002 until the rate is cooled, and some runs diverge.
_AUTOREGRESSIVE_RATE = 0.002
# That of an autoregressive generator too. Chosen on four posteriors of one latent (a correlation,
# Gamma, Beta, Cauchy), whose tails are learned by small steps alone at 0.002: a divergence of 0.117
# nats after 1500 steps and of 0.015 at 0.02 (Cauchy). From two latents on a ring is lost at 0.02,
# and others end no nearer.
_RATE_OF_ONE_LATENT = 0.02


@torch.no_grad()
def default_rate(guide: Callable[..., Any], arguments: Arguments) -> float:
    """
    Chooses the first learning rate by the generators of a guide.

    :param guide: the guide; one with networks is built by this.
    :param Arguments arguments: those of the next step.
    :returns: the rate.
    """
    if not isinstance(guide, nn.Module):
        return _USUAL_RATE
    args, kwargs = arguments.peek()
    with poutine.block():
        guide(*args, **kwargs)
    kinds = (AutoregressiveGenerator, ConditionalAutoregressiveGenerator)
    sizes = [int(part.output_dim) for part in guide.modules() if isinstance(part, kinds)]
    if not sizes:
        return _USUAL_RATE
    return _RATE_OF_ONE_LATENT if max(sizes) == 1 else _AUTOREGRESSIVE_RATE


def rate_times(guide: Callable[..., Any], rate: float) -> Callable[[Tensor], float]:
    """
    What the first learning rate is multiplied by for parameters that are of no generator.

    Parameters of the model, and an ``AutoDelta`` or ``AutoNormal`` beside a generator, go their own
    way at the rate that they have with Pyro's guides: at that of the generator they have to go
    farther than they get, or are driven about by that of one latent. So do decoders beside a
    conditional guide (0.4 to 0.7 nats a digit).

    :param guide: the guide, built.
    :param float rate: what :func:`default_rate` chose.
    :returns: the factor of an unconstrained parameter.
    """
    if not isinstance(guide, nn.Module) or rate == _USUAL_RATE:
        return lambda param: 1.0
    ours = (ImplicitGuide, ConditionalGuide, AutoGuideList)
    parts = [p for p in guide.modules() if isinstance(p, AutoGuide) and not isinstance(p, ours)]
    theirs = {id(param) for part in parts for param in part.parameters()}
    own = {id(param) for param in guide.parameters()} - theirs

    def times(param: Tensor) -> float:
        return 1.0 if id(param) in own else _USUAL_RATE / rate

    return times
