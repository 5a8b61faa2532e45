"""Do a graph network and a radiance field take an implicit posterior, and what is it worth?"""

from __future__ import annotations

import math
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, mean_and_error, parse, parser
from benchmarks.posterior._structured_networks_field import RadianceField, pixels_model
from benchmarks.posterior._structured_networks_graph import (
    GraphNetwork,
    made_up_citations,
    nodes_model,
)
from benchmarks.posterior._structured_networks_methods import METHODS, Problem
from benchmarks.posterior._structured_networks_scene import Views, made_up_discs, views
from benchmarks.records import write_record
from pyro_implicit import evaluate, fit, predict

__all__ = ["METHODS", "PROBLEMS", "SETTINGS", "field", "graph", "main", "run", "table"]

DESCRIPTION = """\
Two networks whose data are not rows of a table, made up from the seed.

graph  a citation graph (stochastic block model) of which few nodes are labelled, and two graph
       convolutions; scores of the other nodes
field  coloured discs in the plane, seen by cameras on one half of a circle, and a radiance field
       with volume rendering; scores of cameras between these, and on the other half

maximum likelihood  AutoDelta, a nearly flat prior
MAP                 AutoDelta
mean-field          AutoNormal, from the network's own values and narrow
implicit            HyperNetworkGuide(model)
MMNN                MMNNGuide(model)
last layer          HyperNetworkGuide of the last layer; what is before it is trained along

All are fitted by fit(model, guide, data) with no other argument but the limit of steps, and for
mean-field the objective: four draws a step, vectorised."""

SETTINGS: dict[str, Any] = {
    "graph_steps": 800,
    "nodes": 600,
    "classes": 6,
    "words": 80,
    "typical": 12,
    "word_rates": (0.15, 0.06),
    "cited": 4.0,
    "within": 0.75,
    "labelled": 10,
    "held_out": 140,
    "hidden": 16,
    "field_steps": 1000,
    "batch_size": 64,
    "discs": 6,
    "density": 30.0,
    "cameras": 20,
    "pixels": 24,
    "opening": 1.2,
    "distance": 1.2,
    "noise": 0.03,
    "near": 0.3,
    "far": 2.1,
    "samples": 24,
    "waves": 3,
    "width": 32,
    "num_draws": 100,
}
PRIOR = dist.Normal(0.0, 1.0)  # of every weight
Row = dict[str, Any]
LAST = 100  # steps that a fit's loss is the mean of


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, methods=METHODS)
    options.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    options.add_argument(
        "--held-out", action="store_true", help="score the graph's nodes for choosing settings"
    )
    arguments = parse(options, argv)
    rows: list[Row] = []
    for row in run(arguments):
        rows.append(row)
        write_record("structured_networks", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def run(arguments: Namespace) -> Iterator[Row]:
    """One row for each problem, seed (of data, network and fit) and method."""
    todo = [
        (p, s, m) for p in arguments.problems for s in arguments.seeds for m in arguments.methods
    ]
    for name, seed, method in tqdm(todo, disable=arguments.quiet):
        with fixed_seed(seed):
            problem = PROBLEMS[name](arguments.held_out)
        with fixed_seed(seed):
            row = {"problem": name, "method": method, "seed": seed}
            yield row | _one(name, problem, method)


def _one(name: str, problem: Problem, method: str) -> Row:
    model, guide, objective = METHODS[method](problem)
    begin = time.process_time()
    limit = SETTINGS[f"{name}_steps"]
    options = problem.options | {"objective": objective, "num_steps": limit, "progress": False}
    result = fit(model, guide, *problem.args, **options)
    told = {
        "cpu_seconds": time.process_time() - begin,
        "steps": result.num_steps,
        "loss": statistics.fmean(result.history[-LAST:]),
        "objective": type(result.objective).__name__,
        "latents": _latents(guide, problem),
        "warnings": [str(text)[:200] for text in result.warnings],
    }
    return problem.judge(model, guide) | told


@torch.no_grad()
def _latents(guide: Any, problem: Problem) -> int:
    """How many numbers a guide draws."""
    args = problem.args or next(iter(problem.options["batches"]))
    return sum(value.numel() for value in guide(*args).values())


# ---- the problems


def _graph(held_out: bool) -> Problem:
    graph = made_up_citations(SETTINGS)
    network = GraphNetwork(graph, SETTINGS["hidden"])
    nodes = graph.held_out if held_out else graph.test
    judge = partial(_judge_nodes, nodes=nodes, labels=graph.labels[nodes])
    data = graph.train, graph.labels[graph.train]
    return Problem(network, PRIOR, nodes_model, data, {}, judge)


def _judge_nodes(model: Any, guide: Any, nodes: Tensor, labels: Tensor) -> Row:
    found = evaluate(model, guide, nodes, labels, num_samples=SETTINGS["num_draws"])
    return {"log_density": found.log_density.value} | {
        name: getattr(found, name).value for name in ("accuracy", "nll", "ece")
    }


def _field(held_out: bool) -> Problem:
    del held_out  # settings are chosen by other scenes
    sizes = SETTINGS
    scene = made_up_discs(sizes["discs"], sizes["density"])
    count = sizes["cameras"]
    angles = math.pi * ((torch.arange(count) + 0.5) / count - 0.5)
    train = views(scene, angles, sizes)
    others = {
        "seen side": views(scene, math.pi * (torch.arange(1, count) / count - 0.5), sizes),
        "unseen side": views(scene, angles + math.pi, sizes),
    }
    judge = partial(_judge_views, others=others)
    data = TensorDataset(train.rays, train.colours)
    loader = DataLoader(data, batch_size=sizes["batch_size"], shuffle=True)
    model = partial(pixels_model, num_pixels=len(data))
    return Problem(RadianceField(sizes), PRIOR, model, (), {"batches": loader}, judge)


def _judge_views(model: Any, guide: Any, others: dict[str, Views]) -> Row:
    row: Row = {}
    for side, view in others.items():
        row |= {f"{name}, {side}": value for name, value in _view(model, guide, view).items()}
    return row | {"log_density": row["log density, seen side"]}


def _view(model: Any, guide: Any, view: Views) -> Row:
    count = SETTINGS["num_draws"]
    found = evaluate(model, guide, view.rays, view.colours, num_samples=count)
    draws = predict(model, guide, view.rays, num_samples=count, sites=["mean"])["mean"]
    error = (draws.mean(0) - view.colours).square().mean(-1).sqrt()
    spread = draws.var(0).mean(-1).sqrt()
    return {
        "PSNR": -20 * math.log10(found.rmse.value),
        "log density": found.log_density.value,
        "coverage": found.coverage_90.value,
        "spread": float(spread.mean()),
        "rank correlation": _rank_correlation(spread, error),
    }


def _rank_correlation(first: Tensor, second: Tensor) -> float | None:
    """Of Spearman; None where all are the same."""
    if float(first.max() - first.min()) < 1e-6:
        return None
    ranks = torch.stack([first, second]).argsort(-1).argsort(-1).double()
    return float(torch.corrcoef(ranks)[0, 1])


PROBLEMS: dict[str, Callable[[bool], Problem]] = {"graph": _graph, "field": _field}


# ---- the tables


def table(rows: list[Row]) -> str:
    """What both problems have."""
    header = ["problem", "method", "latents", "fits", "log density", "ahead", "steps", "CPU s"]
    lines = []
    for problem, method, group in _groups(rows):
        numbers = [f"{statistics.fmean(r[k] for r in group):.0f}" for k in ("steps", "cpu_seconds")]
        cells = [_spread(group, "log_density"), _ahead(group, rows)]
        lines.append([problem, method, group[0]["latents"], len(group), *cells, *numbers])
    return format_table(header, lines)


def _ahead(group: list[Row], rows: list[Row]) -> str | None:
    """How far the log density is above that of mean-field with the same seeds."""
    problem = group[0]["problem"]
    others = [r for r in rows if (r["problem"], r["method"]) == (problem, "mean-field")]
    base = {row["seed"]: row["log_density"] for row in others}
    margins = [r["log_density"] - base[r["seed"]] for r in group if r["seed"] in base]
    is_base = group[0]["method"] == "mean-field"
    return mean_and_error(margins, "+.3f", ".3f") if margins and not is_base else None


def graph(rows: list[Row]) -> str:
    """Of the nodes without labels."""
    header = ["method", "accuracy", "NLL", "ECE", "CPU s"]
    lines = []
    for _, method, group in _groups([r for r in rows if r["problem"] == "graph"]):
        cells = [_spread(group, key) for key in ("accuracy", "nll", "ece")]
        lines.append([method, *cells, f"{statistics.fmean(r['cpu_seconds'] for r in group):.0f}"])
    return format_table(header, lines)


def field(rows: list[Row]) -> str:
    """Of views between those of training, and of those from the other half."""
    header = ["views", "method", "fits", "PSNR", "log density", "90% coverage", "spread"]
    header += ["spread and error", "CPU s"]
    lines = []
    groups = _groups([r for r in rows if r["problem"] == "field"])
    for side in ("seen side", "unseen side"):
        for _, method, group in groups:
            names = ("PSNR", "log density", "coverage", "spread", "rank correlation")
            forms = (".1f", ".2f", ".2f", ".3f", ".2f")
            cells = [
                _spread(group, f"{name}, {side}", form)
                for name, form in zip(names, forms, strict=True)
            ]
            seconds = f"{statistics.fmean(r['cpu_seconds'] for r in group):.0f}"
            lines.append([side, method, len(group), *cells, seconds])
    return format_table(header, lines)


def _groups(rows: list[Row]) -> list[tuple[str, str, list[Row]]]:
    keys = dict.fromkeys((row["problem"], row["method"]) for row in rows)
    return [(*key, [r for r in rows if (r["problem"], r["method"]) == key]) for key in keys]


def _spread(group: list[Row], key: str, form: str = ".3f") -> str | None:
    """Mean and, of several seeds, standard deviation."""
    values = [row[key] for row in group if row[key] is not None]
    if not values:
        return None
    mean = f"{statistics.fmean(values):{form}}"
    return f"{mean} ± {statistics.stdev(values):{form}}" if len(values) > 1 else mean
