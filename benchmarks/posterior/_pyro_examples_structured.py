"""Examples of Pyro with more structure: a mixture, topics, a process, random effects of a chain."""

from __future__ import annotations

import math
from argparse import Namespace
from functools import partial
from typing import Any

import pyro
import pyro.contrib.gp as gp
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO, TraceEnum_ELBO
from pyro.optim import Adam, ClippedAdam
from torch import Tensor

from benchmarks.posterior._pyro_examples_judges import (
    Bound,
    Draws,
    Predictive,
    Scores,
    chain,
    draws_of,
)
from benchmarks.posterior._pyro_examples_problem import Example, Problem, Settings, trained

__all__ = ["STRUCTURED"]


# ---- a mixture of two, of five numbers


def _mixture(module: Any, settings: Settings) -> Problem:
    y = module.data
    exact = _mixture_moments(*_prior_of_mixture(settings["reference"] * 2000), y)
    draws, warmup = (max(2, int(n * settings["chain_share"])) for n in (250, 50))
    own = partial(chain, module.model, y, num_draws=draws, warmup=warmup, max_plate_nesting=1)

    def judge(fitted: Any) -> Scores:
        """Of what does not depend on the order of the components."""
        found = draws_of(fitted, settings["draws"], y)
        parts = (found["weights"], found["scale"].reshape(-1), found["locs"].reshape(-1, 2))
        mean, deviation = _moments(_free_of_order(*parts), torch.ones(len(parts[1])))
        errors = [(mean - exact[0]) / exact[1], (deviation / exact[1]).log()]
        return {"error": float(torch.cat(errors).square().mean().sqrt())}

    return Problem(module.model, (y,), own, judge, limit="looped_steps")


def _prior_of_mixture(num: int) -> tuple[Tensor, Tensor, Tensor]:
    weights = dist.Dirichlet(torch.full((2,), 0.5)).sample((num,))
    scale = dist.LogNormal(0.0, 2.0).sample((num,))
    return weights, scale, dist.Normal(0.0, 10.0).sample((num, 2))


def _free_of_order(weights: Tensor, scale: Tensor, locs: Tensor) -> Tensor:
    """Log-deviation, both locations in order, and the logit of the lower one's share."""
    order = locs.argsort(-1)
    shares = weights.gather(-1, order).clamp(1e-6, 1 - 1e-6)
    ordered = locs.gather(-1, order)
    return torch.stack([scale.log(), *ordered.unbind(-1), shares[:, 0].logit()], -1).double()


def _mixture_moments(
    weights: Tensor, scale: Tensor, locs: Tensor, data: Tensor
) -> tuple[Tensor, Tensor]:
    """By draws of the prior, weighed by the likelihood."""
    each = dist.Normal(locs, scale.unsqueeze(-1))
    terms = [(each.log_prob(datum) + weights.log()).logsumexp(-1) for datum in data]
    return _moments(_free_of_order(weights, scale, locs), sum(terms, 0 * scale).softmax(0))


def _moments(values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    share = (weights / weights.sum()).double()
    mean = share @ values
    return mean, (share @ (values - mean).square()).sqrt()


# ---- topics


def _topics(module: Any, settings: Settings) -> Problem:
    args = Namespace(num_topics=3, num_words=16, num_docs=30, num_words_per_doc=40)
    args.layer_sizes, kwargs = "16-16", {"args": args}
    _, _, words = module.model(args=args)
    train, held = words[:32], words[32:]
    args.num_words_per_doc = 32
    guide = partial(module.parametrized_guide, module.make_predictor(args))

    def own() -> Draws:
        optimiser, bound = ClippedAdam({"lr": 0.01}), TraceEnum_ELBO(max_plate_nesting=2)
        trained(module.model, guide, optimiser, bound, 1000, train, **kwargs)
        traces = [poutine.trace(guide).get_trace(train, **kwargs) for _ in range(200)]
        names = ("topic_words", "doc_topics")
        return {n: torch.stack([t.nodes[n]["value"].detach() for t in traces]) for n in names}

    def judge(fitted: Any) -> Scores:
        """Of eight further words of each document, in nats a word."""
        draws = draws_of(fitted, 200, train, **kwargs)
        topics, share = draws["topic_words"], draws["doc_topics"]
        shape = (len(share), -1, args.num_topics)
        density = share.reshape(shape) @ topics.reshape(len(topics), args.num_topics, -1)
        each = density.clamp(min=1e-30).log().gather(-1, held.T.expand(len(share), -1, -1))
        return {"held-out": float((each.logsumexp(0) - math.log(len(share))).mean())}

    return Problem(module.model, (train,), own, judge, kwargs=kwargs, limit="looped_steps")


# ---- a Gaussian process with priors on its kernel, as in the tutorial gp.ipynb


def _process(_: Any, settings: Settings) -> Problem:
    x = dist.Uniform(0.0, 5.0).sample((40,))
    y = 0.5 * torch.sin(3 * x) + dist.Normal(0.0, 0.2).sample((40,))
    sizes = {"variance": torch.tensor(5.0), "lengthscale": torch.tensor(10.0)}
    kernel = gp.kernels.RBF(input_dim=1, **sizes)
    process = gp.models.GPRegression(x[:20], y[:20], kernel, noise=torch.tensor(1.0))
    for name in sizes:
        setattr(kernel, name, pyro.nn.PyroSample(dist.LogNormal(0.0, 1.0)))
    bound, adam = Trace_ELBO(), Adam({"lr": 0.005})
    own = partial(trained, process.model, process.guide, adam, bound, 2000)

    def likelihood(draw: Draws) -> Tensor:
        parts = [_log_density(process, draw, x[:n], y[:n]) for n in (40, 20)]
        return parts[0] - parts[1]

    judge = Predictive(likelihood, (), settings["draws"] // 4)

    def per_datum(fitted: Any) -> Scores:
        scores = {"held-out": judge(fitted)["held-out"] / 20}
        process.set_data(x[:20], y[:20])
        return scores

    return Problem(process.model, (), own, per_datum)


def _log_density(process: Any, draw: Draws, x: Tensor, y: Tensor) -> Tensor:
    process.set_data(x, y)
    trace = poutine.trace(poutine.condition(process.model, data=dict(draw))).get_trace()
    found: Tensor = trace.nodes["y"]["fn"].log_prob(y)
    return found.reshape(1)


# ---- random effects of a hidden Markov model


def _mixed_hmm(module: Any, settings: Settings) -> Problem:
    config = _animals(num_groups=2, num_animals=4, length=10)
    model, guide = (partial(f, config) for f in (module.model_generic, module.guide_generic))
    bound, steps = TraceEnum_ELBO(max_plate_nesting=2), max(1000, settings["num_steps"])
    own = partial(trained, model, guide, Adam({"lr": 0.05}), bound, steps)
    return Problem(model, (), own, Bound(model, (), 2, settings["bound_draws"]))


def _animals(num_groups: int, num_animals: int, length: int) -> dict[str, Any]:
    """Steps, angles and dives of animals that are in one of two states, made up."""
    shape = (num_animals, num_groups, length)
    state = (torch.rand(shape[:2]).unsqueeze(-1) + torch.linspace(0, 3, length)).long() % 2
    rate = 1.0 + 3.0 * state
    effect = {"random": "continuous", "fixed": None}
    return {
        "MISSING": 1e-6,
        "sizes": {
            "state": 3,
            "random": 4,
            "group": num_groups,
            "individual": num_animals,
            "timesteps": length,
        },
        "group": effect,
        "individual": effect | {"mask": torch.ones(shape[:2]).bool()},
        "timestep": {"random": None, "fixed": None, "mask": torch.ones(shape).bool()},
        "observations": {
            "step": dist.Gamma(2.0, rate).sample(),
            "angle": dist.VonMises(torch.zeros(shape), rate).sample(),
            "omega": dist.Beta(rate, 2.0).sample(),
        },
    }


_CELLS = ("data = torch", "K = 2")
STRUCTURED = {
    "mixture of two": Example("gmm.ipynb", _mixture, "NUTS, enumeration", cells=_CELLS),
    "GP regression": Example("", _process, "AutoDelta"),
    "LDA": Example("lda.py", _topics, "amortised guide, enumeration"),
    "mixed HMM": Example("mixed_hmm/model.py", _mixed_hmm, "Normal guide, enumeration"),
}
