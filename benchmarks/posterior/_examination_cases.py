"""
Models beside the panel's: some that settings were chosen on, and some that nothing was chosen on.

Networks have a standard normal prior on all weights. Held-out data judge all of them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor, nn

from benchmarks.common import load_npz
from benchmarks.posterior._panel_cases import MANY_DRAWS, Case, Load, classifier, held_out, network
from benchmarks.shared.uci import build_model, load_split

__all__ = ["CHOICE", "EXAMINATION"]

_ROWS, _HELD = 400, 1000
_LATER = 7  # the first split that nothing else of the benchmarks looks at


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---- models without a network


def _glmm(root: Path, seed: int) -> Case:
    """Counts of 15 groups, each with an intercept of its own."""
    own, groups = _seeded(11), 15
    levels = 0.6 * torch.randn(groups, generator=own)

    def data(count: int) -> tuple[Tensor, ...]:
        group = torch.randint(groups, (count,), generator=own)
        x = torch.randn(count, generator=own)
        return group, x, torch.poisson((0.5 + levels[group] + 0.4 * x).exp(), generator=own)

    def model(group: Tensor, x: Tensor, y: Tensor) -> None:
        mu = pyro.sample("mu", dist.Normal(0.0, 2.0))
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", groups):
            level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            rate = (mu + tau * level[..., group] + slope * x).exp()
            pyro.sample("y", dist.Poisson(rate), obs=y)

    return Case(model, data(80), held_out(model, *data(_HELD), num_draws=MANY_DRAWS))


def _robust(root: Path, seed: int) -> Case:
    """A linear regression by Student's t, a tenth of the data far off."""
    own = _seeded(12)
    weights = torch.randn(6, generator=own)

    def data(count: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(count, 6, generator=own)
        y = x @ weights + 0.3 * torch.randn(count, generator=own)
        far = torch.rand(count, generator=own) < 0.1
        return x, torch.where(far, y + 3 * torch.randn(count, generator=own), y)

    def model(x: Tensor, y: Tensor) -> None:
        b = pyro.sample("b", dist.Normal(0.0, 2.0).expand([6]).to_event(1))
        s = pyro.sample("s", dist.HalfNormal(1.0))
        nu = pyro.sample("nu", dist.Gamma(2.0, 0.5))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.StudentT(nu + 1, (x * b).sum(-1), s), obs=y)

    return Case(model, data(50), held_out(model, *data(_HELD), num_draws=MANY_DRAWS))


def _growth(root: Path, seed: int) -> Case:
    """A logistic curve of growth with four parameters."""
    own, times = _seeded(13), torch.linspace(0, 4, 25)

    def data(copies: int) -> tuple[Tensor, Tensor]:
        t = times.repeat(copies)
        return t, 3 / (1 + torch.exp(-2 * (t - 1.5))) + 0.15 * torch.randn(len(t), generator=own)

    def model(t: Tensor, y: Tensor) -> None:
        top = pyro.sample("top", dist.LogNormal(1.0, 1.0))
        rate = pyro.sample("rate", dist.LogNormal(0.0, 1.0))
        middle = pyro.sample("middle", dist.Normal(2.0, 2.0))
        s = pyro.sample("s", dist.HalfNormal(1.0))
        with pyro.plate("data", len(t)):
            pyro.sample("y", dist.Normal(top / (1 + torch.exp(-rate * (t - middle))), s), obs=y)

    return Case(model, data(1), held_out(model, *data(40), num_draws=MANY_DRAWS))


# ---- some hundred latents that are no network


def _walk(root: Path, seed: int) -> Case:
    """Counts over 280 days, by a random walk; 282 latents."""
    own, days = _seeded(21), 280
    level = 1 + torch.cumsum(0.15 * torch.randn(days, generator=own), 0)

    def counts() -> Tensor:
        return torch.poisson(level.exp(), generator=own)

    def model(y: Tensor) -> None:
        first = pyro.sample("first", dist.Normal(0.0, 2.0))
        scale = pyro.sample("scale", dist.HalfNormal(0.5))
        steps = pyro.sample("steps", dist.Normal(0.0, 1.0).expand([days]).to_event(1))
        rate = (first[..., None] + scale[..., None] * steps.cumsum(-1)).exp()
        with pyro.plate("days", days):
            pyro.sample("y", dist.Poisson(rate), obs=y)

    return Case(model, (counts(),), held_out(model, counts()))


def _pupils(root: Path, seed: int) -> Case:
    """Answers of 150 pupils to 120 questions; 272 latents."""
    own, pupils, questions = _seeded(22), 150, 120
    able, hard = torch.randn(pupils, generator=own), 0.8 * torch.randn(questions, generator=own)

    def data(count: int) -> tuple[Tensor, ...]:
        i = torch.randint(pupils, (count,), generator=own)
        j = torch.randint(questions, (count,), generator=own)
        return i, j, torch.bernoulli(torch.sigmoid(able[i] - hard[j]), generator=own)

    def model(i: Tensor, j: Tensor, y: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
        scale = pyro.sample("scale", dist.HalfNormal(1.0))
        with pyro.plate("pupils", pupils):
            ability = pyro.sample("ability", dist.Normal(0.0, 1.0))
        with pyro.plate("questions", questions):
            difficulty = pyro.sample("difficulty", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            logits = ability[..., i] - mean - scale * difficulty[..., j]
            pyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    return Case(model, data(2000), held_out(model, *data(_HELD)))


def _slopes(root: Path, seed: int) -> Case:
    """A line for each of 140 groups, with a few rows each; 285 latents, centred."""
    own, groups = _seeded(23), 140
    lines = torch.randn(2, groups, generator=own) * torch.tensor([[0.6], [0.3]])

    def data(count: int) -> tuple[Tensor, ...]:
        group = torch.randint(groups, (count,), generator=own)
        x = torch.randn(count, generator=own)
        y = lines[0, group] + (1 + lines[1, group]) * x + 0.5 * torch.randn(count, generator=own)
        return group, x, y

    def model(group: Tensor, x: Tensor, y: Tensor) -> None:
        centres = pyro.sample("centres", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        spreads = pyro.sample("spreads", dist.HalfCauchy(1.0).expand([2]).to_event(1))
        noise = pyro.sample("noise", dist.HalfNormal(1.0))
        with pyro.plate("groups", groups):
            level = pyro.sample("level", dist.Normal(centres[..., :1], spreads[..., :1]))
            slope = pyro.sample("slope", dist.Normal(centres[..., 1:], spreads[..., 1:]))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(level[..., group] + slope[..., group] * x, noise), obs=y)

    return Case(model, data(500), held_out(model, *data(_HELD)))


# ---- networks


def _moons(root: Path, seed: int) -> Case:
    """Two crescents, 82 weights."""
    from sklearn.datasets import make_moons

    x, y = make_moons(700, noise=0.25, random_state=3)
    net = network(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
    inputs, labels = torch.tensor(x).float(), torch.tensor(y)
    return classifier(net, inputs[:200], labels[:200], inputs[200:], labels[200:])


def _wines(root: Path, seed: int) -> Case:
    """Three kinds of wine, 173 weights, half of the data held out."""
    from sklearn.datasets import load_wine

    bunch = load_wine()
    order = torch.randperm(len(bunch.target), generator=_seeded(0))
    x = torch.tensor(bunch.data).float()
    x = (x - x.mean(0)) / x.std(0)
    net = network(nn.Linear(13, 10), nn.ReLU(), nn.Linear(10, 3))
    x, y = x[order], torch.tensor(bunch.target)[order]
    return classifier(net, x[:90], y[:90], x[90:], y[90:])


def _bump(root: Path, seed: int) -> Case:
    """A bump in the plane, 62 weights."""
    own = _seeded(5)
    x = 4 * torch.rand(620, 2, generator=own) - 2
    y = torch.exp(-x.square().sum(-1)) * 3 - x[:, 0] * 0.5 + 0.2 * torch.randn(620, generator=own)
    net = network(nn.Linear(2, 15), nn.Tanh(), nn.Linear(15, 1))

    def model(x: Tensor, y: Tensor) -> None:
        sigma = pyro.sample("sigma", dist.LogNormal(-1.0, 1.0))
        f = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, sigma), obs=y)

    return Case(model, (x[:120], y[:120]), held_out(model, x[120:], y[120:]), net)


def _later_split(name: str, root: Path, seed: int) -> Case:
    """A canonical split from the eighth on, by the usual network of 50 units."""
    part = load_split(root, name, _LATER + seed)
    return _regression(part.data, (part.x_held, part.y_held))


def _rows(name: str, root: Path, seed: int) -> Case:
    """400 rows of a larger set, and 1000 to judge by."""
    arrays = load_npz(root, f"uci/{name}.npz")
    order = np.random.default_rng(seed).permutation(len(arrays["y"]))[: _ROWS + _HELD]
    return _standardised(arrays["X"][order], arrays["y"][order], _ROWS)


def _friedman(root: Path, seed: int) -> Case:
    """Friedman's first function of ten inputs, five of them of no use."""
    from sklearn.datasets import make_friedman1

    return _standardised(*make_friedman1(300 + _HELD, 10, noise=1.0, random_state=1 + seed), 300)


def _diabetes(root: Path, seed: int) -> Case:
    """scikit-learn's 442 patients, 142 held out."""
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    order = np.random.default_rng(seed).permutation(len(bunch.target))
    return _standardised(bunch.data[order], bunch.target[order], 300)


def _standardised(x: np.ndarray, y: np.ndarray, count: int) -> Case:
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float).ravel()
    x = (x - x[:count].mean(0)) / np.where(x[:count].std(0) > 0, x[:count].std(0), 1.0)
    y = (y - y[:count].mean()) / y[:count].std()
    inputs, targets = torch.tensor(x).float(), torch.tensor(y).float()
    return _regression((inputs[:count], targets[:count]), (inputs[count:], targets[count:]))


def _regression(data: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor]) -> Case:
    model = build_model(data[0].shape[1], len(data[0]))
    return Case(model, data, held_out(model, *held), model.network)  # type: ignore[attr-defined]


#: models that settings of networks were chosen on
CHOICE: dict[str, Load] = {
    "Friedman": _friedman,
    "diabetes": _diabetes,
    "kin8nm": partial(_rows, "kin8nm"),
    "wine quality": partial(_rows, "wine"),
}
#: models that nothing was chosen on
EXAMINATION: dict[str, Load] = {
    "counts in groups": _glmm,
    "robust regression": _robust,
    "growth curve": _growth,
    "counts over time": _walk,
    "pupils and questions": _pupils,
    "slopes in groups": _slopes,
    "moons": _moons,
    "wine classes": _wines,
    "bump": _bump,
    "boston": partial(_later_split, "boston"),
    "yacht": partial(_later_split, "yacht"),
}
