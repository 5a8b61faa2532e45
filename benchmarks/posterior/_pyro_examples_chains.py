"""Examples of Pyro whose own inference is NUTS."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import torch
from pyro import poutine
from pyro.infer.autoguide import init_to_value
from torch import Tensor

from benchmarks.posterior._pyro_examples_judges import Draws, Moments, Predictive, Scores, chain
from benchmarks.posterior._pyro_examples_problem import Declared, Example, Problem, Settings
from pyro_implicit import HyperNetworkGuide

__all__ = ["CHAINS"]

_EVENT = "model: `.to_event(1)` at latents outside of plates"
#: hits in the first 45 at-bats of 1970, at-bats and averages of the rest: Efron and Morris (1975)
_HITS = (18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7)
_REST = (367, 426, 521, 275, 418, 466, 586, 138, 510, 200, 538, 186, 435, 277, 591, 558, 408, 70)
_AVERAGE = (
    *(0.346, 0.298, 0.276, 0.222, 0.273, 0.270, 0.263, 0.210, 0.269),
    *(0.230, 0.264, 0.226, 0.303, 0.264, 0.256, 0.285, 0.316, 0.200),
)


def _reference(model: Any, args: tuple[Any, ...], settings: Settings, **options: Any) -> Draws:
    lengths = {"num_draws": settings["reference"], "warmup": settings["reference_warmup"]}
    return chain(model, *args, **lengths, **options)


def _chain_problem(
    model: Any, args: tuple[Any, ...], lengths: tuple[int, int], settings: Settings, **more: Any
) -> Problem:
    """One chain of the example's length, and errors against a long one."""
    draws, warmup = (max(2, int(n * settings["chain_share"])) for n in lengths)
    own = partial(chain, model, *args, num_draws=draws, warmup=warmup, **more)
    reference = _reference(model, args, settings, **more)
    judge = Moments(model, args, reference, settings["draws"])
    return Problem(model, args, own, judge)


def _eight_schools(module: Any, settings: Settings) -> Problem:
    data = module.data
    model = poutine.condition(Declared()(module.model), data={"obs": data.y})
    return _chain_problem(model, (data.sigma,), (1000, 1000), settings)


def _lkj(module: Any, settings: Settings) -> Problem:
    y = torch.randn(500, 5).double()
    return _chain_problem(Declared()(module.model), (y,), (200, 100), settings, step_size=1e-5)


def _baseball(name: str, module: Any, settings: Settings) -> Problem:
    hits = torch.tensor(_HITS, dtype=torch.float)
    at_bats = torch.full_like(hits, 45.0)
    rest = torch.tensor(_REST, dtype=torch.float)
    season = at_bats + rest, hits + (rest * torch.tensor(_AVERAGE)).round()
    model = getattr(module, name)
    problem = _chain_problem(model, (at_bats, hits), (200, 100), settings)
    score = Predictive(partial(_observed, model, season), problem.args, settings["draws"])
    moments = problem.judge

    def judge(fitted: Any) -> Scores:
        return moments(fitted) | score(fitted)

    problem.judge = judge
    return problem


def _observed(model: Any, args: tuple[Any, ...], draw: Draws) -> Tensor:
    trace = poutine.trace(poutine.condition(model, data=dict(draw))).get_trace(*args)
    trace.compute_log_prob()
    found: Tensor = trace.nodes["obs"]["log_prob"]
    return found


def _sir(module: Any, settings: Settings) -> Problem:
    args = Namespace(population=10, recovery_time=7.0, duration=10, forecast=0)
    args.basic_reproduction_number, args.response_rate, args.min_observations = 1.5, 0.5, 3
    module.args = args
    data = module.generate_data(args)["obs"]
    start = init_to_value(values=module.heuristic_init(args, data.clone()))
    options: dict[str, Any] = {"full_mass": [("R0", "rho")], "max_tree_depth": 5}
    options["init_strategy"] = start
    model = module.vectorized_model
    problem = _chain_problem(model, (args, data), (200, 100), settings, **options)
    problem.guide = partial(HyperNetworkGuide, init_loc_fn=start)
    return problem


CHAINS = {
    "eight schools, NUTS": Example("eight_schools/mcmc.py", _eight_schools, "NUTS", _EVENT),
    "LKJ": Example("lkj.py", _lkj, "NUTS", _EVENT),
    "SIR": Example("sir_hmc.py", _sir, "NUTS"),
}
for _name in ("fully_pooled", "not_pooled", "partially_pooled", "partially_pooled_with_logit"):
    CHAINS[f"baseball, {_name.replace('_', ' ')}"] = Example(
        "baseball.py", partial(_baseball, _name), "NUTS"
    )
