"""
Photovoltaic molecules (section 4.4 of the paper on variational implicit processes).

Power conversion efficiency from the string of a molecule, symbol by symbol, by a recurrent network;
scores in standard deviations of the training targets. Short by default: 2000 of the 29 978
molecules (70% to fit, 15% to stop early, 15% to test), 32 hidden units. --cell gated has one gate
in the place of a long short-term memory's three, and its functions are evaluated together. The
paper's network is --cell lstm --hidden 200 --num-molecules 29978.

process, alpha=0.5   random weights as prior, 10 frozen functions, Gaussian coefficients
process, collapsed   marginal likelihood of 10 new functions on each minibatch; predicts with 50
mean-field           mean-field VI of the weights
plain                the network and one noise scale, by maximum likelihood
ensemble of 5        five of these, trained together, each from a start of its own

All: Adam, minibatches of 250, early stopping on the validation rows. Molecules, their order and
everything else follow from the seed.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor, nn
from tqdm.auto import trange

from benchmarks.common import (
    fixed_seed,
    format_table,
    mean_and_error,
    parse,
    parser,
    positive,
    stopwatch,
)
from benchmarks.papers.vip._cep import CELLS, Molecules, load_molecules
from benchmarks.papers.vip._paired import paired
from benchmarks.papers.vip._vip_fits import (
    Collapsed,
    Fit,
    Weights,
    interval_coverage,
    negative_log_likelihood,
    train,
)
from benchmarks.papers.vip._vip_peers import PEERS, Ensemble
from benchmarks.records import write_record
from pyro_implicit import BayesianModule, posterior_draws
from pyro_implicit.processes import RandomNetwork
from pyro_implicit.training import EarlyStopping

SETTINGS: dict[str, Any] = {
    "num_functions": 10,
    "num_predictive": 50,
    "batch_size": 250,
    "rate": 0.01,
    "noise": 0.5,
    "parts": [0.7, 0.15, 0.15],
    "patience": 4,
    "every": 30,
    "draws": 30,
    "num_members": PEERS["num_members"],
    "init_scale": 0.02,
    "rows_at_once": 500,  # of a prediction: ten functions of 4500 rows and 200 units are 3 GB
}
Prediction = tuple[Tensor, Tensor]
Part = tuple[Tensor, Tensor]


class Plain(Fit):
    """One network, one noise scale."""

    def loss(self, x: Tensor, y: Tensor, num_rows: int) -> Tensor:
        return -dist.Normal(self.prior(x)[:, 0], self.noise).log_prob(y).mean()

    def predict(self, x: Tensor, y: Tensor, new: Tensor, factor: float = 1.0) -> Prediction:
        mean = self.prior(new)[:, 0]
        return mean, (self.noise * factor).expand_as(mean)


def by_fit(
    make: Callable[[nn.Module], Fit], parts: Sequence[Part], steps: Any, network: nn.Module
) -> tuple[Prediction, int]:
    """Early stopping on the second part, prediction of the third."""
    fitted, held, test = parts
    fit = make(network)

    def predict(new: Tensor) -> Prediction:
        # functions of a process of whole data are evaluated there too: once
        blocks = [new] if isinstance(fit, Collapsed) else new.split(SETTINGS["rows_at_once"])
        means, deviations = zip(*(fit.predict(*fitted, rows) for rows in blocks), strict=True)
        return torch.cat(means), torch.cat(deviations)

    def score() -> float:
        return negative_log_likelihood(held[1], predict(held[0]))

    every = min(SETTINGS["every"], len(steps))
    options = {"batch_size": SETTINGS["batch_size"], "patience": SETTINGS["patience"]}
    count = train(fit, fitted, steps, rate=SETTINGS["rate"], score=score, every=every, **options)
    with torch.no_grad():
        return predict(test[0]), count


def mean_field(parts: Sequence[Part], steps: Any, network: nn.Module) -> tuple[Prediction, int]:
    """Normal weights, started at small ones; N(0, 1 / fan-in) priors."""
    (x, y), held, test = parts
    scales = {name: p[0].numel() ** -0.5 for name, p in network.named_parameters() if p.dim() > 1}
    net = BayesianModule(
        network, prior=lambda name, p: dist.Normal(0.0, scales.get(name, 0.2)).expand(p.shape)
    )

    def model(batch: Tensor, y: Tensor | None = None) -> Tensor:
        noise = pyro.param(
            "noise", torch.tensor(SETTINGS["noise"]), constraint=dist.constraints.positive
        )
        mean = net(batch)[:, 0]
        with pyro.plate("data", len(x), subsample_size=len(batch)):
            return pyro.sample("y", dist.Normal(mean, noise), obs=y)

    guide = AutoNormal(model, init_scale=SETTINGS["init_scale"])
    svi = SVI(model, guide, pyro.optim.Adam({"lr": SETTINGS["rate"]}), Trace_ELBO())

    def predict(new: Tensor) -> Prediction:
        draws = posterior_draws(guide, SETTINGS["draws"], new)
        rows = []
        for index in range(SETTINGS["draws"]):
            one = {name: value[index] for name, value in draws.items()}
            with torch.no_grad(), pyro.poutine.block(), pyro.poutine.condition(data=one):
                rows.append(net(new)[:, 0])
        f = torch.stack(rows)
        return f.mean(0), (f.var(0) + pyro.param("noise").detach() ** 2).sqrt()

    stopping = EarlyStopping(SETTINGS["patience"])
    every = min(SETTINGS["every"], len(steps))
    for step in steps:
        rows = torch.randperm(len(x))[: SETTINGS["batch_size"]]
        svi.step(x[rows], y[rows])
        if (step + 1) % every == 0:
            score = negative_log_likelihood(held[1], predict(held[0]))
            if stopping.step(score, guide):
                break
    stopping.restore(guide)
    return predict(test[0]), ((stopping.best_step or 0) + 1) * every


def _process(kind: str) -> Callable[..., tuple[Prediction, int]]:
    count, more = SETTINGS["num_functions"], SETTINGS["num_predictive"]

    def make(network: nn.Module) -> Fit:
        prior = RandomNetwork(network)
        if kind == "collapsed":
            return Collapsed(prior, SETTINGS["noise"], count, more)
        return Weights(prior, SETTINGS["noise"], count, 0.5)

    return lambda *job: by_fit(make, *job)


def _ensemble(network: nn.Module) -> Fit:
    """Networks of the same kind, and one step for all of them."""

    def make() -> nn.Module:
        other = copy.deepcopy(network)
        for part in other.modules():
            if isinstance(part, nn.Linear | nn.LSTM):
                part.reset_parameters()
        return other

    return Ensemble(make, SETTINGS["num_members"], SETTINGS["noise"])


METHODS: dict[str, Callable[..., tuple[Prediction, int]]] = {
    "process, alpha=0.5": _process("weights"),
    "process, collapsed": _process("collapsed"),
    "mean-field": mean_field,
    "plain": lambda *job: by_fit(lambda network: Plain(network, SETTINGS["noise"]), *job),
    "ensemble of 5": lambda *job: by_fit(_ensemble, *job),
}


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with their standard errors."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        scores = ("rmse", "nll", "rmse_percent")
        cells = [mean_and_error([row[key] for row in own], ".2f") for key in scores]
        known = [row["coverage"] for row in own if "coverage" in row]
        cells.insert(2, mean_and_error(known, ".2f") if known else "")
        steps = ", ".join(str(row["steps"]) for row in own)
        seconds = statistics.fmean(row["cpu_seconds"] for row in own)
        lines.append([method, len(own), *cells, steps, f"{seconds:.0f}"])
    header = ["method", "seeds", "RMSE", "NLL", "90% coverage", "RMSE, percent", "steps"]
    return format_table([*header, "CPU s"], lines)


def differences(rows: list[dict[str, Any]]) -> str:
    """To the plain network, on the same molecules."""
    return paired(rows, "plain")


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        count = arguments.num_molecules
        ends = [round(count * sum(SETTINGS["parts"][:i])) for i in range(4)]
        data = load_molecules(arguments.data_root, count, ends[1], seed)
        parts = [data.part(a, b) for a, b in zip(ends, ends[1:], strict=False)]
        for method in arguments.methods:
            steps = trange(arguments.num_steps, desc=method, disable=arguments.quiet)
            with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
                network = CELLS[arguments.cell](data.x.shape[2], arguments.hidden)
                prediction, num_steps = METHODS[method](parts, steps, network)
            row = {"method": method, "seed": seed, "cell": arguments.cell, "steps": num_steps}
            row |= _scores(data, parts[2][1], prediction)
            rows.append(row | {"cpu_seconds": watch.cpu_seconds})
            write_record("vip_cep", arguments, SETTINGS, rows)
    print(table(rows))
    return rows


def _scores(data: Molecules, y: Tensor, prediction: Prediction) -> dict[str, float]:
    rmse = (prediction[0] - y).square().mean().sqrt().item()
    nll = negative_log_likelihood(y, prediction)
    if not math.isfinite(rmse + nll):
        raise SystemExit("error: a fit has diverged")
    coverage = interval_coverage(y, prediction)
    return {"rmse": rmse, "nll": nll, "rmse_percent": rmse * data.y_scale, "coverage": coverage}


def _options() -> Any:
    options = parser(__doc__ or "", seeds=[0], methods=METHODS)
    options.add_argument("--num-molecules", type=positive, default=2000, help="(default: 2000)")
    options.add_argument("--cell", choices=CELLS, default="lstm", help="(default: lstm)")
    options.add_argument("--hidden", type=positive, default=32, help="units (default: 32)")
    options.add_argument("--num-steps", type=positive, default=600, help="at most (default: 600)")
    return options


if __name__ == "__main__":
    main()
