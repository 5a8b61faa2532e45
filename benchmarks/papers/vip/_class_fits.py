"""Classifiers of vectors: an implicit process, its network's other posteriors, and its peers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import torch
import torch.nn.functional as F
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from torch import Tensor, nn
from torch.func import functional_call, vmap

from benchmarks.papers.vip._classes import Predict, Task, nll
from pyro_implicit import AlphaEnergy, BayesianModule, ImplicitProcess, posterior_draws
from pyro_implicit.processes import RandomNetwork
from pyro_implicit.training import EarlyStopping

__all__ = ["METHODS", "SETTINGS", "Found"]

SETTINGS: dict[str, Any] = {
    "hidden units": [50, 50],
    "num_functions": 20,
    "num_particles": 16,
    "num_draws": 200,
    "batch_size": 250,
    "every": 50,
    "patience": 4,
    "rates": {"process": 0.003, "mean-field": 0.003, "MAP": 0.003, "GP": 0.03},
    "prior_factors": [3.0, 10.0, 30.0],
    "init_scale": {"process": 0.1, "mean-field": 0.02},
    "members": 5,
    "num_inducing": 100,
    "Laplace, rows": 400,
}
#: how to predict, and the steps of the fit, None where there are none
Found = tuple[Predict, int | None]
Step = Callable[[Tensor, Tensor], Any]


def network(num_features: int, num_classes: int) -> nn.Sequential:
    """Tanh units, from inputs to logits."""
    layers: list[nn.Module] = []
    widths = SETTINGS["hidden units"]
    for before, after in zip([num_features, *widths[:-1]], widths, strict=True):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], num_classes))


def run(task: Task, step: Step, predict: Predict, modules: Iterable[nn.Module], steps: Any) -> int:
    """
    Steps on random minibatches until the likelihood of the held rows falls; the best state is kept.

    :param step: one step, on inputs and labels.
    :param predict: probabilities at the present state.
    :param modules: whose state it is, beside the parameter store.
    :param steps: their numbers, counting from 0.
    :returns: the number of steps of the best state.
    """
    (x, y), held = task.fit, task.held
    stopping, kept = EarlyStopping(SETTINGS["patience"]), list(modules)
    every = min(SETTINGS["every"], len(steps))
    for number in steps:
        rows = torch.randperm(len(x))[: SETTINGS["batch_size"]]
        step(x[rows], y[rows])
        if (number + 1) % every == 0 and stopping.step(nll(predict(held[0]), held[1]), *kept):
            break
    stopping.restore(*kept)
    return ((stopping.best_step or 0) + 1) * every


def process(task: Task, steps: Any, alpha: float) -> Found:
    """Own coefficients of the same frozen functions for each class, a joint Gaussian of all."""
    x, _ = task.fit
    prior = RandomNetwork(network(x.shape[1], task.num_classes))
    count, shape = SETTINGS["num_functions"], (task.num_classes, SETTINGS["num_functions"])

    def logits(x: Tensor, a: Tensor) -> Tensor:
        """From coefficients (..., C, S) to logits (..., N, C)."""
        return ImplicitProcess(prior, x, count, seed=0).weighted(a[..., None, :]).mT

    def model(batch: Tensor, labels: Tensor) -> None:
        pyro.module("prior", prior)
        a = pyro.sample("a", dist.Normal(torch.zeros(shape), 1.0).to_event(2))
        found = logits(batch, a)
        found = found.squeeze(-3) if found.dim() > 3 else found  # the plate's place, of one
        with pyro.plate("data", len(x), subsample_size=len(batch)):
            pyro.sample("y", dist.Categorical(logits=found), obs=labels)

    guide = AutoMultivariateNormal(model, init_scale=SETTINGS["init_scale"]["process"])
    options = {"alpha": alpha, "vectorize_particles": True, "max_plate_nesting": 1}
    objective = AlphaEnergy(SETTINGS["num_particles"], **options)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": SETTINGS["rates"]["process"]}), objective)

    @torch.no_grad()
    def predict(new: Tensor) -> Tensor:
        a = guide.get_posterior().sample((SETTINGS["num_draws"],)).reshape(-1, *shape)
        return logits(new, a).softmax(-1).mean(0)

    return predict, run(task, svi.step, predict, [prior, guide], steps)


def widest(fit: Callable[[Task, Any, float], Found], task: Task, steps: Any) -> tuple[Found, float]:
    """
    A fit, and the width of its prior, relative to what the process starts with: the one that held
    rows like best.
    """
    found = [(fit(task, steps, factor), factor) for factor in SETTINGS["prior_factors"]]
    return min(found, key=lambda one: nll(one[0][0](task.held[0]), task.held[1]))


def chosen(fit: Callable[[Task, Any, float], Found], task: Task, steps: Any) -> Found:
    """The fit that :func:`widest` finds."""
    return widest(fit, task, steps)[0]


def prior_scales(net: nn.Module, factor: float = 1.0) -> dict[str, float]:
    """A factor over the root of a layer's inputs; with 1 as the process starts with."""
    layers = [layer for layer in net if isinstance(layer, nn.Linear)]  # type: ignore[attr-defined]
    return {
        name: factor * layer.in_features**-0.5
        for place, layer in enumerate(layers)
        for name in (f"{2 * place}.weight", f"{2 * place}.bias")
    }


def mean_field(task: Task, steps: Any, factor: float) -> Found:
    """Normal weights of the same network, under a prior of that width."""
    x, _ = task.fit
    plain = network(x.shape[1], task.num_classes)
    scales = prior_scales(plain, factor)
    net = BayesianModule(plain, lambda name, p: dist.Normal(0.0, scales[name]).expand(p.shape))

    def model(batch: Tensor, labels: Tensor) -> None:
        logits = net(batch)
        with pyro.plate("data", len(x), subsample_size=len(batch)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=labels)

    guide = AutoNormal(model, init_scale=SETTINGS["init_scale"]["mean-field"])
    rate = SETTINGS["rates"]["mean-field"]
    svi = SVI(model, guide, pyro.optim.Adam({"lr": rate}), Trace_ELBO())

    @torch.no_grad()
    def predict(new: Tensor) -> Tensor:
        drawn = posterior_draws(guide, SETTINGS["num_draws"], *task.fit)
        values = {name: _of(drawn, name) for name, _ in plain.named_parameters()}
        return vmap(lambda one: functional_call(plain, one, (new,)))(values).softmax(-1).mean(0)

    return predict, run(task, svi.step, predict, [guide], steps)


def _of(drawn: dict[str, Tensor], name: str) -> Tensor:
    """The draws of a parameter, whatever the prefix of its site."""
    (value,) = (value for site, value in drawn.items() if site.endswith(name))
    return value


def mode(task: Task, steps: Any, factor: float) -> Found:
    """The mode under a prior of that width."""
    (x, _) = task.fit
    net = network(x.shape[1], task.num_classes)
    scales = prior_scales(net, factor)
    adam = torch.optim.Adam(net.parameters(), lr=SETTINGS["rates"]["MAP"])

    def step(batch: Tensor, labels: Tensor) -> None:
        adam.zero_grad()
        prior = sum((p / scales[name]).square().sum() for name, p in net.named_parameters())
        (F.cross_entropy(net(batch), labels) + 0.5 * prior / len(x)).backward()
        adam.step()

    @torch.no_grad()
    def predict(new: Tensor) -> Tensor:
        return net(new).softmax(-1)

    return predict, run(task, step, predict, [net], steps)


def ensemble(task: Task, steps: Any) -> Found:
    """The mean of several modes, under the prior that was chosen with the first of them."""
    first, factor = widest(mode, task, steps)
    found = [first, *(mode(task, steps, factor) for _ in range(SETTINGS["members"] - 1))]
    counts = [count or 0 for _, count in found]

    def predict(new: Tensor) -> Tensor:
        return torch.stack([one(new) for one, _ in found]).mean(0)

    return predict, round(sum(counts) / len(counts))


def sparse_process(task: Task, steps: Any) -> Found:
    """Pyro's variational Gaussian process: a latent function for each class, softmax."""
    from pyro.contrib import gp

    x, y = task.fit
    lengths = torch.tensor(float(x.shape[1]) ** 0.5)
    inducing = x[torch.randperm(len(x))[: SETTINGS["num_inducing"]]].clone()
    model = gp.models.VariationalSparseGP(
        x,
        y,
        gp.kernels.RBF(x.shape[1], lengthscale=lengths),
        inducing,
        gp.likelihoods.MultiClass(task.num_classes),
        latent_shape=torch.Size([task.num_classes]),
        num_data=len(x),
        whiten=True,
        jitter=1e-4,
    )
    adam, loss = torch.optim.Adam(model.parameters(), lr=SETTINGS["rates"]["GP"]), Trace_ELBO()

    def step(batch: Tensor, labels: Tensor) -> None:
        adam.zero_grad()
        model.set_data(batch, labels)
        loss.differentiable_loss(model.model, model.guide).backward()
        adam.step()

    @torch.no_grad()
    def predict(new: Tensor) -> Tensor:
        mean, variance = model(new, full_cov=False)
        noise = torch.randn(SETTINGS["num_draws"], *mean.shape)
        return (mean + variance.clamp(min=0).sqrt() * noise).softmax(-2).mean(0).mT

    return predict, run(task, step, predict, [model], steps)


def laplace_process(task: Task, steps: Any) -> Found:
    """scikit-learn's: Laplace's approximation, each class against the rest; no held rows."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    x, y = task.fit
    rows = torch.randperm(len(x))[: SETTINGS["Laplace, rows"]]
    kernel = ConstantKernel(1.0, (1e-2, 1e4)) * RBF(float(x.shape[1]) ** 0.5, (1e-1, 1e3))
    found = GaussianProcessClassifier(kernel, random_state=0)
    found.fit(x[rows].double().numpy(), y[rows].numpy())

    def predict(new: Tensor) -> Tensor:
        return torch.from_numpy(found.predict_proba(new.double().numpy())).float()

    return predict, None


METHODS: dict[str, Callable[[Task, Any], Found]] = {
    "process, alpha=0": partial(process, alpha=0.0),
    "process, alpha=0.5": partial(process, alpha=0.5),
    "mean-field": partial(chosen, mean_field),
    "MAP": partial(chosen, mode),
    "ensemble of 5": ensemble,
    "sparse GP": sparse_process,
    "GP, Laplace": laplace_process,
}
