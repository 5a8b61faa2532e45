"""Random guides and objectives for random models, with what must be refused, and what must hold."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.infer.autoguide import (
    AutoDiagonalNormal,
    AutoGuideList,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
    init_to_feasible,
    init_to_mean,
    init_to_sample,
    init_to_uniform,
)
from torch import nn

import pyro_implicit as pi
from tests.sweeps.random_models import NONSENSE, ModelSpec, Problem, draw_model, weighted

AUTOGUIDES = {
    "AutoNormal": AutoNormal,
    "AutoDiagonalNormal": AutoDiagonalNormal,
    "AutoMultivariateNormal": AutoMultivariateNormal,
    "AutoLowRankMultivariateNormal": AutoLowRankMultivariateNormal,
}
STARTS = {
    "sample": init_to_sample,
    "mean": init_to_mean,
    "feasible": init_to_feasible,
    "uniform": init_to_uniform,
}
ENTROPIC = ("LinearisedELBO", "LanczosELBO", "SingularValueELBO", "SemiImplicitELBO", "AlphaEnergy")
CONTRASTIVE = ("KernelDensityRatioELBO", "AdversarialELBO")


@dataclass
class CaseSpec:
    """One case as plain values: a model, a guide and an objective, each with its options."""

    seed: int
    model: ModelSpec
    guide: str
    guide_options: dict[str, Any] = field(default_factory=dict)
    objective: str = "LinearisedELBO"
    objective_options: dict[str, Any] = field(default_factory=dict)


def draw_case(seed: int) -> CaseSpec:
    """The same case for the same seed."""
    r = random.Random(seed)
    guide = r.choice(
        ["HyperNetworkGuide"] * 4
        + ["MMNNGuide", "CMMNNGuide"]
        + ["ConditionalHyperNetworkGuide"] * 2
        + ["MixtureDensityGuide", "AutoGuideList", "hand"]
        + [r.choice(list(AUTOGUIDES))]
    )
    local = guide in ("ConditionalHyperNetworkGuide", "MixtureDensityGuide")
    improper = guide.endswith("Guide") and r.random() < 0.9
    model_seed = r.randrange(2**31)
    model = draw_model(model_seed, local=local, real=guide == "hand", improper=improper)
    if model.local and model.subsampled and guide in AUTOGUIDES:
        guide = "AutoNormal"  # the others have no create_plates
    explicit = guide == "MixtureDensityGuide" or guide in AUTOGUIDES
    objective = r.choice(
        ["PosteriorPredictiveLoss", "AlphaEnergy"]
        if explicit
        else ["LinearisedELBO", "PosteriorPredictiveLoss", *ENTROPIC, *CONTRASTIVE]
    )
    spec = CaseSpec(seed, model, guide, _guide_options(r, guide, objective, improper), objective)
    spec.objective_options = _objective_options(r, objective)
    return spec


def draw_nonsense(seed: int) -> CaseSpec:
    """A case with a model that cannot be meant so; the guide is one of ours for all latents."""
    r = random.Random(~seed)
    spec = draw_case(seed)
    nonsense = r.choice(NONSENSE)
    guides = ["HyperNetworkGuide", "MMNNGuide", "ConditionalHyperNetworkGuide"]
    if nonsense == "squared":
        guides.pop()  # it knows latents of the rows alone
    while spec.guide not in guides or not any("data" in s.plates for s in spec.model.observed):
        spec = draw_case(r.randrange(2**31))
    spec.guide_options.pop("init_from", None)
    spec.objective_options.pop("contrast", None)  # so that nothing but the nonsense is refused
    spec.model = replace(spec.model, nonsense=nonsense)
    if nonsense == "squared":
        spec.objective_options |= {"num_particles": 3, "vectorize_particles": True}
    return spec


#: what the error for nonsense must say
TOLD = {
    "discrete": "'wrong' is discrete|'wrong' is in no plate",
    "undeclared": "no plate declares dimension -1|'wrong' is in no plate",
    "unmappable": "latent site 'wrong'",
    "circular": "latent site 'wrong' has a VonMises distribution",
    "no latent": "no latent site to infer",
    "squared": "no plate",
}


def refusals(spec: CaseSpec) -> Iterator[str]:
    """What may be refused: patterns of messages. Any other refusal is a mistake of ours."""
    model, options, objective = spec.model, spec.guide_options, spec.objective_options
    prior = objective.get("contrast") == "prior"
    if spec.guide == "CMMNNGuide" and options.get("factorized"):
        yield "shares a trunk"
    if options.get("trunk_shapes") and len(model.latents) > 3:
        yield "columns for 4 groups"
    whole = options.get("init_from") == "AutoMultivariateNormal"
    if whole and model.local and model.subsampled:
        yield "it was fitted to other shapes"
    if model.local and model.subsampled:
        yield "nobody has said which of|latents of each row of plate"
    if prior and objective.get("prior_weight", 1.0) != 1:
        yield "the prior has no term of its own"
    if prior and model.improper:
        yield "is improper"
    weighed = any(not latent.weight.plain for latent in model.latents)
    if prior and (weighed or (model.local and model.subsampled)):
        yield "cannot tell them apart|shows the prior only some of its rows"
    parts = options.get("factorized") or spec.guide in ("AutoGuideList", "hand")
    if prior and model.coupled and parts:
        yield "depends on latents outside of implicit site"
    if spec.guide == "ConditionalHyperNetworkGuide" and prior:
        yield "it sees them together|shows the prior only some|compar"
    by_rows = any(latent.weight.mask == "rows" for latent in model.latents)
    if spec.objective in CONTRASTIVE and spec.guide == "hand" and by_rows:
        yield "a scale or mask that differs between its entries"
    if objective.get("proposal") == "gauss-newton":
        yield "which proposal='gauss-newton' does not know"
    if objective.get("rule", "gauss") != "gauss" and "scale" not in options:
        yield "has no output noise"
    outside = any("data" not in site.plates for site in model.observed)
    if options.get("num_components", 1) > 1 and outside:
        yield "each row's mixture must explain data of that row"
    if spec.guide == "MixtureDensityGuide" and spec.objective == "AlphaEnergy":
        yield "is not reparameterised"


def _guide_options(r: random.Random, guide: str, objective: str, improper: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}

    def sometimes(name: str, values: list[Any], chance: float = 0.3) -> None:
        if r.random() < chance:
            options[name] = r.choice(values)

    if guide in AUTOGUIDES:
        return options
    if guide != "MixtureDensityGuide":
        sometimes("scale", [0.01, 0.1, 1.0])
        sometimes("learn_scale", ["scalar", "diagonal"], 0.2)
        if objective == "SemiImplicitELBO":
            options["scale"] = r.choice([0.05, 0.5])
    if guide in ("HyperNetworkGuide", "ConditionalHyperNetworkGuide", "AutoGuideList"):
        sometimes("noise_dim", [1, 2, 5])
        sometimes("hidden_dims", [(4,), (5, 3)])
        sometimes("activation", ["tanh", "elu", "silu", "gelu", "softplus"])
        sometimes("init_scale", [0.03, 0.5])
        if guide == "HyperNetworkGuide" and r.random() < 0.25:
            options = {k: v for k, v in options.items() if k in ("scale", "learn_scale")}
            options["generator"] = r.choice(["residual", "perceptron", "linear", "module"])
    if guide == "MMNNGuide":
        sometimes("noise_shape", [(2, 2), (3, 2)], 0.5)
        sometimes("hidden_shapes", [[(3, 3)], []])
    if guide == "CMMNNGuide":
        sometimes("noise_shape", [(2, 2), (3, 2)], 0.5)
        sometimes("trunk_shapes", [[(3, 3)], []])
    if guide == "MixtureDensityGuide":
        sometimes("num_components", [1, 2])
    if guide in ("HyperNetworkGuide", "MMNNGuide", "CMMNNGuide"):
        sometimes("factorized", [True, "layer"])
        sometimes("init_loc_fn", list(STARTS))
        if not improper:
            sometimes("init_from", ["AutoNormal", "AutoMultivariateNormal"], 0.5)
    if guide == "ConditionalHyperNetworkGuide" and objective == "PosteriorPredictiveLoss":
        sometimes("shared_noise", [True])
    return options


def _objective_options(r: random.Random, objective: str) -> dict[str, Any]:
    options: dict[str, Any] = {"num_particles": r.choice([1, 1, 2, 3])}

    def sometimes(name: str, values: list[Any], chance: float = 0.25) -> None:
        if r.random() < chance:
            options[name] = r.choice(values)

    sometimes("vectorize_particles", [True], 0.5)
    if objective == "PosteriorPredictiveLoss":
        sometimes("prior_weight", [0.5, 1.0])
        sometimes("form", ["per_datum", "expected", "per_batch"], 0.6)
        return options
    sometimes("kl_weight", [0.0, 0.5])
    sometimes("prior_weight", [0.0, 0.5])
    if objective == "AlphaEnergy":
        sometimes("alpha", [0.0, 0.1, 1.0], 0.7)
    else:
        sometimes("likelihood", ["per_datum"])
    if objective not in CONTRASTIVE:
        sometimes("num_entropy_particles", [1])
    if objective == "LanczosELBO":
        sometimes("rule", ["gauss", "average", "radau"])
        sometimes("entropy_every", [2])
        if r.random() < 0.7:  # exact: as many probes and steps as dimensions
            options |= {"num_steps": 50, "num_probes": "all"}
        else:
            options |= {"num_steps": r.choice([1, 3]), "probes": "rademacher"}
    if objective == "SingularValueELBO":
        options |= {"num_iterations": r.choice([50, 200])}
        sometimes("warm_start", [False])
    if objective in CONTRASTIVE:
        options["num_samples"] = r.choice([4, 8])
        sometimes("contrast", ["prior", "adaptive"], 0.5)
    if objective == "AdversarialELBO":
        options["num_critic_steps"] = 1
    if objective == "SemiImplicitELBO":
        options["num_inner"] = r.choice([1, 5])
        sometimes("bound", ["upper"])
        sometimes("proposal", ["gauss-newton"])
    return options


# ---- from a specification to a guide and an objective


class HandWritten(nn.Module):
    """A guide of one's own: one ``sample_implicit`` per latent, in the model's plates."""

    def __init__(self, problem: Problem, options: dict[str, Any]) -> None:
        super().__init__()
        self.problem = problem
        scale = options.get("scale", 0.1)
        learned = options.get("learn_scale")
        self.generators = nn.ModuleList()
        self.log_scales = nn.ParameterList()
        for latent in problem.spec.latents:
            m = latent.event[0]
            self.generators.append(pi.generators.MLPGenerator(2, m, (3,)))
            shape = (m,) if learned == "diagonal" else ()
            value = torch.full(shape, float(scale)).log()
            self.log_scales.append(nn.Parameter(value, requires_grad=bool(learned)))
        self.to(problem.spec.dtype)

    def forward(self, x: Any, y: Any, idx: Any = None) -> None:
        made = self.problem.plates(x, idx)
        counts = {"data": self.problem.spec.batch, "groups": self.problem.spec.groups}
        for latent, generator, log_scale in zip(
            self.problem.spec.latents, self.generators, self.log_scales, strict=True
        ):
            pyro.module(f"hand_{latent.name}", generator)
            fn = pi.ImplicitDistribution(generator, scale=log_scale.exp())
            with self.problem.inside(made, latent.plates):
                count = counts[latent.plates[-1]] if latent.plates else 0
                with weighted(latent.weight, latent.plates, count, x):
                    pi.distributions.sample_implicit(latent.name, fn)


def make_guide(spec: CaseSpec, problem: Problem) -> Any:
    """The guide of a case; Pyro's own is built by a call where ours starts from it."""
    options = dict(spec.guide_options)
    plates = problem.create_plates if problem.spec.local and problem.spec.subsampled else None
    if spec.guide in AUTOGUIDES:
        return _autoguide(spec.guide, problem)
    if spec.guide == "hand":
        return HandWritten(problem, options)
    if "init_loc_fn" in options:
        options["init_loc_fn"] = STARTS[options["init_loc_fn"]]
    if "generator" in options:
        options["generator"] = {
            "residual": partial(pi.generators.ResidualGenerator, hidden_dim=3),
            "perceptron": lambda n: pi.generators.MLPGenerator(n, n, (3,), skip=True),
            "linear": lambda n: nn.Linear(n, n),
            "module": lambda n: pi.generators.ModuleGenerator(nn.Linear(n + 1, n), (n + 1,), n),
        }[options["generator"]]
    if "init_from" in options:
        started = _autoguide(options["init_from"], problem)
        started(*problem.args)
        options["init_from"] = started
    if spec.guide == "AutoGuideList":
        return _guide_list(problem, options, plates)
    if plates is not None:
        options["create_plates"] = plates
    return getattr(pi, spec.guide)(problem.model, **options)


def _autoguide(name: str, problem: Problem) -> Any:
    """One of Pyro's; only one of them takes plates."""
    if name == "AutoNormal" and problem.spec.local and problem.spec.subsampled:
        return AutoNormal(problem.model, create_plates=problem.create_plates)
    return AUTOGUIDES[name](problem.model)


def _guide_list(problem: Problem, options: dict[str, Any], plates: Any) -> AutoGuideList:
    """The first latent with an implicit guide, the others with a Gaussian one."""
    guide = AutoGuideList(problem.model, create_plates=plates)
    first, *others = (latent.name for latent in problem.spec.latents)
    guide.append(pi.HyperNetworkGuide(poutine.block(problem.model, expose=[first]), **options))
    if others:
        guide.append(AutoNormal(poutine.block(problem.model, expose=others)))
    return guide


def make_objective(spec: CaseSpec, sizes: list[int]) -> Any:
    """:param sizes: of the guide's implicit sites; so many probes leave no chance to Lanczos."""
    options = dict(spec.objective_options)
    if options.get("num_probes") == "all":
        options["num_probes"] = min(math.lcm(*sizes), 100)
    return getattr(pi, spec.objective)(**options)
