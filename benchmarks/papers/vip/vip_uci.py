"""
Implicit processes on UCI regression (section 4.3 of the paper on variational implicit processes).

Canonical splits; test RMSE and negative log-likelihood in the target's units and coverage of 90%
intervals, mean and standard error over splits. The priors are a D-10-10-1 network with random
weights (trainable mean and scale of each) and a neural sampler of that size with 10 noise inputs.

collapsed    marginal likelihood of 50 new functions at each step; predicts with 200
alpha=0      Gaussian posterior of the coefficients of 20 frozen functions: the ELBO
alpha=0.5    the same by the alpha-energy
mean-field   weights of a network with one layer of 50 units (uci_regression); --effort
exact GP     scikit-learn's, a length scale for each input; kernel and noise by the marginal
             likelihood of at most 1000 rows, conditioned on at most 5000
sparse GP    Pyro's variational one, 100 inducing inputs, by its bound for all rows

Peers, of the network of mean-field, by the code and settings of livi_uci: MAP (the first of five
modes, of 1000 steps), ensemble of 5 (all of them), Laplace (laplace-torch's at the first, of all
weights or the last layer), MC dropout, SWAG. The share of units that dropout leaves out and the
rate of SWAG's path were chosen by --choose, which holds out 15% of the training part of split 0.

The number of steps (early stopping), a factor on the noise and, with several --psi, the one of the
collapsed objective are chosen for each split on 15% of its training part; the fit is then made
anew on all of it, and scored once on the test part. Mean-field and GPs choose nothing. Of more than
1000 rows: minibatches of 1000 (collapsed: each a data set of its own; the prediction conditions on
all).
"""

from __future__ import annotations

import statistics
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import pyro
from tqdm.auto import tqdm

from benchmarks.common import (
    format_table,
    load_npz,
    parse,
    parser,
    positive,
    stopwatch,
)
from benchmarks.papers.vip._paired import mean_cell, paired
from benchmarks.papers.vip._uci_peers import PEERS, Peers, installed
from benchmarks.papers.vip._vip_uci import (
    METHODS,
    SETTINGS,
    run_gaussian_process,
    run_mean_field,
    run_process,
)
from benchmarks.records import write_record
from benchmarks.shared.uci import load_split

SETS = ("yacht", "boston", "energy", "concrete", "wine")
#: of the paper, tables 1 and 2
PAPER_COLUMNS = ("network", "sampler", "mean-field", "exact GP", "sparse GP")
#: RMSE and negative log-likelihood there: VIP-BNN, VIP-NS, VI, exact GP and SVGP
PAPER: dict[str, tuple[str | None, ...]] = {
    "boston": ("2.88 / 2.45", "2.78 / 2.45", "3.85 / 2.76", "2.95 / 2.46", "3.30 / 2.63"),
    "concrete": ("4.81 / 3.02", "5.54 / 3.13", "6.51 / 3.28", "5.31 / 3.05", "7.25 / 3.40"),
    "energy": ("0.45 / 0.60", "0.45 / 0.59", "2.07 / 2.17", "0.45 / 0.57", "2.39 / 2.31"),
    "kin8nm": ("0.07 / -1.12", "0.08 / -1.05", "0.10 / -0.81", None, "0.11 / -0.76"),
    "naval": ("0.00 / -5.62", "0.00 / -4.11", "0.38 / -2.80", None, "0.00 / -7.81"),
    "power": ("4.11 / 2.92", "4.11 / 2.90", "4.11 / 2.83", None, "4.06 / 2.82"),
    "protein": ("4.25 / 2.87", "4.54 / 2.96", "4.88 / 3.00", None, "4.90 / 3.01"),
    "wine": ("0.64 / 0.97", "0.66 / 1.20", "0.66 / 1.01", "0.62 / 0.26", "0.65 / 0.98"),
    "yacht": ("0.32 / -0.02", "0.54 / 0.59", "0.79 / 1.11", "0.35 / 0.10", "2.25 / 2.29"),
}
BASE = "network, collapsed"


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns one row for each fit."""
    arguments = parse(_options(), argv)
    arguments.methods = installed(arguments.methods)
    jobs = [
        (name, index, seed)
        for name in arguments.sets
        for index in _splits(arguments, name)
        for seed in arguments.seeds
    ]
    rows: list[dict[str, Any]] = []
    with pyro.validation_enabled(False):  # of shapes and values, at every step
        for job in tqdm(jobs, disable=arguments.quiet):
            for row in _rows(arguments, *job):
                rows.append(row)
                write_record("vip_uci", arguments, SETTINGS, rows)
    print((choices if arguments.choose else table)(rows))
    return rows


def _splits(arguments: Namespace, name: str) -> list[int]:
    count = len(load_npz(arguments.data_root, f"uci/{name}.npz")["train_idx"])
    if not all(0 <= index < count for index in arguments.splits):
        raise SystemExit(f"error: {name} has splits 0 to {count - 1}, found {arguments.splits}")
    return list(arguments.splits)


def _rows(arguments: Namespace, name: str, index: int, seed: int) -> Iterator[dict[str, Any]]:
    """All methods on one split; the peers share their modes."""
    peers = None
    for method in arguments.methods:
        if method not in PEERS:
            yield _row(arguments, method, name, index, seed)
            continue
        peers = peers or Peers(arguments, name, index, seed, SETTINGS["peers"])
        for found in peers.rows(method):
            yield {"set": name, "method": method, "split": index, "seed": seed, **found}


def _row(arguments: Namespace, method: str, name: str, index: int, seed: int) -> dict[str, Any]:
    """One method on one split."""
    part = {"max_rows": arguments.max_rows}
    whole = load_split(arguments.data_root, name, index, **part)
    options = {"seed": seed, "quiet": arguments.quiet}
    with stopwatch() as watch:
        if method == "mean-field":
            found = run_mean_field(name, whole, effort=arguments.effort, **options)
        elif method.endswith("GP"):
            found = run_gaussian_process(method, whole, **options)
        else:
            held = load_split(arguments.data_root, name, index, validation=True, **part)
            options |= {"max_steps": arguments.num_steps, "psis": arguments.psi}
            found = run_process(method, held, whole, **options)
    row = {"set": name, "method": method, "split": index, "seed": seed}
    return row | found | {"cpu_seconds": watch.cpu_seconds}


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard error over splits, beside the paper's columns."""
    lines = []
    for name, method in dict.fromkeys((row["set"], row["method"]) for row in rows):
        own = [row for row in rows if (row["set"], row["method"]) == (name, method)]
        kind = method.partition(",")[0]
        paper = dict(zip(PAPER_COLUMNS, PAPER.get(name, ()), strict=False)).get(kind)
        lines.append(
            [
                name,
                method,
                len(own),
                *(mean_cell([row[key] for row in own if key in row]) for key in _SCORES),
                paper,
                *(_count(own, key) for key in ("steps", "cpu_seconds")),
            ]
        )
    header = ["set", "method", "fits", "RMSE", "NLL", "90% coverage", "paper", "steps", "CPU s"]
    return format_table(header, lines)


_SCORES = ("rmse", "nll", "coverage")


def choices(rows: list[dict[str, Any]]) -> str:
    """Negative log-likelihood of held-out rows by each candidate, one line for each set."""
    tried: dict[Any, dict[str, list[float]]] = {(r["method"], _setting(r)): {} for r in rows}
    for row in rows:
        tried[row["method"], _setting(row)].setdefault(row["set"], []).append(row["nll"])
    sets = list(dict.fromkeys(row["set"] for row in rows))
    lines = [
        [name, *(f"{statistics.fmean(found[name]):.3f}" for found in tried.values())]
        for name in sets
    ]
    return format_table(["set", *(f"{method}, {value:g}" for method, value in tried)], lines)


def _setting(row: dict[str, Any]) -> float:
    """What was tried: the share of units left out, or the rate."""
    settings = row["settings"]
    return float(settings["rate"] if settings["dropout"] is None else settings["dropout"])


def differences(rows: list[dict[str, Any]]) -> str:
    """To the network with the collapsed objective, on the same split and seed."""
    return paired(rows, BASE, group="set", units=("split", "seed"))


def _count(rows: list[dict[str, Any]], key: str) -> str | None:
    known = [row[key] for row in rows if row[key] is not None]
    return f"{statistics.fmean(known):.0f}" if known else None


def _options() -> Any:
    options = parser(__doc__ or "", seeds=[0], methods=METHODS)
    options.add_argument("--sets", nargs="+", default=list(SETS), metavar="NAME")
    options.add_argument("--splits", type=int, nargs="+", default=list(range(5)), metavar="K")
    options.add_argument("--num-steps", type=positive, default=1500, help="at most (default: 1500)")
    options.add_argument(
        "--max-rows", type=positive, metavar="N", help="training rows at most (default: all)"
    )
    options.add_argument(
        "--effort", type=float, default=1.0, metavar="F", help="share of mean-field's steps"
    )
    options.add_argument(
        "--psi", type=float, nargs="+", default=[0.0], help="to choose from; 0: none (default: 0)"
    )
    options.add_argument(
        "--choose", action="store_true", help="all candidates of dropout and SWAG, on held-out rows"
    )
    options.add_argument("--double", action="store_true", help="Laplace in double precision")
    return options


if __name__ == "__main__":
    main()
