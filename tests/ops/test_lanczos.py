"""Both rules bracket every quadratic form, are exact where they must be, and the surrogate points
along the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.cmmnn import CMMNN
from pyro_implicit.generators.mlp import MLPGenerator
from pyro_implicit.generators.mmnn import MMNN
from pyro_implicit.ops import lanczos
from pyro_implicit.ops.lanczos import (
    PROBE_KINDS,
    draw_probes,
    gradient_surrogate,
    lanczos_quadrature,
)
from pyro_implicit.ops.lobpcg import smallest_eigenpair
from pyro_implicit.ops.logdet import half_log_det
from pyro_implicit.ops.scaled_jacobian import ScaledJacobian
from tests.ops.dense import MatrixLinearisation, function_of_gram, whitened, with_singular_values

sizes = st.integers(1, 8)
batches = st.sampled_from([(), (3,), (2, 3)])
scales = st.sampled_from([0.01, 0.3, 2.0])
seeds = st.integers(0, 2**20)


def make(jac: Tensor, scale: float | Tensor) -> ScaledJacobian:
    return ScaledJacobian(MatrixLinearisation(jac), scale)


def log_forms(jac: Tensor, scale: float | Tensor, probes: Tensor) -> Tensor:
    """``v' log(A) v`` of each probe."""
    inner = function_of_gram(whitened(jac, scale), torch.log)
    probes = probes.double()
    return (probes * (inner @ probes[..., None])[..., 0]).sum(-1)


def pairs_of(jac: Tensor, scale: float | Tensor, probes: Tensor) -> tuple[Tensor, Tensor]:
    """What the gradient's pairs are, by dense functions of ``A``."""
    dense, v = whitened(jac, scale), probes.double()[..., None]
    root = function_of_gram(dense, torch.rsqrt) @ v
    inverse = function_of_gram(dense, torch.reciprocal) @ v
    projected = root - function_of_gram(dense, torch.reciprocal) @ root
    left, right = (
        torch.stack([dense @ root, dense @ inverse], 1),
        torch.stack([projected, inverse], 1),
    )
    return left[..., 0], right[..., 0]


# ---- both sides


@pytest.mark.long
@settings(max_examples=40)
@given(sizes, sizes, batches, scales, st.integers(1, 9), st.sampled_from(PROBE_KINDS), seeds)
def test_every_single_probe_is_bracketed(
    m: int, d: int, batch: tuple[int, ...], scale: float, steps: int, kind: str, seed: int
) -> None:
    torch.manual_seed(seed)
    jac = torch.randn(*batch, m, d, dtype=torch.float64)
    jacobian = make(jac, scale)
    probes = draw_probes(kind, 3, jacobian)
    found, exact = lanczos_quadrature(jacobian, probes, steps), log_forms(jac, scale, probes)
    assert found.gauss.shape == found.radau.shape == (3, *batch)
    assert found.pairs.left.shape == (3, 2, *batch, max(m, d))
    assert found.pairs.right.shape == (3, 2, *batch, min(m, d))
    assert (found.gauss >= exact - 1e-7).all()
    assert (found.radau <= exact + 1e-7).all()


@pytest.mark.long
@settings(max_examples=15)
@given(st.booleans(), scales, seeds)
def test_more_steps_narrow_the_bracket(wide: bool, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    jac = torch.randn(*((12, 20) if wide else (20, 12)), dtype=torch.float64)
    jacobian = make(jac, scale)
    probes = draw_probes("rademacher", 2, jacobian)
    found = [lanczos_quadrature(jacobian, probes, k) for k in range(1, 13)]
    for before, after in zip(found[:-1], found[1:], strict=True):
        assert (after.gauss <= before.gauss + 1e-8).all()
        assert (after.radau >= before.radau - 1e-8).all()


@pytest.mark.long
@settings(max_examples=15)
@given(st.sampled_from([(30, 12), (12, 30), (12, 12)]), st.sampled_from(PROBE_KINDS), seeds)
def test_the_rules_enclose_the_determinant_in_expectation(
    shape: tuple[int, int], kind: str, seed: int
) -> None:
    torch.manual_seed(seed)
    jac = with_singular_values(torch.logspace(0, -1.5, 12), *shape)
    scale, count = 0.02, 240
    jacobian = make(jac, scale)
    probes = torch.cat([draw_probes(kind, 1, jacobian) for _ in range(count)])
    found = lanczos_quadrature(jacobian, probes, 4)
    exact = half_log_det(jac, scale) - jacobian.log_scale()
    upper, lower = 0.5 * found.gauss, 0.5 * found.radau
    assert upper.mean() + 3 * upper.std() / count**0.5 >= exact
    assert lower.mean() - 3 * lower.std() / count**0.5 <= exact
    assert upper.mean() - lower.mean() > 0.1  # there is something between the two


# ---- where they are exact


@pytest.mark.long
@settings(max_examples=40)
@given(sizes, sizes, batches, scales, seeds)
def test_exact_with_as_many_steps_as_dimensions(
    m: int, d: int, batch: tuple[int, ...], scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    jac = torch.randn(*batch, m, d, dtype=torch.float64)
    jacobian = make(jac, scale)
    probes = draw_probes("rademacher", 3, jacobian)
    found, exact = lanczos_quadrature(jacobian, probes, 100), log_forms(jac, scale, probes)
    torch.testing.assert_close(found.gauss, exact, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(found.radau, exact, rtol=1e-7, atol=1e-7)
    left, right = pairs_of(jac, scale, probes)
    torch.testing.assert_close(found.pairs.left, left, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.pairs.right, right, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@settings(max_examples=40)
@given(st.sampled_from([(12, 7), (7, 12), (7, 7)]), st.integers(1, 4), st.booleans(), seeds)
def test_exact_with_as_many_steps_as_different_singular_values(
    shape: tuple[int, int], count: int, singular: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    levels = torch.tensor([0.0 if singular else 0.3, 1.0, 2.0, 5.0], dtype=torch.float64)[:count]
    values = levels[torch.arange(7) % count].sort(descending=True).values
    jac = with_singular_values(values, *shape, (2,))
    jacobian = make(jac, 0.1)
    probes = draw_probes("orthogonal", 7, jacobian)
    exact = log_forms(jac, 0.1, probes)
    for steps in (count, count + 1, 7):  # going on after the space is exhausted does no harm
        found = lanczos_quadrature(jacobian, probes, steps)
        torch.testing.assert_close(found.gauss, exact, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(found.radau, exact, rtol=1e-6, atol=1e-6)
        assert found.pairs.left.isfinite().all() and found.pairs.right.isfinite().all()
    value = 0.5 * found.gauss.mean(0) + jacobian.log_scale()  # as many probes as dimensions
    torch.testing.assert_close(value, half_log_det(jac, 0.1), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("m", "d"), [(5, 3), (3, 5), (3, 3)])
def test_a_jacobian_of_zeros_has_determinant_one(m: int, d: int, dtype: torch.dtype) -> None:
    jacobian = make(torch.zeros(2, m, d, dtype=dtype), 0.1)
    probes = draw_probes("rademacher", 2, jacobian)
    found = lanczos_quadrature(jacobian, probes, 3)
    assert found.gauss.abs().max() < 1e-12 and found.radau.abs().max() < 1e-12
    assert not found.pairs.left.any() and not found.pairs.right[:, 0].any()
    torch.testing.assert_close(found.pairs.right[:, 1], probes)


@pytest.mark.long
@settings(max_examples=40)
@given(sizes, batches, seeds)
def test_without_output_noise_there_is_no_lower_side(
    n: int, batch: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    jac = with_singular_values(torch.linspace(0.5, 2, n), n, n + seed % 3, batch)
    jacobian = make(jac, 0.0)
    probes = draw_probes("orthogonal", n, jacobian)
    for steps in (1, n):
        found = lanczos_quadrature(jacobian, probes, steps)
        assert (found.radau == -math.inf).all()
        assert (0.5 * found.gauss.mean(0) >= half_log_det(jac, 0.0) - 1e-7).all()
    torch.testing.assert_close(0.5 * found.gauss.mean(0), half_log_det(jac, 0.0))


# ---- precision


@pytest.mark.parametrize("scale", [1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize(("m", "d"), [(60, 30), (30, 60)])
def test_float32_is_enough(m: int, d: int, scale: float) -> None:
    jac = with_singular_values(torch.logspace(0, -3.5, 30), m, d, (3,))
    single, double = make(jac.float(), scale), make(jac.float().double(), scale)
    probes = draw_probes("rademacher", 4, single)
    for steps in (5, 15, 30):
        low = lanczos_quadrature(single, probes, steps)
        high = lanczos_quadrature(double, probes.double(), steps)
        assert low.pairs.left.dtype == low.pairs.right.dtype == torch.float32
        assert low.gauss.dtype == torch.float64
        # in nats; a Cholesky factor in float32 loses 0.7 at the smallest of these scales
        torch.testing.assert_close(low.gauss, high.gauss, rtol=0, atol=0.01)
        torch.testing.assert_close(low.radau, high.radau, rtol=0, atol=0.05)
        for side in ("left", "right"):
            one, other = getattr(low.pairs, side), getattr(high.pairs, side)
            error = (one - other).flatten(2).norm(dim=-1) / other.flatten(2).norm(dim=-1)
            assert error.max() < 1e-3


def test_nan_stays_in_its_own_draw() -> None:
    jac = torch.randn(2, 5, 3)
    jac[0, 0, 0] = math.nan
    probes = draw_probes("rademacher", 2, make(jac, 0.1))
    found = lanczos_quadrature(make(jac, 0.1), probes, 3)
    assert found.gauss[:, 0].isnan().all() and found.pairs.left[:, :, 0].isnan().all()
    alone = lanczos_quadrature(make(jac[1], 0.1), probes[:, 1], 3)
    torch.testing.assert_close(found.gauss[:, 1], alone.gauss)


# ---- cost


@pytest.mark.parametrize(("m", "d"), [(20, 10), (10, 20)])
def test_products_are_as_many_as_steps(m: int, d: int) -> None:
    linearisation = MatrixLinearisation(torch.randn(m, d, requires_grad=True))
    jacobian = ScaledJacobian(linearisation, 0.1)
    found = lanczos_quadrature(jacobian, draw_probes("orthogonal", 3, jacobian), 4)
    assert linearisation.num_jvp == linearisation.num_vjp == 4
    assert not found.gauss.requires_grad and not found.pairs.left.requires_grad
    gradient_surrogate(jacobian, found.pairs)
    assert linearisation.num_jvp + linearisation.num_vjp == 9


# ---- probes


@pytest.mark.parametrize("kind", PROBE_KINDS)
@pytest.mark.parametrize("count", [1, 2, 7])
def test_probes_are_white_and_of_one_length(kind: str, count: int) -> None:
    jacobian = make(torch.randn(4000, 6, 4), 0.1)
    probes = draw_probes(kind, count, jacobian)
    assert probes.shape == (count, 4000, 4)
    torch.testing.assert_close(probes.square().sum(-1), torch.full((count, 4000), 4.0))
    second = torch.einsum("pbi,pbj->ij", probes, probes) / (count * 4000)
    torch.testing.assert_close(second, torch.eye(4), rtol=0, atol=0.1)
    assert not torch.equal(probes[:, 0], probes[:, 1])  # each draw has its own


def test_orthogonal_probes_are_orthogonal_in_blocks() -> None:
    probes = draw_probes("orthogonal", 7, make(torch.randn(2, 6, 3).double(), 0.1))
    for block in probes.split(3):
        gram = torch.einsum("pbi,qbi->bpq", block, block)
        expected = 3 * torch.eye(len(block), dtype=torch.float64).expand(2, -1, -1)
        torch.testing.assert_close(gram, expected)


def test_unknown_probes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="probes='gaussian'; expected one of orthogonal"):
        draw_probes("gaussian", 1, make(torch.randn(3, 2), 0.1))


# ---- the gradient


@pytest.mark.long
@settings(max_examples=40)
@given(sizes, sizes, st.sampled_from(["number", "scalar", "diagonal"]), seeds)
def test_surrogate_with_all_directions_has_the_exact_gradient(
    m: int, d: int, kind: str, seed: int
) -> None:
    torch.manual_seed(seed)
    jac = torch.randn(2, m, d, dtype=torch.float64, requires_grad=True)
    sigma: float | Tensor = 0.4
    wrt = [jac]
    if kind != "number":
        sigma = 0.2 + torch.rand(() if kind == "scalar" else (m,), dtype=torch.float64)
        wrt.append(sigma.requires_grad_())
    jacobian = make(jac, sigma)
    probes = draw_probes("orthogonal", jacobian.size, jacobian)
    pairs = lanczos_quadrature(jacobian, probes, jacobian.size).pairs
    value = gradient_surrogate(jacobian, pairs) + jacobian.log_scale()
    ours = torch.autograd.grad(value.sum(), wrt)
    exact = torch.autograd.grad(half_log_det(jac, sigma).sum(), wrt)
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("m", "d"), [(12, 6), (6, 12)])
def test_gradient_in_a_learned_scale_is_unbiased(m: int, d: int) -> None:
    jac = with_singular_values(torch.linspace(0.3, 2, 6), m, d)
    sigma = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    jacobian, count = make(jac, sigma), 400
    probes = torch.cat([draw_probes("rademacher", 1, jacobian) for _ in range(count)])
    pairs = lanczos_quadrature(jacobian, probes, 6).pairs
    whole = gradient_surrogate(jacobian, pairs) + jacobian.log_scale()
    found = torch.autograd.grad(whole, sigma)[0]
    exact = torch.autograd.grad(half_log_det(jac, sigma), sigma)[0]
    each = pairs.left * jacobian.product(pairs.right.flatten(0, 1)).unflatten(0, (count, 2))
    each = each.sum((1, 2)) / sigma  # less a constant
    assert abs(found - exact) <= 4 * each.std() / count**0.5


def _ill_conditioned_generator() -> tuple[MLPGenerator, Tensor]:
    """50 -> 100 -> 751 whose covariance has a condition number near 3400, and a noise."""
    torch.manual_seed(3)
    generator = MLPGenerator(50, 751, (100,), init_scale=0.05)
    z = torch.randn(1, 50)
    with torch.no_grad():
        left, _, right = torch.linalg.svd(generator.weights[0], full_matrices=False)
        generator.weights[0].copy_(left * torch.logspace(0.75, -0.95, 50) @ right)
    return generator, z


def _gradient(value: Tensor, generator: MLPGenerator) -> Tensor:
    found = torch.autograd.grad(value, list(generator.parameters()), allow_unused=True)
    return torch.cat([g.flatten() for g in found if g is not None]).double()


def test_gradient_points_along_the_exact_one_and_better_than_the_alternatives() -> None:
    generator, z = _ill_conditioned_generator()
    scale, count = 0.01, 200
    dense = whitened(generator.jacobian(z)[0].detach(), scale)
    spectrum = 1 + torch.linalg.svdvals(dense).square()
    assert 2000 < spectrum[0] / spectrum[-1] < 6000
    exact = _gradient(half_log_det(generator.jacobian(z), scale).sum(), generator)

    jacobian = ScaledJacobian(generator.linearise(z), scale)
    probes = torch.cat([draw_probes("rademacher", 1, jacobian) for _ in range(count)])
    pairs = lanczos_quadrature(jacobian, probes, 10).pairs
    ours = _gradient(gradient_surrogate(jacobian, pairs).sum(), generator)

    jacobian = ScaledJacobian(generator.linearise(z), scale)
    inverse = function_of_gram(dense, torch.reciprocal)
    solved = (probes.double() @ inverse).float()
    plain = (jacobian.product(solved) * jacobian.product(probes)).sum() / count
    # the derivative may act on one factor only, on the other, or on both: the last is the best
    plain_gradient = _gradient(plain, generator)

    jacobian = ScaledJacobian(generator.linearise(z), scale)
    pair = smallest_eigenpair(jacobian, torch.randn(1, 50), 400)
    square = jacobian.product(pair.vector[None]).square().sum()
    bound = _gradient(25 * (1 + square).log(), generator)

    def cosine(other: Tensor) -> float:
        return (exact @ other / (exact.norm() * other.norm())).item()

    assert cosine(ours) >= 0.7
    assert cosine(ours) > cosine(plain_gradient) + 0.1
    assert cosine(ours) > cosine(bound) + 0.1
    assert 0.8 < ours.norm() / exact.norm() < 1.3


# ---- generators with directions that change nothing


def _narrow(d: int, m: int, dtype: torch.dtype) -> tuple[MLPGenerator, MLPGenerator, Tensor]:
    """A generator of rank 10 in that precision, the same in float64, and noises."""
    torch.manual_seed(1)
    generator = MLPGenerator(d, m, (10,))
    double = MLPGenerator(d, m, (10,)).double()
    double.load_state_dict(generator.state_dict())
    return generator.to(dtype), double, torch.randn(4, d).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigma", [1e-1, 1e-2, 1e-3, 1e-4])
@pytest.mark.parametrize(("d", "m"), [(20, 40), (40, 20), (20, 20)])
def test_gradients_of_a_rank_deficient_generator_do_not_depend_on_rounding(
    d: int, m: int, sigma: float, dtype: torch.dtype
) -> None:
    generator, double, z = _narrow(d, m, dtype)
    exact = _gradient(double.half_log_det(z.double(), sigma).sum(), double)
    jacobian = ScaledJacobian(generator.linearise(z), sigma)
    probes = draw_probes("orthogonal", jacobian.size, jacobian)
    pairs = lanczos_quadrature(jacobian, probes, jacobian.size).pairs
    found = _gradient(gradient_surrogate(jacobian, pairs).sum(), generator)
    assert (found - exact).norm() <= 1e-4 * exact.norm()  # was 11 times it at 1e-4 in float32


@pytest.mark.long
def test_the_spread_of_one_probe_does_not_grow_as_the_output_noise_falls() -> None:
    spread = {}
    for sigma in (1e-1, 1e-4):
        generator, double, z = _narrow(20, 40, torch.float64)
        exact = _gradient(double.half_log_det(z, sigma).sum(), double)
        jacobian = ScaledJacobian(generator.linearise(z), sigma)
        errors = []
        for _ in range(20):
            pairs = lanczos_quadrature(jacobian, draw_probes("orthogonal", 1, jacobian), 20).pairs
            surrogate = gradient_surrogate(jacobian, pairs).sum()
            found = torch.autograd.grad(
                surrogate, list(generator.parameters()), retain_graph=True, allow_unused=True
            )
            flat = torch.cat([g.flatten() for g in found if g is not None])
            errors.append((flat - exact).norm() / exact.norm())
        spread[sigma] = torch.stack(errors).mean()
    assert spread[1e-4] < 20  # was 9000
    assert spread[1e-4] < 10 * spread[1e-1]


@pytest.mark.parametrize("scale", [0.0, 0.1])
@pytest.mark.parametrize("sizes", [(3, 12), (12, 3)])
def test_large_products_are_made_again(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int], scale: float
) -> None:
    """The same value and gradients as with all products kept, in less memory."""
    noise_dim, output_dim = sizes
    if noise_dim < output_dim and not scale:
        pytest.skip("no density")
    generator = MLPGenerator(noise_dim, output_dim, (7,)).double()
    z = torch.randn(4, noise_dim, dtype=torch.float64)
    found = []
    for kept in (2**22, 0):
        monkeypatch.setattr(lanczos, "_MAX_KEPT_ENTRIES", kept)
        torch.manual_seed(0)
        jacobian = ScaledJacobian(generator.linearise(z), scale)
        probes = draw_probes("orthogonal", 2, jacobian)
        quadrature = lanczos_quadrature(jacobian, probes, 2)
        surrogate = gradient_surrogate(jacobian, quadrature.pairs).sum()
        grads = torch.autograd.grad(surrogate, list(generator.parameters()), allow_unused=True)
        found.append([quadrature.gauss, quadrature.radau, *[g for g in grads if g is not None]])
    torch.testing.assert_close(found[0], found[1])


MATRICES: dict[str, Callable[[], Generator]] = {
    "matrix": partial(MMNN, 40, noise_shape=(3, 4), hidden_shapes=[(5, 6)]),
    "matrix, two hidden layers": partial(MMNN, 40, noise_shape=(2, 2), hidden_shapes=[(4, 3)] * 2),
    "matrix, in branches": partial(CMMNN, [9, 1, 20], noise_shape=(3, 3), budget=4.0),
    "matrix, more noise than outputs": partial(MMNN, 7, noise_shape=(3, 4)),
    "perceptron": partial(MLPGenerator, 4, 12, (5,)),
}


@pytest.mark.parametrize("learned", ["number", "scalar", "diagonal"])
@pytest.mark.parametrize("num_steps", [1, 3, 30])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("name", MATRICES)
def test_gradients_from_what_products_met_are_those_of_autograd(
    monkeypatch: pytest.MonkeyPatch, name: str, batch: tuple[int, ...], num_steps: int, learned: str
) -> None:
    """Of each draw by itself, in generator and scale; with 30 steps the space is exhausted."""
    torch.manual_seed(0)
    generator = MATRICES[name]().double()
    z = torch.randn(*batch, *generator.noise_shape, dtype=torch.float64)
    scale: Any = 0.1
    if learned != "number":
        shape = () if learned == "scalar" else (generator.output_dim,)
        scale = (0.1 + torch.rand(shape, dtype=torch.float64)).requires_grad_()
    inputs = [*generator.parameters(), *([scale] if learned != "number" else [])]
    found = []
    for kept in (2**18, 0):
        monkeypatch.setattr(lanczos, "_MAX_TRACED_ENTRIES", kept)
        torch.manual_seed(1)
        jacobian = ScaledJacobian(generator.linearise(z), scale)
        probes = draw_probes("orthogonal", 2, jacobian)
        quadrature = lanczos_quadrature(jacobian, probes, num_steps)
        assert (quadrature.pairs.kept is not None) == (bool(kept) and jacobian.keeps)
        surrogate = gradient_surrogate(jacobian, quadrature.pairs)
        assert surrogate.shape == batch
        total = (torch.rand(batch, dtype=torch.float64) * surrogate).sum()
        found.append(torch.autograd.grad(total, inputs, materialize_grads=True))
    torch.testing.assert_close(*found)


def test_gradients_from_what_products_met_take_half_the_products() -> None:
    """At the sizes of the published generator for LeNet: a pair of vectors, forward and back."""
    generator = MMNN(
        44426, noise_shape=(65, 65), hidden_shapes=[(250, 250)], output_shape=(350, 127)
    )
    flops = []
    for kept in (True, False):
        jacobian = ScaledJacobian(generator.linearise(torch.randn(65, 65)), 0.1)
        quadrature = lanczos_quadrature(jacobian, draw_probes("orthogonal", 1, jacobian), 2)
        pairs = quadrature.pairs if kept else replace(quadrature.pairs, kept=None)
        with FlopCounterMode(display=False) as counter:
            gradient_surrogate(jacobian, pairs).backward()
        flops.append(counter.get_total_flops())
    assert flops[0] < 0.6 * flops[1]
