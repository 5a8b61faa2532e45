"""Do Pyro's own examples run with only guide and loss changed, and what comes of them?"""

from __future__ import annotations

import statistics
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, parse, parser, stopwatch
from benchmarks.posterior._pyro_examples_chains import CHAINS
from benchmarks.posterior._pyro_examples_guides import GUIDES
from benchmarks.posterior._pyro_examples_import import load_example, load_notebook
from benchmarks.posterior._pyro_examples_judges import Bound
from benchmarks.posterior._pyro_examples_problem import Example, Problem, Settings, trained
from benchmarks.posterior._pyro_examples_structured import STRUCTURED
from benchmarks.records import write_record
from pyro_implicit import fit

DESCRIPTION = """\
Runs the models of Pyro's examples, imported from a checkout (--pyro CLONE), by the inference that
the example has, and by fit(model, HyperNetworkGuide(model), ...). Where the example takes steps, it
has as many as by default, or ours if these are more; where it takes a chain, one of its length.

bound      evidence bound in nats, by the same function for both (Pyro's TraceEnum_ELBO): higher
evidence   log evidence with the same draws as importance weights: higher
held-out   log predictive density of held-out data, in nats: higher
error      root mean square of errors of means, in deviations, and of log-deviations, of all
           unconstrained latents against a long chain of NUTS: lower

--check takes three steps of our fit without a start and judges nothing: does it run, are draws made
at once or one after the other, and what is told?

"conjugate" is built in and needs no checkout: its evidence is known. So is "GP regression"."""

SETTINGS: dict[str, Any] = {
    "num_steps": 500,
    "looped_steps": 200,  # where draws are made one after the other
    "bound_draws": 200,
    "draws": 1000,
    "chain_share": 1.0,
    "reference": 1000,
    "reference_warmup": 300,
}
#: of --check
CHECK = {"num_steps": 3, "looped_steps": 3, "reference": 4, "reference_warmup": 4}
Row = dict[str, Any]


def _conjugate(_: Any, settings: Settings) -> Problem:
    """A mean with known noise: the log evidence of these data is -3.2976 nats."""
    y = torch.tensor([0.5, 1.5])

    def model(y: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
        with pyro.plate("data", 2):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    own = partial(
        *(trained, model, AutoNormal(model), Adam({"lr": 0.01}), Trace_ELBO()),
        *(settings["num_steps"], y),
    )
    return Problem(model, (y,), own, Bound(model, (y,), 1, settings["bound_draws"]))


EXAMPLES = {"conjugate": Example("", _conjugate, "AutoNormal"), **GUIDES, **STRUCTURED, **CHAINS}
METHODS = ("own", "implicit")


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, seeds=[0], methods=METHODS)
    options.add_argument("--pyro", type=Path, metavar="CLONE", help="a checkout of Pyro")
    options.add_argument("--examples", nargs="+", choices=EXAMPLES, default=list(EXAMPLES))
    options.add_argument("--check", action="store_true", help="a few steps, no scores")
    arguments = parse(options, argv)
    if arguments.check:
        arguments.methods = ["implicit"]
    if arguments.pyro is None and any(EXAMPLES[name].file for name in arguments.examples):
        options.error("--pyro CLONE is needed: a checkout of Pyro at the version that is installed")
    rows: list[Row] = []
    for row in run(arguments):
        rows.append(row)
        write_record("pyro_examples", arguments, SETTINGS, rows)
    print(check_table(rows) if arguments.check else table(rows))
    return rows


def run(arguments: Namespace) -> Iterator[Row]:
    """One row for each example, seed (of data and fit) and method."""
    settings = SETTINGS | (CHECK if arguments.check else {})
    todo = [(name, seed) for name in arguments.examples for seed in arguments.seeds]
    for name, seed in tqdm(todo, disable=arguments.quiet):
        example = EXAMPLES[name]
        with fixed_seed(seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem = example.make(_loaded(arguments.pyro, example), settings)
        for method in arguments.methods:
            with fixed_seed(seed), warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                row = _one(problem, method, seed, arguments)
            texts = [str(one.message)[:200] for one in told if one.category is UserWarning]
            row["warnings"] = list(dict.fromkeys([*row.pop("told", []), *texts]))
            how = example.own if method == "own" else example.changed
            yield {"example": name, "method": method, "seed": seed, "how": how, "note": None} | row


def _loaded(clone: Path, example: Example) -> Any:
    if not example.file:
        return None
    if example.cells:
        return load_notebook(clone, example.file, example.cells)
    return load_example(clone, example.file)


def _one(problem: Problem, method: str, seed: int, arguments: Namespace) -> Row:
    try:
        with stopwatch() as watch:
            if method == "own":
                fitted, row = problem.own(), {}
            else:
                fitted, row = _fitted(problem, seed, arguments)
        scores = {} if arguments.check else problem.judge(fitted)
    except Exception as error:  # the refusal is the result
        return {"note": f"{type(error).__name__}: {str(error)[:300]}"}
    return {**row, "scores": scores, "cpu_seconds": watch.cpu_seconds}


def _fitted(problem: Problem, seed: int, arguments: Namespace) -> tuple[Any, Row]:
    guide = problem.guide(problem.model, **({"init_from": None} if arguments.check else {}))
    steps = (SETTINGS | (CHECK if arguments.check else {}))[problem.limit]
    options = {"num_steps": steps, "seed": seed, "progress": not arguments.quiet, **problem.kwargs}
    result = fit(problem.model, guide, *problem.args, **options)
    told = [str(text)[:200] for text in result.warnings]
    draws = {True: "at once", "vmap": "mapped", False: "one by one"}
    how = {"latents": guide.latent_dim, "draws": draws[result.objective.vectorize_particles]}
    return guide, {"steps": result.num_steps, "reason": result.reason, "told": told, **how}


def check_table(rows: list[Row]) -> str:
    """A line for each example."""
    header = ["example", "latents", "draws", "what is told", "changed beside guide and loss"]
    lines = []
    for row in rows:
        texts = [text for text in row["warnings"] if not text.startswith("the limit of")]
        told = (row["note"] or "; ".join(map(_kind, texts))).partition(". ")[0]
        lines.append([row["example"], row.get("latents"), row.get("draws"), told, row["how"]])
    return format_table(header, [[None if c == "" else c for c in line] for line in lines])


def _kind(text: str) -> str:
    """The beginning of a warning, which is the same whenever it is told."""
    return text.partition(":")[0].partition(", since")[0]


def table(rows: list[Row]) -> str:
    """Means over seeds; a line for each example and score."""
    header = ["example", "its own inference", "score", "own", "implicit", "own CPU s", "CPU s"]
    header += ["steps", "told", "changed beside guide and loss"]
    lines = []
    for name in dict.fromkeys(row["example"] for row in rows):
        groups = {m: [r for r in rows if (r["example"], r["method"]) == (name, m)] for m in METHODS}
        own, ours = (groups[method] for method in METHODS)
        names = dict.fromkeys(key for row in (*own, *ours) for key in row.get("scores", ()))
        for index, score in enumerate(names or ["no fit"]):
            cells = [_mean(_of([r.get("scores", {}) for r in g], score)) for g in (own, ours)]
            line = [name, own[0]["how"] if own else None, score, *cells]
            line += [
                _mean([r["cpu_seconds"] for r in g if "scores" in r], ".0f") for g in (own, ours)
            ]
            line += [_mean([r["steps"] for r in ours if "steps" in r], ".0f")]
            line += [_mean([len(r["warnings"]) for r in ours], ".0f")]
            line += [ours[0]["how"] if ours else None]
            lines.append(line if index == 0 else [None, None, *line[2:5], *[None] * 5])
    return format_table(header, lines)


def _of(rows: list[Row], key: str) -> list[Any]:
    return [row[key] for row in rows if key in row]


def _mean(values: list[float], form: str = ".4g") -> str | None:
    return f"{statistics.fmean(values):{form}}" if values else None
