"""Eight schools: CPU time until the moments are those of the reference draws."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, NUTS, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor

from benchmarks.common import fixed_seed, load_npz
from benchmarks.cost._speed_numpyro import chain_of_schools, has_numpyro
from benchmarks.cost._speed_timing import Row, Settings, row
from benchmarks.posterior._posteriordb_models import MODELS
from benchmarks.posterior._posteriordb_reference import Moments, compare, reference_moments
from pyro_implicit import HyperNetworkGuide, fit

__all__ = ["WHAT", "Watch", "schools"]

WHAT = "eight schools, to one error"
POSTERIOR = MODELS["eight_schools"]
#: errors of means in deviations, and of deviations
LIMITS = (0.1, 0.1)
GOAL_MS = 2500.0
NUM_DRAWS = 20_000


def schools(settings: Settings, rounds: int, seed: int, data_root: Path) -> Iterator[Row]:
    """Rows of two guides and of NUTS, Pyro's and NumPyro's: one run each."""
    del rounds
    name = f"posteriordb/{POSTERIOR.file}.npz"
    if not (data_root / name).is_file():
        yield row(WHAT, "none", None, note=f"left out: there is no {name} in the data folder")
        return
    arrays = load_npz(data_root, name)
    reference = reference_moments(arrays)
    for method, make, objective, goal in _fits():
        with fixed_seed(seed):
            args = tuple(value.float() for value in POSTERIOR.tensors(arrays))
            watch = Watch(make(POSTERIOR.model), args, reference)
            options: dict[str, Any] = {"validation": watch, "progress": False, "seed": seed}
            options |= {"num_steps": settings["fit_steps"], "objective": objective}
            result = fit(POSTERIOR.model, watch.guide, *args, **options)
            spent = watch.spent()
            note = f"{result.num_steps} steps ({result.reason}): {_said(watch.errors())}"
        there = "" if watch.reached_ms is not None else "not reached"
        yield row(WHAT, f"{method}, until there", watch.reached_ms, goal=goal, note=there)
        yield row(WHAT, f"{method}, whole fit", spent, note=note)
    with fixed_seed(seed):
        yield _nuts(args, reference, settings)
    yield from _numpyro(args, reference, settings, seed)


def _fits() -> Iterator[tuple[str, Callable[..., Any], Any, float | None]]:
    yield "HyperNetworkGuide", HyperNetworkGuide, None, GOAL_MS
    objective = Trace_ELBO(8, vectorize_particles=True, max_plate_nesting=1)
    yield "AutoMultivariateNormal", AutoMultivariateNormal, objective, None


class Watch:
    """
    Looks at a guide's moments now and then, as a validation that never ends the fit.

    Its own CPU time is not counted.

    :param guide: a guide of the eight schools.
    :param args: the model's arguments.
    :param reference: moments of the reference draws.
    """

    def __init__(self, guide: Any, args: tuple[Tensor, ...], reference: Moments) -> None:
        self.guide, self.args, self.reference = guide, args, reference
        self.reached_ms: float | None = None
        self._start, self._own, self._num_looks = time.process_time(), 0.0, 0

    def __call__(self) -> float:
        """Notes the time if this is the first look at moments within the limits."""
        spent, begin = self.spent(), time.process_time()
        errors = self.errors()
        if self.reached_ms is None and all(
            e <= limit for e, limit in zip(errors, LIMITS, strict=True)
        ):
            self.reached_ms = spent
        self._num_looks += 1
        self._own += time.process_time() - begin
        return float(self._num_looks)  # each is better than the one before

    def spent(self) -> float:
        """Milliseconds of CPU time so far, without those of looks."""
        return 1e3 * (time.process_time() - self._start - self._own)

    @torch.no_grad()
    def errors(self) -> tuple[float, float]:
        """The worst errors of means, in deviations, and of deviations, relative."""
        if isinstance(self.guide, HyperNetworkGuide):
            return _errors(self.guide.sample(NUM_DRAWS), self.reference)
        with pyro.plate("draws", NUM_DRAWS, dim=-2):
            draws = {name: value.squeeze(1) for name, value in self.guide(*self.args).items()}
        return _errors(draws, self.reference)


def _errors(draws: dict[str, Tensor], reference: Moments) -> tuple[float, float]:
    found = compare(POSTERIOR.moments(draws), reference)
    return abs(found["mean_error"]), abs(found["sd_error"])


def _said(errors: tuple[float, float]) -> str:
    return f"means {errors[0]:.2f} deviations off, deviations {errors[1]:.0%}"


def _nuts(args: tuple[Tensor, ...], reference: Moments, settings: Settings) -> Row:
    warm_up, num_samples = settings["chain"]
    begin = time.process_time()
    chain = MCMC(NUTS(POSTERIOR.model), num_samples, warm_up, disable_progbar=True)
    chain.run(*args)
    spent = 1e3 * (time.process_time() - begin)
    note = _said(_errors(chain.get_samples(), reference))
    return row(WHAT, f"Pyro's NUTS, {warm_up} + {num_samples}", spent, note=note)


def _numpyro(
    args: tuple[Tensor, ...], reference: Moments, settings: Settings, seed: int
) -> Iterator[Row]:
    if not has_numpyro():
        yield row(WHAT, "NumPyro's NUTS", None, note="left out: pip install numpyro")
        return
    for lengths in settings["numpyro_chains"]:
        for what, draws, spent in chain_of_schools(args, lengths, seed):
            method = f"NumPyro's NUTS, {lengths[0]} + {lengths[1]}, {what}"
            yield row(WHAT, method, spent, note=_said(_errors(draws, reference)))
