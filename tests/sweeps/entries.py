"""
A valid call of every public name, which the sweep spoils one argument at a time.

**A new public name is one entry here**: its smallest valid arguments, and what uses the result (for
arguments that are looked at late).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from stochman import nnj
from torch import nn

import pyro_implicit as pi
from pyro_implicit.diagnostics import plots
from pyro_implicit.diagnostics.vsbc import Calibration
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.inference import Score
from pyro_implicit.training import lightning

#: modules beside the package itself whose names are meant for users
MODULES = (
    pi.arviz,
    pi.bayesian,
    pi.chains,
    pi.diagnostics,
    pi.distributions,
    pi.generators,
    pi.guides,
    pi.inference,
    pi.objectives,
    pi.processes,
    pi.training,
    lightning,
    plots,
)

#: names in them that no user makes or calls: results, what the package hands to a hook of one's
#: own, and bases and parts whose arguments the package fills in
HANDED_OUT = {
    "C2ST",
    "Calibration",
    "Chains",
    "Conditioned",
    "ConditionalGuide",
    "ContrastiveELBO",
    "Critic",
    "DiagonalMixture",
    "EntropyReport",
    "KHat",
    "Kernel",
    "LanczosReport",
    "LatentSite",
    "LogDensity",
    "MixtureDensityNetwork",
    "ParticleBatch",
    "Preconditioner",
    "Reads",
    "Score",
    "SingularValueReport",
    "SiteEvaluation",
    "SteinDiscrepancy",
    "Terms",
    "as_generator",
    "init_to_fan_in",
}

ROWS = 6
X = torch.linspace(-1.0, 1.0, ROWS)[:, None]
Y = X[:, 0].sin()


def model(x, y=None):
    scale = pyro.sample("scale", dist.LogNormal(-1.0, 0.5))
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", ROWS, subsample_size=len(x)):
        return pyro.sample("y", dist.Normal(w[..., 0] * x[:, 0] + w[..., 1], scale), obs=y)


def flat_model(x, y=None):
    """The same without a plate, so that any ``max_plate_nesting`` is enough."""
    scale = pyro.sample("scale", dist.LogNormal(-1.0, 0.5))
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    f = w[..., :1] * x[:, 0] + w[..., 1:]
    return pyro.sample("y", dist.Normal(f, scale[..., None]).to_event(1), obs=y)


def local_model(x, y=None):
    with pyro.plate("data", ROWS, subsample_size=len(x)):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        return pyro.sample("y", dist.Normal(w * x[:, 0], 0.3), obs=y)


class OwnGuide(pi.guides.ImplicitGuide):
    def _make_generator(
        self, output_dim: int, sites: list[LatentSite], preconditioned: bool
    ) -> Any:
        return pi.generators.ResidualGenerator(output_dim, 2)


class OwnGenerator(pi.generators.Generator):
    def forward(self, z):
        return z.flatten(-len(self.noise_shape))[..., : self.output_dim]


class OwnObjective(pi.ImplicitELBO):
    def estimate(self, site):
        return site.distribution.half_log_det()


class OwnParticleObjective(pi.ParticleObjective):
    def terms_of(self, batch):
        return {"log_likelihood": batch.log_likelihood.mean()}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1))


@cache
def guide() -> Any:
    return pi.HyperNetworkGuide(model, hidden_dims=(3,), scale=0.05).setup(X, Y)


@cache
def _flow_guide() -> Any:
    return pi.HyperNetworkGuide(model).setup(X, Y)


def process(**settings: Any) -> Any:
    settings = {"num_functions": 4, "noise_scale": 0.3, "seed": 0} | settings
    return pi.ImplicitProcess(pi.processes.RandomNetwork(network()), X, **settings)


def _site() -> dict[str, Any]:
    fn = pi.ImplicitDistribution(pi.generators.MLPGenerator(2, 2, (3,))).given(torch.zeros(4, 2))
    return {"name": "w", "distribution": fn, "value": torch.zeros(4, 2), "latents": ("w",)}


@cache
def _local_guide() -> Any:
    return pi.ConditionalHyperNetworkGuide(local_model, hidden_dims=(3,)).setup(X, Y)


@cache
def _trained_critic() -> Any:
    objective = pi.AdversarialELBO(num_critic_steps=1, num_samples=8)
    train_with(objective)
    return objective


def draws(count: int = 20) -> dict[str, Any]:
    return {"scale": torch.rand(count), "w": torch.randn(count, 2)}


@cache
def exported() -> Any:
    return pi.to_arviz(model, guide(), X, Y, num_samples=10)


@cache
def evaluated() -> pi.inference.EvaluationReport:
    return pi.evaluate(model, guide(), X, Y, num_samples=2, seed=0)


@cache
def report() -> Any:
    return pi.entropy_report(guide(), num_samples=4, num_inner=3, num_starts=1, num_steps=2)


@cache
def _axes() -> Any:
    return Figure().subplots()  # without a window, and not kept by pyplot


def axes() -> Any:
    _axes().clear()
    return _axes()


def ranks() -> Calibration:
    return Calibration({"w": torch.arange(20).reshape(10, 2) % 4}, 3)


def _fitted(data: Any) -> Any:
    return guide()


# ---- what uses a result


def draw_from_guide(made: Any) -> Any:
    return made.setup(X, Y).sample(2, X, Y)


def train_with(made: Any) -> Any:
    return made.loss_and_grads(flat_model, guide(), X, Y)


def generate(made: Any) -> Any:
    return made(torch.randn(2, *made.noise_shape))


def call_it(made: Any) -> Any:
    return made(2) if callable(made) else made


def draw_functions(made: Any) -> Any:
    return made(X, 2)


def draw_from(made: Any) -> Any:
    return made.rsample((2,))


def iterate(made: Any) -> Any:
    return list(made)


def nothing(made: Any) -> Any:
    return made


@dataclass(frozen=True)
class Entry:
    """
    :param valid: valid arguments by name, made anew for each call. Those before ``*args`` in the
        signature are passed by position, followed by ``args``.
    :param use: called with the result.
    :param target: what is called, if not the public name itself: for an abstract class a subclass.
    :param args: what is passed for ``*args``.
    :param passed_on: arguments whose contents go unseen to code of the user's own: a network, a
        collation. What that raises is its.
    :param takes: by argument, what it takes that its name and annotation do not tell.
    :param long: arguments whose default, which a sweep meets among its values, takes many seconds.
    """

    valid: Callable[[], dict[str, Any]] = dict
    use: Callable[[Any], Any] = nothing
    target: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    passed_on: tuple[str, ...] = ()
    takes: Mapping[str, Callable[[Any], bool]] = field(default_factory=dict)
    long: tuple[str, ...] = ()


def fixed(use: Callable[[Any], Any] = nothing, /, **valid: Any) -> Entry:
    return Entry(partial(dict, **valid), use)


def _guide(**valid: Any) -> Entry:
    return fixed(draw_from_guide, model=model, **valid)


def _local(**valid: Any) -> Entry:
    return fixed(draw_from_guide, model=local_model, **valid)


def _density(**valid: Any) -> Entry:
    return Entry(lambda: dict(guide=guide(), num_inner=3, num_starts=1, **valid))


def _evaluated() -> Entry:
    return Entry(lambda: dict(model=model, guide=guide()), args=(X, Y))


CLASSES: dict[str, Entry] = {
    "AISIVI": fixed(train_with, num_inner=2),
    "AdversarialELBO": fixed(train_with, num_critic_steps=1, num_samples=8),
    "AlphaEnergy": fixed(train_with, num_particles=2),
    "AmortisedSVGD": fixed(train_with, num_particles=3),
    "Anneal": Entry(
        lambda: dict(target=pi.LinearisedELBO(), attribute="kl_weight", schedule=lambda step: 1.0)
    ),
    "Annealed": fixed(lambda made: made(), start=1.0, end=0.1, num_steps=10),
    "BayesianModule": Entry(
        lambda: dict(module=network(), prior=dist.Normal(0.0, 1.0)), lambda made: made(X)
    ),
    "AutoregressiveGenerator": Entry(
        lambda: dict(output_dim=3, hidden_dim=2),
        generate,
        takes={"num_steps": lambda v: type(v) is int and v == 0},
    ),
    "ConditionalAutoregressiveGenerator": Entry(
        lambda: dict(output_dim=2, context_dim=1, hidden_dim=2),
        generate,
        takes={"num_steps": lambda v: type(v) is int and v == 0},
    ),
    "BijectiveGenerator": fixed(generate, output_dim=3, hidden_dim=2),
    "CMMNN": fixed(generate, group_sizes=[10, 12]),
    "CMMNNGuide": _guide(),
    "ConditionalHyperNetworkGuide": _local(hidden_dims=(3,)),
    "EarlyStopping": fixed(lambda made: made.step(1.0)),
    "EvaluationReport": Entry(
        lambda: dict(log_density=Score(-1.0, 0.1), sites={}, num_samples=2, rows={}, notes=())
    ),
    "EnsembleGuide": Entry(
        lambda: dict(guides=[guide(), guide()], model=model, data=(X, Y), num_samples=3),
        lambda made: made.sample(2),
        passed_on=("data",),
    ),
    "FitResult": Entry(
        lambda: dict(
            history=[1.0, 2.0], reason="limit", objective=pi.LinearisedELBO(), seconds=1.0
        ),
        takes={
            "history": lambda v: isinstance(v, list) and v == [-1],  # losses
            "warnings": lambda v: isinstance(v, list) and v == ["a"],
            "state": lambda v: isinstance(v, dict) and v == {"a": 1},
            "start": lambda v: isinstance(v, str),
        },
    ),
    "Generator": Entry(lambda: dict(noise_shape=(3,), output_dim=2), generate, OwnGenerator),
    "HMC": fixed(),
    "HyperNetworkGuide": _guide(hidden_dims=(3,)),
    "IWAE": fixed(train_with, num_particles=2, num_inner=2),
    "ImplicitDistribution": Entry(
        lambda: dict(generator=pi.generators.MLPGenerator(2, 2, (3,))), draw_from
    ),
    "ImplicitELBO": Entry(dict, train_with, OwnObjective),
    "ImplicitGuide": Entry(lambda: dict(model=model), draw_from_guide, OwnGuide),
    "ImplicitProcess": Entry(
        lambda: dict(
            prior=pi.processes.RandomNetwork(network()), inputs=X, num_functions=3, noise_scale=0.3
        ),
        lambda made: made.log_prob(made.rsample()),
        passed_on=("inputs",),
    ),
    "KernelDensityRatioELBO": fixed(train_with, num_samples=8),
    # objectives judge the numbers of draws; to look at them here would wait for the device
    "ImplicitSite": Entry(
        _site, takes={"value": lambda v: isinstance(v, torch.Tensor) and v.is_floating_point()}
    ),
    "KPG": fixed(train_with, num_particles=3),
    "KSIVI": fixed(train_with, num_particles=4),
    "JointPrior": Entry(
        lambda: dict(
            sites=pi.inference.prior_from(guide(), num_samples=30).sites,
            loc=torch.zeros(guide().latent_dim),
            scale=torch.ones(guide().latent_dim),
        )
    ),
    "LanczosELBO": fixed(train_with, num_steps=2),
    "LightningVI": Entry(
        lambda: dict(model=model, guide=guide(), objective=pi.LinearisedELBO()),
        lambda made: made(X, Y),
    ),
    "LinearisedELBO": fixed(train_with),
    "MCLMC": fixed(),
    "MLPGenerator": fixed(generate, noise_dim=2, output_dim=3, hidden_dims=(4,)),
    "MMNN": fixed(generate, output_dim=30),
    "MMNNGuide": _guide(),
    "MixtureDensityGuide": _local(hidden_dims=(3,)),
    "ModuleGenerator": Entry(
        lambda: dict(module=nn.Linear(2, 3), noise_shape=(2,), output_dim=3), generate
    ),
    "NeuralSampler": fixed(draw_functions, in_features=1, noise_dim=2, hidden_dims=(3,)),
    "NeuTraReparam": Entry(lambda: dict(guide=_flow_guide())),
    "GuidePrior": Entry(lambda: dict(guide=_flow_guide(), widen=1.5)),
    "NnjGenerator": Entry(
        lambda: dict(module=nnj.Sequential(nnj.Linear(2, 3)), noise_shape=(2,), output_dim=3),
        generate,
    ),
    "ParticleObjective": Entry(dict, train_with, OwnParticleObjective),
    "PosteriorPredictiveLoss": fixed(train_with, num_particles=2),
    "RandomNetwork": Entry(lambda: dict(module=network()), draw_functions),
    "ResidualGenerator": fixed(generate, output_dim=3, hidden_dim=2),
    "RecordedObjective": Entry(
        lambda: dict(objective=pi.LinearisedELBO(2, vectorize_particles=True), hints=True),
        train_with,
    ),
    "ResumableLoader": Entry(lambda: dict(dataset=list(range(4))), iterate, passed_on=("dataset",)),
    "SemiImplicitELBO": fixed(train_with, num_inner=3),
    "SingularValueELBO": fixed(train_with),
    "UIVI": Entry(
        lambda: dict(num_inner=1, num_burn_in=1),
        train_with,
        takes={"num_burn_in": lambda v: type(v) is int and v == 0},
    ),
}

FUNCTIONS: dict[str, Entry] = {
    "c2st": Entry(
        lambda: dict(draws=draws(), reference=draws(), num_folds=2, classifier=LogisticRegression())
    ),
    "entropy_report": _density(num_samples=4, num_steps=2),
    "fit": Entry(
        lambda: dict(
            model=model,
            guide=pi.HyperNetworkGuide(model, hidden_dims=(3,)),  # trained: not that of others
            objective=pi.LinearisedELBO(),
            num_steps=2,
            progress=False,
        ),
        args=(X, Y),
        long=("num_steps",),
    ),
    "geometric_schedule": fixed(call_it, start=1.0, end=0.1, num_steps=10),
    "khat": Entry(
        lambda: dict(
            model=model, guide=guide(), num_samples=100, num_inner=3, num_starts=1, tolerance=100.0
        ),
        args=(X, Y),
    ),
    "linear_schedule": fixed(call_it, start=1.0, end=0.1, num_steps=10),
    "log_density": _density(theta=draws(2)),
    "evaluate": Entry(lambda: dict(model=model, guide=guide(), num_samples=2), args=(X, Y)),
    "log_predictive_density": Entry(
        lambda: dict(model=model, guide=guide(), num_samples=2), args=(X, Y)
    ),
    "fan_in_prior": fixed(lambda made: made("weight", torch.zeros(2, 3))),
    "hierarchical_prior": fixed(lambda made: made("weight", torch.zeros(2, 3))),
    "last_layer": Entry(lambda: dict(module=network(), prior=dist.Normal(0.0, 1.0))),
    "priors_by_type": Entry(
        lambda: dict(module=network(), priors={nn.Linear: dist.Normal(0.0, 1.0)})
    ),
    "with_adapters": Entry(lambda: dict(module=network(), rank=1)),
    "prior_from": Entry(lambda: dict(guide=guide(), num_samples=30)),
    "plot_loo_pit": Entry(lambda: dict(data=exported(), var_name="y", ax=axes())),
    "plot_objective_terms": Entry(lambda: dict(history=[{"entropy": 1.0}], ax=axes())),
    "plot_predictive_band": Entry(
        lambda: dict(x=Y, means=torch.randn(3, ROWS), predictive=torch.randn(3, ROWS), ax=axes())
    ),
    "plot_predictive_check": Entry(lambda: dict(data=exported(), ax=axes())),
    "plot_predictive_entropy": Entry(lambda: dict(probabilities=torch.eye(2), ax=axes())),
    "plot_ranks": Entry(lambda: dict(calibration=ranks(), name="w", ax=axes())),
    "plot_reliability": Entry(
        lambda: dict(probabilities=torch.eye(2), labels=torch.arange(2), ax=axes())
    ),
    "plot_singular_values": Entry(lambda: dict(report=report(), ax=axes())),
    "posterior_draws": Entry(lambda: dict(guide=guide(), num_samples=2), args=(X, Y)),
    "predict": Entry(lambda: dict(model=model, guide=guide(), num_samples=2), args=(X,)),
    "process_to_arviz": Entry(lambda: dict(process=process(), value=Y, num_samples=4)),
    "refine": Entry(
        lambda: dict(
            model=model,
            start=guide(),
            num_chains=2,
            num_steps=12,
            num_warmup=2,
            mode_steps=1,
            progress=False,
        ),
        args=(X, Y),
    ),
    "sample_implicit": Entry(
        lambda: dict(name="w", fn=pi.ImplicitDistribution(pi.generators.MLPGenerator(2, 2, (3,))))
    ),
    "stein_discrepancy": Entry(
        lambda: dict(model=model, guide=guide(), num_samples=6, num_bootstrap=5), args=(X, Y)
    ),
    "to_arviz": Entry(lambda: dict(model=model, guide=guide(), num_samples=4), args=(X, Y)),
    "vsbc": Entry(
        lambda: dict(
            model=model,
            fit=_fitted,
            observed=["y"],
            num_simulations=10,
            num_samples=3,
            progress=False,
        ),
        args=(X,),
    ),
}

#: by the class that defines the method; the receiver is the class's own valid call
METHODS: dict[str, Entry] = {
    "EarlyStopping.step": fixed(score=1.0),
    "EarlyStopping.load_state_dict": Entry(
        lambda: dict(state=pi.training.EarlyStopping(1).state_dict())
    ),
    "EnsembleGuide.sample": Entry(lambda: dict(num_samples=3), args=(X, Y)),
    "EvaluationReport.difference": Entry(lambda: dict(other=evaluated())),
    "EvaluationReport.to_dict": Entry(dict),
    "FitResult.plot": Entry(lambda: dict(ax=axes())),
    "ImplicitDistribution.conditional_log_prob": fixed(value=torch.zeros(2)),
    "AutoregressiveGenerator.inverse": fixed(x=torch.zeros(2, 3)),
    "AutoregressiveGenerator.invert": fixed(x=torch.zeros(2, 3)),
    "BijectiveGenerator.inverse": fixed(x=torch.zeros(2, 3)),
    "BijectiveGenerator.invert": fixed(x=torch.zeros(2, 3)),
    "JointPrior.forward": Entry(lambda: dict(model=model), passed_on=("model",)),
    "JointPrior.restricted": Entry(
        lambda: dict(names=pi.inference.prior_from(guide(), num_samples=30).names)
    ),
    "NeuTraReparam.reparam": Entry(lambda: dict(model=model)),
    "GuidePrior.forward": Entry(lambda: dict(model=model)),
    "GuidePrior.transform_sample": fixed(noise=torch.zeros(2, 3)),
    "NeuTraReparam.transform_sample": fixed(latent=torch.zeros(2, 3)),
    "Generator.inverse": fixed(x=torch.zeros(2, 3)),
    "ImplicitELBO.is_bound_for": Entry(lambda: dict(guide=guide()), passed_on=("guide",)),
    "ImplicitGuide.log_density": Entry(lambda: dict(values=draws())),
    "Generator.check_noise": fixed(z=torch.zeros(2, 3)),
    "Generator.check_outputs": fixed(x=torch.zeros(4, 2)),
    "ImplicitDistribution.given": fixed(draw_from, noise=torch.zeros(2)),
    "ImplicitDistribution.expand": fixed(draw_from, batch_shape=(3,)),
    "ImplicitDistribution.rsample": fixed(sample_shape=(3,)),
    "ParticleObjective.differentiable_loss": _evaluated(),
    "ParticleObjective.loss": _evaluated(),
    "ParticleObjective.loss_and_grads": _evaluated(),
    "ParticleObjective.terms": _evaluated(),
    "RecordedObjective.differentiable_loss": _evaluated(),
    "RecordedObjective.loss": _evaluated(),
    "RecordedObjective.loss_and_grads": _evaluated(),
    "RecordedObjective.terms": _evaluated(),
    "LanczosELBO.differentiable_loss": _evaluated(),
    "LanczosELBO.loss_and_grads": _evaluated(),
    "ImplicitSite.at_fresh_noise": fixed(num=3),
    "ImplicitSite.first": fixed(count=2),
    "ImplicitSite.fresh": fixed(num_samples=3),
    "ImplicitSite.means": fixed(num=3),
    "DrawQuantiles.median": Entry(lambda: dict(num_samples=3)),
    "DrawQuantiles.quantiles": Entry(lambda: dict(quantiles=[0.5], num_samples=3)),
    "ImplicitGuide.sample": Entry(lambda: dict(num_samples=3)),
    "ConditionalGuide.sample": Entry(lambda: dict(num_samples=3), args=(X, Y)),
    "ConditionalGuide.sample_at": Entry(lambda: dict(num_samples=3, context=X)),
    "ImplicitProcess.condition": fixed(draw_from, value=Y),
    "ImplicitProcess.expand": fixed(draw_from, batch_shape=(3,)),
    "ImplicitProcess.has_noise_at": fixed(inputs=X),
    "ImplicitProcess.log_prob": fixed(value=Y),
    "ImplicitProcess.rsample": fixed(sample_shape=(3,)),
    "ImplicitProcess.alpha_energy": Entry(
        lambda: dict(value=Y, posterior=process().weight_posterior(Y))
    ),
    "ImplicitProcess.marginals": Entry(lambda: dict(posterior=process().weight_posterior(Y))),
    "ImplicitProcess.weight_posterior": fixed(value=Y),
    "ImplicitProcess.weighted": fixed(weights=torch.zeros(4)),
    "AdversarialELBO.load_state_dict": Entry(lambda: dict(state=_trained_critic().state_dict())),
    "ConditionalGuide.set_extra_state": Entry(lambda: dict(state=_local_guide().get_extra_state())),
    "ParticleObjective.load_state_dict": Entry(lambda: dict(state={})),
    "UIVI.load_state_dict": Entry(lambda: dict(state={"step_sizes": {"w": 0.1}})),
    "SavedGuide.from_state_dict": Entry(lambda: dict(state_dict=guide().state_dict())),
    "SavedGuide.load_state_dict": Entry(lambda: dict(state_dict=guide().state_dict())),
    "SavedGuide.set_extra_state": Entry(lambda: dict(state=guide().get_extra_state())),
    "LanczosELBO.load_state_dict": Entry(lambda: dict(state=pi.LanczosELBO().state_dict())),
    "ResumableLoader.load_state_dict": Entry(
        lambda: dict(state=pi.training.ResumableLoader(list(range(4))).state_dict())
    ),
    "SingularValueELBO.load_state_dict": Entry(
        lambda: dict(state=pi.SingularValueELBO().state_dict())
    ),
    "NeuralSampler.forward": fixed(inputs=X, num_functions=2),
    "RandomNetwork.forward": Entry(lambda: dict(inputs=X, num_functions=2), passed_on=("inputs",)),
}

#: what a method is called on, if not what the valid call of its class makes
RECEIVERS: dict[str, Callable[[], Any]] = {
    "AdversarialELBO": _trained_critic,
    "EvaluationReport": evaluated,
    "BijectiveGenerator": lambda: pi.generators.BijectiveGenerator(3, 2),
    "NeuTraReparam": lambda: pi.inference.NeuTraReparam(_flow_guide()),
    "GuidePrior": lambda: pi.inference.GuidePrior(_flow_guide()),
    "Generator": lambda: pi.generators.MLPGenerator(3, 2, (3,)),
    "AutoregressiveGenerator": lambda: pi.generators.AutoregressiveGenerator(3, 2),
    "Generator.inverse": lambda: pi.generators.AutoregressiveGenerator(3, 2),
    "ImplicitGuide.log_density": _flow_guide,
    "ImplicitDistribution": lambda: pi.ImplicitDistribution(
        pi.generators.MLPGenerator(2, 2, (3,)), scale=0.1
    ).given(torch.zeros(2)),
    "DrawQuantiles": guide,
    "ImplicitGuide": guide,
    "SavedGuide": guide,
    "ConditionalGuide": _local_guide,
    "ImplicitProcess": process,
}

#: no user calls them with arguments of their own: Lightning, Pyro, torch or the package does, as it
#: does whatever begins with ``on_``
HOOKS = {
    "Generator.det_sign",
    "GuidePrior.set_extra_state",  # of torch: what its state_dict holds
    "ResidualGenerator.det_sign",
    "AutoregressiveGenerator.forward",
    "ConditionalAutoregressiveGenerator.at_context",
    "ConditionalAutoregressiveGenerator.forward",
    "ConditionalAutoregressiveGenerator.standardise",
    "BijectiveGenerator.forward",
    "CMMNN.forward",
    "PackedModule.with_packed",  # of load_state_dict, for whatever a state holds
    "ImplicitDistribution.log_prob",  # of a trace; most refuse whatever they are given
    "ImplicitSite.of_node",
    "ImplicitSite.with_draws",
    "LanczosELBO.estimates_next",  # of those who record steps
    "LanczosELBO.count_step",
    "LanczosELBO.uncounted",
    "LightningVI.load_from_checkpoint",  # bad files are a matter of tests/training
    "LightningVI.predict_step",  # of Lightning, which it refuses
    "LightningVI.setup",
    "HMC.step",
    "MCLMC.step",
    "MLPGenerator.forward",  # users call the generator, which looks at the noise first
    "MMNN.forward",
    "ModuleGenerator.forward",
    "ResidualGenerator.forward",
    "batch_to_args",
    "begin",
    "config",
    "configure_optimizers",
    "divergence",
    "estimate",
    "extra_repr",
    "get_extra_state",
    "half_log_det",
    "implicit_prior",
    "likelihood_of",
    "init_to_module",
    "jacobian",
    "linearise",
    "pair",
    "rescale",
    "settle",
    "state_dict",
    "terms_of",
    "training_step",
    "validation_step",
    "warm_up",
}
