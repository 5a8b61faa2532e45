"""What is laid over the weights of a network: nothing, a point, a Gaussian, an implicit guide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyro.distributions as dist
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoNormal
from torch import nn

from pyro_implicit import BayesianModule, HyperNetworkGuide, MMNNGuide
from pyro_implicit.bayesian import last_layer

__all__ = ["METHODS", "Problem"]

Model = Callable[..., Any]
Row = dict[str, Any]
Fit = tuple[Model, Any, Any]  # model, guide, objective: None for that which ``fit`` chooses


@dataclass(frozen=True)
class Problem:
    """
    A network with its data.

    :param torch.nn.Module network: at its own first values.
    :param prior: of its weights, where they have one.
    :param model: makes a Pyro model of a Bayesian network.
    :param args: arguments of ``fit`` that are passed by place: all data, or none.
    :param dict options: arguments by name.
    :param judge: scores of a model with its guide.
    """

    network: nn.Module
    prior: Any
    model: Callable[[BayesianModule], Model]
    args: tuple[Any, ...]
    options: dict[str, Any]
    judge: Callable[[Model, Any], Row]


def _point(problem: Problem, prior: Any) -> Fit:
    net = BayesianModule(problem.network, prior=prior)
    model = problem.model(net)
    return model, AutoDelta(model, init_loc_fn=net.init_to_module), None


def _mean_field(problem: Problem) -> Fit:
    net = BayesianModule(problem.network, prior=problem.prior)
    model = problem.model(net)
    guide = AutoNormal(model, init_loc_fn=net.init_to_module, init_scale=0.01)
    # as many draws as the implicit guides have, all at once as there
    return model, guide, Trace_ELBO(4, vectorize_particles=True, max_plate_nesting=1)


def _implicit(kind: Callable[[Model], Any], problem: Problem) -> Fit:
    model = problem.model(BayesianModule(problem.network, prior=problem.prior))
    return model, kind(model), None


def _last_layer(problem: Problem) -> Fit:
    prior = last_layer(problem.network, problem.prior)
    model = problem.model(BayesianModule(problem.network, prior=prior))
    return model, HyperNetworkGuide(model), None


METHODS: dict[str, Callable[[Problem], Fit]] = {
    "maximum likelihood": lambda problem: _point(problem, dist.Normal(0.0, 1000.0)),  # nearly flat
    "MAP": lambda problem: _point(problem, problem.prior),
    "mean-field": _mean_field,
    "implicit": partial(_implicit, HyperNetworkGuide),
    "MMNN": partial(_implicit, MMNNGuide),
    "last layer": _last_layer,
}
