"""
The synthetic curve of the paper on variational implicit processes (section 4.1).

300 inputs from N(0, 1), y = cos(5 x) / (|x| + 1) plus noise of scale 0.1; tested on the
noiseless curve at 1000 points of [-3, 3], with the predictive density of an observation; coverage
is of new observations there, exact over their noise. The prior is a 1-10-10-1 network with random
weights; Adam, rate 0.01, 500 steps on all data.

collapsed, frozen   marginal likelihood of 20 functions that stay the same
collapsed, fresh    of 20 new ones at each step; predicts with 200
weights, alpha      Gaussian posterior of the coefficients of 20 frozen functions, AlphaEnergy
exact GP            scikit-learn's, kernel RBF + periodic + white, optimised
sparse GP           Pyro's variational one, kernel RBF, 20 inducing inputs, 500 steps at 0.05
dropout             the network with dropout 0.01 at training and test (kept: 0.99, as in the paper)
ensemble of 5       the network from five starts, by maximum likelihood
mean-field          the network with normal weights, by the evidence bound: 2000 steps
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor
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
from benchmarks.papers.vip._paired import paired
from benchmarks.papers.vip._vip_curve import DROPOUT, Prediction, dropout, network
from benchmarks.papers.vip._vip_fits import Fit, train
from benchmarks.papers.vip._vip_peers import PEERS, Ensemble, MeanField
from benchmarks.records import write_record
from benchmarks.shared.bands import draw_bands
from benchmarks.shared.uci import Split
from benchmarks.shared.uci_peers import sparse_gaussian_process
from pyro_implicit import AlphaEnergy, ImplicitProcess
from pyro_implicit.processes import RandomNetwork

SETTINGS: dict[str, Any] = {
    "num_functions": 20,
    "num_functions_fresh": 200,
    "num_particles": 32,
    **DROPOUT,
    "peers": PEERS,
    "mean-field, times the steps": 4,
    "sparse GP": {"num_inducing": 20, "rate": 0.05},
}
NOISE = 0.1  # of the data


def curve(x: Tensor) -> Tensor:
    """The noiseless function of ``(N, 1)`` inputs."""
    return (torch.cos(5 * x) / (x.abs() + 1))[:, 0]


def data() -> tuple[Tensor, Tensor]:
    """The training set, from the random state."""
    x = torch.randn(300, 1)
    return x, curve(x) + NOISE * torch.randn(300)


def collapsed(
    x: Tensor, y: Tensor, new: Tensor, steps: range | Any, seed: int | None
) -> Prediction:
    """Trains the prior and the noise on the marginal likelihood; ``seed`` freezes functions."""
    prior, count = RandomNetwork(network()), SETTINGS["num_functions"]
    log_noise = torch.tensor(math.log(SETTINGS["noise"]), requires_grad=True)
    optimiser = torch.optim.Adam([*prior.parameters(), log_noise], lr=SETTINGS["lr"])
    for _ in steps:
        process = ImplicitProcess(prior, x, count, log_noise.exp(), seed=seed)
        optimiser.zero_grad()
        (-process.log_prob(y)).backward()
        optimiser.step()
    with torch.no_grad():
        more = count if seed is not None else SETTINGS["num_functions_fresh"]
        process = ImplicitProcess(prior, x, more, log_noise.exp(), seed=seed)
        posterior = process.condition(y, new, observed=True)
    return posterior.mean.float(), posterior.variance.sqrt().float()


def by_weights(x: Tensor, y: Tensor, new: Tensor, steps: Any, alpha: float) -> Prediction:
    """Trains prior, noise and a Gaussian of the coefficients by AlphaEnergy."""
    prior, count = RandomNetwork(network()), SETTINGS["num_functions"]

    def model(x: Tensor, y: Tensor) -> None:
        pyro.module("prior", prior)
        start = torch.tensor(SETTINGS["noise"])
        noise = pyro.param("noise", start, constraint=dist.constraints.positive)
        a = pyro.sample("a", dist.Normal(torch.zeros(count), 1.0).to_event(1))
        f = ImplicitProcess(prior, x, count, seed=0).weighted(a)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, noise), obs=y)

    guide = AutoMultivariateNormal(model)
    objective = AlphaEnergy(
        SETTINGS["num_particles"], alpha=alpha, vectorize_particles=True, max_plate_nesting=1
    )
    svi = SVI(model, guide, pyro.optim.Adam({"lr": SETTINGS["lr"]}), objective)
    for _ in steps:
        svi.step(x, y)
    with torch.no_grad():
        f = ImplicitProcess(prior, new, count, seed=0).marginals(guide.get_posterior())
        return f.mean, (f.variance + pyro.param("noise") ** 2).sqrt()


def exact_gp(x: Tensor, y: Tensor, new: Tensor, _: Any) -> Prediction:
    """An independent library's Gaussian process with an optimised compositional kernel."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, ExpSineSquared, WhiteKernel

    kernel = ConstantKernel() * RBF() + ConstantKernel() * ExpSineSquared() + WhiteKernel(0.1)
    gp = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a part of the kernel is not needed
        gp.fit(x.numpy(), y.numpy())
    mean, sd = gp.predict(new.numpy(), return_std=True)
    return torch.as_tensor(mean).float(), torch.as_tensor(sd).float()


def sparse_gp(x: Tensor, y: Tensor, new: Tensor, steps: Any) -> Prediction:
    """That of the UCI sets."""
    split = Split(x, y, new, torch.empty(0), 1.0)
    seed = torch.initial_seed()
    mean, sd = sparse_gaussian_process(split, seed, steps=steps, **SETTINGS["sparse GP"])
    return mean.float(), sd.float()


def by_fit(fit: Fit, x: Tensor, y: Tensor, new: Tensor, steps: Any) -> Prediction:
    """Of a peer that is a network, or some."""
    train(fit, (x, y), steps, rate=SETTINGS["lr"])
    with torch.no_grad():
        return fit.predict(x, y, new)


def ensemble(*job: Any) -> Prediction:
    """Several networks."""
    return by_fit(Ensemble(network, PEERS["num_members"], SETTINGS["noise"]), *job)


def mean_field(x: Tensor, y: Tensor, new: Tensor, steps: Any) -> Prediction:
    """More steps than the others have, which cost less."""
    more = range(SETTINGS["mean-field, times the steps"] * len(steps))
    fit = MeanField(network(), SETTINGS["noise"], **PEERS["mean-field"])
    return by_fit(fit, x, y, new, more)


METHODS: dict[str, Callable[..., Prediction]] = {
    "collapsed, frozen": lambda *job: collapsed(*job, seed=0),
    "collapsed, fresh": lambda *job: collapsed(*job, seed=None),
    "weights, alpha=0": lambda *job: by_weights(*job, alpha=0.0),
    "weights, alpha=0.5": lambda *job: by_weights(*job, alpha=0.5),
    "exact GP": exact_gp,
    "sparse GP": sparse_gp,
    "dropout": dropout,
    "ensemble of 5": ensemble,
    "mean-field": mean_field,
}


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    new = torch.linspace(-3, 3, 1000)[:, None]
    rows: list[dict[str, Any]] = []
    shown: dict[str, Prediction] = {}
    train = (torch.empty(0), torch.empty(0))
    for seed in arguments.seeds:
        with fixed_seed(seed):
            train = data()
        for method in arguments.methods:
            steps = trange(arguments.num_steps, desc=method, disable=arguments.quiet)
            with fixed_seed(seed), stopwatch() as watch:
                mean, sd = shown[method] = METHODS[method](*train, new, steps)
            row = {"method": method, "seed": seed, **scores(curve(new), (mean, sd))}
            rows.append(row | {"cpu_seconds": watch.cpu_seconds})
    print(table(rows))
    write_record("vip_synthetic", arguments, SETTINGS, rows)
    if arguments.figure is not None:
        draw_bands(arguments.figure, train, (new, curve(new)), shown, columns=3, limit=1.5)
    return rows


def scores(f: Tensor, prediction: Prediction) -> dict[str, float]:
    """
    :param torch.Tensor f: the noiseless curve.
    :param prediction: mean and deviation of an observation.
    """
    mean, sd = prediction
    noise, half = dist.Normal(f, NOISE), dist.Normal(0.0, 1.0).icdf(torch.tensor(0.95)) * sd
    return {
        "rmse": (mean - f).square().mean().sqrt().item(),
        "nll": -dist.Normal(mean, sd).log_prob(f).mean().item(),
        "coverage": (noise.cdf(mean + half) - noise.cdf(mean - half)).mean().item(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Means over seeds with their standard errors."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        keys = ("rmse", "nll", "coverage", "cpu_seconds")
        cells = [mean_and_error([row[key] for row in own], ".3f") for key in keys]
        lines.append([method, len(own), *cells])
    return format_table(["method", "seeds", "RMSE", "NLL", "90% coverage", "CPU s"], lines)


def differences(rows: list[dict[str, Any]]) -> str:
    """To the collapsed objective with fresh functions, on the same data."""
    return paired(rows, "collapsed, fresh")


def _options() -> Any:
    options = parser(
        __doc__ or "", seeds=range(5), methods=METHODS, figure="bands of the last seed"
    )
    options.add_argument("--num-steps", type=positive, default=500, help="(default: 500)")
    return options


if __name__ == "__main__":
    main()
