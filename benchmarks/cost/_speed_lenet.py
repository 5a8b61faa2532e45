"""A training step of LeNet with two draws, in steps of MAP: looped, and as ``fit`` takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyro
import torch
import torch.nn.functional as F
from pyro.infer import SVI
from torch import Tensor, nn
from torch.func import functional_call

from benchmarks.common import fixed_seed
from benchmarks.cost._speed_recorded import recorded_step
from benchmarks.cost._speed_timing import Job, Row, Settings, medians, rows_of
from benchmarks.cost.step_cost import LAZY, OBJECTIVES
from benchmarks.shared.images import GUIDES, NETWORKS, NUM_DATA, classifier, map_step

__all__ = ["FLOOR", "MAP", "floor_loss", "lenet", "with_medium_products"]

MAP, FLOOR = "MAP", "floor, by hand, no entropy"
LANCZOS, SELDOM = "LanczosELBO(5)", f"LanczosELBO(5), every {LAZY}th step"
#: draws vectorised, steps recorded, one fused optimiser
RECORDED = {f"{name}, recorded": name for name in (LANCZOS, SELDOM)}
#: the same with products of float32 matrices by the kernels that this setting of torch allows
MEDIUM = ", matmul precision medium"
RATE = 1e-3
#: objective of ``step_cost`` -> MAP steps that one of its steps may take
GOALS = {
    "no entropy": 2.3,
    LANCZOS: 3.5,
    SELDOM: 2.7,
    "SingularValueELBO(5)": 3.8,
}


def lenet(settings: Settings, rounds: int, seed: int) -> Iterator[Row]:
    """
    Rows of each objective: milliseconds of a step on random images.

    The entropy's part does not depend on the batch, MAP's does: a large batch flatters.
    """
    for batch_size in settings["batch_sizes"]:
        yield from _of_batches(settings, batch_size, rounds, seed)


def _of_batches(settings: Settings, batch_size: int, rounds: int, seed: int) -> Iterator[Row]:
    make, shape = NETWORKS[settings["network"]]
    with fixed_seed(seed), pyro.validation_enabled(False):
        x, y = torch.rand(batch_size, *shape), torch.arange(batch_size) % 10
        data = (x, y, torch.arange(len(x)))
        model, _ = classifier(make())
        guide = GUIDES[settings["guide"]](model).setup(*data)
        optimiser = pyro.optim.Adam({"lr": RATE})
        plain, _ = map_step(make(), lr=RATE)
        jobs = {MAP: lambda: plain(x, y), FLOOR: _floor_step(guide, make(), x, y)}
        for name in GOALS:
            objective = OBJECTIVES[name](2, max_plate_nesting=1)
            svi = SVI(model, guide, optimiser, objective)
            jobs[name] = _repeated(partial(svi.step, *data), _period(name))
        notes = {}
        for name, looped in RECORDED.items():
            vectorised = partial(
                OBJECTIVES[looped], 2, vectorize_particles=True, max_plate_nesting=1
            )
            step, notes[name] = recorded_step(
                vectorised, model, guide, data, RATE, settings["tries"], period=_period(name)
            )
            jobs[name] = _repeated(step, _period(name))
            jobs[f"{name}{MEDIUM}"] = with_medium_products(jobs[name])
        ms = medians(jobs, rounds)
    ms = {name: value / _period(name) for name, value in ms.items()}
    bases = {FLOOR: (MAP, None)} | {name: (MAP, goal) for name, goal in GOALS.items()}
    for name, looped in RECORDED.items():
        bases |= dict.fromkeys((name, f"{name}{MEDIUM}"), bases[looped])
    what = f"step, {settings['network']}, batch {batch_size}"
    yield from rows_of(what, ms, bases, notes)


def _period(name: str) -> int:
    """Steps after which those of an objective are the same again."""
    return LAZY if name.startswith(SELDOM) else 1


def _repeated(step: Callable[[], Any], times: int) -> Job:
    def job() -> None:
        for _ in range(times):
            step()

    return job


def with_medium_products(job: Job) -> Job:
    """
    A job under ``torch.set_float32_matmul_precision("medium")``, which is put back after it.

    :param job: what is done.
    """

    def with_medium() -> None:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("medium")
        try:
            job()
        finally:
            torch.set_float32_matmul_precision(before)

    return with_medium


def floor_loss(guide: Any, net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """
    Minus log-likelihood and log-prior at one draw of a guide's generator, without constants.

    :param guide: a guide of all weights of ``net``, built.
    :param net: a network that gives logits.
    :param Tensor x: images ``(N, *shape)``.
    :param Tensor y: their classes ``(N,)``.
    """
    sampler = guide.samplers[0]
    w = sampler.generator(torch.randn(sampler.generator.noise_shape))
    u = sampler.preconditioner(w + sampler.scale * torch.randn_like(w))
    named = list(net.named_parameters())
    parts = u.split([p.numel() for _, p in named])
    weights = {name: part.view_as(p) for (name, p), part in zip(named, parts, strict=True)}
    logits = functional_call(net, weights, (x,))
    return NUM_DATA * F.cross_entropy(logits, y) + 0.5 * u.square().sum()


def _floor_step(guide: Any, net: nn.Module, x: Tensor, y: Tensor) -> Job:
    adam = torch.optim.Adam(guide.samplers[0].parameters(), lr=RATE, fused=True)

    def step() -> None:
        adam.zero_grad()
        for _ in range(2):
            (floor_loss(guide, net, x, y) / 2).backward()
        adam.step()
        adam.zero_grad()

    return step
