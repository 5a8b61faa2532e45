"""One network that learns task after task, by one of several methods."""

from __future__ import annotations

import copy
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal, init_to_value
from pyro.optim import ClippedAdam
from torch import Tensor, nn
from torch.distributions import constraints

from benchmarks.posterior._continual_problems import Data, Problem
from pyro_implicit import BayesianModule, HyperNetworkGuide, LinearisedELBO, fit, posterior_draws
from pyro_implicit.bayesian import JointPrior
from pyro_implicit.bayesian.joint_site import JointSite
from pyro_implicit.inference import GuidePrior, prior_from

__all__ = ["METHODS", "Learner"]

METHODS = {
    "no update": "implicit, the first prior for each task, started at the last posterior",
    "mean field": "AutoNormal, Trace_ELBO, its moments carried on (VCL)",
    "implicit, diagonal": "HyperNetworkGuide, LinearisedELBO, variances carried on",
    "implicit, low rank": "the same, and covariances in 10 directions",
    "implicit, itself": "the guide whole, as GuidePrior",
    "mean field, coreset": "some rows of each task kept, learned last of all before predictions",
    "implicit, coreset": "the same with covariances in 10 directions",
    "all data": "HyperNetworkGuide on the data of all tasks so far",
}


class Learner:
    """
    One network that learns task after task.

    :param str method: of :data:`METHODS`.
    :param Problem problem: the network, and the likelihood of its outputs.
    :param dict settings: ``steps`` and ``rate``, and these of mean field; ``particles``, ``draws``
        and ``coreset``; ``by_fit``: whether to train by :func:`fit`, which cools by itself and has
        a rate of its own for each guide (None), or by a loop that is the same for all;
        ``own_start``: whether implicit guides begin the first task as they do by themselves, or at
        the network's initialisation with small deviations, as the mean-field ones.
    """

    def __init__(self, method: str, problem: Problem, settings: dict[str, Any]) -> None:
        self.method, self.problem, self.settings = method, problem, settings
        self.network = problem.network
        self.start = JointPrior(_sites(self.network, problem.empty()[0]), *_flat(self.network))
        self.prior: JointPrior | None = None
        self.guide: Any = None
        self.coreset: list[Data] = []
        #: the model in which guides are priors, and how each makes latents of its noise
        self.model: Any = None
        self.priors: list[GuidePrior] = []

    def learn(self, data: Data, before: list[Data]) -> None:
        """Takes one task; the data of those before it are for the method that keeps all."""
        if self.method == "all data":
            data = _joined([*before, data])
        if self.method == "implicit, itself":
            self._learn_whole(data)
            return
        if self.method.endswith("coreset"):
            count = self.settings["coreset"]
            self.coreset.append(tuple(part[:count] for part in data))
            data = tuple(part[count:] for part in data)
        carried = self._fit(self._model(self.prior), self.start, data)
        self.guide = carried
        self.start = prior_from(carried, num_samples=300, seed=0)
        if self.method not in ("no update", "all data"):
            self.prior = self._carried(carried)
        if self.coreset:  # for predictions alone: what goes on has not seen it
            self.guide = copy.deepcopy(carried)
            pyro.clear_param_store()  # which has the original's under the names of the copy's
            self._descend(self._model(self.prior), self.guide, _joined(self.coreset))

    def _model(self, prior: JointPrior | None) -> Any:
        normal = dist.Normal(0.0, 1.0)
        prior_of_weights = normal if prior is None else prior
        return self.problem.model(BayesianModule(self.network, prior=prior_of_weights))

    def _carried(self, guide: Any) -> JointPrior:
        low_rank = self.method in ("implicit, low rank", "implicit, coreset")
        form = "low-rank" if low_rank else "diagonal"
        return prior_from(guide, form=form, num_samples=500, seed=0)

    def _learn_whole(self, data: Data) -> None:
        if self.model is None:
            self.model = self._model(None)
            start = self.start
        else:
            prior = GuidePrior(self.guide)
            self.priors.append(prior)
            self.model = prior(self.model)
            noise = torch.zeros(prior.noise_dim)
            site = JointSite(prior.noise_name, noise.shape, 1, constraints.real_vector)
            start = JointPrior([site], noise, torch.ones_like(noise))
        self.guide = self._fit(self.model, start, data)

    def _fit(self, model: Any, start: JointPrior, data: Data) -> Any:
        """A guide that begins as the Gaussian ``start`` and is fitted to one task."""
        pyro.clear_param_store()
        guide: Any = _gaussian(model, start, data)
        if not self.method.startswith("mean field"):
            is_own = self.settings["own_start"] and self.guide is None  # of the first task alone
            implicit = HyperNetworkGuide(model, init_from="auto" if is_own else guide)
            guide = implicit if is_own else implicit.setup(*data)
        self._descend(model, guide, data)
        return guide

    def _descend(self, model: Any, guide: Any, data: Data) -> None:
        """Trains a guide, those of one kind as long and as quickly."""
        settings, is_mean_field = self.settings, self.method.startswith("mean field")
        steps, rate = (settings[is_mean_field * "mean_field_" + key] for key in ("steps", "rate"))
        kind = Trace_ELBO if is_mean_field else LinearisedELBO
        objective = kind(settings["particles"], vectorize_particles=True, max_plate_nesting=1)
        if settings["by_fit"]:
            options = {"objective": objective, "num_steps": steps, "lr": rate, "progress": False}
            fit(model, guide, *data, **options)
            return
        cooling = 0.03 ** (1 / max(steps, 1))
        svi = SVI(model, guide, ClippedAdam({"lr": rate, "lrd": cooling}), objective)
        for _ in range(steps):
            svi.step(*data)

    @torch.no_grad()
    def scores(self, data: Data) -> dict[str, float]:
        """How good the averaged predictions of some data are."""
        x, y = data
        draws, outputs = self.draws(), []
        for s in range(self.settings["draws"]):
            weights = {name: value[s] for name, value in draws.items()}
            outputs.append(torch.func.functional_call(self.network, weights, (x,)).squeeze(-1))
        return self.problem.judge(torch.stack(outputs), y)

    def draws(self) -> dict[str, Tensor]:
        """Weights by name, draws in front."""
        found = posterior_draws(self.guide, self.settings["draws"], *self.problem.empty())
        for prior in reversed(self.priors):
            found = prior.transform_sample(found[prior.noise_name])
        return found


def _joined(parts: list[Data]) -> Data:
    return tuple(torch.cat(part) for part in zip(*parts, strict=True))


def _sites(network: nn.Module, x: Tensor) -> tuple[Any, ...]:
    """The sites of the network, as a fitted guide would tell them."""
    guide = AutoNormal(BayesianModule(network, prior=dist.Normal(0.0, 1.0)))
    guide(x)
    return prior_from(guide).sites


def _flat(network: nn.Module) -> tuple[Tensor, Tensor]:
    """Where the first task begins: at the initialisation, with small deviations."""
    loc = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    return loc, torch.full_like(loc, 0.03)


def _gaussian(model: Any, start: JointPrior, data: Data) -> AutoNormal:
    """A mean-field guide with these moments."""
    assert start.scale is not None
    parts = start.loc.split([site.numel for site in start.sites])
    values = {s.name: p.reshape(s.shape) for s, p in zip(start.sites, parts, strict=True)}
    guide = AutoNormal(model, init_loc_fn=init_to_value(values=values))
    guide(*data)
    for site, scale in zip(start.sites, start.scale.split([len(p) for p in parts]), strict=True):
        _set_scale(guide, site.name, scale.reshape(site.shape))
    return guide


def _set_scale(guide: AutoNormal, name: str, scale: Tensor) -> None:
    """Sets the deviations of one site of a mean-field guide."""
    owner: Any = guide.scales
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    setattr(owner, last, scale)
