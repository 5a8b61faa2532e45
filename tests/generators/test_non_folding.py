"""Generators that cannot fold: determinant, inverse, density and certificate."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyro_implicit import ImplicitDistribution
from pyro_implicit.exceptions import ArgumentError, DensityError, NonFiniteError, ShapeError
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.generators.autoregressive import AutoregressiveGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.bijective import BijectiveGenerator
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.generators.rescaled import rescaled
from tests.generators.test_residual import brute_jacobian, jolt, jolted

MAKERS: dict[str, Callable[[int], Generator]] = {
    "residual": partial(BijectiveGenerator, hidden_dim=7, num_blocks=2),
    "residual, steep": partial(BijectiveGenerator, hidden_dim=5, activation="gelu"),
    "residual, not smooth": partial(BijectiveGenerator, hidden_dim=4, activation="relu"),
    "residual, diagonal": partial(BijectiveGenerator, hidden_dim=3, mixing="diagonal"),
    "autoregressive": partial(AutoregressiveGenerator, hidden_dim=8, num_blocks=2),
    "autoregressive, affine": partial(AutoregressiveGenerator, hidden_dim=8, num_steps=0),
    "autoregressive, diagonal": partial(AutoregressiveGenerator, hidden_dim=6, mixing="diagonal"),
    "autoregressive, default": AutoregressiveGenerator,
}
makers = st.sampled_from(sorted(MAKERS))
seeds = st.integers(0, 2**31)


@pytest.mark.long
@settings(max_examples=60)
@given(makers, st.integers(1, 6), seeds, st.sampled_from([0.2, 1.0]))
def test_determinant_and_inverse(name: str, m: int, seed: int, size: float) -> None:
    torch.manual_seed(seed)
    generator = jolted(MAKERS[name](m), size)
    z = torch.randn(4, m, dtype=torch.float64)
    x = generator(z)
    jacobian = brute_jacobian(generator, z)
    condition = float(torch.linalg.cond(jacobian.detach()).max())
    torch.testing.assert_close(generator.jacobian(z), jacobian)
    sign, log_det = torch.linalg.slogdet(jacobian)
    rounding = 1e-6 + 1e-15 * condition  # of the determinant of a matrix
    torch.testing.assert_close(generator.half_log_det(z), log_det, rtol=1e-6, atol=rounding)
    assert len(sign.unique()) == 1  # it never changes: no fold
    found = generator.invert(x)  # type: ignore[operator]
    torch.testing.assert_close(found.noise, z, rtol=0, atol=1e-8 * condition)
    assert found.num_iterations <= 100


@pytest.mark.parametrize("name", [n for n in MAKERS if "not smooth" not in n])
def test_gradients_of_the_inverse_are_those_of_the_implicit_function(name: str) -> None:
    torch.manual_seed(1)
    generator = jolted(MAKERS[name](3))
    z = torch.randn(5, 3, dtype=torch.float64)
    x = generator(z).detach().requires_grad_()
    u = torch.randn(5, 3, dtype=torch.float64)
    inverse = generator.inverse(x)
    assert torch.allclose(inverse, z, atol=1e-8)
    mine = torch.autograd.grad((u * inverse).sum(), [x, *generator.parameters()])
    back = torch.linalg.solve(brute_jacobian(generator, z).mT, u[..., None])[..., 0].detach()
    torch.testing.assert_close(mine[0], back, rtol=1e-6, atol=1e-8)
    theirs = torch.autograd.grad(-(back * generator(z)).sum(), list(generator.parameters()))
    for one, other in zip(mine[1:], theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_density_integrates_to_one(name: str) -> None:
    torch.manual_seed(2)
    preconditioner = Preconditioner(torch.tensor([0.5]), torch.tensor([[0.7]])).double()
    fn = ImplicitDistribution(jolted(MAKERS[name](1)), preconditioner=preconditioner)
    grid = torch.linspace(-60, 60, 30_001, dtype=torch.float64)
    with torch.no_grad():
        density = fn.log_prob(grid[:, None]).exp()
    assert float(torch.trapezoid(density, grid)) == pytest.approx(1, abs=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["residual", "autoregressive"])
def test_the_density_in_two_dimensions_integrates_to_one(name: str) -> None:
    torch.manual_seed(3)
    fn = ImplicitDistribution(jolted(MAKERS[name](2), 0.2))
    axis = torch.linspace(-9, 9, 101, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    with torch.no_grad():
        density = fn.log_prob(grid).exp()
    assert float(density.sum() * (axis[1] - axis[0]) ** 2) == pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["residual", "autoregressive"])
def test_fifty_dimensions_and_bad_scales(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    generator = jolted(MAKERS[name](50)).to(dtype)
    with torch.no_grad():
        for mix in generator.maps:
            mix.log_diagonal.copy_(torch.linspace(-3, 3, 50))
    z = torch.randn(3, 50, dtype=dtype)
    x = generator(z)
    error = (generator.inverse(x) - z).abs().max()
    assert error < (1e-7 if dtype == torch.float64 else 1e-2)
    log_det = torch.linalg.slogdet(brute_jacobian(generator.double(), z.double())).logabsdet
    torch.testing.assert_close(generator.half_log_det(z.double()), log_det, rtol=1e-6, atol=1e-5)


def test_output_noise_ends_the_bijection() -> None:
    generator = jolted(AutoregressiveGenerator(3, 4))
    z = torch.randn(2, 3, dtype=torch.float64)
    jacobian = brute_jacobian(generator, z)
    covariance = jacobian @ jacobian.mT + 0.01 * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(generator.half_log_det(z, 0.1), 0.5 * torch.logdet(covariance))
    fn = ImplicitDistribution(generator, scale=0.1)
    assert not fn.is_bijective and ImplicitDistribution(generator).is_bijective
    with pytest.raises(DensityError, match="cannot be evaluated"):
        fn.log_prob(torch.zeros(3, dtype=torch.float64))


def test_the_bounds_are_exact_and_below_one() -> None:
    torch.manual_seed(5)
    generator = jolted(BijectiveGenerator(6, 9, activation="silu", lipschitz=0.9), 5.0)
    bounds = generator.lipschitz_bounds()
    assert len(bounds) == 4 and all(bound <= 0.9 + 1e-12 for bound in bounds)
    for (weight_in, _, weight_out), bound in zip(
        [block.weights(torch.zeros((), dtype=torch.float64)) for block in generator.blocks],
        bounds,
        strict=True,
    ):
        norms = torch.linalg.matrix_norm(weight_in, 2) * torch.linalg.matrix_norm(weight_out, 2)
        assert float(1.09984 * norms.detach()) == pytest.approx(bound)


@pytest.mark.parametrize("kind", [BijectiveGenerator, AutoregressiveGenerator])
def test_a_broken_certificate_is_noticed(kind: Any) -> None:
    generator = kind(3, 4)
    assert generator.is_bijective
    with torch.no_grad():
        generator.blocks[0].weight_in[0, 0] = torch.nan
    assert not generator.is_bijective
    with pytest.raises(DensityError, match="finite"):
        generator.inverse(torch.zeros(3))
    with pytest.raises(NonFiniteError, match=r"'blocks.0.weight_in' of .* is not finite"):
        ImplicitDistribution(generator).log_prob(torch.zeros(3))


def test_a_block_that_is_no_contraction_is_refused() -> None:
    generator = BijectiveGenerator(3, 4)
    generator.blocks[1].constant = 1.5  # type: ignore[assignment]
    with torch.no_grad():
        generator.blocks[1].weight_out.mul_(1000)  # type: ignore[operator]
    with pytest.raises(DensityError, match=r"Lipschitz bounds are .*1\.5"):
        generator.inverse(torch.zeros(3))


def test_an_inverse_that_is_not_reached_is_told() -> None:
    generator = jolted(BijectiveGenerator(3, 4))
    with pytest.raises(NonFiniteError, match="not found in 1 iterations"):
        generator.invert(torch.ones(3, dtype=torch.float64), max_iterations=1, tolerance=1e-15)


@pytest.mark.parametrize("kind", [BijectiveGenerator, AutoregressiveGenerator])
def test_outputs_of_another_size(kind: Any) -> None:
    with pytest.raises(ShapeError, match="expected"):
        kind(3, 4).inverse(torch.zeros(4))
    with pytest.raises(ArgumentError):
        kind(3, 4).inverse([0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (BijectiveGenerator, {"lipschitz": 1.0}),
        (BijectiveGenerator, {"lipschitz": 0.0}),
        (BijectiveGenerator, {"mixing": "full"}),
        (BijectiveGenerator, {"activation": "swish"}),
        (BijectiveGenerator, {"num_blocks": 0}),
        (AutoregressiveGenerator, {"num_steps": -1}),
        (AutoregressiveGenerator, {"mixing": "low-rank"}),
        (AutoregressiveGenerator, {"num_blocks": 0}),
        (AutoregressiveGenerator, {"init_scale": 0.0}),
    ],
)
def test_bad_options(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        kind(3, **options)


@pytest.mark.parametrize("kind", [BijectiveGenerator, AutoregressiveGenerator])
def test_made_anew_from_the_config(kind: Any) -> None:
    generator = kind(3, 4, num_blocks=2)
    config = generator.config()
    again = kind(**{k: v for k, v in config.items() if k != "type"})
    again.load_state_dict(generator.state_dict())
    z = torch.randn(5, 3)
    assert torch.equal(generator(z), again(z))
    assert config["type"] == kind.__name__ and again.config() == config


@pytest.mark.parametrize("name", ["residual", "autoregressive"])
def test_rescaling_keeps_the_bijection(name: str) -> None:
    torch.manual_seed(6)
    wide = rescaled(jolted(MAKERS[name](3)), 0.2)
    z = torch.randn(4, 3, dtype=torch.float64)
    assert wide.is_bijective
    torch.testing.assert_close(wide.inverse(wide(z)), z, rtol=0, atol=1e-7)
    assert not rescaled(MLPGenerator(3, 3, skip=True), 0.2).is_bijective


@pytest.mark.parametrize("name", ["residual", "autoregressive"])
def test_the_inverse_refuses_to_be_differentiated_twice(name: str) -> None:
    generator = jolted(MAKERS[name](2))
    x = generator(torch.randn(2, dtype=torch.float64)).detach().requires_grad_()
    (first,) = torch.autograd.grad(generator.inverse(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        first.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize("name", ["residual", "autoregressive"])
def test_an_inverse_that_does_not_lead_back_is_refused(name: str) -> None:
    torch.manual_seed(0)
    generator = jolted(MAKERS[name](40))
    with torch.no_grad():
        for mix in generator.maps:
            mix.lower.normal_().mul_(3)
            mix.upper.normal_().mul_(3)
    with pytest.raises(NonFiniteError, match="not found"):
        generator.inverse(1e3 * torch.randn(3, 40, dtype=torch.float64))


@pytest.mark.parametrize("name", ["residual", "autoregressive"])
def test_autocast_leaves_draws_and_determinants_alone(name: str) -> None:
    generator = MAKERS[name](3)
    with torch.no_grad():
        generator.shift.fill_(100.0)
    z = torch.randn(5, 3)
    expected = generator(z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(generator(z), expected)
        assert torch.equal(generator.half_log_det(z), generator.half_log_det(z))


def test_every_entry_depends_on_the_ones_before_also_with_few_hidden_units() -> None:
    generator = AutoregressiveGenerator(60, 10, num_blocks=1, mixing="diagonal").double()
    jolted(generator)
    jacobian = brute_jacobian(generator, torch.randn(1, 60, dtype=torch.float64))[0]
    below = jacobian.tril(-1).abs()
    assert int((below > 0).any(0).sum()) >= 54 and int((below > 0).any(1).sum()) == 59
    assert jacobian.triu(1).abs().max() == 0


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_the_last_block_keeps_the_order_and_the_one_before_reverses_it(num_blocks: int) -> None:
    torch.manual_seed(5)
    generator = AutoregressiveGenerator(5, num_blocks=num_blocks, mixing="diagonal").double()
    with torch.no_grad():
        for block in generator.blocks[:-1]:
            block.weight_out.zero_()  # entries that do not depend on one another
        last = vars(generator.blocks[-1]).values()
        jolt(tensor for tensor in last if tensor.is_floating_point())
    z = torch.randn(1, 5, dtype=torch.float64)
    jacobian = brute_jacobian(generator, z)[0]
    if num_blocks == 2:
        jacobian = jacobian.flip(-1)
    assert jacobian.triu(1).abs().max() == 0
    assert (jacobian.tril(-1) != 0).sum() == 10


def test_units_begin_with_nearly_one_entry_each_and_are_four_for_each() -> None:
    torch.manual_seed(6)
    block = AutoregressiveGenerator(20).blocks[0]
    weights = (block.weight_in * block.mask_in).abs()
    assert len(weights) == 80
    largest = weights.argmax(1) == block.mask_in.sum(1) - 1
    assert largest.float().mean() > 0.9
    assert AutoregressiveGenerator(2).hidden_dim == 40
    assert AutoregressiveGenerator(200).hidden_dim == 128


@pytest.mark.parametrize("name", ["residual", "autoregressive"])
def test_shapes_of_densities(name: str) -> None:
    fn = ImplicitDistribution(jolted(MAKERS[name](3)))
    assert fn.log_prob(torch.randn(0, 3, dtype=torch.float64)).shape == (0,)
    assert fn.expand((2,)).log_prob(torch.randn(5, 2, 3, dtype=torch.float64)).shape == (5, 2)
    z = torch.randn(3, dtype=torch.float64)
    given = fn.given(z)
    assert given.log_prob(given.mean.expand(5, 3)).shape == (5,)


class _Doubled(AutoregressiveGenerator):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(z)


def test_a_subclass_with_another_map_is_not_taken_for_its_base() -> None:
    generator = _Doubled(3, 4)
    assert not generator.is_bijective and generator.config()["type"] == "_Doubled"
    with pytest.raises(DensityError):
        ImplicitDistribution(generator).log_prob(torch.zeros(3))


@pytest.mark.parametrize("name", ["residual", "autoregressive"])
def test_whole_numbers_have_noises_that_are_not(name: str) -> None:
    generator = MAKERS[name](3)
    found = generator.inverse(torch.tensor([1, 0, -1]))
    assert found.is_floating_point()
    expected = generator.inverse(torch.tensor([1.0, 0.0, -1.0]))
    torch.testing.assert_close(found.to(expected), expected, rtol=0, atol=1e-2)


@pytest.mark.parametrize("name", ["residual", "autoregressive"])
def test_half_precision_draws(name: str) -> None:
    generator = MAKERS[name](3).bfloat16()
    z = torch.randn(4, 3, dtype=torch.bfloat16)
    assert generator(z).dtype == torch.bfloat16
    torch.testing.assert_close(
        generator(z).float(), generator.float()(z.float()), rtol=0.05, atol=0.05
    )
