"""Mode, Hessian, mean-field fit and Gauss-Newton curvature against closed forms."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.guides.initialization import curvature
from pyro_implicit.guides.initialization.curvature import (
    find_mode,
    hessian,
    inverse_root,
    mean_curvature,
)
from pyro_implicit.handlers.log_joint import LogJoint

N, M = 9, 3
X = torch.linspace(-2, 2, N * M, dtype=torch.float64).sin().reshape(N, M)
PRIOR = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)  # standard deviations
COUNTS = torch.arange(N).double() % 3


def make(likelihood, y, classes=0):
    """``M`` weights (for each class) and a likelihood of their linear predictor."""
    scale = PRIOR[:, None].expand(M, classes) if classes else PRIOR

    def model():
        w = pyro.sample("w", dist.Normal(0 * scale, scale).to_event(scale.dim()))
        f = pyro.deterministic("f", X @ w)
        with pyro.plate("data", N):
            pyro.sample("y", likelihood(f), obs=y)

    return model


def density(model):
    return LogJoint(model, HyperNetworkGuide(model).setup().sites, (), {})


def at(u, model):
    """The curvature at one point."""
    return mean_curvature(density(model), u, torch.zeros_like(u), num_samples=1)


def prior_precision(classes=1):
    return torch.diag(PRIOR.pow(-2).repeat_interleave(classes))


@pytest.mark.long
@given(seed=st.integers(0, 99))
def test_gauss_newton_of_a_linear_gaussian_model_is_the_exact_precision(seed):
    torch.manual_seed(seed)
    model = make(lambda f: dist.Normal(f, 0.3), COUNTS)
    expected = X.mT @ X / 0.3**2 + prior_precision()
    found = mean_curvature(density(model), torch.randn(M).double(), torch.ones(M).double(), 3)
    torch.testing.assert_close(found, expected)


@pytest.mark.long
@given(seed=st.integers(0, 99))
def test_gauss_newton_of_a_bernoulli(seed):
    torch.manual_seed(seed)
    u = torch.randn(M).double()
    p = (X @ u).sigmoid()
    expected = X.mT @ ((p * (1 - p))[:, None] * X) + prior_precision()
    for likelihood in (
        lambda f: dist.Bernoulli(logits=f),
        lambda f: dist.Bernoulli(f.sigmoid()),
    ):
        torch.testing.assert_close(at(u, make(likelihood, COUNTS.clamp(max=1))), expected)


@pytest.mark.long
@given(seed=st.integers(0, 99))
def test_gauss_newton_of_a_poisson(seed):
    torch.manual_seed(seed)
    u = torch.randn(M).double()
    expected = X.mT @ ((X @ u).exp()[:, None] * X) + prior_precision()
    torch.testing.assert_close(at(u, make(lambda f: dist.Poisson(f.exp()), COUNTS)), expected)


@pytest.mark.long
@given(seed=st.integers(0, 99))
def test_gauss_newton_of_a_categorical(seed):
    torch.manual_seed(seed)
    u = torch.randn(M * 3).double()
    p = (X @ u.reshape(M, 3)).softmax(-1)
    fisher = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    expected = torch.einsum("ni,nj,nkl->ikjl", X, X, fisher).reshape(M * 3, M * 3)
    model = make(lambda f: dist.Categorical(logits=f), COUNTS.long(), classes=3)
    torch.testing.assert_close(at(u, model), expected + prior_precision(3))


def test_gauss_newton_of_a_learned_noise_scale():
    def model():
        s = pyro.sample("s", dist.LogNormal(torch.zeros((), dtype=torch.float64), 0.5))
        with pyro.plate("data", N):
            pyro.sample("y", dist.Normal(torch.zeros(N).double(), s), obs=COUNTS)

    # Fisher information of log s is 2 for each datum; the prior of log s is N(0, 0.5)
    found = at(torch.tensor([0.7], dtype=torch.float64), model)
    torch.testing.assert_close(found, torch.tensor([[2.0 * N + 4.0]], dtype=torch.float64))


def test_minibatch_weights_and_events_enter():
    def model():
        w = pyro.sample("w", dist.Normal(0 * PRIOR, PRIOR).to_event(1))
        with pyro.plate("data", 10 * N, subsample_size=N):
            two = torch.stack([X @ w, -(X @ w)], -1)
            pyro.sample("y", dist.Normal(two, 0.3).to_event(1), obs=0 * two.detach())

    expected = 10 * 2 * X.mT @ X / 0.3**2 + prior_precision()
    torch.testing.assert_close(at(torch.zeros(M).double(), model), expected)


def clamped_hessian(model, u):
    matrix = -torch.autograd.functional.hessian(density(model), u)
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0)) @ vectors.mT


OTHERS = {
    "another likelihood": make(lambda f: dist.StudentT(2.0, f, 0.1), 5 * COUNTS),
    "a mask": make(lambda f: dist.Normal(f, 0.3).mask(COUNTS > 0), COUNTS),
    "a handler's mask": poutine.mask(
        make(lambda f: dist.Normal(f, 0.3), COUNTS), mask=torch.tensor(True)
    ),
    "a weight per row": poutine.scale(
        make(lambda f: dist.Normal(f, 0.3), COUNTS), scale=torch.ones(1).double()
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_elsewhere_it_is_the_clamped_hessian(name):
    u = torch.full((M,), 0.3, dtype=torch.float64)
    torch.testing.assert_close(at(u, OTHERS[name]), clamped_hessian(OTHERS[name], u))


def test_a_hessian_that_is_not_definite_is_clamped():
    u = torch.full((M,), 0.3, dtype=torch.float64)
    model = OTHERS["another likelihood"]
    assert torch.linalg.eigvalsh(-hessian(density(model), u)).min() < 0
    assert torch.linalg.eigvalsh(at(u, model)).min() > -1e-9


def test_a_model_without_data_has_the_curvature_of_its_prior():
    def model():
        pyro.sample("w", dist.Normal(0 * PRIOR, PRIOR).to_event(1))

    torch.testing.assert_close(at(torch.zeros(M).double(), model), prior_precision())


def test_the_hessian_sees_second_derivatives_of_the_mean_that_gauss_newton_does_not():
    def bent():
        a, b = pyro.sample("w", dist.Normal(0 * PRIOR[:2], 1.0).to_event(1))
        pyro.sample("y", dist.Normal(a * b, 0.1), obs=torch.tensor(-1.0).double())

    u = torch.zeros(2).double()
    torch.testing.assert_close(at(u, bent), torch.eye(2).double())
    full = mean_curvature(density(bent), u, u, num_samples=1, gauss_newton=False)
    # -log p has the Hessian [[1, 100], [100, 1]]: eigenvalues 101 and -99, the latter clamped
    torch.testing.assert_close(full, torch.full((2, 2), 50.5).double())


@pytest.mark.long
def test_curvature_is_averaged_over_draws():
    model = make(lambda f: dist.Poisson(f.exp()), COUNTS)
    mean, scale = torch.zeros(M).double(), torch.full((M,), 0.4, dtype=torch.float64)
    torch.manual_seed(0)
    found = mean_curvature(density(model), mean, scale, num_samples=300)
    rate = (0.5 * 0.16 * X.square().sum(-1)).exp()  # E exp(x'w) for w ~ N(0, 0.16 I)
    expected = X.mT @ (rate[:, None] * X) + prior_precision()
    torch.testing.assert_close(found, expected, rtol=0.2, atol=0.1)


def quartic(u):
    return -(u**4).sum() - 0.5 * (u[0] * u[1]) ** 2 + u.sum() + u[2].exp()


@pytest.mark.parametrize("rows", [1, 2, 256])
def test_the_hessian_is_that_of_autograd_whatever_the_block(monkeypatch, rows):
    monkeypatch.setattr(curvature, "_MAX_ROWS_AT_ONCE", rows)
    u = torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64)
    found = hessian(quartic, u)
    torch.testing.assert_close(found, torch.autograd.functional.hessian(quartic, u))
    assert torch.equal(found, found.mT)


@pytest.mark.parametrize("slope", [0.0, 2.0])
def test_the_hessian_of_a_linear_function_is_zero(slope):
    found = hessian(lambda u: slope * u.sum() + 0.0 * u.sum(), torch.ones(2).double())
    assert torch.equal(found, torch.zeros(2, 2).double())


@given(seed=st.integers(0, 99), m=st.integers(1, 6))
def test_the_root_of_an_inverse(seed, m):
    torch.manual_seed(seed)
    a = torch.randn(m, m).double()
    matrix = a @ a.mT + 0.1 * torch.eye(m)
    root = inverse_root(matrix)
    torch.testing.assert_close(root @ root.mT @ matrix, torch.eye(m).double())
    torch.testing.assert_close(root, root.mT)


def test_eigenvalues_are_taken_absolute_and_clamped():
    root = inverse_root(torch.diag(torch.tensor([4.0, -1.0, 0.0])))
    assert root.dtype == torch.float32
    torch.testing.assert_close(root.diagonal(), torch.tensor([0.5, 1.0, 5e3]), rtol=1e-4, atol=0)


@pytest.mark.long
def test_the_mode_of_a_curved_and_badly_scaled_density():
    def model():
        a = pyro.sample("a", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
        pyro.sample("b", dist.Normal(3.0 + a**2, 1e-3))

    mode, found = find_mode(density(model), torch.tensor([5.0, -5.0], dtype=torch.float64))
    torch.testing.assert_close(mode, torch.tensor([0.0, 3.0]).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(
        found, torch.diag(torch.tensor([1.0, 1e6]).double()), atol=0.5, rtol=1e-3
    )


def test_the_start_is_left_as_it_was():
    start = torch.ones(M).double()
    find_mode(density(make(lambda f: dist.Normal(f, 0.3), COUNTS)), start)
    assert torch.equal(start, torch.ones(M).double())
    assert not start.requires_grad


@pytest.mark.filterwarnings("ignore:Encountered")
def test_a_search_that_ends_without_a_finite_density_is_told():
    def model():
        z = pyro.sample(
            "z", dist.ImproperUniform(dist.constraints.real, torch.Size(), torch.Size())
        )
        pyro.factor("runaway", z)

    with pytest.raises(NonFiniteError, match="the density may be unbounded.*init_from=None"):
        find_mode(density(model), torch.zeros(1))


@pytest.mark.parametrize(
    "function",
    [
        lambda u: (u * torch.nan).sum(),
        lambda u: (u - 1).log().sum(),
        lambda u: 0.0 * u.sum(),
        lambda u: -(u.abs().sqrt()).sum(),
    ],
)
def test_a_search_without_a_density_or_curvature_is_told(function):
    with pytest.raises(NonFiniteError, match="search for the posterior mode ended where"):
        find_mode(function, torch.zeros(2))


def half_domain():
    w = pyro.sample("w", dist.Normal(0 * PRIOR, PRIOR).to_event(1))
    pyro.sample("y", dist.Normal(0.0, w[0].sqrt()), obs=torch.tensor(1.0).double())


@pytest.mark.parametrize("gauss_newton", [True, False])
def test_draws_outside_of_the_domain_are_left_out_of_the_curvature(gauss_newton):
    torch.manual_seed(0)
    mean, scale = torch.tensor([0.5, 0.0, 0.0]).double(), torch.full((M,), 0.5).double()
    found = mean_curvature(density(half_domain), mean, scale, 12, gauss_newton=gauss_newton)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found[1:, 1:], prior_precision()[1:, 1:])  # of 12 draws, not fewer


def test_a_curvature_that_is_nowhere_finite_is_told():
    with pytest.raises(NonFiniteError, match="finite at no draw .* of site 'y' is nan"):
        mean_curvature(density(half_domain), -torch.ones(M).double(), 0.1 * torch.ones(M).double())


# ---- second derivatives that torch does not have


def two_sides(u):
    """Two peaks along the first entry; torch's second derivative is NaN far from the middle."""
    first, second = (-2.0 * (u[0] - place).square() for place in (30.0, -30.0))
    return torch.logaddexp(first, second) - 0.5 * (u[1] - u[0]).square()


@pytest.mark.parametrize("dtype, exact", [(torch.float32, 1e-3), (torch.float64, 1e-7)])
def test_what_torch_does_not_have_is_taken_by_differences(dtype, exact):
    expected = torch.tensor([[5.0, -1.0], [-1.0, 1.0]], dtype=dtype)
    point = torch.tensor([29.0, 1.0], dtype=dtype)
    assert not torch.autograd.functional.hessian(two_sides, point).isfinite().all()
    torch.testing.assert_close(-hessian(two_sides, point), expected, rtol=exact, atol=exact)
    mode, curvature = find_mode(two_sides, point)
    torch.testing.assert_close(mode, torch.full((2,), 30.0, dtype=dtype), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(curvature, expected, rtol=exact, atol=exact)


def test_a_kink_has_no_curvature_and_is_told_as_such():
    def kink(u):
        return -u[:2].norm() - u[2].square()

    assert hessian(kink, torch.zeros(3)).isnan().any()
    with pytest.raises(NonFiniteError, match="gradient are finite, and its second derivative"):
        find_mode(kink, torch.zeros(3))


def test_a_density_without_derivatives_is_told():
    def flat():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("f", (0 * w).sqrt())  # 0, and its gradient is NaN

    with pytest.raises(NonFiniteError, match="second derivative of the log-density, itself finite"):
        mean_curvature(density(flat), torch.zeros(1), torch.ones(1))


@pytest.mark.parametrize("spread", [0, 2, 4])
def test_inverses_of_latents_on_scales_far_apart(spread: int) -> None:
    """Once no direction was more than 10 000 times as wide as the narrowest."""
    torch.manual_seed(0)
    unit = torch.logspace(-spread, spread, 5)
    factor = torch.randn(30, 5) * unit
    matrix = factor.T @ factor + torch.diag(unit.square())
    exact = torch.linalg.inv((matrix / unit[:, None] / unit).double())
    root = inverse_root(matrix).double() * unit[:, None]
    torch.testing.assert_close(root @ root.mT, exact, rtol=1e-3, atol=1e-5)
    if spread < 2:
        found = inverse_root(matrix)
        torch.testing.assert_close(found, found.mT)


def test_a_direction_without_curvature_is_clamped() -> None:
    matrix = torch.diag(torch.tensor([4.0, 1.0, 0.0]))
    root = inverse_root(matrix)
    found = root @ root.mT
    torch.testing.assert_close(found.diagonal()[:2], torch.tensor([0.25, 1.0]))
    assert found[2, 2] == pytest.approx(1 / 4e-8, rel=1e-3)
    singular = torch.ones(2, 2)
    root = inverse_root(singular)
    assert bool((root @ root.mT).isfinite().all())


@pytest.mark.long
def test_a_laplace_start_on_scales_far_apart() -> None:
    torch.manual_seed(0)
    unit = torch.logspace(-3, 3, 5)
    features = torch.randn(30, 5) * unit
    y = (features / unit) @ torch.randn(5) + 0.5 * torch.randn(30)

    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(5), 10 / unit).to_event(1))
        with pyro.plate("rows", 30):
            pyro.sample("y", dist.Normal((features @ w[..., None])[..., 0], 0.5), obs=y)

    scaled = (features / unit).double()
    covariance = torch.linalg.inv(scaled.T @ scaled / 0.25 + torch.eye(5) / 100)
    mean = covariance @ (scaled.T @ y.double()) / 0.25
    guide = HyperNetworkGuide(model, init_from="laplace").setup()
    draws = guide.sample(4000)["w"].double() * unit
    deviations = covariance.diagonal().sqrt()
    assert ((draws.mean(0) - mean) / deviations).abs().max() < 0.1
    torch.testing.assert_close(draws.std(0) / deviations, torch.ones(5).double(), rtol=0.1, atol=0)
