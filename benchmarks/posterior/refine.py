"""Chains from modes on UCI regression, beside the modes themselves and mean-field VI."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyro
import torch
from pyro.infer import Predictive
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.common import Stopwatch, format_table, parse, parser, stopwatch
from benchmarks.posterior._refine_gradient import HandWritten
from benchmarks.records import write_record
from benchmarks.shared.paired import ahead, pairs
from benchmarks.shared.uci import (
    HIDDEN_UNITS,
    Model,
    Split,
    build_model,
    load_split,
    ranked_score,
    score,
)
from benchmarks.shared.uci_fits import Workbench, choice
from benchmarks.shared.uci_peers import gaussian_process, gaussian_scores, has_laplace, laplace
from pyro_implicit import refine
from pyro_implicit.chains import MCLMC, Chains
from pyro_implicit.chains.convergence import r_hats

DESCRIPTION = """\
The network of uci_regression on the canonical splits: RMSE, log-likelihood, 90% coverage and CRPS
of the test rows, in the target's units, and the r-hat of predictions on them.

map            the first of the 16 modes
ensemble       all 16 modes, equally weighted; "of 5": the first five of them
laplace        at the first mode, of all weights and of the last layer (laplace-torch, if installed)
GP             scikit-learn's Gaussian process, a length scale for each input
mean-field     AutoNormal, Trace_ELBO, as in uci_regression
full-rank      an implicit guide around the Hessian, as in uci_regression; and its form per datum
refine, short  the modes, then 1250 steps of MCLMC from each: 20 000 gradients, half for the warm-up
refine, long   the same chains until 5000 steps: 80 000 gradients, of which the later half counts
HMC            from the same modes, 20 000 gradients of each, half for the warm-up: 320 000

Settings are the package's own, looked at on validation rows of split 0 (--validation) alone.
--cost measures one gradient of a chain against the same by hand, in CPU microseconds."""

SETS = ("concrete", "energy", "boston", "yacht")
LAPLACE = {"laplace": "all", "laplace, last": "last_layer"}
#: by benchmarks.shared.uci_fits
GUIDES = ("mean-field", "full-rank", "full-rank-per-datum")
METHODS = (
    "map",
    "ensemble of 5",
    "ensemble",
    *LAPLACE,
    "GP",
    "mean-field",
    *GUIDES[1:],
    "refine, short",
    "refine, long",
    "HMC",
)
#: chains, and gradients of each: of the short run, its warm-up, and the long run
SETTINGS: dict[str, Any] = {
    "num_chains": 16,
    "short": 1250,
    "warmup": 625,
    "long": 5000,
    "hmc": 20_000,
    "mode_steps": 1500,
    "effort": 1.0,
    "repeats": 20,
}
_MOST_DRAWS = 3000  # that are scored


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, seeds=[0])
    options.add_argument("--sets", nargs="+", default=list(SETS), metavar="NAME")
    options.add_argument("--splits", type=int, nargs="+", default=[0, 1, 2], metavar="K")
    options.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    options.add_argument("--validation", action="store_true", help="hold out 15%% of training rows")
    options.add_argument("--cost", action="store_true", help="of one gradient; no fits")
    arguments = parse(options, argv)
    if not has_laplace() and set(LAPLACE) & set(arguments.methods):
        print(f"no rows of {list(LAPLACE)}: pip install laplace-torch")
    rows: list[dict[str, Any]] = []
    make = _costs if arguments.cost else _fits
    with pyro.validation_enabled(False):
        for row in make(arguments):
            rows.append(row)
            write_record("refine", arguments, dict(SETTINGS), rows)
    print((cost if arguments.cost else table)(rows))
    return rows


# ---- the fits


def _fits(arguments: Namespace) -> Iterator[dict[str, Any]]:
    tasks = [(n, k, s) for n in arguments.sets for k in arguments.splits for s in arguments.seeds]
    for name, index, seed in tqdm(tasks, disable=arguments.quiet):
        split = load_split(arguments.data_root, name, index, validation=arguments.validation)
        model = build_model(split.x.shape[1], len(split.x))
        yield from _peers(split, name, index, seed, arguments.methods)
        for method, draws, seconds, more in _draws(model, split, name, seed, arguments):
            if method in LAPLACE:
                scores = gaussian_scores(draws["mean"], draws["scale"], split)
                yield _row(name, index, seed, method) | scores | seconds
                continue
            pyro.set_rng_seed(seed)
            flat = {site: value.flatten(0, 1) for site, value in draws.items()}
            step = -(-len(flat["sigma"]) // _MOST_DRAWS)
            part = {site: value[::step] for site, value in flat.items()}
            yield {
                **_row(name, index, seed, method),
                **score(model, part, split),
                **ranked_score(model, part, split),
                "r_hat": _r_hat(model, draws, split),
                **more,
                **seconds,
            }


def _row(name: str, index: int, seed: int, method: str) -> dict[str, Any]:
    row: dict[str, Any] = {"set": name, "split": index, "seed": seed, "method": method}
    return row | {"r_hat": None}


def _peers(
    split: Split, name: str, index: int, seed: int, methods: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Rows of what has no network."""
    if "GP" in methods:
        with stopwatch() as watch:
            found = gaussian_process(split, seed)
        yield _row(name, index, seed, "GP") | gaussian_scores(*found, split) | vars(watch)


Found = tuple[str, dict[str, Tensor], dict[str, float], dict[str, Any]]


def _draws(
    model: Model, split: Split, name: str, seed: int, arguments: Namespace
) -> Iterator[Found]:
    """Draws of each method, {site: (chains, draws, *shape)}, its time and its gradients."""
    chosen = arguments.methods
    bench = Workbench(model, split, seed, effort=SETTINGS["effort"], quiet=True)
    for guide in GUIDES:
        if guide in chosen:
            draws, watch = bench.run(guide, choice(guide, name))
            yield guide, {k: v[None] for k, v in draws.items()}, vars(watch), {}
    if set(chosen) <= {*GUIDES, "GP"}:
        return
    options = {"mode_steps": SETTINGS["mode_steps"], "seed": seed, "progress": False}
    count = SETTINGS["num_chains"]
    with stopwatch() as modes_watch:
        modes = refine(model, count, *split.data, num_chains=count, num_steps=0, **options)
    spent = {"gradients": modes.num_gradients}
    one = {"seconds": modes_watch.seconds / count, "cpu_seconds": modes_watch.cpu_seconds / count}
    if "map" in chosen:
        part = {k: v[:1] for k, v in modes.draws.items()}
        yield "map", part, one, {"gradients": modes.num_gradients // count}
    if "ensemble of 5" in chosen:
        few = {k: 5 * v for k, v in one.items()}
        part = {k: v[:5] for k, v in modes.draws.items()}
        yield "ensemble of 5", part, few, {"gradients": 5 * modes.num_gradients // count}
    for method in LAPLACE:
        if method in chosen and has_laplace():
            yield _laplace(split, modes, method, one)
    if "ensemble" in chosen:
        yield "ensemble", modes.draws, vars(modes_watch), spent
    yield from _chains(model, split, modes, modes_watch, options, chosen)


def _chains(
    model: Model,
    split: Split,
    modes: Chains,
    before: Stopwatch,
    options: dict[str, Any],
    chosen: Sequence[str],
) -> Iterator[Found]:
    """What begins at the modes."""
    start = (model, modes.by_chain[:, 0], *split.data)
    options = options | {"num_chains": SETTINGS["num_chains"]}
    if {"refine, short", "refine, long"} & set(chosen):
        steps = {"num_steps": SETTINGS["short"], "num_warmup": SETTINGS["warmup"]}
        with stopwatch() as watch:
            chains = refine(*start, **steps, **options)
        total = _sum(before, watch)
        if "refine, short" in chosen:
            yield "refine, short", chains.draws, total, _told(chains, modes)
        if "refine, long" in chosen:
            with stopwatch() as more:
                chains.run(SETTINGS["long"] - SETTINGS["short"], progress=False)
            later = SETTINGS["long"] // 2 // MCLMC().thin
            draws = {k: v[:, -later:] for k, v in chains.draws.items()}
            long = Stopwatch(total["seconds"], total["cpu_seconds"])
            yield "refine, long", draws, _sum(long, more), _told(chains, modes)
    if "HMC" in chosen:
        with stopwatch() as watch:
            exact = refine(*start, num_steps=SETTINGS["hmc"], kernel="hmc", **options)
        yield "HMC", exact.draws, _sum(before, watch), _told(exact, modes)


def _laplace(split: Split, modes: Chains, method: str, spent: dict[str, float]) -> Found:
    """Mean and deviation of the held-out rows, by Laplace's approximation at the first mode."""
    first = {k: v[0, 0] for k, v in modes.draws.items()}
    sigma = float(first.pop("sigma"))
    with stopwatch() as watch:
        mean, scale = laplace(split, first, sigma, LAPLACE[method])
    seconds = {k: spent[k] + v for k, v in vars(watch).items()}
    return method, {"mean": mean, "scale": scale}, seconds, {}


def _told(chains: Chains, modes: Chains) -> dict[str, Any]:
    return {
        "gradients": chains.num_gradients + modes.num_gradients,
        "step_size": float(chains.sample_stats["step_size"].mean()),
        "diverging": int(chains.sample_stats["diverging"].sum()),
        "how": chains.how,
    }


def _sum(one: Stopwatch, other: Stopwatch) -> dict[str, float]:
    return {key: getattr(one, key) + getattr(other, key) for key in ("seconds", "cpu_seconds")}


@torch.no_grad()
def _r_hat(model: Model, draws: dict[str, Tensor], split: Split) -> dict[str, float] | None:
    """Of the mean of each held-out row: its median and the worst."""
    num_chains, num_draws = draws["sigma"].shape[:2]
    if num_chains == 1 or num_draws < 4:
        return None
    flat = {site: value.flatten(0, 1) for site, value in draws.items()}
    mean = Predictive(model, flat, return_sites=("mean",), parallel=True)(split.x_held)["mean"]
    found = r_hats({"mean": mean.reshape(num_chains, num_draws, -1)})["mean"]
    return {"median": float(found.median()), "worst": float(found.max())}


# ---- the cost of a gradient


def _costs(arguments: Namespace) -> Iterator[dict[str, Any]]:
    for name in arguments.sets:
        split = load_split(arguments.data_root, name, arguments.splits[0])
        model = build_model(split.x.shape[1], len(split.x))
        chains = refine(
            model, 1, *split.data, num_chains=1, num_steps=0, mode_steps=1, seed=0, progress=False
        )
        count = SETTINGS["num_chains"]
        torch.manual_seed(0)
        u = 0.3 * torch.randn(count, chains.by_chain.shape[-1])
        density = chains._program.density(chains.sites, torch.float32)  # type: ignore[union-attr]
        by_hand = HandWritten(split.x, split.y, HIDDEN_UNITS)
        with density.ready(u):
            ways: dict[str, Callable[[Tensor], Any]] = {
                "by hand": by_hand,
                "recorded": density,
                "vmap": density._vectorised,
            }
            times = _interleaved(ways, u)
            error = float((density(u)[1] - by_hand(u)[1]).abs().max())
            how = density.how
        assert how == "recorded" and error < 0.1 * float(by_hand(u)[1].abs().max()), (how, error)
        for way, seconds in times.items():
            ratio = seconds / times["by hand"]
            yield {
                "set": name,
                "way": way,
                "microseconds": 1e6 * seconds / count,
                "ratio": ratio,
            }


def _interleaved(ways: dict[str, Callable[[Tensor], Any]], u: Tensor) -> dict[str, float]:
    """CPU seconds of one evaluation: the least of some rounds, in which all take turns."""
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(5):
        for way, function in ways.items():
            with torch.no_grad():
                function(u)
                begin = time.process_time()
                for _ in range(SETTINGS["repeats"]):
                    function(u)
            spent = (time.process_time() - begin) / SETTINGS["repeats"]
            least[way] = min(least[way], spent)
    return least


# ---- the tables


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard error over splits (and seeds) for each set and method."""
    if "way" in rows[0]:
        return cost(rows)
    lines = []
    for name, method in _groups(rows):
        group = [row for row in rows if (row["set"], row["method"]) == (name, method)]
        known = [row["r_hat"] for row in group if row["r_hat"] is not None]
        r_hat = ""
        if known:
            worst = max(one["worst"] for one in known)
            r_hat = f"{statistics.fmean(one['median'] for one in known):.2f}, {worst:.2f}"
        cells = [_mean([row[key] for row in group]) for key in _SCORES]
        seconds = statistics.fmean(row["cpu_seconds"] for row in group)
        lines.append([name, method, len(group), *cells, r_hat, f"{seconds:.0f}"])
    header = ["set", "method", "fits", "RMSE", "log-likelihood", "90% coverage", "CRPS"]
    return format_table([*header, "r-hat: median, worst", "CPU s"], lines)


_SCORES = ("rmse", "log_likelihood", "coverage", "crps")


def differences(rows: list[dict[str, Any]]) -> str:
    """Of the long chains' log-likelihood to each other method, on the same split and seed."""
    ordered = sorted(rows, key=lambda row: METHODS.index(row["method"]))
    lines = []
    for names, found in pairs(ordered, "refine, long", group="set", units=("split", "seed")):
        gains = [long["log_likelihood"] - row["log_likelihood"] for row, long in found]
        lines.append([*names, _mean(gains, "+.3f"), ahead(gains)])
    return format_table(["set", "against", "refine, long, is ahead by", "splits ahead"], lines)


def cost(rows: list[dict[str, Any]]) -> str:
    """One gradient of a chain, and how often that by hand it is."""
    lines = [
        [row["set"], row["way"], f"{row['microseconds']:.0f}", f"{row['ratio']:.2f}"]
        for row in rows
    ]
    return format_table(["set", "gradient", "microseconds of CPU", "ratio"], lines)


def _groups(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    there = {(row["set"], row["method"]) for row in rows}
    names = dict.fromkeys(row["set"] for row in rows)
    return [(name, method) for name in names for method in METHODS if (name, method) in there]


def _mean(values: list[float], form: str = ".3f") -> str:
    text = f"{statistics.fmean(values):{form}}"
    if len(values) == 1:
        return text
    return f"{text} ± {statistics.stdev(values) / len(values) ** 0.5:.3f}"


if __name__ == "__main__":
    main()
