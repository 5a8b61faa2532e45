"""
What the contract suite runs over. **A new guide or a new objective is one line in a list here.**

Every guide meets every objective and every model. A model is a :class:`Case`: a plain Pyro model
with its data, small enough that hundreds of tests stay fast.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints
from torch import Tensor, nn

from pyro_implicit import (
    AdversarialELBO,
    AlphaEnergy,
    BayesianModule,
    CMMNNGuide,
    HyperNetworkGuide,
    ImplicitELBO,
    ImplicitGuide,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    MMNNGuide,
    PosteriorPredictiveLoss,
    ResidualGenerator,
    SemiImplicitELBO,
    SingularValueELBO,
)
from pyro_implicit.exceptions import GuideError, SiteError

ROWS = 6


@dataclass(frozen=True)
class Case:
    """
    :param make: makes the model anew, for data of the given dtype; no two tests share a network.
    :param sites: shapes of one draw of each latent site.
    :param inputs: number of columns of ``x``.
    :param local: names of the sites inside of the data plate.
    :param improper: whether Pyro itself cannot draw from the prior.
    :param coupled: whether the prior of one site depends on another site.
    """

    make: Callable[..., Callable[..., Any]]
    sites: dict[str, tuple[int, ...]]
    inputs: int = 2
    local: tuple[str, ...] = field(default=())
    improper: bool = False
    coupled: bool = False

    def data(self, rows: int = ROWS, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Inputs and targets, the same in every process."""
        x = torch.linspace(-1.0, 1.0, rows * self.inputs, dtype=dtype).sin().reshape(rows, -1)
        return x, x.sum(-1) + 0.1 * torch.cos(7 * x[:, 0])

    def create_plates(self) -> Callable[..., Any] | None:
        """What a guide needs to train local latents on minibatches."""
        if not self.local:
            return None
        return lambda x, y=None, idx=None, size=ROWS: pyro.plate(
            "data", size, subsample_size=len(x), subsample=idx, dim=-1
        )


def _aligned(value: Tensor, event_dim: int, nesting: int) -> Tensor:
    """
    A multivariate draw with the dimensions of the plates that it is not in: Pyro's
    ``Predictive(parallel=True)`` leaves them out, for any guide.
    """
    event = value.shape[value.dim() - event_dim :]
    return value if value.dim() == event_dim else value.reshape(-1, *[1] * nesting, *event)


def _regression(dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    def model(x, y=None, idx=None, size=ROWS):
        scale = pyro.sample("scale", dist.LogNormal(-1.0, 0.5))
        w = _aligned(pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1)), 1, 1)
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx):
            return pyro.sample("y", dist.Normal((w * x).sum(-1), scale), obs=y)

    return model


def _network(dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    layers = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1))
    net = BayesianModule(layers, prior=dist.Normal(0.0, 1.0)).to(dtype)

    def model(x, y=None, idx=None, size=ROWS):
        f = net(x).squeeze(-1)
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx):
            return pyro.sample("y", dist.Normal(f, 0.3), obs=y)

    return model


def _local(dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    def model(x, y=None, idx=None, size=ROWS):
        mean = pyro.sample("mean", dist.Normal(x.new_zeros(()), 1.0))
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx):
            rate = pyro.sample("rate", dist.LogNormal(mean, 0.5))
            return pyro.sample("y", dist.Normal(x[:, 0] * rate, 0.3), obs=y)

    return model


def _plain(dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    def model(x, y=None, idx=None, size=ROWS):
        share = pyro.sample("share", dist.Dirichlet(x.new_tensor([2.0, 3.0, 4.0])))
        share = _aligned(share, 1, 2)
        with pyro.plate("groups", 3, dim=-2):
            level = pyro.sample("level", dist.Normal(share[..., 0], 1.0))
        f = level.mean(-2, keepdim=True) + share[..., 1] * x[:, 0]
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx, dim=-1):
            return pyro.sample("y", dist.StudentT(4.0, f, 0.5), obs=y)

    return model


def _flat_priors(dtype: torch.dtype = torch.float32) -> Callable[..., Any]:
    def model(x, y=None, idx=None, size=ROWS):
        w = _aligned(pyro.sample("w", dist.ImproperUniform(constraints.real, (), (2,))), 1, 1)
        scale = pyro.sample("scale", dist.ImproperUniform(constraints.positive, (), ()))
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx):
            return pyro.sample("y", dist.Normal((w * x).sum(-1), 0.1 + scale), obs=y)

    return model


MODELS: dict[str, Case] = {
    "regression": Case(_regression, {"scale": (), "w": (2,)}),
    "network": Case(
        _network,
        {"0.weight": (2, 1), "0.bias": (2,), "2.weight": (1, 2), "2.bias": (1,)},
        inputs=1,
    ),
    "local": Case(_local, {"mean": (), "rate": (ROWS,)}, inputs=1, local=("rate",), coupled=True),
    "plain": Case(_plain, {"share": (3,), "level": (3, 1)}, inputs=1, coupled=True),
    "flat priors": Case(_flat_priors, {"w": (2,), "scale": ()}, improper=True),
}

#: each takes a model (None to load a saved state) and options that all guides have
GUIDES: dict[str, partial[ImplicitGuide]] = {
    "default": partial(HyperNetworkGuide, hidden_dims=(8,)),
    "few noises": partial(
        HyperNetworkGuide, hidden_dims=(8,), latent_dim=1, learn_scale="scalar", scale=0.1
    ),
    "factorised": partial(
        HyperNetworkGuide, hidden_dims=(4,), factorized=True, learn_scale="diagonal"
    ),
    "factorised by layer": partial(HyperNetworkGuide, hidden_dims=(4,), factorized="layer"),
    "residual": partial(
        HyperNetworkGuide, generator=partial(ResidualGenerator, hidden_dim=8, init_scale=0.1)
    ),
    "laplace": partial(HyperNetworkGuide, hidden_dims=(8,), init_from="laplace"),
    "matrix": partial(MMNNGuide, noise_shape=(2, 2), hidden_shapes=[(3, 3)]),
    "matrices in branches": partial(CMMNNGuide, noise_shape=(2, 2), learn_scale="scalar"),
}


@dataclass(frozen=True)
class Objective:
    """
    :param make: takes nothing, or options that all objectives have.
    :param guide_options: what it needs of every guide.
    :param draws_prior: whether it compares draws of the guide with draws of the model's prior.
    :param trains: whether it has parameters of its own, which it trains whenever it is evaluated
        with gradients enabled: its value then depends on what came before.
    """

    make: Callable[..., ImplicitELBO]
    guide_options: dict[str, Any] = field(default_factory=dict)
    draws_prior: bool = False
    trains: bool = False

    def __call__(self, **options: Any) -> ImplicitELBO:
        return self.make(**options)

    def refusal(
        self, guide: partial[ImplicitGuide], case: Case, minibatch: bool = False
    ) -> tuple[type[Exception], str] | None:
        """The error that this combination must raise, and its message."""
        if not self.draws_prior:
            return None
        if minibatch and case.local:
            return SiteError, f"latent site '{case.local[0]}' has weight .*contrast='adaptive'"
        if case.improper:
            return SiteError, "prior of latent site 'w' is improper.*contrast='adaptive'"
        if guide.keywords.get("factorized") and case.coupled:
            return GuideError, "depends on latents outside of implicit site.*factorized=False"
        return None

    def allowed(
        self, guide: partial[ImplicitGuide], case: Case, minibatch: bool = False
    ) -> AbstractContextManager[Any]:
        """A context that does nothing, or one that expects the refusal."""
        refusal = self.refusal(guide, case, minibatch)
        return nullcontext() if refusal is None else pytest.raises(refusal[0], match=refusal[1])


OBJECTIVES: dict[str, Objective] = {
    "linearised": Objective(partial(LinearisedELBO, num_particles=2)),
    "linearised, vectorised": Objective(
        partial(LinearisedELBO, num_particles=4, vectorize_particles=True)
    ),
    "linearised, per datum": Objective(
        partial(LinearisedELBO, num_particles=4, vectorize_particles=True, likelihood="per_datum")
    ),
    # with a prior: without one it does not reach latents that the data depend on through it alone
    "posterior predictive": Objective(
        partial(PosteriorPredictiveLoss, num_particles=3, prior_weight=0.1)
    ),
    "posterior predictive, expected": Objective(
        partial(
            PosteriorPredictiveLoss,
            num_particles=3,
            form="expected",
            prior_weight=0.5,
            vectorize_particles=True,
        )
    ),
    "alpha energy": Objective(partial(AlphaEnergy, num_particles=4, vectorize_particles=True)),
    "lanczos": Objective(partial(LanczosELBO, num_particles=2)),
    "kernel ratio": Objective(partial(KernelDensityRatioELBO, num_particles=2, num_samples=20)),
    "kernel ratio to the prior": Objective(
        partial(KernelDensityRatioELBO, num_particles=2, num_samples=20, contrast="prior"),
        draws_prior=True,
    ),
    "kernel ratio to the prior, vectorised": Objective(
        partial(
            KernelDensityRatioELBO,
            num_particles=2,
            num_samples=20,
            contrast="prior",
            vectorize_particles=True,
        ),
        draws_prior=True,
    ),
    "adversarial": Objective(
        partial(AdversarialELBO, num_particles=2, num_samples=20, num_critic_steps=1), trains=True
    ),
    "semi-implicit": Objective(
        partial(SemiImplicitELBO, num_particles=2, num_inner=5), guide_options={"scale": 0.05}
    ),
    "semi-implicit, gauss-newton": Objective(
        partial(SemiImplicitELBO, num_particles=2, num_inner=5, proposal="gauss-newton"),
        guide_options={"scale": 0.05},
    ),
    "singular value": Objective(partial(SingularValueELBO, num_particles=2, num_iterations=200)),
}
