"""
Random Pyro models, written as one would write them, that are the same for the same seed.

A :class:`ModelSpec` is plain values; :func:`build_model` makes a model and its data of it. Latents
and observed sites are in any of two plates, under scales and masks of all kinds; rows come as a
whole, as a minibatch, or are chosen by the model; there are loops, factors, and several observed
sites. Nothing of the package is used here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.distributions import constraints
from pyro.distributions.transforms import OrderedTransform
from torch import Tensor

DIMS = {"groups": -2, "data": -1}

#: families of one real number each: (location) -> distribution; most have no use for a location
SCALARS: dict[str, Callable[[Tensor], Any]] = {
    "Normal": lambda t: dist.Normal(t, 1.0),
    "StudentT": lambda t: dist.StudentT(4.0, t, 1.0),
    "Laplace": lambda t: dist.Laplace(t, 1.0),
    "Gumbel": lambda t: dist.Gumbel(t, 1.0),
    "Cauchy": lambda t: dist.Cauchy(t, 1.0),
    "LogNormal": lambda t: dist.LogNormal(t - 1.0, 0.5),
    "Gamma": lambda t: dist.Gamma(t.exp() + 1.0, 2.0),
    "InverseGamma": lambda t: dist.InverseGamma(t.exp() + 2.0, 1.0),
    "Beta": lambda t: dist.Beta(t.exp() + 1.0, 3.0),
    "Kumaraswamy": lambda t: dist.Kumaraswamy(t.exp() + 1.0, 2.0),
    "HalfNormal": lambda t: dist.HalfNormal(t.exp()),
    "HalfCauchy": lambda t: dist.HalfCauchy(t.exp()),
    "Exponential": lambda t: dist.Exponential(t.exp()),
    "Weibull": lambda t: dist.Weibull(t.exp(), 2.0),
    "Logistic": lambda t: dist.Logistic(t, 1.0),
    "Uniform": lambda t: dist.Uniform(torch.full_like(t, -1.1), 2.3),
    "Pareto": lambda t: dist.Pareto(torch.full_like(t, 0.7), 3.0),
}
#: families of a vector or a matrix: (location) -> distribution
VECTORS: dict[str, Callable[[Tensor], Any]] = {
    "Dirichlet": lambda t: dist.Dirichlet(t[..., None].exp() + t.new_tensor([1.0, 2.0, 0.5])),
    "MultivariateNormal": lambda t: dist.MultivariateNormal(
        t[..., None] + t.new_zeros(2), t.new_tensor([[1.0, 0.3], [0.3, 0.5]])
    ),
    "LowRank": lambda t: dist.LowRankMultivariateNormal(
        t[..., None] + t.new_zeros(3), t.new_ones(3, 1), t.new_ones(3)
    ),
    "MultivariateStudentT": lambda t: dist.MultivariateStudentT(
        t.new_tensor(4.0), t[..., None] + t.new_zeros(2), torch.eye(2).to(t)
    ),
    "LKJCholesky": lambda t: dist.LKJCholesky(3, t.exp()),
    "Ordered": lambda t: dist.TransformedDistribution(
        dist.Normal(t[..., None] + t.new_zeros(3), 1.0).to_event(1), [OrderedTransform()]
    ),
    "ImproperReal": lambda t: dist.ImproperUniform(constraints.real, t.shape, (2,)),
    "ImproperPositive": lambda t: dist.ImproperUniform(constraints.positive, t.shape, (1,)),
    "ImproperAbove": lambda t: dist.ImproperUniform(constraints.greater_than(0.7), t.shape, (2,)),
}
#: what can be observed: (location) -> distribution, and its data from a real number
LIKELIHOODS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor], Tensor]]] = {
    "Normal": (lambda f: dist.Normal(f, 0.5), lambda y: y),
    "StudentT": (lambda f: dist.StudentT(4.0, f, 0.5), lambda y: y),
    "Poisson": (lambda f: dist.Poisson(f.exp()), lambda y: (2 * y.abs()).floor()),
    "Bernoulli": (lambda f: dist.Bernoulli(logits=f), lambda y: (y > 0).to(y)),
    "Gamma": (lambda f: dist.Gamma(2.0, f.exp()), lambda y: y.abs() + 0.1),
    "Pair": (
        lambda f: dist.Normal(torch.stack([f, -f], -1), 0.7).to_event(1),
        lambda y: torch.stack([y, y.sin()], -1),
    ),
    "Correlated": (
        lambda f: dist.MultivariateNormal(
            torch.stack([f, f.tanh()], -1), f.new_tensor([[1.0, 0.4], [0.4, 0.6]])
        ),
        lambda y: torch.stack([y, y.cos()], -1),
    ),
}
#: mistakes that no guide nor objective may take in silence
NONSENSE = (
    "discrete",
    "undeclared",
    "unmappable",
    "circular",
    "no latent",
    "squared",
)
UNDRAWABLE = frozenset({"ImproperReal", "ImproperPositive", "ImproperAbove"})


@dataclass(frozen=True)
class Weight:
    """Scale and mask of one site: each None, a number, or ``"tensor"`` (``"rows"`` for a mask)."""

    scale: float | str | None = None
    mask: bool | str | None = None

    @property
    def plain(self) -> bool:
        return self.scale is None and self.mask is None


@dataclass(frozen=True)
class Latent:
    """:param depends: whether its location is a function of the latents before it."""

    name: str
    family: str
    event: tuple[int, ...] = ()
    plates: tuple[str, ...] = ()
    weight: Weight = Weight()
    depends: bool = False

    @property
    def event_dim(self) -> int:
        if self.family in SCALARS:
            return len(self.event)
        return 2 if self.family == "LKJCholesky" else 1


@dataclass(frozen=True)
class Observed:
    """:param kind: ``"sample"``, ``"factor"``, ``"loop"`` (in a sequential plate of 2 turns)."""

    name: str
    family: str
    plates: tuple[str, ...] = ("data",)
    weight: Weight = Weight()
    kind: str = "sample"


@dataclass(frozen=True)
class ModelSpec:
    """
    :param int rows: of all data.
    :param int batch: rows in one call.
    :param str chooses: who chooses the rows of a minibatch: ``"indices"`` (passed as an argument),
        ``"size"`` (the caller, who tells the number only), or ``"model"``.
    :param overall: a scale that guide and model are both under.
    :param str nonsense: what is wrong with it, one of :data:`NONSENSE`; nothing by default.
    """

    seed: int
    rows: int = 4
    batch: int = 4
    chooses: str = "indices"
    groups: int = 0
    dtype: torch.dtype = torch.float64
    latents: tuple[Latent, ...] = ()
    observed: tuple[Observed, ...] = ()
    overall: float | None = None
    nonsense: str = ""

    @property
    def subsampled(self) -> bool:
        return self.batch < self.rows

    @property
    def local(self) -> bool:
        return any("data" in latent.plates for latent in self.latents)

    @property
    def improper(self) -> bool:
        return any(latent.family in UNDRAWABLE for latent in self.latents)

    @property
    def coupled(self) -> bool:
        return any(latent.depends for latent in self.latents)


@dataclass
class Problem:
    """A model with the arguments of one call, and what a guide may need to share its plates."""

    spec: ModelSpec
    model: Callable[..., Any]
    args: tuple[Any, ...]
    plates: Callable[[Tensor, Tensor | None], dict[str, Any]] = field(repr=False)

    def create_plates(self, x: Tensor, y: Tensor, idx: Tensor | None = None) -> Any:
        """As an option of a guide."""
        return tuple(self.plates(x, idx).values())

    def inside(self, made: dict[str, Any], names: tuple[str, ...]) -> ExitStack:
        """A context within some of the plates."""
        stack = ExitStack()
        for name in names:
            stack.enter_context(made[name])
        return stack

    def with_all_rows(self) -> Problem:
        """The same model, as it is called with all rows."""
        return build_model(replace(self.spec, batch=self.spec.rows))

    def shape(self, latent: Latent, family_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of one draw of a latent in one call."""
        sizes = {"groups": self.spec.groups, "data": self.spec.batch}
        plates = [sizes.get(name, 1) if name in latent.plates else 1 for name in DIMS]
        while plates and plates[0] == 1 and list(DIMS)[2 - len(plates)] not in latent.plates:
            plates.pop(0)
        return (*plates, *family_shape)


# ---- specifications


def _weight(r: random.Random, plates: tuple[str, ...], often: float) -> Weight:
    scale = r.choice([0.5, 2.0, "tensor"]) if r.random() < often else None
    masks: list[Any] = [True, False, "rows"] if plates else [True, False]
    return Weight(scale, r.choice(masks) if r.random() < often else None)


def _latents(
    r: random.Random, plates: list[tuple[str, ...]], local: bool, real: bool, improper: bool
) -> tuple[Latent, ...]:
    found: list[Latent] = []
    vectors = [name for name in VECTORS if improper or name not in UNDRAWABLE]
    for index in range(r.choice([1, 1, 2, 2, 3, 4])):
        where = ("data",) if local else r.choice([(), (), *plates])
        vector = r.random() < 0.3
        family = "Normal" if real else r.choice(vectors if vector else list(SCALARS))
        event = r.choice([(1,), (2,)]) if real else r.choice([(), (), (1,), (2,), (2, 2)])
        name = r.choice(["z{}", "layer.{}", "a.b{}"]).format(index)
        weight = _weight(r, where, 0.07)
        depends = index > 0 and family not in UNDRAWABLE and r.random() < 0.3
        event = event if family in SCALARS else ()
        # a prior that depends on latents of a plate needs to be in it
        allowed = all(set(other.plates) <= set(where) for other in found)
        found.append(Latent(name, family, event, where, weight, depends and allowed))
    return tuple(found)


def _observed(r: random.Random, plates: list[tuple[str, ...]]) -> tuple[Observed, ...]:
    found = []
    for index in range(r.choice([1, 1, 1, 2, 3])):
        where = r.choice([("data",), ("data",), *plates]) if index or not plates else plates[0]
        if index and r.random() < 0.1:
            where = ()
        kind = r.choice(["sample"] * 6 + ["factor", "loop"]) if index else "sample"
        if not plates:
            where = ()
        weight = _weight(r, where, 0.15)
        found.append(Observed(f"y{index}", r.choice(list(LIKELIHOODS)), where, weight, kind))
    return tuple(found)


def draw_model(
    seed: int, *, local: bool = False, real: bool = False, improper: bool = True
) -> ModelSpec:
    """
    :param int seed: the same specification for the same one.
    :param bool local: whether every latent is in the data plate and in no other.
    :param bool real: whether every latent is a vector of real numbers.
    :param bool improper: whether priors may be improper.
    """
    r = random.Random(seed)
    rows = r.choice([1, 2, 3, 5])
    groups = 0 if local else r.choice([0, 0, 0, 1, 2])
    plates: list[tuple[str, ...]] = [("data",)]
    if groups:
        plates += [("groups",), ("groups", "data")]
    if not local and r.random() < 0.08:
        plates = []
    latents = _latents(r, plates, local, real, improper)
    observed = _observed(r, plates)
    batch = r.choice([rows, rows, max(1, rows // 2), max(1, rows - 1)]) if plates else rows
    return ModelSpec(
        seed,
        rows,
        batch,
        r.choice(["indices", "indices", "size", "model"]),
        groups if plates else 0,
        torch.float32 if r.random() < 0.15 else torch.float64,
        latents,
        observed,
        r.choice([None] * 8 + [0.25, 3.0]),
    )


# ---- from a specification to a model


@contextmanager
def weighted(weight: Weight, plates: tuple[str, ...], count: int, like: Tensor) -> Iterator[None]:
    """The scale and the mask of a site; ``count`` is the number of rows of a mask by rows."""
    with ExitStack() as stack:
        if weight.scale is not None:
            tensor = weight.scale == "tensor"
            scale = like.new_tensor(1.7) if tensor else weight.scale
            stack.enter_context(poutine.scale(scale=scale))
        if weight.mask == "rows":
            mask = torch.arange(count) % 2 == 0
            mask = mask if "data" in plates else mask[:, None]
            stack.enter_context(poutine.mask(mask=mask))
        elif weight.mask is not None:
            stack.enter_context(poutine.mask(mask=torch.tensor(weight.mask)))
        yield


def prior(latent: Latent, location: Tensor) -> Any:
    """
    :param torch.Tensor location: shape that of the plates, or what broadcasts with it.
    :returns: the prior of one latent.
    """
    if latent.family in VECTORS:
        return VECTORS[latent.family](location)
    if not latent.event:
        return SCALARS[latent.family](location)
    wide = location.reshape(location.shape + (1,) * len(latent.event))
    # entries of one site differ, so that no two of them can be exchanged unnoticed
    steps = torch.linspace(0.0, 0.5, torch.Size(latent.event).numel()).to(location)
    return SCALARS[latent.family](wide + steps.reshape(latent.event)).to_event(len(latent.event))


def summary(latent: Latent, value: Tensor) -> Tensor:
    """One bounded number of each draw of a latent: shape that of its batch."""
    flat = value.flatten(-latent.event_dim) if latent.event_dim else value[..., None]
    return (flat * torch.linspace(1.0, 1.3, flat.shape[-1]).to(flat)).sum(-1).tanh()


def _reduced(value: Tensor, have: tuple[str, ...], want: tuple[str, ...]) -> Tensor:
    """The mean over the plates that a value is in and the site that it enters is not."""
    for name in set(have) - set(want):
        if value.dim() >= -DIMS[name]:
            value = value.mean(DIMS[name], keepdim=True)
    return value


def data(spec: ModelSpec) -> tuple[Tensor, Tensor]:
    """Inputs ``(rows, 2)`` and targets ``(rows,)``."""
    generator = torch.Generator().manual_seed(spec.seed)
    x = torch.randn(spec.rows, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(spec.rows, generator=generator, dtype=torch.float64)
    return x.to(spec.dtype), y.to(spec.dtype)


def build_model(spec: ModelSpec) -> Problem:
    """A model of ``(x, y, idx)``; which of the two plates it has is for the sites to say."""
    used = {p for site in (*spec.latents, *spec.observed) for p in site.plates}

    def plates(x: Tensor, idx: Tensor | None) -> dict[str, Any]:
        made = {}
        if "groups" in used:
            made["groups"] = pyro.plate("groups", spec.groups, dim=-2)
        if "data" in used:
            size = spec.batch if spec.chooses == "model" else len(x)
            made["data"] = pyro.plate("data", spec.rows, subsample_size=size, subsample=idx, dim=-1)
        return made

    def model(x: Tensor, y: Tensor, idx: Tensor | None = None) -> None:
        made, parts = plates(x, idx), []
        if "data" in made and spec.chooses == "model":
            with made["data"] as rows:
                x, y = x[rows], y[rows]
        counts = {"data": len(x), "groups": spec.groups}
        for latent in () if spec.nonsense == "no latent" else spec.latents:
            location = x.new_zeros(())
            if latent.depends:
                location = 0.3 * sum(_reduced(v, h, latent.plates) for v, h in parts)
            with ExitStack() as stack:
                for name in latent.plates:
                    stack.enter_context(made[name])
                count = counts[latent.plates[-1]] if latent.plates else 0
                stack.enter_context(weighted(latent.weight, latent.plates, count, x))
                value = pyro.sample(latent.name, prior(latent, location))
            parts.append((summary(latent, value), latent.plates))
        wrong = _nonsense(spec.nonsense, x)
        for number, site in enumerate(spec.observed):
            location = x.new_zeros(()) + sum(
                (0.5 + 0.2 * i + 0.1 * number) * _reduced(v, h, site.plates)
                for i, (v, h) in enumerate(parts)
            )
            if "data" in site.plates:
                location = location + wrong
            _observe(spec, site, made, counts, location, x, y)

    x, y = data(spec)
    idx = None
    if spec.subsampled and spec.chooses != "model":
        rows = torch.randperm(spec.rows, generator=torch.Generator().manual_seed(spec.seed))
        rows = rows[: spec.batch]
        x, y = x[rows], y[rows]
        idx = rows if spec.chooses == "indices" else None
    args = (x, y) if idx is None else (x, y, idx)
    return Problem(spec, model, args, plates)


def _nonsense(kind: str, x: Tensor) -> Tensor:
    """A sample statement that cannot be meant so, and what it adds to every row."""
    if kind == "discrete":
        pyro.sample("wrong", dist.Poisson(x.new_tensor(2.0)))
    elif kind == "undeclared":
        pyro.sample("wrong", dist.Normal(x.new_zeros(3), 1.0))
    elif kind == "unmappable":
        pyro.sample("wrong", dist.ProjectedNormal(x.new_ones(3)))
    elif kind == "circular":
        pyro.sample("wrong", dist.VonMises(x.new_zeros(()), 1.0))
    elif kind == "squared":  # right for one draw; for several a second dimension of draws
        w = pyro.sample("wrong", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        return (x @ w.unsqueeze(-1)).squeeze(-1)
    return x.new_zeros(())


def _observe(
    spec: ModelSpec,
    site: Observed,
    made: dict[str, Any],
    counts: dict[str, int],
    location: Any,
    x: Tensor,
    y: Tensor,
) -> None:
    """One observed site: a sample statement, a factor, or a loop of two statements."""
    make, target = LIKELIHOODS[site.family]
    number = int(site.name[1:])
    if "data" in site.plates:
        location, base = location + 0.3 * x[:, 0], y + 0.2 * number * x[:, 1]
    else:
        base = y.new_tensor(0.4 + number)
    if "groups" in site.plates:
        base = base + 0.3 * torch.arange(spec.groups).to(y)[:, None]
    for turn in pyro.plate(f"{site.name}_turns", 2) if site.kind == "loop" else (None,):
        name = site.name if turn is None else f"{site.name}_{turn}"
        here = location if turn is None else location + 0.1 * turn
        with ExitStack() as stack:
            for plate in site.plates:
                stack.enter_context(made[plate])
            count = counts[site.plates[-1]] if site.plates else 0
            stack.enter_context(weighted(site.weight, site.plates, count, x))
            if site.kind == "factor":
                pyro.factor(name, -0.5 * (here - base).square())
            else:
                pyro.sample(name, make(here), obs=target(base))
