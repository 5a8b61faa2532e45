"""Every batch dimension of a log-density is that of a plate, or the loss is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.distributions import constraints
from torch import Tensor

from pyro_implicit import (
    AlphaEnergy,
    HyperNetworkGuide,
    ImplicitDistribution,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    PosteriorPredictiveLoss,
    SemiImplicitELBO,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import SiteError
from pyro_implicit.generators import ResidualGenerator

pytestmark = pytest.mark.usefixtures("double")
Model = Callable[[], None]
N, S = 6, 4
X = torch.linspace(-1, 1, 2 * N, dtype=torch.float64).sin().reshape(N, 2)
Y = X.sum(-1) + 0.1
MASK = torch.arange(N) % 3 > 0


def vector(name: str, *shape: int) -> Tensor:
    value = pyro.sample(name, dist.Normal(torch.zeros(shape), 1.0).to_event(len(shape)))
    assert isinstance(value, Tensor)
    return value


def scalar(name: str) -> Tensor:
    value = pyro.sample(name, dist.Normal(0.0, 1.0))
    assert isinstance(value, Tensor)
    return value


def observe(mean: Tensor, y: Tensor = Y) -> None:
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


# ---- what is right is left alone


def of_matmul() -> None:
    observe((X.unsqueeze(-2) @ vector("w", 2, 1)).squeeze(-2).squeeze(-1))


def of_a_network() -> None:
    hidden = (X.unsqueeze(-2) @ vector("a", 2, 3)).squeeze(-2).tanh()
    observe((hidden * vector("b", 3)).sum(-1) + scalar("c"))


def of_einsum() -> None:
    w = vector("w", 2)
    observe(torch.einsum("nd,...nd->...n", X, w.expand(*w.shape[:-2], N, 2)))


def of_several_outputs() -> None:
    mean = (X.unsqueeze(-2) @ vector("w", 2, 3)).squeeze(-2)
    with pyro.plate("data", N):
        pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=X.sum(-1, keepdim=True) + Y[:3])


def of_columns() -> None:
    a = scalar("a")
    with pyro.plate("rows", N, dim=-2), pyro.plate("columns", 3, dim=-1):
        loc = a + X.sum(-1, keepdim=True) + torch.arange(3.0)
        pyro.sample("y", dist.Normal(loc, 1.0), obs=Y[:, None] + Y[:3])


def of_a_process() -> None:
    scale = scalar("log_scale").exp()[..., None, None]
    distance = (X[:, None] - X[None]).square().sum(-1)
    kernel = (-distance / scale).exp() + torch.eye(N)
    pyro.sample("y", dist.MultivariateNormal(torch.zeros(N), kernel), obs=Y)


def of_multivariate_rows() -> None:
    mean = vector("m", 2)
    factor = torch.eye(2) * scalar("s").exp()[..., None, None]
    with pyro.plate("data", N):
        pyro.sample("y", dist.MultivariateNormal(mean, scale_tril=factor), obs=X)


def of_groups() -> None:
    with pyro.plate("groups", 3, dim=-2):
        m = scalar("m")
        with pyro.plate("data", N, dim=-1):
            pyro.sample("y", dist.Normal(m, 1.0), obs=Y + torch.zeros(3, 1))
        pyro.factor("soft", -(m**2))


def of_a_gathered_group() -> None:
    with pyro.plate("groups", 3):
        m = scalar("m")
    observe(m[..., torch.arange(N) % 3])


def of_outer_plates() -> None:
    a = scalar("a")
    with pyro.plate("deep", 2, dim=-3), pyro.plate("data", N, dim=-1):
        pyro.sample("y", dist.Normal(a, 1.0), obs=torch.stack([Y, Y + 1])[:, None])


def of_a_minibatch() -> None:
    a = scalar("a")
    with pyro.plate("data", N, subsample=torch.tensor([3, 1])) as rows:
        pyro.sample("y", dist.Normal(a + X[rows, 0], 1.0), obs=Y[rows])


def of_a_loop() -> None:
    a = scalar("a")
    for i in pyro.plate("loop", 3):
        pyro.sample(f"y_{i}", dist.Normal(a, 1.0), obs=Y[i])
    with pyro.plate("one", 1):
        pyro.sample("z", dist.Normal(a, 1.0), obs=Y[:1])


def of_masked_rows() -> None:
    a = scalar("a")
    with pyro.plate("data", N), poutine.mask(mask=MASK), poutine.scale(scale=0.5):
        pyro.sample("y", dist.StudentT(4.0, a, 1.0), obs=Y)


def of_categories() -> None:
    logits = (X.unsqueeze(-2) @ vector("w", 2, 3)).squeeze(-2)
    with pyro.plate("data", N):
        pyro.sample("y", dist.Categorical(logits=logits), obs=torch.arange(N) % 3)


def of_a_simplex() -> None:
    p = pyro.sample("p", dist.Dirichlet(torch.ones(3)))
    with pyro.plate("data", N):
        pyro.sample("y", dist.Categorical(p), obs=torch.arange(N) % 3)


def of_a_mixture() -> None:
    p = pyro.sample("p", dist.Dirichlet(torch.ones(2)))
    m = vector("m", 2)
    with pyro.plate("data", N):
        parts = dist.Normal(m, 1.0)
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(p), parts), obs=Y)


def of_factors() -> None:
    a, w = scalar("a"), vector("w", 2)
    pyro.factor("soft", -(w**2).sum(-1))
    with pyro.plate("data", N):
        pyro.factor("each", -((a - Y) ** 2))
    pyro.factor("all", -((a - Y) ** 2).sum(-1, keepdim=True))


def of_deterministic_sites() -> None:
    a = scalar("a")
    pyro.deterministic("twice", 2 * a)
    pyro.deterministic("curve", a.unsqueeze(-1) + Y, event_dim=1)
    with pyro.plate("data", N):
        f = pyro.deterministic("f", a + X[:, 0], event_dim=0)
        pyro.sample("y", dist.Normal(f, 1.0), obs=Y)


def of_an_improper_prior() -> None:
    w = pyro.sample("w", dist.ImproperUniform(constraints.real_vector, (), (2,)))
    observe((X * w).sum(-1))


def of_local_latents() -> None:
    with pyro.plate("data", N):
        z = vector("z", 2)
        pyro.sample("y", dist.Normal((z * X).sum(-1), 1.0), obs=Y)


def of_a_plate_without_a_size() -> None:
    mean = (X * vector("w", 2)).sum(-1)
    with pyro.plate("data"):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=Y)


RIGHT: dict[Model, int] = {
    of_matmul: 1,
    of_a_network: 1,
    of_einsum: 1,
    of_several_outputs: 1,
    of_columns: 2,
    of_a_process: 0,
    of_multivariate_rows: 1,
    of_groups: 2,
    of_a_gathered_group: 1,
    of_outer_plates: 3,
    of_a_minibatch: 1,
    of_a_loop: 1,
    of_masked_rows: 1,
    of_categories: 1,
    of_a_simplex: 1,
    of_a_mixture: 1,
    of_factors: 1,
    of_deterministic_sites: 1,
    of_an_improper_prior: 1,
    of_local_latents: 1,
    of_a_plate_without_a_size: 1,
}


@pytest.mark.long
@pytest.mark.parametrize("model", RIGHT, ids=lambda f: f.__name__)
def test_a_right_model_has_the_value_of_looped_particles(
    model: Model, mixed: SimpleNamespace
) -> None:
    guide = HyperNetworkGuide(model, scale=0.2, noise_dim=3).setup().double()
    flat = next(n for n in poutine.trace(guide).get_trace().nodes if n.endswith("_latent"))
    entries = poutine.trace(guide).get_trace().nodes[flat]["value"].shape[-1]
    draws = {f"{flat}_noise": torch.randn(S, 3), flat: torch.randn(S, entries)}
    nesting = RIGHT[model]
    for options in ({}, {"likelihood": "per_datum"}):
        looped = LinearisedELBO(S, **options).terms(model, mixed.given(draws)(guide))
        vectorised = LinearisedELBO(
            S, vectorize_particles=True, max_plate_nesting=nesting, **options
        ).terms(model, mixed.given(draws, nesting)(guide))
        assert {k: v.item() for k, v in vectorised.items()} == pytest.approx(
            {k: v.item() for k, v in looped.items()}, rel=1e-9
        )
    assert LinearisedELBO(S, vectorize_particles=True).loss(model, guide) < float("inf")


# ---- what is wrong is refused


def with_a_column_too_many() -> None:
    observe((X @ vector("w", 2).unsqueeze(-1)).squeeze(-1))


def with_a_scalar_unsqueezed() -> None:
    observe(scalar("a").unsqueeze(-1) + X[:, 0])


def with_a_matrix_product() -> None:
    observe(vector("w", 2) @ X.T)


def with_an_einsum() -> None:
    observe(torch.einsum("nd,...d->...n", X, vector("w", 2)))


def with_a_wrong_scale() -> None:
    s = scalar("s").exp()
    with pyro.plate("data", N):
        pyro.sample("y", dist.Normal(0.0, s.unsqueeze(-1)), obs=Y)


def with_a_wrong_prior() -> None:
    s = scalar("s").exp()
    pyro.sample("w", dist.Normal(torch.zeros(2), s.unsqueeze(-1).unsqueeze(-1)).to_event(1))


def with_a_wrong_local_prior() -> None:
    s = scalar("s").exp()
    with pyro.plate("data", N):
        pyro.sample("w", dist.Normal(0.0, s.unsqueeze(-1)))


def with_a_wrong_factor() -> None:
    a = scalar("a")
    with pyro.plate("data", N):
        pyro.factor("w", -((a.unsqueeze(-1) - Y) ** 2))


def with_a_wrong_mask() -> None:
    a = scalar("a")
    with pyro.plate("data", N), poutine.mask(mask=(a > 0).unsqueeze(-1)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=Y)


def with_a_factor_summed_over_the_plate() -> None:
    a = scalar("a")
    with pyro.plate("data", N):
        pyro.sample("y", dist.Normal(a, 1.0), obs=Y)
    pyro.factor("w", -((a - Y) ** 2).sum(-1))


def with_particles_in_the_columns() -> None:
    a = scalar("a").reshape(-1)
    with pyro.plate("data", N, dim=-2):
        pyro.sample("y", dist.Normal(a + Y[:, None], 1.0), obs=Y[:, None])


LEFT = "(w * x).sum(-1), not x @ w.unsqueeze(-1)"
KEPT = ".sum(-1, keepdim=True) in place of .sum(-1)"
WRONG: dict[Model, tuple[str, int, str]] = {
    with_a_column_too_many: ("site 'y'", -3, LEFT),
    with_a_scalar_unsqueezed: ("site 'y'", -3, LEFT),
    with_a_matrix_product: ("site 'y'", -3, LEFT),
    with_an_einsum: ("site 'y'", -3, LEFT),
    with_a_wrong_scale: ("site 'y'", -3, LEFT),
    with_a_wrong_prior: ("site 'w'", -2, LEFT),
    with_a_wrong_local_prior: ("site 'w'", -3, LEFT),
    with_a_wrong_factor: ("pyro.factor 'w'", -3, LEFT),
    with_a_wrong_mask: ("site 'y'", -3, LEFT),
    with_a_factor_summed_over_the_plate: ("pyro.factor 'w'", -1, KEPT),
    with_particles_in_the_columns: ("site 'y'", -1, KEPT),
}
OBJECTIVES: list[Callable[..., Any]] = [
    LinearisedELBO,
    lambda n, **o: LinearisedELBO(n, likelihood="per_datum", **o),
    LanczosELBO,
    lambda n, **o: SemiImplicitELBO(n, num_inner=3, **o),
    lambda n, **o: KernelDensityRatioELBO(n, num_samples=20, **o),
    lambda n, **o: AlphaEnergy(n, alpha=0.5, **o),
    PosteriorPredictiveLoss,
    lambda n, **o: PosteriorPredictiveLoss(n, form="per_batch", prior_weight=1.0, **o),
]


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("model", WRONG, ids=lambda f: f.__name__)
def test_a_dimension_that_no_plate_declares_is_refused(model: Model, validate: bool) -> None:
    site, dim, remedy = WRONG[model]
    guide = HyperNetworkGuide(model, scale=0.1).setup()
    found = re.escape(f"{site} of the model has log-densities of shape (")
    for size in (S, N):  # as many particles as rows do not hide it
        expected = rf"{found}.*declares their dimension {dim} \(size {size}\).*{re.escape(remedy)}"
        objective = LinearisedELBO(size, vectorize_particles=True)
        with pyro.validation_enabled(validate), pytest.raises(SiteError, match=expected):
            objective.loss_and_grads(model, guide)


@pytest.mark.parametrize("make", OBJECTIVES)
def test_every_objective_refuses(make: Callable[..., Any]) -> None:
    model = with_a_scalar_unsqueezed
    guide = HyperNetworkGuide(model, scale=0.1).setup()
    with pytest.raises(SiteError, match="'y' of the model has log-densities"):
        make(S, vectorize_particles=True).loss(model, guide)


def test_a_guide_is_looked_at_too() -> None:
    def model() -> None:
        scalar("a")
        vector("w", 2)

    generator = ResidualGenerator(2, 2)

    def explicit() -> None:
        sample_implicit("w", ImplicitDistribution(generator))
        pyro.sample("a", dist.Normal(torch.zeros(3, 1, 1), 1.0))

    def implicit() -> None:
        pyro.sample("a", dist.Normal(0.0, 1.0))
        sample_implicit("w", ImplicitDistribution(generator).expand([3, 1, 1]))

    objective = LinearisedELBO(S, vectorize_particles=True, max_plate_nesting=1)
    with pytest.raises(SiteError, match=r"of the (model|guide).*declares their dimension -3"):
        objective.loss(model, explicit)
    with pytest.raises(SiteError, match=r"of the (model|guide).*declares their dimension -3"):
        objective.loss(model, implicit)


# ---- looped particles: what Pyro's own check lets pass


def test_what_stands_left_of_the_nesting_that_was_told() -> None:
    def model() -> None:
        observe(X @ vector("w", 2).unsqueeze(-1))  # (N, 1) against (N,)

    guide = HyperNetworkGuide(model).setup()
    message = rf"'y' of the model .*\({N}, {N}\).*dimension -2 \(size {N}\).*\.squeeze\(-1\)"
    with pytest.raises(SiteError, match=message):
        LinearisedELBO(max_plate_nesting=1).loss(model, guide)


@pytest.mark.parametrize("factor", [False, True])
def test_what_stands_right_of_the_plates(factor: bool) -> None:
    def model() -> None:
        a = scalar("a")
        with pyro.plate("data", N, dim=-2):
            if factor:
                pyro.factor("y", -((a - X) ** 2))
            else:
                pyro.sample("y", dist.Normal(a, 1.0), obs=X)

    guide = HyperNetworkGuide(model).setup()
    remedy = r"log_factor\.sum\(dim, keepdim=True\)" if factor else r"\.to_event\(1\)"
    for vectorised in (False, True):
        with pytest.raises(SiteError, match=rf"dimension -1 \(size 2\).*{remedy}"):
            LinearisedELBO(S, vectorize_particles=vectorised).loss(model, guide)


def test_a_plate_without_a_size_declares_its_own_dimension_alone() -> None:
    def model() -> None:
        w = scalar("w")
        with pyro.plate("data"):
            pyro.sample("y", dist.Normal(w, 1.0).expand([3, N]), obs=torch.stack([Y] * 3))

    with pytest.raises(
        SiteError, match=r"dimension -2 \(size 3\).*plate 'data' \(of any size\) at -1"
    ):
        LinearisedELBO(S, vectorize_particles=True).loss(model, HyperNetworkGuide(model))
