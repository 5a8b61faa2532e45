"""Does a conditional implicit guide reach the encoder that an example of Pyro brings?"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, mean_and_spread, parse, parser
from benchmarks.posterior._own_guides_digits import digits, mnist
from benchmarks.posterior._own_guides_fits import METHODS, Pace, fitted, rehearsed
from benchmarks.posterior._own_guides_judge import judged
from benchmarks.posterior._own_guides_problem import Problem
from benchmarks.posterior._own_guides_sequences import sequences
from benchmarks.records import write_record

DESCRIPTION = """\
Fits guides of latents of each row to two models as in Pyro's examples, in minibatches, each for the
same CPU time, and judges them by rows that were held out.

digits     vae.py: six latents of each of 1297 digits of 8 x 8 bits; the decoder is learned
mnist      vae.py in its own sizes: 50 latents of each of 60 000 digits, in batches of 256, for a
           minute, without AutoNormal; not among the models unless it is asked for
sequences  dmm.py: two latents at each of eight steps of 300 sequences of 8 bits a step; the
           networks of the model are fixed

own                the example's encoder, by SVI with the example's optimiser and rate
own, fit           the same encoder, by fit
ours               ConditionalHyperNetworkGuide(model), by fit
ours, own context  the same with the networks of the example's encoder as context=
AutoNormal         Pyro's, by fit: a mean and a deviation for each row, none for others

fit is timed on a fit that is thrown away, later on the last one of the same kind, and given as
many steps as the time is worth."""

SETTINGS: dict[str, Any] = {
    "cpu_seconds": 20.0,
    "batch": 100,
    "particles": 8,  # of Pyro's guides under fit
    "own_particles": 1,  # as in the examples
    "rehearsal": 560,  # steps: of shorter runs fit records none
    "draws": 200,  # of the judge, for each row
    "rows": 300,  # that are judged, of those of the fit
    "of_mnist": {"cpu_seconds": 60.0, "batch": 256, "particles": 1, "draws": 100},
}
#: by the folder of the public data sets
MODELS: dict[str, Callable[[Path], Problem]] = {
    "digits": lambda root: digits(),
    "mnist": mnist,
    "sequences": lambda root: sequences(),
}
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, seeds=[0, 1, 2], methods=METHODS)
    options.add_argument("--models", nargs="+", choices=MODELS, default=["digits", "sequences"])
    arguments = parse(options, argv)
    rows: list[Row] = []
    for row in run(arguments):
        rows.append(row)
        write_record("own_guides", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def run(arguments: Namespace) -> Iterator[Row]:
    """One row for each model, seed (of data, networks and fit) and method."""
    todo = [(m, s, k) for s in arguments.seeds for m in arguments.models for k in arguments.methods]
    todo = [one for one in todo if one[::2] != ("mnist", "AutoNormal")]
    paces: dict[tuple[str, str], Pace | None] = {}
    exact: dict[tuple[str, int], Row] = {}
    for name, seed, method in tqdm(todo, disable=arguments.quiet):
        settings = settings_of(name)
        if (name, method) not in paces:
            with fixed_seed(seed):
                paces[name, method] = rehearsed(MODELS[name](arguments.data_root), method, settings)
        with fixed_seed(seed):
            problem = MODELS[name](arguments.data_root)
            if (name, seed) not in exact:
                exact[name, seed] = _exact(problem)
            pace = paces[name, method]
            found = _one(problem, method, pace, settings)
        if pace is not None:  # the last fit tells best how busy the machine is now
            each = (found["cpu_seconds"] - pace[0]) / found["steps"]
            paces[name, method] = pace[0], each
        yield {"model": name, "method": method, "seed": seed} | exact[name, seed] | found


def settings_of(model: str) -> dict[str, Any]:
    """
    The settings of a model.

    :param str model: a name of ``MODELS``.
    """
    own = SETTINGS["of_mnist"] if model == "mnist" else {}
    return {name: value for name, value in SETTINGS.items() if name != "of_mnist"} | own


def _exact(problem: Problem) -> Row:
    """The log evidence, where it is known."""
    parts = {"held_out": problem.held, "train": problem.train[: SETTINGS["rows"]]}
    known = problem.evidence
    return {
        f"exact_{part}": None if known is None else float(known(x).mean())
        for part, x in parts.items()
    }


def _one(problem: Problem, method: str, pace: Pace | None, settings: dict[str, Any]) -> Row:
    guide, found = fitted(problem, method, settings, pace)
    draws, fitted_rows = settings["draws"], problem.train[: settings["rows"]]
    held: tuple[float | None, float | None] = (None, None)
    if method != "AutoNormal":
        held = judged(problem, guide, problem.held, draws)
    train = judged(problem, guide, fitted_rows, draws, torch.arange(len(fitted_rows)))
    scores = {"held_out": held[0], "held_out_bound": held[1]}
    return scores | {"train": train[0], "train_bound": train[1]} | found


# ---- the table


def table(rows: list[Row]) -> str:
    """Means and standard deviations over seeds."""
    header = ["model", "method", "evidence", "less own's", "gap", "evidence, fitted rows"]
    header += ["gap, fitted rows", "steps", "CPU s"]
    lines = []
    for model, method in dict.fromkeys((r["model"], r["method"]) for r in rows):
        group = [r for r in rows if (r["model"], r["method"]) == (model, method)]
        own = {r["seed"]: r for r in rows if (r["model"], r["method"]) == (model, "own")}
        less = [_less(r["held_out"], own.get(r["seed"], {}).get("held_out")) for r in group]
        cells = [mean_and_spread([r["held_out"] for r in group], ".2f")]
        cells += [None if method == "own" else mean_and_spread(less, ".2f")]
        cells += [mean_and_spread([_gap(r, "held_out") for r in group], ".2f")]
        cells += [mean_and_spread([r["train"] for r in group], ".2f")]
        cells += [mean_and_spread([_gap(r, "train") for r in group], ".2f")]
        steps, seconds = (statistics.fmean(r[k] for r in group) for k in ("steps", "cpu_seconds"))
        lines.append([model, method, *cells, f"{steps:.0f}", f"{seconds:.1f}"])
    return format_table(header, lines)


def _less(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _gap(row: Row, part: str) -> float | None:
    """Log evidence, exact where it is known, less the bound."""
    exact = row[f"exact_{part}"]
    return _less(row[part] if exact is None else exact, row[f"{part}_bound"])
