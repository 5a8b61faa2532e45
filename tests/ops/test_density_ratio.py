"""Density ratios of known Gaussians, and the normal equations of the fit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.ops import density_ratio
from pyro_implicit.ops.density_ratio import DensityRatio, fit_density_ratio, kl_divergence
from pyro_implicit.ops.kernels import squared_distances


def gaussian_kl(m: int, mean: float, scale: float) -> float:
    """Of N(mean, scale^2 I) to N(0, I)."""
    return m * (0.5 * (mean**2 + scale**2 - 1) - math.log(scale))


# ---- the fit


@settings(max_examples=30)
@given(
    st.integers(1, 5),
    st.integers(1, 12),
    st.floats(-4, 1),
    st.floats(0.2, 3.0),
    st.integers(0, 999),
)
def test_the_fit_solves_its_ridge_normal_equations(
    m: int, bases: int, log_ridge: float, bandwidth: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    top, bottom, centres = (rng.normal(size=(n, m)) for n in (15, 20, bases))
    distances = np.linalg.norm(np.concatenate([top, bottom])[:, None] - centres, axis=-1)
    width = bandwidth * np.quantile(distances, 0.5, method="lower")

    def psi(x: np.ndarray) -> np.ndarray:
        return np.exp(-((x[:, None] - centres) ** 2).sum(-1) / (2 * width**2))

    gram = psi(bottom).T @ psi(bottom) / 20 + 10**log_ridge * np.eye(bases)
    expected = np.linalg.solve(gram, psi(top).mean(0))
    found = fit_density_ratio(
        *map(torch.from_numpy, (top, bottom, centres)), bandwidth=bandwidth, ridge=10**log_ridge
    )
    assert found.bandwidth.item() == pytest.approx(width)
    np.testing.assert_allclose(found.weights.numpy(), expected, rtol=1e-6, atol=1e-8)
    x = rng.normal(size=(4, m))
    np.testing.assert_allclose(found(torch.from_numpy(x)).numpy(), psi(x) @ expected, atol=1e-6)


def test_a_fit_measures_its_distances_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []

    def counted(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
        assert dtype == torch.float64
        shapes.append((len(x), len(y)))
        return squared_distances(x, y, dtype)

    monkeypatch.setattr(density_ratio, "squared_distances", counted)
    fit_density_ratio(torch.randn(5, 2), torch.randn(7, 2), torch.randn(3, 2))
    assert shapes == [(5, 3), (7, 3)]


def test_the_fitted_ratio_approaches_the_true_one() -> None:
    q, p = 0.5 * torch.randn(4000, 1).double(), torch.randn(4000, 1).double()
    ratio = fit_density_ratio(q, p, q[:60], bandwidth=0.5, ridge=1e-4)
    x = torch.linspace(-0.8, 0.8, 9).double()[:, None]
    true = torch.exp(x.square() * (0.5 - 2)) / 0.5
    torch.testing.assert_close(ratio(x), true[:, 0], rtol=0.15, atol=0.05)


def test_no_gradient_flows_through_the_fit_and_its_dtype_is_the_draws() -> None:
    sets = [torch.randn(9, 2, requires_grad=True) for _ in range(3)]
    ratio = fit_density_ratio(*sets)
    for part in (ratio.centres, ratio.bandwidth, ratio.weights):
        assert not part.requires_grad and part.dtype == torch.float32


@pytest.mark.parametrize(
    "shapes", [((5,), (5, 1), (5, 1)), ((5, 2), (5, 3), (5, 2)), ((5, 2), (0, 2), (5, 2))]
)
def test_other_shapes_are_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ShapeError, match="draws and centres of shapes .* three matrices"):
        fit_density_ratio(*(torch.randn(shape) for shape in shapes))


@pytest.mark.parametrize("options", [{"bandwidth": 0.0}, {"ridge": -1.0}, {"ridge": math.nan}])
def test_other_numbers_are_refused(options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ArgumentError, match=f"{name}=.*; expected a (positive|finite) number"):
        fit_density_ratio(*torch.randn(3, 5, 2), **options)


@pytest.mark.parametrize("options", [{"orientation": "q-p"}, {"bases": "r"}])
def test_other_names_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ArgumentError, match="expected 'q/p' or 'p/q', 'q' or 'p'"):
        kl_divergence(torch.randn(5, 1), torch.randn(5, 1), **options)


# ---- clipping


def test_the_clipped_fraction_is_told_and_clipped_points_have_no_gradient() -> None:
    ratio = DensityRatio(torch.zeros(1, 1), torch.tensor(1.0), torch.tensor([1.0]))
    x = torch.tensor([[0.0], [1.0], [10.0], [20.0]], requires_grad=True)
    value, clipped = ratio.log(x, clip=1e-3)
    expected = torch.tensor([0.0, -0.5, math.log(1e-3), math.log(1e-3)])
    torch.testing.assert_close(value, expected)
    assert clipped.item() == 0.5 and not clipped.requires_grad
    (gradient,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(gradient[:, 0], torch.tensor([0.0, -1.0, 0.0, 0.0]))


# ---- KL divergence of Gaussians


def estimates(m: int, mean: float, scale: float, repeats: int = 12, **options: object) -> Tensor:
    """Estimates and clipped fractions, shape (repeats, 2)."""
    rows = []
    for _ in range(repeats):
        q, p = mean + scale * torch.randn(200, m), torch.randn(200, m)
        rows.append(torch.stack(kl_divergence(q, p, **options)))  # type: ignore[arg-type]
    return torch.stack(rows)


@pytest.mark.parametrize(("m", "mean"), [(1, 1.0), (2, 0.5)])
def test_the_plain_ratio_in_one_and_two_dimensions(m: int, mean: float) -> None:
    found = estimates(m, mean, 0.5, bandwidth=1.0)
    assert found[:, 0].mean().item() == pytest.approx(gaussian_kl(m, mean, 0.5), abs=0.15)
    assert found[:, 1].max() < 0.05


@pytest.mark.parametrize("orientation", ["q/p", "p/q"])
@pytest.mark.parametrize("bases", ["q", "p"])
def test_equal_distributions_have_a_divergence_near_zero(orientation: str, bases: str) -> None:
    found = estimates(2, 0.0, 1.0, orientation=orientation, bases=bases)
    assert abs(found[:, 0].mean()) < 0.15


def test_num_bases_takes_the_first_draws() -> None:
    q, p = torch.randn(30, 2), torch.randn(30, 2)
    value, _ = kl_divergence(q, p, num_bases=7, bases="p", orientation="q/p")
    expected, _ = fit_density_ratio(q, p, p[:7]).log(q)
    torch.testing.assert_close(value, expected.mean())


def test_plain_value_in_many_dimensions_is_far_too_small_as_documented() -> None:
    assert estimates(50, 0.3, 0.7, repeats=4)[:, 0].max() < 0.5 * gaussian_kl(50, 0.3, 0.7)


def test_the_published_form_reports_its_own_clip() -> None:
    """N(1, .5^2) against N(0, 1): the truth is 0.82."""
    published = {"orientation": "p/q", "bases": "p", "ridge": 1e-3}
    found = {}
    for clip in (1e-8, 1e-32):
        torch.manual_seed(0)
        found[clip] = estimates(1, 1.0, 0.5, clip=clip, **published).mean(0).tolist()
    (small, clipped), (large, same) = found[1e-8], found[1e-32]
    assert gaussian_kl(1, 1.0, 0.5) == pytest.approx(0.82, abs=0.005)
    assert small > 3 and large > 2 * small
    assert clipped > 0.1 and same == pytest.approx(clipped, abs=0.02)


def test_several_bandwidths_are_dealt_out_in_turns() -> None:
    torch.manual_seed(0)
    top, bottom, centres = torch.randn(3, 12, 2, dtype=torch.float64)
    one = fit_density_ratio(top, bottom, centres, bandwidth=1.0).bandwidth
    several = fit_density_ratio(top, bottom, centres[:5], bandwidth=(0.1, 1.0))
    alone = fit_density_ratio(top, bottom, centres[:5], bandwidth=1.0).bandwidth
    expected = alone * torch.tensor([0.1, 1.0, 0.1, 1.0, 0.1], dtype=torch.float64)
    torch.testing.assert_close(several.bandwidth, expected)
    assert one.shape == ()
    psi = (-0.5 * (torch.cdist(bottom, centres[:5]) / expected).square()).exp()
    mean = (-0.5 * (torch.cdist(top, centres[:5]) / expected).square()).exp().mean(0)
    gram = psi.mT @ psi / 12 + 1e-2 * torch.eye(5).double()
    torch.testing.assert_close(several.weights, torch.linalg.solve(gram, mean))


@pytest.mark.parametrize("bandwidth", [(), (0.1, 0.0), 0.0, float("inf"), (float("nan"),)])
def test_bad_bandwidths(bandwidth: object) -> None:
    with pytest.raises(ArgumentError, match="bandwidth="):
        fit_density_ratio(*torch.randn(3, 4, 2), bandwidth=bandwidth)  # type: ignore[arg-type]
