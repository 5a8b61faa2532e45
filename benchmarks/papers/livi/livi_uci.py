"""
UCI regression as in the paper's Table 1: both of its bounds, beside what costs as much.

A network with one hidden layer of 50 tanh units, standard normal priors and unknown noise, on the
canonical splits. Test RMSE, log-likelihood and coverage of the central 90% in the target's units.

map             the first of five modes, of 1000 steps
ensemble of 5   all of them; of 16: a fit of its own
laplace         laplace-torch's at the first mode, linearised: all weights; "Kronecker": their
                Hessian as products of Kronecker's; "last": the last layer
MC dropout      a mode of a network that leaves hidden units out, which it goes on with; time of its
                own
SWAG            a Gaussian by the path of SGD on 50 rows from the first mode: 1000 steps, 40 places
mean-field      AutoNormal, Trace_ELBO
full Gaussian   AutoMultivariateNormal, Trace_ELBO
no entropy      HyperNetworkGuide whose generator is a perceptron (50 noises, 50 tanh units), with
                likelihood and prior alone
linearised      the same generator by the paper's L' (Eq. 15), all singular values
singular value  the same by L'' (Eq. 18), the smallest one alone, which is found exactly

Each guide starts at the first mode and takes 1000 steps of 4 draws on 500 rows at most. Rates,
output noises and shares of units left out were chosen by --choose, which holds out 15% of the
training part of split 0.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import pyro
import torch
from tqdm.auto import tqdm

from benchmarks.common import format_table, mean_and_error, parse, parser
from benchmarks.papers.livi._uci_fits import (
    GUIDES,
    LAPLACE,
    METHODS,
    SETTINGS,
    Fits,
    candidates,
    choice,
)
from benchmarks.records import read_record, write_record
from benchmarks.shared.paired import ahead, pairs
from benchmarks.shared.uci import build_model, load_split
from benchmarks.shared.uci_fits import Settings
from benchmarks.shared.uci_peers import has_laplace

#: of the record "refine"
_CHAINS = ("refine, long", "HMC")
SETS = ("boston", "concrete", "energy", "kin8nm", "naval")
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    if set(LAPLACE) & set(arguments.methods) and not has_laplace():
        print("no rows of laplace: pip install laplace-torch")
        arguments.methods = [method for method in arguments.methods if method not in LAPLACE]
    rows: list[Row] = []
    with pyro.validation_enabled(False):
        for row in _rows(arguments):
            rows.append(row)
            write_record("livi_uci", arguments, dict(SETTINGS), rows)
    print(table(rows))
    return rows


def _rows(arguments: Namespace) -> Iterator[Row]:
    places = [
        (name, index, seed)
        for name in arguments.sets
        for index in arguments.splits
        for seed in arguments.seeds
    ]
    for name, index, seed in tqdm(places, disable=arguments.quiet):
        split = load_split(arguments.data_root, name, index, validation=arguments.choose)
        model = build_model(split.x.shape[1], len(split.x))
        dtype = torch.float64 if arguments.double else torch.float32
        fits = Fits(model, split, seed, arguments.quiet, dtype)
        for method in arguments.methods:
            chosen = [choice(method, name)]
            for settings in candidates(method) if arguments.choose else chosen:
                if method in GUIDES:
                    settings = replace(settings, num_steps=arguments.times * settings.num_steps)
                yield {
                    "set": name,
                    "split": index,
                    "seed": seed,
                    "method": method,
                    "settings": asdict(settings),
                    **fits.scores(method, settings),
                }


# ---- tables

_SCORES = {"RMSE": "rmse", "log-likelihood": "log_likelihood", "90% coverage": "coverage"}


def table(rows: list[Row]) -> str:
    """Mean and standard error over splits for each set and method."""
    lines = []
    chosen = _tried(rows)
    for (name, method, _), own in _groups(rows).items():
        cells = [
            mean_and_error([row[key] for row in own], _form(own, key)) for key in _SCORES.values()
        ]
        seconds = sum(row["cpu_seconds"] for row in own) / len(own)
        extra = [str(Settings(**own[0]["settings"]))] if chosen else []
        lines.append([name, method, *extra, len(own), *cells, f"{seconds:.1f}"])
    more = ["settings"] if chosen else []
    return format_table(["set", "method", *more, "splits", *_SCORES, "CPU s"], lines)


def _tried(rows: list[Row]) -> bool:
    """Whether a method has several settings on one split."""
    places = [(row["set"], row["split"], row["seed"], row["method"]) for row in rows]
    return len(set(places)) < len(places)


def _groups(rows: list[Row]) -> dict[tuple[str, str, str], list[Row]]:
    several = _tried(rows)
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        settings = str(row["settings"]) if several else ""
        groups.setdefault((row["set"], row["method"], settings), []).append(row)
    return groups


def _form(rows: list[Row], key: str) -> str:
    """Three digits, and more of an error that is smaller."""
    return ".5f" if key == "rmse" and rows[0][key] < 0.02 else ".3f"


def bounds(rows: list[Row]) -> str:
    """The linearised bound less each other method on the same split, in log-likelihood and RMSE."""
    return _differences(rows, "linearised")


def singular_value(rows: list[Row]) -> str:
    """The same of the bound by the smallest singular value."""
    return _differences(rows, "singular value")


def _differences(rows: list[Row], base: str) -> str:
    lines = []
    for names, found in pairs(rows, base, group="set", units=("split", "seed")):
        gains = [mine["log_likelihood"] - row["log_likelihood"] for row, mine in found]
        errors = [mine["rmse"] - row["rmse"] for row, mine in found]
        form = _form([mine for _, mine in found], "rmse")
        cells = [mean_and_error(gains, "+.3f", ".3f"), mean_and_error(errors, f"+{form}", form)]
        lines.append([*names, *cells, ahead(gains)])
    return format_table(["set", f"{base} less", "log-likelihood", "RMSE", "splits ahead"], lines)


def reference(rows: list[Row]) -> str:
    """Each method less chains, in log-likelihood, on the splits that the record of chains has."""
    chains = [row for row in read_record("refine")["rows"] if row["method"] in _CHAINS]
    lines = []
    for name in dict.fromkeys(row["set"] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if (row["set"], row["method"]) == (name, method)]
            cells = [_less(own, [row for row in chains if row["method"] == one]) for one in _CHAINS]
            if all(cells):
                lines.append([name, method, *cells])
    return format_table(["set", "method", *(f"less {one}" for one in _CHAINS)], lines)


def _less(own: list[Row], others: list[Row]) -> str | None:
    """In log-likelihood, of one method to another; None if they have no split in common."""
    base = others[0]["method"]
    for _, found in pairs([*own, *others], base, group="set", units=("split", "seed")):
        changes = [row["log_likelihood"] - other["log_likelihood"] for row, other in found]
        return mean_and_error(changes, "+.3f", ".3f")
    return None


def _options() -> ArgumentParser:
    options = parser(__doc__ or "", seeds=[0], methods=METHODS)
    options.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), metavar="NAME")
    options.add_argument("--splits", type=int, nargs="+", default=list(range(20)), metavar="K")
    options.add_argument(
        "--choose", action="store_true", help="try the candidates on validation rows instead"
    )
    options.add_argument("--times", type=int, default=1, help="as many steps of each guide")
    options.add_argument("--double", action="store_true", help="Laplace in double precision")
    return options


if __name__ == "__main__":
    main()
