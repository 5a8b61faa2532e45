"""The least that a step by Pyro's traces takes: no site and no check beside the model's own."""

# Shape legend: S draws, m latents.
from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch import Tensor

from benchmarks.cost._speed_models import Target
from benchmarks.cost._speed_timing import Job
from pyro_implicit import HyperNetworkGuide

__all__ = ["BareStep", "bare_step"]

_NAME = "bare.weights"


class BareStep:
    """
    The linearised bound of a guide with one generator, by one trace of a guide and one of a model.

    :param Target target: a posterior.
    :param guide: its guide, built, without output noise, whose generator has one parameter.
    :param int num_draws: S.
    """

    def __init__(self, target: Target, guide: HyperNetworkGuide, num_draws: int) -> None:
        self._target, self._sites = target, guide.sites
        self._sampler: Any = guide.samplers[0]
        self._shape = (num_draws, 1, guide.latent_dim)
        pyro.get_param_store()[_NAME] = self._sampler.generator.weights
        plate = pyro.plate("particles", num_draws, dim=-2)
        self._programs = plate(target.model), plate(self._guide)
        self._entropy = torch.zeros(())

    def _guide(self, *_: Any) -> None:
        pyro.param(_NAME)
        noise = torch.randn(self._shape)
        drawn = self._sampler.generator.linearise(noise)
        self._entropy = (drawn.log_abs_det + 0.5 * noise.square().sum(-1)).mean()
        flat = self._sampler.preconditioner(drawn.value)
        parts = flat.split([site.numel for site in self._sites], -1)
        for site, part in zip(self._sites, parts, strict=True):
            with ExitStack() as stack:
                for frame in site.frames:
                    stack.enter_context(pyro.plate(frame.name, frame.size, dim=frame.dim))
                value, log_density = site.constrain(site.unpack(part))
                pyro.sample(site.name, dist.Delta(value, log_density, event_dim=site.event_dim))

    def loss(self) -> Tensor:
        """Minus the bound, shape ``()``."""
        model, guide = self._programs
        guide_trace = poutine.trace(guide).get_trace(*self._target.args)
        replayed = poutine.replay(model, trace=guide_trace)
        model_trace = poutine.trace(replayed).get_trace(*self._target.args)
        num_draws, _, m = self._shape
        gap = (model_trace.log_prob_sum() - guide_trace.log_prob_sum()) / num_draws
        constant = self._sampler.preconditioner.log_abs_det + 0.5 * m * math.log(2 * math.pi)
        return -(gap + self._entropy + constant)


def bare_step(target: Target, guide: HyperNetworkGuide, num_draws: int, rate: float) -> Job:
    """A step as ``SVI`` takes it, with one of Pyro's Adams."""
    bare, optim = BareStep(target, guide, num_draws), pyro.optim.Adam({"lr": rate})

    def step() -> float:
        with poutine.trace(param_only=True) as capture:
            loss = bare.loss()
            loss.backward()
            value = loss.item()
        params = {node["value"].unconstrained() for node in capture.trace.nodes.values()}
        optim(params)
        pyro.infer.util.zero_grads(params)
        return value

    return step
