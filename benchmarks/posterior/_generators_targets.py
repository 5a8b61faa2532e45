"""Posteriors with a known density, or with reference moments, or with held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from benchmarks.common import load_npz
from benchmarks.posterior._generators_horseshoe import horseshoe, horseshoe_data, horseshoe_moments
from benchmarks.posterior._posteriordb_models import MODELS
from benchmarks.posterior._posteriordb_reference import Moments, reference_moments
from benchmarks.shared.uci import build_model, load_split, score

__all__ = ["TARGETS", "Target", "load"]

Draws = dict[str, Tensor]
Density = Callable[[Tensor], Tensor]

HIDDEN_UNITS = 10


@dataclass(frozen=True)
class Target:
    """
    A model, and what is known of its posterior.

    :param model: a Pyro model; of known densities, the log-evidence is 0.
    :param arguments: of the model.
    :param moments: mean and standard deviation of each parameter.
    :param parameters: from draws of the sites to moments by the names of ``moments``.
    :param log_density: of draws ``(n, d)`` of the only site ``x``.
    :param score: from draws of the sites to scores of the held-out rows.
    :param nesting: of its plates.
    """

    model: Callable[..., Any]
    arguments: tuple[Tensor, ...] = ()
    moments: Moments = field(default_factory=dict)
    parameters: Callable[[Draws], Moments] | None = None
    log_density: Density | None = None
    score: Callable[[Draws], dict[str, float]] | None = None
    nesting: int = 0


# ---- densities


def _gaussian(correlation: float, variance: float = 1.0) -> dist.MultivariateNormal:
    matrix = variance * torch.tensor([[1.0, correlation], [correlation, 1.0]])
    return dist.MultivariateNormal(torch.zeros(2), matrix, validate_args=False)


def banana(x: Tensor) -> Tensor:
    """Correlation 0.9 in ``(x, y + x^2 + 1)``: that on which semi-implicit methods are compared."""
    straight = torch.stack([x[..., 0], x[..., 1] + x[..., 0] ** 2 + 1], -1)
    return _gaussian(0.9).log_prob(straight)


def crossed(x: Tensor) -> Tensor:
    """Two narrow Gaussians that cross."""
    parts = [_gaussian(sign * 0.9, 2.0).log_prob(x) for sign in (1, -1)]
    return torch.logaddexp(*parts) - math.log(2)


def two_modes(x: Tensor, left: float = 0.5) -> Tensor:
    """Standard normals at -2 and 2 of the first axis."""
    parts = [
        math.log(weight) - ((x - torch.tensor([at, 0.0])) ** 2).sum(-1) / 2 - math.log(2 * math.pi)
        for weight, at in ((left, -2.0), (1 - left, 2.0))
    ]
    return torch.logaddexp(*parts)


def ring(x: Tensor) -> Tensor:
    """Radius N(3, 0.3), angle uniform."""
    radius = x.norm(dim=-1)
    along = dist.Normal(3.0, 0.3, validate_args=False).log_prob(radius)
    return along - math.log(2 * math.pi) - (radius + 1e-6).log()


def bananas(x: Tensor) -> Tensor:
    """Ten of :func:`banana`, independent."""
    return banana(x.reshape(*x.shape[:-1], -1, 2)).sum(-1)


def funnel(x: Tensor) -> Tensor:
    """``v ~ N(0, 1.5)`` and nine ``N(0, exp(v / 2))``."""
    v, rest = x[..., :1], x[..., 1:]
    parts = dist.Normal(0.0, (v / 2).exp(), validate_args=False).log_prob(rest).sum(-1)
    return parts + dist.Normal(0.0, 1.5, validate_args=False).log_prob(v[..., 0])


def _of_density(density: Density, means: list[float], deviations: list[float]) -> Target:
    """A target whose only site is ``x``, with that density."""
    prior = dist.Normal(torch.zeros(len(means)), 1.0, validate_args=False).to_event(1)

    def model() -> None:
        x = pyro.sample("x", prior)
        pyro.factor("density", density(x) - prior.log_prob(x))

    names = [f"x[{j}]" for j in range(1, len(means) + 1)]
    moments = dict(zip(names, zip(means, deviations, strict=True), strict=True))
    return Target(model, moments=moments, parameters=moments_of, log_density=density)


def moments_of(draws: Draws) -> Moments:
    """Mean and standard deviation of each entry of each site."""
    result = {}
    for name, values in draws.items():
        columns = values.reshape(len(values), -1).double()
        for j, column in enumerate(columns.unbind(-1), start=1):
            label = f"{name}[{j}]" if values.dim() > 1 else name
            result[label] = (column.mean().item(), column.std().item())
    return result


# ---- posteriors of data


def eight_schools_centred(y: Tensor, sigma: Tensor) -> None:
    """That of posteriordb, with the schools' effects as the latents."""
    mu = pyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(5.0))
    with pyro.plate("schools", len(y)):
        theta = pyro.sample("theta", dist.Normal(mu, tau))
        pyro.sample("y", dist.Normal(theta, sigma), obs=y)


def _posteriordb(name: str) -> Callable[[Path, dict[str, Any]], Target]:
    posterior = MODELS[name]

    def make(root: Path, settings: dict[str, Any]) -> Target:
        arrays = load_npz(root, f"posteriordb/{posterior.file}.npz")
        exact = reference_moments(arrays)
        data = posterior.tensors(arrays)
        return Target(posterior.model, data, exact, posterior.moments, nesting=1)

    return make


def _centred(root: Path, settings: dict[str, Any]) -> Target:
    arrays = load_npz(root, f"posteriordb/{MODELS['eight_schools'].file}.npz")
    data = MODELS["eight_schools"].tensors(arrays)
    exact = reference_moments(arrays)
    return Target(eight_schools_centred, data, exact, _schools, nesting=1)


def _schools(draws: Draws) -> Moments:
    return moments_of({name: draws[name].squeeze() for name in ("theta", "mu", "tau")})


def _horseshoe(root: Path, settings: dict[str, Any]) -> Target:
    data = horseshoe_data()
    exact, parameters = horseshoe_moments(*data, settings["num_gibbs"])
    return Target(horseshoe, data, exact, lambda draws: moments_of(parameters(draws)), nesting=1)


def _network(name: str) -> Callable[[Path, dict[str, Any]], Target]:
    def make(root: Path, settings: dict[str, Any]) -> Target:
        split = load_split(root, name, settings["split"])
        parts = ("x", "y", "x_held", "y_held")
        split = replace(split, **{part: getattr(split, part).double() for part in parts})
        model = build_model(split.x.shape[1], len(split.x), HIDDEN_UNITS)
        held = split
        return Target(model, split.data, score=lambda draws: score(model, draws, held), nesting=1)

    return make


def _fixed(target: Callable[[], Target]) -> Callable[[Path, dict[str, Any]], Target]:
    return lambda root, settings: target()


_ROOT_HALF = (9.09 / 2) ** 0.5
TARGETS: dict[str, Callable[[Path, dict[str, Any]], Target]] = {
    "banana": _fixed(lambda: _of_density(banana, [0, -2], [1, 3**0.5])),
    "X": _fixed(lambda: _of_density(crossed, [0, 0], [2**0.5] * 2)),
    "two modes": _fixed(lambda: _of_density(two_modes, [0, 0], [5**0.5, 1])),
    "two modes, 1:4": _fixed(
        lambda: _of_density(lambda x: two_modes(x, 0.2), [1.2, 0], [3.56**0.5, 1])
    ),
    "ring": _fixed(lambda: _of_density(ring, [0, 0], [_ROOT_HALF] * 2)),
    "funnel": _fixed(lambda: _of_density(funnel, [0] * 10, [1.5, *[math.exp(1.5**2 / 4)] * 9])),
    "ten bananas": _fixed(lambda: _of_density(bananas, [0, -2] * 10, [1, 3**0.5] * 10)),
    "eight schools": _posteriordb("eight_schools"),
    "eight schools, centred": _centred,
    "horseshoe": _horseshoe,
    "kidscore_momiq": _posteriordb("kidscore_momiq"),
    "arK": _posteriordb("arK"),
    "blr": _posteriordb("blr"),
    "nes1980": _posteriordb("nes1980"),
    "concrete": _network("concrete"),
    "energy": _network("energy"),
}


def load(name: str, root: Path, settings: dict[str, Any]) -> Target:
    """
    :param str name: a key of :data:`TARGETS`.
    :param root: the data folder.
    :param settings: of the benchmark, and the ``split`` of the networks' data.
    """
    return TARGETS[name](root, settings)
