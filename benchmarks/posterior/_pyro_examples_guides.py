"""Examples of Pyro whose own inference is a guide or a mode, with latents that are enumerated."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from pyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoNormal
from pyro.optim import Adam, MultiStepLR
from torch import Tensor

from benchmarks.posterior._pyro_examples_judges import Bound, Draws, HeldOut, Predictive
from benchmarks.posterior._pyro_examples_problem import Example, Problem, Settings, trained

__all__ = ["GUIDES"]


def _eight_schools(module: Any, settings: Settings) -> Problem:
    args = (module.data,)
    steps = max(1000, settings["num_steps"])  # those of the example, or more
    adam = Adam({"lr": 0.01})
    own = partial(trained, module.model, module.guide, adam, Trace_ELBO(), steps, *args)
    return Problem(module.model, args, own, Bound(module.model, args, 1, settings["bound_draws"]))


def _linear(module: Any, settings: Settings) -> Problem:
    """That of ``svi_torch.py`` and ``svi_lightning.py``."""
    model = module.Model(2000)
    x = torch.randn(2000)
    with torch.no_grad():
        args = (x, model(x))
    own = partial(
        *(trained, model, AutoNormal(model), Adam({"lr": 0.01}), Trace_ELBO()),
        *(max(1000, settings["num_steps"]), *args),
    )
    return Problem(model, args, own, Bound(model, args, 1, settings["bound_draws"]))


def _toy_mixture(module: Any, settings: Settings) -> Problem:
    prior, _, data = module.generate_data(10_000)
    args = (prior, data, 10_000)
    bound = TraceEnum_ELBO(max_plate_nesting=1)
    steps, adam = max(4000, settings["num_steps"]), Adam({"lr": 0.01})
    own = partial(trained, module.model, module.guide, adam, bound, steps, *args)
    return Problem(module.model, args, own, Bound(module.model, args, 1, settings["bound_draws"]))


def _recapture(number: str, module: Any, settings: Settings) -> Problem:
    folder = module.__file__.rpartition("/")[0]
    history = np.genfromtxt(f"{folder}/dipper_capture_history.csv", delimiter=",")[:, 1:]
    sex = np.genfromtxt(f"{folder}/dipper_sex.csv", delimiter=",")[:, 1]
    args = (torch.tensor(history).float(), torch.tensor(sex).float())
    model = module.models[number]
    bound = TraceEnum_ELBO(max_plate_nesting=1, num_particles=20, vectorize_particles=True)
    shown = poutine.block(model, expose_fn=lambda msg: msg["name"][:3] in ("phi", "rho"))
    guide = AutoDiagonalNormal(shown)
    own = partial(
        *(trained, model, guide, Adam({"lr": 0.002}), bound, max(400, settings["num_steps"]), *args)
    )
    return Problem(model, args, own, Bound(model, args, 1, settings["bound_draws"]))


# ---- modes


def _sparse_regression(module: Any, settings: Settings) -> Problem:
    num_rows, num_inputs = 200, 20
    x, y, _, _ = module.get_data(N=num_rows, P=num_inputs, S=3, Q=2, sigma_obs=0.15)
    hypers = dict.fromkeys(("alpha1", "alpha2"), 3.0)
    hypers |= {"beta1": 1.0, "beta2": 1.0, "alpha3": 1.0, "c": 1.0}
    hypers["expected_sparsity"] = max(1.0, num_inputs / 10)
    train = (x[:100], y[:100], hypers)

    def own() -> Any:
        guide = AutoDelta(module.model, init_loc_fn=module.init_loc_fn)
        rates = {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.3}, "gamma": 0.2}
        cooled = MultiStepLR(rates | {"milestones": [100, 300, 700, 900]})
        steps = max(1000, settings["num_steps"])
        return trained(module.model, guide, cooled, Trace_ELBO(), steps, *train)

    def likelihood(draw: Draws) -> Tensor:
        """Of the other half given the first, joint, in nats a row."""
        both, first = ((x, y, hypers), train)
        parts = [_log_prob(module.model, draw, "Y", *args) for args in (both, first)]
        return (parts[0] - parts[1]).reshape(1)

    judge = Predictive(likelihood, train, settings["draws"] // 4)

    def per_row(fitted: Any) -> dict[str, float]:
        return {"held-out": judge(fitted)["held-out"] / 100}

    return Problem(module.model, train, own, per_row)


def _log_prob(model: Any, draw: Draws, site: str, *args: Any) -> Tensor:
    trace = poutine.trace(poutine.condition(model, data=dict(draw))).get_trace(*args)
    found: Tensor = trace.nodes[site]["fn"].log_prob(trace.nodes[site]["value"])
    return found


def _sequences(hidden: int, size: int, length: int, num: int) -> tuple[Tensor, Tensor]:
    """Of a chain of states that stay with 0.85, each with tones of its own; ragged."""
    moves = 0.8 * torch.eye(hidden) + 0.2 / hidden
    tones = dist.Beta(0.3, 0.7).sample((hidden, size))
    state, steps = torch.zeros(num).long(), []
    for _ in range(length):
        state = dist.Categorical(moves[state]).sample()
        steps.append(dist.Bernoulli(tones[state]).sample())
    return torch.stack(steps, 1), torch.randint(length // 2, length + 1, (num,))


def _hmm(number: str, module: Any, settings: Settings) -> Problem:
    model, hidden, size, length = module.models[number], 4, 8, 8
    sequences, lengths = _sequences(hidden, size, length, 60)
    lengths[0] = lengths[20] = length
    train = (sequences[:20], lengths[:20])
    kwargs = {"args": Namespace(hidden_dim=hidden, jit=False)}
    shown = poutine.block(model, expose_fn=lambda msg: msg["name"].startswith("probs_"))
    guide, bound = AutoDelta(shown), TraceEnum_ELBO(max_plate_nesting=2)

    def own() -> Any:
        steps, adam = settings["looped_steps"], Adam({"lr": 0.05})
        return trained(model, guide, adam, bound, steps, *train, **kwargs)

    per = size * float(lengths[20:].float().mean())
    held = (sequences[20:], lengths[20:])
    judge = HeldOut(model, held, kwargs, settings["draws"] // 10, per)
    return Problem(model, train, own, judge, kwargs=kwargs, limit="looped_steps")


_NORMAL = "AutoDiagonalNormal"
GUIDES = {
    "eight schools, SVI": Example("eight_schools/svi.py", _eight_schools, "Normal guide"),
    "SVI with torch": Example("svi_torch.py", _linear, "AutoNormal", "whole data, no loader"),
    "toy mixture": Example(
        "toy_mixture_model_discrete_enumeration.py", _toy_mixture, "Beta guide, enumeration"
    ),
}
for _n in "12345":
    GUIDES[f"capture-recapture {_n}"] = Example(
        "capture_recapture/cjs.py", partial(_recapture, _n), f"{_NORMAL}, enumeration"
    )
GUIDES["sparse regression"] = Example("sparse_regression.py", _sparse_regression, "AutoDelta")
for _n in "1234":
    GUIDES[f"HMM {_n}"] = Example("hmm.py", partial(_hmm, _n), "AutoDelta, enumeration")
