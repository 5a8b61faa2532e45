"""Does a fit with nothing tuned give a posterior that is never worse than mean-field?"""

from __future__ import annotations

import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyro
import torch
from pyro.infer import MCMC, NUTS, Trace_ELBO
from pyro.infer.autoguide import AutoLaplaceApproximation, AutoMultivariateNormal, AutoNormal
from pyro.nn import PyroModule
from pyro.poutine.util import site_is_subsample
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, parse, parser
from benchmarks.posterior._panel_cases import CASES, Case, Load
from benchmarks.posterior._panel_tables import by_data, table
from benchmarks.records import write_record
from pyro_implicit import ConditionalHyperNetworkGuide, HyperNetworkGuide, fit
from pyro_implicit._progress import hidden_progress
from pyro_implicit.training.fitting.default_objective import default_num_particles

__all__ = ["METHODS", "SETTINGS", "Row", "by_data", "main", "measure", "run", "table"]

DESCRIPTION = """\
Fits a guide to each model by fit(model, guide, *data) with no other argument: no rate, no number of
steps, no start, no scale.

implicit    HyperNetworkGuide(model); for local latents ConditionalHyperNetworkGuide(model)
...         Pyro's guides by the same fit, with a vectorised Trace_ELBO of the same number of draws;
            for networks they start at the network's own values with deviations of 0.01
NUTS        Pyro's, 300 warm-up steps and 500 draws

A score is the log predictive density of a held-out datum where there are held-out data, else minus
an error of the posterior: the divergence from a known density, or the root mean square of errors of
means (in deviations) and of log-deviations against exact moments. The margin is the score less that
of AutoNormal, with its standard error over held-out data (paired) and seeds."""

SETTINGS: dict[str, Any] = {"max_steps": None, "num_nuts": (300, 500)}
LAST = 200  # steps that a fit's loss is the mean of
PARTS = 100  # that a fit's course is told in
MANY = 1500  # latents beyond which a full Gaussian is not fitted
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    return measure("panel", DESCRIPTION, CASES, list(CASES), argv)


def measure(
    name: str,
    description: str,
    cases: Mapping[str, Load],
    usual: list[str],
    argv: Sequence[str] | None,
) -> list[Row]:
    """
    :param str name: of the benchmark, in the registry.
    :param str description: shown by ``--help``.
    :param cases: what ``--models`` chooses from.
    :param usual: its default.
    :param argv: the command's arguments.
    :returns: a row for each model, seed and method.
    """
    options = parser(description)
    options.add_argument("--models", nargs="+", choices=cases, default=usual)
    default = [name for name in METHODS if name != "NUTS"]
    options.add_argument("--methods", nargs="+", choices=METHODS, default=default)
    arguments = parse(options, argv)
    rows: list[Row] = []
    for row in run(arguments, cases):
        rows.append(row)
        write_record(name, arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def run(arguments: Namespace, cases: Mapping[str, Load]) -> Iterator[Row]:
    """
    :param arguments: of the command.
    :param cases: the models by name.
    :returns: a row for each model, seed and method; AutoNormal first, for the margins.
    """
    methods = sorted(arguments.methods, key=lambda name: name != "AutoNormal")
    todo = [(model, seed) for model in arguments.models for seed in arguments.seeds]
    for name, seed in tqdm(todo, disable=arguments.quiet):
        with fixed_seed(seed):
            case = cases[name](arguments.data_root, seed)
        base: Tensor | None = None
        for method in methods:
            with fixed_seed(seed):
                row, scores = _one(case, method)
            row = {"model": name, "seed": seed, "method": method, "note": None} | row
            if scores is not None:
                base = scores if method == "AutoNormal" else base
                row |= _summary(scores, base)
            yield row


def _one(case: Case, method: str) -> tuple[Row, Tensor | None]:
    begin = time.process_time()
    try:
        guide, told = METHODS[method](case)
    except (ArithmeticError, RuntimeError, ValueError) as error:
        return {"note": f"no fit: {type(error).__name__}: {str(error)[:120]}"}, None
    if guide is None:
        return told, None
    told["cpu_seconds"] = time.process_time() - begin
    with torch.no_grad():
        return told, case.judge(guide).double()


def _summary(scores: Tensor, base: Tensor | None) -> Row:
    row: Row = {"score": float(scores.mean()), "num_scores": len(scores)}
    if base is not None:
        margin = scores - base
        row["margin"] = float(margin.mean())
        many = len(scores) > 1
        row["margin_error"] = float(margin.std()) / math.sqrt(len(scores)) if many else None
    return row


# ---- the methods


def _implicit(case: Case) -> tuple[Any, Row]:
    kind = ConditionalHyperNetworkGuide if case.is_local else HyperNetworkGuide
    guide, begin = kind(case.model), time.process_time()
    with hidden_progress(True):
        guide(*case.data)  # finds its start
    seconds, limit = time.process_time() - begin, SETTINGS["max_steps"]
    result = fit(case.model, guide, *case.data, num_steps=limit, progress=False)
    return guide, _told(result) | {"start_seconds": seconds}


def _told(result: Any) -> Row:
    return {
        "course": _course(result.history),
        "steps": result.num_steps,
        "loss": statistics.fmean(result.history[-LAST:]),
        "reason": result.reason,
        "objective": type(result.objective).__name__,
        "warnings": [str(text)[:200] for text in result.warnings],
    }


def _course(history: Sequence[float]) -> list[float]:
    """The loss along the run: means of as many equal parts as :data:`PARTS`, at most."""
    size = math.ceil(len(history) / PARTS)
    parts = (history[i : i + size] for i in range(0, len(history), size))
    return [round(statistics.fmean(part), 3) for part in parts]


def _pyros(kind: Callable[..., Any], case: Case) -> tuple[Any, Row]:
    num_latents, num_observed = _sizes(case)
    if kind is not AutoNormal and num_latents > MANY:
        return None, {"note": f"not fitted: {num_latents} latents"}
    start: dict[str, Any] = (
        {} if case.module is None else {"init_loc_fn": case.module.init_to_module}
    )
    if kind is not AutoLaplaceApproximation and start:
        start["init_scale"] = 0.01
    guide = kind(case.model, **start)
    count = default_num_particles(num_latents, num_observed)
    objective = Trace_ELBO(count, vectorize_particles=True, max_plate_nesting=1)
    options = {"objective": objective, "num_steps": SETTINGS["max_steps"], "progress": False}
    result = fit(case.model, guide, *case.data, **options)
    if kind is AutoLaplaceApproximation:
        guide = guide.laplace_approximation(*case.data)
    return guide, _told(result)


def _sizes(case: Case) -> tuple[int, int]:
    """Numbers that are latent, and that are observed."""
    trace = pyro.poutine.trace(case.model).get_trace(*case.data)
    drawn = [name for name in trace.stochastic_nodes if not site_is_subsample(trace.nodes[name])]
    kinds = drawn, trace.observation_nodes
    latent, observed = (sum(trace.nodes[one]["value"].numel() for one in kind) for kind in kinds)
    return latent, observed


class _Draws(PyroModule):
    """Draws of a chain, one after the other, as a guide."""

    def __init__(self, draws: dict[str, Tensor]) -> None:
        super().__init__()
        self.draws, self.count = draws, 0

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """A draw of each site."""
        index = self.count % len(next(iter(self.draws.values())))
        self.count += 1
        drawn = {}
        for name, value in self.draws.items():
            fn = pyro.distributions.Delta(value[index])
            drawn[name] = pyro.sample(name, fn.to_event(value.dim() - 1))
        return drawn


def _nuts(case: Case) -> tuple[Any, Row]:
    if _sizes(case)[0] > MANY:
        return None, {"note": "not run"}
    warmup, count = SETTINGS["num_nuts"]
    chain = MCMC(NUTS(case.model), count, warmup_steps=warmup, disable_progbar=True)
    chain.run(*case.data)
    return _Draws(chain.get_samples()), {"steps": count}


METHODS: dict[str, Callable[[Case], tuple[Any, Row]]] = {
    "AutoNormal": partial(_pyros, AutoNormal),
    "implicit": _implicit,
    "AutoMultivariateNormal": partial(_pyros, AutoMultivariateNormal),
    "AutoLaplaceApproximation": partial(_pyros, AutoLaplaceApproximation),
    "NUTS": _nuts,
}
