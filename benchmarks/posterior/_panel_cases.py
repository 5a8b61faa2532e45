"""The models of the panel: what a user brings on the first day, and how a posterior is judged."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from benchmarks.common import load_npz
from benchmarks.networks import LeNet
from benchmarks.posterior._generators_horseshoe import horseshoe, horseshoe_data, horseshoe_moments
from benchmarks.posterior._generators_targets import (
    banana,
    eight_schools_centred,
    moments_of,
    two_modes,
)
from benchmarks.posterior._objectives_targets import entropy
from benchmarks.posterior._posteriordb_models import MODELS
from benchmarks.posterior._posteriordb_reference import Moments, reference_moments
from benchmarks.shared.images import digits_layers, load_mnist
from benchmarks.shared.uci import build_model, load_split
from pyro_implicit import BayesianModule, log_predictive_density, posterior_draws

__all__ = ["CASES", "Case", "Load", "classifier", "held_out", "network"]

Draws = dict[str, Tensor]
Judge = Callable[[Any], Tensor]

NUM_DRAWS = 500  # for predictions
# and for small models that are close to each other: 500 differ by 0.004 from draw to draw
MANY_DRAWS = 10_000
NUM_MOMENTS = 5000  # for moments and divergences


@dataclass(frozen=True)
class Case:
    """
    A model with its data.

    :param model: a Pyro model.
    :param data: its arguments.
    :param judge: from a guide to scores, shape ``(N,)``, of which more is better: log predictive
        densities of held-out data, or one number that is minus an error.
    :param module: the network, if there is one; Pyro's guides start at its values.
    :param is_local: whether each row has a latent of its own, for a conditional guide.
    """

    model: Callable[..., Any]
    data: tuple[Tensor, ...]
    judge: Judge
    module: BayesianModule | None = None
    is_local: bool = False


# ---- how a posterior is judged


def held_out(model: Callable[..., Any], *held: Tensor, num_draws: int = NUM_DRAWS) -> Judge:
    """
    :param model: a Pyro model.
    :param held: held-out arguments of the model.
    :param num_draws: draws of a guide.
    :returns: their log predictive densities under a guide.
    """
    return partial(_log_densities, model, held, num_draws)


def _log_densities(
    model: Callable[..., Any], held: tuple[Tensor, ...], num_draws: int, guide: Any
) -> Tensor:
    return log_predictive_density(model, guide, *held, num_samples=num_draws, seed=0)


def _by_moments(data: tuple[Tensor, ...], reference: Moments, summary: Any) -> Judge:
    """Minus the root mean square of errors of means, in deviations, and of log-deviations."""

    def judge(guide: Any) -> Tensor:
        found = summary(posterior_draws(guide, NUM_MOMENTS, *data))
        errors = []
        for name, (mean, deviation) in reference.items():
            errors.append((found[name][0] - mean) / deviation)
            errors.append(math.log(max(found[name][1], 1e-12) / deviation))
        return -torch.tensor(errors).square().mean().sqrt()[None]

    return judge


def _by_divergence(density: Callable[[Tensor], Tensor]) -> Judge:
    """Minus the divergence of draws in the plane, by nearest neighbours."""

    def judge(guide: Any) -> Tensor:
        x = posterior_draws(guide, NUM_MOMENTS)["x"].double()
        return (entropy(x) + density(x).mean())[None] * torch.ones(1, dtype=torch.float64)

    return judge


# ---- models


def _seeded() -> torch.Generator:
    return torch.Generator().manual_seed(2026)


def _readme(root: Path, split: int) -> Case:
    """The network of the README: 62 latents."""
    own = _seeded()

    def data(count: int) -> tuple[Tensor, Tensor]:
        x = torch.linspace(-1.0, 1.0, count)[:, None]
        return x, torch.sin(3.0 * x[:, 0]) + 0.1 * torch.randn(count, generator=own)

    net = network(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))

    def model(x: Tensor, y: Tensor) -> None:
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        f = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, sigma), obs=y)

    return Case(model, data(100), held_out(model, *data(1000)), net)


def network(*layers: nn.Module) -> BayesianModule:
    """
    :param layers: of a sequence.
    :returns: the same network at each call, with a standard normal prior.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for layer in layers:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
    return BayesianModule(nn.Sequential(*layers), prior=dist.Normal(0.0, 1.0))


def _schools(centred: bool, root: Path, split: int) -> Case:
    posterior = MODELS["eight_schools"]
    arrays = load_npz(root, f"posteriordb/{posterior.file}.npz")
    data = tuple(value.float() for value in posterior.tensors(arrays))
    exact = reference_moments(arrays)
    if not centred:
        summary = posterior.moments
        return Case(posterior.model, data, _by_moments(data, exact, summary))

    def plain(draws: Draws) -> Moments:
        return moments_of({name: draws[name].squeeze() for name in ("theta", "mu", "tau")})

    return Case(eight_schools_centred, data, _by_moments(data, exact, plain))


def _intercepts(root: Path, split: int) -> Case:
    """Regression with an intercept for each of 12 groups."""
    own, groups = _seeded(), 12
    levels = 1.0 + 0.7 * torch.randn(groups, generator=own)

    def data(count: int) -> tuple[Tensor, ...]:
        group = torch.randint(groups, (count,), generator=own)
        x = torch.randn(count, generator=own)
        noise = 0.6 * torch.randn(count, generator=own)
        return group, x, levels[group] + 0.5 * x + noise

    def model(group: Tensor, x: Tensor, y: Tensor) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = pyro.sample("tau", dist.HalfCauchy(1.0))
        slope = pyro.sample("slope", dist.Normal(0.0, 2.0))
        sigma = pyro.sample("sigma", dist.HalfNormal(1.0))
        with pyro.plate("groups", groups):
            level = pyro.sample("level", dist.Normal(mu, tau))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(level[..., group] + slope * x, sigma), obs=y)

    return Case(model, data(60), held_out(model, *data(1000)))


def _responses(root: Path, split: int) -> Case:
    """Answers of 130 persons to 8 items, some of which are kept for the score: 146 latents."""
    own, persons, items = _seeded(), 130, 8
    ability = torch.randn(persons, generator=own)
    slope = (0.4 * torch.randn(items, generator=own)).exp()
    difficulty = torch.randn(items, generator=own)
    number = torch.randperm(persons * items, generator=own)
    person, item = number // items, number % items
    rate = (slope[item] * (ability[person] - difficulty[item])).sigmoid()
    answer = torch.bernoulli(rate, generator=own)

    def model(person: Tensor, item: Tensor, y: Tensor) -> None:
        with pyro.plate("items", items):
            slope = pyro.sample("slope", dist.LogNormal(0.0, 0.5))
            difficulty = pyro.sample("difficulty", dist.Normal(0.0, 1.5))
        with pyro.plate("persons", persons):
            ability = pyro.sample("ability", dist.Normal(0.0, 1.0))
        logits = slope[..., item] * (ability[..., person] - difficulty[..., item])
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    first, rest = slice(850), slice(850, None)
    data = [(person[one], item[one], answer[one]) for one in (first, rest)]
    return Case(model, data[0], held_out(model, *data[1]))


def _counts(root: Path, split: int) -> Case:
    """Counts with a level for each of 50 groups and a residual for each cell: 153 latents."""
    own, groups, cells = _seeded(), 50, 100
    level = 0.5 * torch.randn(groups, generator=own)
    x, residual = torch.randn(cells, generator=own), 0.4 * torch.randn(cells, generator=own)
    of = torch.arange(cells) % groups
    rate = (0.5 + 0.4 * x + level[of] + residual).exp()

    def model(cell: Tensor, y: Tensor) -> None:
        base = pyro.sample("base", dist.Normal(0.0, 2.0))
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        with pyro.plate("groups", groups):
            level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("cells", cells):
            residual = pyro.sample("residual", dist.Normal(0.0, 0.4))
        mean = base + slope * x + scale * level[..., of] + residual
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Poisson(mean[..., cell].exp()), obs=y)

    def drawn(times: int) -> tuple[Tensor, Tensor]:
        cell = torch.arange(cells).repeat(times)
        return cell, torch.poisson(rate[cell], generator=own)

    return Case(model, drawn(1), held_out(model, *drawn(20)))


def _change_point(root: Path, split: int) -> Case:
    """Counts whose rate changes at an unknown time."""
    own, t = _seeded(), torch.arange(60) / 10.0
    rate = torch.where(t < 3.2, 3.0, 7.5)

    def counts(of: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**31, (), generator=own)))
            return dist.NegativeBinomial(5.0, probs=of / (of + 5.0)).sample()

    def model(t: Tensor, y: Tensor) -> None:
        rates = pyro.sample("rates", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
        shape = pyro.sample("shape", dist.Gamma(2.0, 0.5))
        change = pyro.sample("change", dist.Uniform(0.0, 6.0))
        late = torch.sigmoid((t - change) * 10)
        mean = rates[..., 0] * (1 - late) + rates[..., 1] * late
        with pyro.plate("time", len(t)):
            pyro.sample("y", dist.GammaPoisson(shape, shape / mean), obs=y)

    many = t.repeat(20)
    return Case(model, (t, counts(rate)), held_out(model, many, counts(rate.repeat(20))))


def _logistic(root: Path, split: int) -> Case:
    """Ten weights and an intercept, correlated inputs."""
    own = _seeded()
    mix = torch.randn(10, 10, generator=own) / 3
    weights = torch.randn(10, generator=own)

    def data(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 10, generator=own) @ mix
        return x, (torch.rand(count, generator=own) < torch.sigmoid(x @ weights)).float()

    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 2.0).expand([10]).to_event(1))
        b = pyro.sample("b", dist.Normal(0.0, 2.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Bernoulli(logits=(w * x).sum(-1) + b), obs=y)

    return Case(model, data(100), held_out(model, *data(1000)))


def _ill_conditioned(root: Path, split: int) -> Case:
    """A conjugate Gaussian of six dimensions whose deviations differ a hundredfold."""
    own = _seeded()
    basis = torch.linalg.qr(torch.randn(6, 6, generator=own, dtype=torch.float64))[0]
    precision = basis @ torch.logspace(0, 4, 6, dtype=torch.float64).diag() @ basis.T
    factor = torch.linalg.cholesky(precision).T.contiguous()
    y = factor @ torch.randn(6, generator=own, dtype=torch.float64)

    def model(factor: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([6]).to_event(1))
        with pyro.plate("data", 6):
            pyro.sample("y", dist.Normal((w * factor).sum(-1), 1.0), obs=y)

    exact = precision + torch.eye(6, dtype=torch.float64)
    centre = torch.linalg.solve(exact, factor.T @ y)
    data = (factor.float(), y.float())

    def judge(guide: Any) -> Tensor:
        """Minus the divergence of the Gaussian with the moments of the draws."""
        w = posterior_draws(guide, 4 * NUM_MOMENTS, *data)["w"].double()
        covariance, gap = w.reshape(-1, 6).T.cov(), w.reshape(-1, 6).mean(0) - centre
        trace = (exact @ covariance).trace() + gap @ exact @ gap - 6
        return -0.5 * (trace - torch.logdet(exact) - torch.logdet(covariance))[None]

    return Case(model, data, judge)


def _horseshoe(root: Path, split: int) -> Case:
    x, y = horseshoe_data()
    exact, parameters = horseshoe_moments(x, y, 1000)
    data = (x.float(), y.float())

    def summary(draws: Draws) -> Moments:
        return moments_of(parameters(draws))

    return Case(horseshoe, data, _by_moments(data, exact, summary))


def _density(density: Callable[[Tensor], Tensor], root: Path, split: int) -> Case:
    prior = dist.Normal(torch.zeros(2), 1.0, validate_args=False).to_event(1)

    def model() -> None:
        x = pyro.sample("x", prior)
        pyro.factor("density", density(x) - prior.log_prob(x))

    return Case(model, (), _by_divergence(density))


def _uci(name: str, root: Path, split: int) -> Case:
    """One hidden layer of 50 units; the seed chooses the split."""
    part = load_split(root, name, split)
    model = build_model(part.x.shape[1], len(part.x))
    module = model.network  # type: ignore[attr-defined]
    return Case(model, part.data, held_out(model, part.x_held, part.y_held), module)


def _digits(root: Path, split: int) -> Case:
    """Two max-pooled convolutions on scikit-learn's digits: 1898 latents."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    x = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(bunch.target)
    parts = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    net = network(*digits_layers())
    return classifier(net, parts[0], parts[2], parts[1], parts[3])


def classifier(net: BayesianModule, *parts: Tensor) -> Case:
    """
    :param net: gives logits.
    :param parts: inputs and labels to fit, inputs and labels to judge by.
    """

    def model(x: Tensor, y: Tensor) -> None:
        logits = net(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return Case(model, parts[:2], held_out(model, *parts[2:]), net)


def _lenet(root: Path, split: int) -> Case:
    """LeNet on 1000 digits of MNIST: 44 426 latents."""
    images = load_mnist(root, download=False)
    parts = [images[f"{what}_{part}"][:1000] for part in ("train", "test") for what in "xy"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = BayesianModule(LeNet(), prior=dist.Normal(0.0, 1.0))
    return classifier(net, *parts)


def _gru(root: Path, split: int) -> Case:
    """A recurrent network that continues sine waves: 265 latents."""
    own = _seeded()

    def data(count: int) -> tuple[Tensor, Tensor]:
        phase = 6.28 * torch.rand(count, 1, generator=own)
        speed = 0.3 + 0.4 * torch.rand(count, 1, generator=own)
        waves = torch.sin(phase + speed * torch.arange(13.0))
        waves = waves + 0.1 * torch.randn(count, 13, generator=own)
        return waves[:, :12, None], waves[:, 12]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = BayesianModule(_Recurrent(8), prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor) -> None:
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        f = net(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, sigma), obs=y)

    return Case(model, data(60), held_out(model, *data(500)), net)


class _Recurrent(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gru = nn.GRU(1, width, batch_first=True)
        self.out = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """
        :param x: sequences, shape ``(N, T, 1)``.
        :returns: shape ``(N,)``.
        """
        return self.out(self.gru(x)[0][:, -1]).squeeze(-1)


def _local(root: Path, split: int) -> Case:
    """A curved two-dimensional latent for each of 200 rows."""
    own = _seeded()
    z = torch.randn(200, 2, generator=own)
    y = _curved(z) + 0.5 * torch.randn(200, 2, generator=own)

    def model(y: Tensor) -> None:
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
            pyro.sample("y", dist.Normal(_curved(z), 0.5).to_event(1), obs=y)

    weights, points = _exact_local(y, own)

    def judge(guide: Any) -> Tensor:
        """For each row minus the error of means and log-deviations against exact weights."""
        draws = posterior_draws(guide, NUM_MOMENTS // 5, y)["z"].reshape(-1, 200, 2)
        mean = weights @ points
        deviation = (weights @ points.square() - mean**2).sqrt()
        shift = (draws.mean(0) - mean) / deviation
        ratio = (draws.std(0) / deviation).log()
        return -torch.cat([shift, ratio], -1).square().mean(-1).sqrt()

    return Case(model, (y,), judge, is_local=True)


def _curved(z: Tensor) -> Tensor:
    return torch.stack([z[..., 0] * z[..., 1], z[..., 1] + z[..., 0] ** 2], -1)


def _exact_local(y: Tensor, own: torch.Generator) -> tuple[Tensor, Tensor]:
    """Weights of points of the prior for each row: exact up to their number."""
    points = torch.randn(50_000, 2, generator=own)
    log_weights = -((y[:, None] - _curved(points)) ** 2).sum(-1) / (2 * 0.5**2)
    return log_weights.softmax(-1), points


def _process(root: Path, split: int) -> Case:
    """Counts whose log-rate is a Gaussian process at 40 inputs."""
    own, x = _seeded(), torch.linspace(0.0, 4.0, 40)
    kernel = torch.exp(-((x[:, None] - x) ** 2) / (2 * 0.5**2)) + 1e-4 * torch.eye(40)
    factor = torch.linalg.cholesky(kernel)
    rate = (1.0 + factor @ torch.randn(40, generator=own)).exp()

    def data(copies: int) -> tuple[Tensor, Tensor]:
        index = torch.eye(40).repeat(copies, 1)
        return index, torch.poisson(rate.repeat(copies), generator=own)

    def model(index: Tensor, y: Tensor) -> None:
        level = pyro.sample("level", dist.Normal(0.0, 2.0))
        f = pyro.sample("f", dist.MultivariateNormal(torch.zeros(40), scale_tril=factor))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Poisson((level + (f * index).sum(-1)).exp()), obs=y)

    return Case(model, data(1), held_out(model, *data(20)))


Load = Callable[[Path, int], Case]
CASES: dict[str, Load] = {
    "README network": _readme,
    "eight schools": partial(_schools, False),
    "eight schools, centred": partial(_schools, True),
    "varying intercepts": _intercepts,
    "item response": _responses,
    "counts in cells": _counts,
    "change point": _change_point,
    "logistic": _logistic,
    "ill-conditioned": _ill_conditioned,
    "horseshoe": _horseshoe,
    "banana": partial(_density, banana),
    "two modes": partial(_density, two_modes),
    "concrete": partial(_uci, "concrete"),
    "energy": partial(_uci, "energy"),
    "digits CNN": _digits,
    "LeNet": _lenet,
    "GRU": _gru,
    "local latents": _local,
    "Gaussian process": _process,
}
