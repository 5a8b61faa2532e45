"""Bayesian networks on UCI sets by every objective, in equal CPU time."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

import pyro
import torch
from torch import Tensor
from tqdm.auto import tqdm

from benchmarks.common import fixed_seed, format_table, mean_and_error, parse, parser
from benchmarks.posterior._objectives_fits import AT_EQUAL_TIME, train
from benchmarks.posterior._objectives_targets import Target
from benchmarks.records import write_record
from benchmarks.shared.start import begin_at
from benchmarks.shared.uci import Model, Split, build_model, load_split, score
from benchmarks.shared.uci_fits import Workbench
from pyro_implicit import posterior_draws

DESCRIPTION = """\
The network of "uci_regression" (50 tanh units, unknown noise) on canonical splits, by the
objectives of "objectives": each from the same MAP fit, with the default HyperNetworkGuide, a
perceptron with a learned output noise for each latent, for the same CPU time, the rate falling from
5e-3 to 2.5e-4.

mean-field is AutoNormal by Trace_ELBO, from the same fit, with the same first deviations; so is
the full Gaussian (AutoMultivariateNormal).
Test RMSE, log-likelihood and 90% coverage in the target's units, means and standard errors over
splits; "margin" is the log-likelihood's difference to mean-field. Nothing was chosen."""

SETS = ("boston", "concrete", "power", "yacht")
#: Of those, what the default guide of a network makes the same as another, since it has output
#: noise of its own; and Pyro's couplings, which cannot begin at a fit: all weights are standard
#: normal, and the first losses are not finite.
_OTHER_GUIDES = ("coupling flow", "linearised, output noise", "IWAE, output noise")
_VARIANTS = ("KPG, weighed", "AISIVI, without own")
METHODS = tuple(name for name in AT_EQUAL_TIME if name not in (*_OTHER_GUIDES, *_VARIANTS))
SETTINGS: dict[str, Any] = {
    "cpu_seconds": 20.0,
    "num_particles": 16,
    "init_scale": 0.02,
    "num_draws": 500,
    "effort": 1.0,  # factor on the steps of the MAP fit
}
Row = dict[str, Any]


class Network(Target):
    """A network and its data, where a search for the mode has ended."""

    dim, nesting, log_evidence = 0, 1, None
    guide_noise: dict[str, Any] = {}  # the default guide of as many latents has its own

    def __init__(self, name: str, model: Model, split: Split, mode: dict[str, Tensor]) -> None:
        self.name, self.split, self.model_of, self._mode = name, split, model, mode
        self.num_particles, self.init_scale = SETTINGS["num_particles"], SETTINGS["init_scale"]

    def model(self) -> None:
        """See :func:`benchmarks.shared.uci.build_model`."""
        self.model_of(*self.split.data)

    def start(self, site: dict[str, object]) -> Tensor:
        """The mode."""
        return begin_at(self._mode)(site)

    def log_density(self, x: Tensor) -> Tensor:
        """
        :raises NotImplementedError: always.
        """
        raise NotImplementedError(f"{self.name!r} is judged by its predictions")

    def exact(self, n: int) -> Tensor:
        """
        :raises NotImplementedError: always.
        """
        raise NotImplementedError(f"{self.name!r} is judged by its predictions")


def run(arguments: Namespace) -> Iterator[Row]:
    """A row for each set, split and method."""
    todo = [(name, k) for name in arguments.sets for k in arguments.splits]
    seed = arguments.seeds[0]
    for name, k in tqdm(todo, disable=arguments.quiet):
        split = load_split(arguments.data_root, name, k)
        model = build_model(split.x.shape[1], len(split.x))
        bench = Workbench(model, split, seed, effort=SETTINGS["effort"], quiet=True)
        mode, watch = bench.mode()
        target = Network(name, model, split, mode)
        for method in arguments.methods:
            row = {"set": name, "split": k, "seed": seed, "method": method, "note": ""}
            pyro.clear_param_store()
            with fixed_seed(seed), pyro.validation_enabled(False):
                row |= _fitted(target, method, arguments.quiet)
            if "cpu_seconds" in row:
                row["cpu_seconds"] += watch.cpu_seconds
            yield row


def _fitted(target: Network, method: str, quiet: bool) -> Row:
    """What is measured, or what went wrong."""
    try:
        guide, found = train(target, method, 10**6, quiet, SETTINGS["cpu_seconds"])
        with torch.no_grad():
            draws = posterior_draws(guide, SETTINGS["num_draws"])
        return found | score(target.model_of, draws, target.split)
    except (ArithmeticError, RuntimeError, ValueError) as error:
        return {"note": f"{type(error).__name__}: {str(error)[:80]}"}


def table(rows: list[Row]) -> str:
    """Means over splits."""
    header = ["set", "method", "RMSE", "log-likelihood", "margin", "90% coverage"]
    header += ["steps", "memory, MB", "notes"]
    lines = []
    for name in dict.fromkeys(row["set"] for row in rows):
        of_set = [row for row in rows if row["set"] == name]
        for method in dict.fromkeys(row["method"] for row in of_set):
            same = [row for row in of_set if row["method"] == method]
            good = [row for row in same if "rmse" in row]
            cells = [_mean([row["rmse"] for row in good], ".3f")]
            cells += [_mean([row["log_likelihood"] for row in good], ".3f")]
            cells += [_mean(_margins(good, of_set), "+.3f")]
            cells += [_mean([row["coverage"] for row in good], ".3f")]
            steps = round(sum(row["steps"] for row in good) / len(good)) if good else None
            memory = [row["peak_mb"] for row in good if "peak_mb" in row]
            cells += [steps, f"{sum(memory) / len(memory):.1f}" if memory else None]
            notes = "; ".join(dict.fromkeys(row["note"] for row in same if row["note"]))
            lines.append([name, method, *cells, notes])
    return format_table(header, lines)


def _margins(rows: list[Row], others: list[Row]) -> list[float]:
    """Log-likelihoods less those of mean-field on the same splits."""
    own = {r["split"]: r for r in others if r["method"] == "mean-field" and "rmse" in r}
    return [
        row["log_likelihood"] - own[row["split"]]["log_likelihood"]
        for row in rows
        if row["split"] in own
    ]


def _mean(values: list[float], form: str) -> str | None:
    return mean_and_error(values, form, ".3f") if values else None


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Runs the benchmark and returns the rows."""
    options = parser(DESCRIPTION, seeds=[0], methods=METHODS)
    options.add_argument("--sets", nargs="+", default=list(SETS), metavar="NAME")
    options.add_argument("--splits", type=int, nargs="+", default=list(range(5)), metavar="K")
    arguments = parse(options, argv)
    rows: list[Row] = []
    for row in run(arguments):
        rows.append(row)
        write_record("objective_networks", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


if __name__ == "__main__":
    main()
