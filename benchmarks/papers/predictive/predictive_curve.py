"""
Posterior-predictive training on x sin x with four points that break the pattern (section 3.1, 3.2
and appendix F of Dabrowski and Pagendam; their Fig. 2, 3, 4, 10).

32 points of x sin x on [-5, 6] and the points (7, -7), (8.5, 7), (10, -7), (11.5, 7), standardised.
Gaussian likelihood of scale 0.1 (the paper's 0.01 trains raggedly), annealed from 1 over the first
half. Posterior models of table 1: 4 noises and 16 ReLU units, 10 draws. The primary model is a
perceptron with --hidden units, or with --hidden 0 a straight line.

A method is a posterior model and a form of the loss. "best" is the state with the best predictive
density on validation data (the curve between the points, and the extra points with the other sign),
"last" that of the last step.

rmse      of the mean of the draws against the noiseless curve, among the regular points
sd        of the draws: median and largest at the regular points, smallest at the extra ones
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyro
from pyro.infer import HMC, MCMC, Predictive, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from torch import Tensor
from tqdm.auto import trange

from benchmarks.common import fixed_seed, parse, parser, positive, stopwatch
from benchmarks.papers.predictive._predictive import (
    Data,
    draws_at,
    loss,
    make_guide,
    make_model,
    negative_log_predictive,
    train,
    x_sin_x,
)
from benchmarks.papers.predictive._tables import over_seeds, paired
from benchmarks.records import write_record
from benchmarks.shared.curves import draw_curves
from pyro_implicit import AdversarialELBO, HyperNetworkGuide
from pyro_implicit.training import Annealed

SETTINGS: dict[str, Any] = {
    "scale": 0.1,
    "num_particles": 10,
    "num_draws": 200,
    "hmc": {"step_size": 1e-3, "num_steps": 25, "warmup_steps": 200, "num_samples": 800},
}
#: posterior model and form of the loss
METHODS: dict[str, tuple[str, str]] = {
    "conditional, per datum": ("conditional", "per_datum"),
    "conditional, expected": ("conditional", "expected"),
    "unconditioned, per datum": ("unconditioned", "per_datum"),
    "unconditioned, expected": ("unconditioned", "expected"),
    "mixture density, per datum": ("mdn", "per_datum"),
    "unconditioned, per batch": ("unconditioned", "per_batch"),
    "unconditioned, prior 1": ("unconditioned", "expected"),
    "mean-field": ("mean-field", ""),
    "prior-contrastive": ("adversarial", ""),
    "HMC": ("HMC", ""),
}


def fit(
    method: str, data: Data, hidden: int, lr: float, steps: Any
) -> list[tuple[str, int, dict[str, float], Tensor]]:
    """Of each state that is kept: its name, its step, its measures, and 30 draws on the grid."""
    kind, form = METHODS[method]
    scale = Annealed(1.0, SETTINGS["scale"], max(1, len(steps) // 2))
    model, net = make_model(hidden, scale, len(data.x), local=kind in ("conditional", "mdn"))
    if kind == "HMC":
        at = _hmc(model, net, data, scale, steps)
        return [
            (
                "last",
                min(len(steps), SETTINGS["hmc"]["num_samples"]),
                measures(at, data),
                at(data.x_test)[:30],
            )
        ]
    guide, objective = _guide_and_objective(kind, form, method, model, net)

    def drawn(x: Tensor) -> Tensor:
        return draws_at(model, guide, x, num_samples=SETTINGS["num_draws"])

    def score() -> float:
        x, y = data.validation[:, :1], data.validation[:, 1]
        return negative_log_predictive(drawn(x), y, SETTINGS["scale"])

    states = train(
        model,
        guide,
        objective,
        (data.x, data.y),
        steps,
        num_steps=len(steps),
        lr=lr,
        scale=scale,
        score=score if form else None,
        check_every=max(1, len(steps) // 40),
    )
    results = []
    for state in states:
        state.put(guide)
        results.append((state.name, state.step, measures(drawn, data), drawn(data.x_test)[:30]))
    return results


def _guide_and_objective(kind: str, form: str, method: str, model: Any, net: Any) -> Any:
    num = SETTINGS["num_particles"]
    if form:
        weight = 1.0 if "prior" in method else 0.0
        return make_guide(kind, model, net), loss(form, num, prior_weight=weight)
    options: dict[str, Any] = {"vectorize_particles": True, "max_plate_nesting": 1}
    start = {"init_loc_fn": net.init_to_module}
    if kind == "mean-field":
        return AutoNormal(model, init_scale=0.01, **start), Trace_ELBO(num, **options)
    guide = HyperNetworkGuide(model, noise_dim=4, hidden_dims=(16,), scale=0.01, **start)
    critic = AdversarialELBO(num, contrast="prior", num_samples=50, **options)
    return guide, critic


def _hmc(model: Any, net: Any, data: Data, scale: Annealed, steps: Any) -> Any:
    """Table 1: 25 leapfrog steps of size 0.001, at the final scale of the likelihood."""
    scale.num_taken += scale.num_steps
    options = SETTINGS["hmc"]
    count = min(len(steps), options["num_samples"])
    start = {name: value.detach() for name, value in net.module.named_buffers()}
    kernel = HMC(
        model,
        step_size=options["step_size"],
        num_steps=options["num_steps"],
        adapt_step_size=False,
        adapt_mass_matrix=False,
        init_strategy=init_to_value(values=start),
    )
    chain = MCMC(kernel, count, min(count, options["warmup_steps"]), disable_progbar=True)
    chain.run(data.x, data.y)
    found = chain.get_samples()
    draws = {name: found[name][:: max(1, count // 200)] for name in net.site_names}

    def at(x: Tensor) -> Tensor:
        found = Predictive(model, draws, return_sites=["f"])(x)["f"]
        return found.reshape(len(found), -1)

    return at


def measures(at: Callable[[Tensor], Tensor], data: Data) -> dict[str, float]:
    """Accuracy and spread of a fit."""
    f = at(data.x_test)
    regular, extra = at(data.x[: -len(data.extra)]).std(0), at(data.extra).std(0)
    error = (f.mean(0) - data.y_test)[data.regular]
    return {
        "rmse": error.square().mean().sqrt().item(),
        "sd regular": regular.median().item(),
        "sd regular, max": regular.max().item(),
        "sd extra, min": extra.min().item(),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """One line for a method and a state: means over seeds with their standard errors."""
    measured = {
        "step": ("step", ".0f"),
        "rmse": ("rmse", ".3f"),
        "sd regular": ("sd regular", ".3f"),
        "sd regular, max": ("largest", ".2f"),
        "sd extra, min": ("sd extra", ".3f"),
        "cpu_seconds": ("CPU s", ".0f"),
    }
    return over_seeds(rows, ("method", "state"), measured)


def differences(rows: list[dict[str, Any]]) -> str:
    """What each method has more than the first one in the same state, paired by seed."""
    measured = {
        "rmse": ("rmse", "+.3f"),
        "sd regular": ("sd regular", "+.3f"),
        "sd extra, min": ("sd extra", "+.3f"),
    }
    return paired(rows, next(iter(METHODS)), ("state",), measured)


def main(argv: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Runs the benchmark and returns the rows."""
    arguments = parse(_options(), argv)
    data = x_sin_x()
    settings = {**SETTINGS, "hidden": arguments.hidden, "lr": arguments.lr}
    settings["num_steps"] = arguments.num_steps
    rows: list[dict[str, Any]] = []
    panels: dict[str, Tensor] = {}
    for seed in arguments.seeds:
        for method in arguments.methods:
            steps = trange(arguments.num_steps, desc=method, disable=arguments.quiet)
            with fixed_seed(seed), pyro.validation_enabled(False), stopwatch() as watch:
                found = fit(method, data, arguments.hidden, arguments.lr, steps)
            for state, step, measured, curves in found:
                row = {"method": method, "seed": seed, "state": state, "step": step, **measured}
                rows.append(row | {"cpu_seconds": watch.cpu_seconds})
                panels[f"{method} ({state})"] = curves
            write_record("predictive_curve", arguments, settings, rows)
    print(table(rows))
    if arguments.figure is not None:
        draw_curves(arguments.figure, data.x, data.y, data.x_test, panels)
    return rows


def _options() -> Any:
    options = parser(
        __doc__ or "", seeds=range(5), methods=METHODS, figure="curves of the last seed"
    )
    options.add_argument("--num-steps", type=positive, default=3000, help="(default: 3000)")
    options.add_argument("--hidden", type=int, default=512, help="units; 0: a line (default: 512)")
    options.add_argument("--lr", type=float, default=3e-3, help="of Adam (default: 0.003)")
    return options


if __name__ == "__main__":
    main()
