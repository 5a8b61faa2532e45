"""Fits of equal CPU time: Pyro's own loop, and ``fit`` with steps that were timed before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.posterior._own_guides_problem import Problem
from pyro_implicit import ConditionalHyperNetworkGuide, fit

__all__ = ["LOOPED", "METHODS", "Pace", "fitted", "rehearsed"]

Fitted = tuple[Any, dict[str, Any]]
Pace = tuple[float, float]


def _bound(particles: int) -> Trace_ELBO:
    return Trace_ELBO(particles, vectorize_particles=True, max_plate_nesting=1)


def _batches(problem: Problem, size: int) -> DataLoader[Any]:
    data = TensorDataset(problem.train, torch.arange(len(problem.train)))
    return DataLoader(data, batch_size=size, shuffle=True, drop_last=True)


def _own(problem: Problem) -> Any:
    return problem.own


def _ours(problem: Problem) -> Any:
    return ConditionalHyperNetworkGuide(problem.model)


def _with_context(problem: Problem) -> Any:
    return ConditionalHyperNetworkGuide(problem.model, context=problem.context)


def _normal(problem: Problem) -> Any:
    return AutoNormal(problem.model, create_plates=problem.plates)


@dataclass(frozen=True)
class Method:
    """
    A guide and how it is trained.

    :param guide: makes it.
    :param objective: that ``fit`` is told, from the settings; none for its own choice.
    """

    guide: Callable[[Problem], Any]
    objective: Callable[[dict[str, Any]], Any] | None = None


def _of_pyro(settings: dict[str, Any]) -> Trace_ELBO:
    return _bound(settings["particles"])


METHODS: dict[str, Method] = {
    "own": Method(_own),
    "own, fit": Method(_own, _of_pyro),
    "ours": Method(_ours),
    "ours, own context": Method(_with_context),
    "AutoNormal": Method(_normal, _of_pyro),
}
#: by Pyro's own loop, which looks at the time
LOOPED = ("own",)


class Timed:
    """
    Batches that note the CPU time at which each was asked for.

    :param loader: where they come from.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.times: list[float] = []

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.times.append(time.process_time())
            yield batch


def _fit(problem: Problem, method: str, steps: int, batches: Any, settings: Any) -> Fitted:
    made = METHODS[method]
    guide = made.guide(problem)
    options: dict[str, Any] = {"batches": batches, "num_steps": steps, "progress": False}
    objective = None if made.objective is None else made.objective(settings)
    result = fit(problem.model, guide, objective=objective, **options)
    told_of = [str(text)[:200] for text in result.warnings]
    return guide, {"steps": result.num_steps, "reason": result.reason, "warnings": told_of}


def rehearsed(problem: Problem, method: str, settings: dict[str, Any]) -> Pace | None:
    """
    What ``fit`` takes: a fit of some steps, whose parameters are thrown away.

    :param Problem problem: a copy, since its networks are trained.
    :param str method: a name of ``METHODS``.
    :param dict settings: of the benchmark.
    :returns: CPU seconds of all that comes before steps are at their pace, and of a step; none of
        a method that looks at the time, of which one step is made.
    """
    if method in LOOPED:  # what is imported by the first step of all is no part of the fit
        _looped(problem, settings | {"cpu_seconds": 0.0})
        return None
    timed, steps = Timed(_batches(problem, settings["batch"])), settings["rehearsal"]
    begin = time.process_time()
    _fit(problem, method, steps, timed, settings)
    half = steps // 2
    each = (timed.times[-1] - timed.times[-1 - half]) / half
    return max(timed.times[-1] - begin - each * len(timed.times), 0.0), each


def fitted(problem: Problem, method: str, settings: dict[str, Any], pace: Pace | None) -> Fitted:
    """
    Trains the guide, and what the model learns.

    :param Problem problem: what to fit.
    :param str method: a name of ``METHODS``.
    :param dict settings: of the benchmark.
    :param pace: from :func:`rehearsed`; none for Pyro's own loop, which looks at the time.
    :returns: the guide, and what is told of the fit.
    """
    begin = time.process_time()
    if pace is None:
        guide, found = _looped(problem, settings)
    else:
        steps = max(2, int((settings["cpu_seconds"] - pace[0]) / pace[1]))
        batches = _batches(problem, settings["batch"])
        guide, found = _fit(problem, method, steps, batches, settings)
    return guide, found | {"cpu_seconds": time.process_time() - begin}


def _looped(problem: Problem, settings: dict[str, Any]) -> Fitted:
    """As in the example: Adam at its rate, one draw a step."""
    begin, steps = time.process_time(), 0
    optimiser = Adam({"lr": problem.lr})
    svi = SVI(problem.model, problem.own, optimiser, _bound(settings["own_particles"]))
    loader = _batches(problem, settings["batch"])
    while True:
        for batch in loader:
            svi.step(*batch)
            steps += 1
            if time.process_time() - begin >= settings["cpu_seconds"]:
                return problem.own, {"steps": steps, "reason": "time", "warnings": []}
