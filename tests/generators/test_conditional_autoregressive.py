"""A map for each row that cannot fold: its determinant, its products and what it depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pyro_implicit.exceptions import ArgumentError, DensityError, ShapeError
from pyro_implicit.generators import ConditionalAutoregressiveGenerator, Conditioned
from pyro_implicit.generators.base import generator_class
from pyro_implicit.generators.conditioned import conditioned
from tests.generators.test_residual import jolted


def made(m: int, k: int, size: float = 1.0, **options: Any) -> ConditionalAutoregressiveGenerator:
    generator = ConditionalAutoregressiveGenerator(m, k, hidden_dim=6, num_blocks=2, **options)
    return jolted(generator, size)


def brute(generator: Any, z: Tensor) -> Tensor:
    """The Jacobian at each noise by torch's own reverse mode, one noise and row at a time."""
    whole = torch.autograd.functional.jacobian(generator, z)
    lead = z.shape[:-1]
    index = torch.arange(lead.numel())
    return whole.reshape(lead.numel(), z.shape[-1], lead.numel(), -1)[index, :, index].reshape(
        *lead, z.shape[-1], -1
    )


@pytest.mark.long
@settings(max_examples=30)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 2**31),
    st.sampled_from(["auto", "diagonal"]),
)
def test_each_row_has_a_map_that_never_folds_with_a_known_determinant(
    m: int, k: int, num_steps: int, seed: int, mixing: str
) -> None:
    torch.manual_seed(seed)
    inner = made(m, k, 0.5, num_steps=num_steps, mixing=mixing)
    context = 2 * torch.randn(3, k, dtype=torch.float64)
    generator, z = conditioned(inner, context), torch.randn(2, 3, m, dtype=torch.float64)
    jacobian = brute(generator, z)
    sign, log_det = torch.linalg.slogdet(jacobian)
    assert bool((sign == sign.flatten()[0]).all())
    torch.testing.assert_close(generator.half_log_det(z), log_det)
    torch.testing.assert_close(generator.jacobian(z), jacobian)
    line, v = generator.linearise(z), torch.randn_like(z)
    torch.testing.assert_close(line.value, generator(z))
    torch.testing.assert_close(line.jvp(v), (jacobian @ v[..., None])[..., 0])
    torch.testing.assert_close(line.vjp(v), (jacobian.mT @ v[..., None])[..., 0])
    noisy = 0.5 * torch.logdet(jacobian @ jacobian.mT + 0.09 * torch.eye(m).double())
    torch.testing.assert_close(generator.half_log_det(z, 0.3), noisy)


@pytest.mark.long
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**31))
def test_it_is_the_map_of_noise_and_context_side_by_side(m: int, k: int, seed: int) -> None:
    torch.manual_seed(seed)
    inner, context = made(m, k), torch.randn(4, k, dtype=torch.float64)
    z = torch.randn(5, 4, m, dtype=torch.float64)
    both = torch.cat([z, context.expand(5, 4, k)], -1)
    torch.testing.assert_close(conditioned(inner, context)(z), inner(both))
    plain = Conditioned(inner, context)  # by products with the whole Jacobian
    torch.testing.assert_close(conditioned(inner, context).jacobian(z), plain.jacobian(z))
    torch.testing.assert_close(conditioned(inner, context).half_log_det(z), plain.half_log_det(z))


def test_every_output_depends_on_the_context_and_on_the_noises_it_may() -> None:
    torch.manual_seed(0)
    inner = ConditionalAutoregressiveGenerator(3, 2, num_blocks=1, mixing="diagonal").double()
    jolted(inner, 0.5)
    z = torch.randn(1, 3, dtype=torch.float64)
    context = torch.randn(1, 2, dtype=torch.float64)
    by_context = torch.autograd.functional.jacobian(lambda c: conditioned(inner, c)(z), context)
    assert bool((by_context.abs() > 1e-6).all())
    by_noise = brute(conditioned(inner, context), z)[0]
    assert bool((by_noise.abs() > 1e-9).equal(torch.ones(3, 3).tril().bool()))


def test_contexts_are_read_in_units_of_the_first() -> None:
    context = torch.tensor([[1.0, 5.0, 2e3], [3.0, 5.0, 4e3], [5.0, 5.0, 9e3]], dtype=torch.float64)
    unit = (context - context.mean(0)) / context.std(0, correction=0).clamp(min=1.0)
    plain = made(2, 3)
    wide = made(2, 3)
    wide.load_state_dict(plain.state_dict())
    wide.standardise(context)
    z = torch.randn(3, 2, dtype=torch.float64)
    torch.testing.assert_close(conditioned(wide, context)(z), conditioned(plain, unit)(z))
    wide.standardise(torch.full((2, 3), float("nan")))  # whose mistake is told by the loss
    torch.testing.assert_close(conditioned(wide, unit)(z), conditioned(plain, unit)(z))
    with pytest.raises(ShapeError, match=r"context of shape \(2, 2\)"):
        wide.standardise(torch.zeros(2, 2))


def test_it_is_made_anew_from_its_config() -> None:
    inner = made(2, 3, num_steps=1)
    config = inner.config()
    kind = generator_class(config.pop("type"))
    assert kind is ConditionalAutoregressiveGenerator
    other = kind(**config).double()
    other.load_state_dict(inner.state_dict())
    z = torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(other(z), inner(z))


def test_half_precision_and_autocast_keep_the_determinant() -> None:
    torch.manual_seed(0)
    inner, context = made(3, 2).float(), torch.randn(4, 2)
    z = torch.randn(4, 3)
    plain = conditioned(inner, context)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(plain.half_log_det(z), plain.half_log_det(z))
        torch.testing.assert_close(plain(z), inner(torch.cat([z, context], -1)))
    assert plain(z.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"output_dim": 0}, "output_dim=0"),
        ({"context_dim": 0}, "context_dim=0"),
        ({"hidden_dim": 0}, "hidden_dim=0"),
        ({"num_blocks": 0}, "num_blocks=0"),
        ({"num_steps": -1}, "num_steps=-1"),
        ({"mixing": "none"}, "mixing='none'"),
        ({"init_scale": 0.0}, "init_scale=0"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ConditionalAutoregressiveGenerator(**{"output_dim": 2, "context_dim": 3} | arguments)


def test_another_context_is_refused() -> None:
    inner = made(2, 3)
    with pytest.raises(ShapeError, match="takes noise of shape"):
        inner(torch.randn(4, 2).double())
    with pytest.raises(ShapeError, match=r"context of shape \(4, 2\).*expected \(\.\.\., 3\)"):
        conditioned(inner, torch.randn(4, 2).double())


@pytest.mark.long
@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**31), st.booleans())
def test_the_noise_of_a_draw_is_found(m: int, k: int, seed: int, many: bool) -> None:
    torch.manual_seed(seed)
    row = conditioned(made(m, k, 0.3), torch.randn(5, k).double())
    z = torch.randn(*((3,) if many else ()), 5, m).double()
    assert row.is_bijective
    torch.testing.assert_close(row.inverse(row(z)), z, rtol=1e-6, atol=1e-6)
    one = row(z).reshape(-1, m)[0]  # of one row for all contexts
    torch.testing.assert_close(row(row.inverse(one)), one.expand(5, m))


@pytest.mark.long
def test_the_inverse_has_a_first_derivative() -> None:
    """In values, contexts and parameters; contexts may come from a network of their own."""
    torch.manual_seed(0)
    inner, context = made(2, 3, 0.3), torch.randn(4, 3).double().requires_grad_()
    x = conditioned(inner, context)(torch.randn(4, 2).double()).detach().requires_grad_()

    def inverse(x: Tensor, context: Tensor) -> Tensor:
        return conditioned(inner, context).inverse(x)

    assert torch.autograd.gradcheck(inverse, (x, context), rtol=1e-4, atol=1e-5)
    inner.requires_grad_(False)
    (moved,) = torch.autograd.grad(inverse(x.detach(), context).sum(), context)
    assert float(moved.abs().max()) > 0


def test_no_inverse_where_nothing_is_certain() -> None:
    class Own(ConditionalAutoregressiveGenerator):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs[..., :2].square()

    context = torch.randn(4, 3)
    assert not conditioned(Own(2, 3), context).is_bijective
    broken = ConditionalAutoregressiveGenerator(2, 3)
    with torch.no_grad():
        broken.shift[0] = torch.nan
    for inner in (Own(2, 3), broken):
        with pytest.raises(DensityError, match="no inverse is known"):
            conditioned(inner, context).inverse(torch.randn(4, 2))
    with pytest.raises(ShapeError, match="expected"):
        conditioned(ConditionalAutoregressiveGenerator(2, 3), context).inverse(torch.randn(4, 3))


def test_a_wide_context_has_readers_of_its_own_width() -> None:
    widths = [ConditionalAutoregressiveGenerator(2, k).reader_dim for k in (1, 100, 1000)]
    assert widths == [40, 100, 256]
    generator = ConditionalAutoregressiveGenerator(2, 100, reader_dim=7)
    again = ConditionalAutoregressiveGenerator(
        **{name: value for name, value in generator.config().items() if name != "type"}
    )
    again.load_state_dict(generator.state_dict())
    with pytest.raises(ArgumentError, match="reader_dim"):
        ConditionalAutoregressiveGenerator(2, 3, reader_dim=0)


def test_a_context_far_from_the_others_does_not_carry_the_map_away() -> None:
    generator = made(3, 2)
    z = torch.randn(3)
    far, farther = (generator.at_context(s * torch.ones(2))(z) for s in (1e3, 1e6))
    torch.testing.assert_close(farther, far, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("value", [0.1, 7.3, -2.7, 1e6 + 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_context_keeps_its_unit(value: float, dtype: torch.dtype) -> None:
    """The mean of equal numbers is rounded, and all others would be far away in units of that."""
    for rows in (1, 50, 150, 1000):
        generator = ConditionalAutoregressiveGenerator(1, 1)
        generator.standardise(torch.full((rows, 1), value, dtype=dtype))
        assert generator.context_scale.item() == 1.0


def test_a_context_far_from_zero_is_read_in_its_own_precision() -> None:
    """Seconds since 1970, say, whose differences single precision does not see."""
    x = torch.linspace(0, 1, 11, dtype=torch.float64)[:, None]
    here, there = (ConditionalAutoregressiveGenerator(2, 1) for _ in range(2))
    there.load_state_dict(here.state_dict())
    here.standardise(x)
    there.standardise(x + 1e9)
    z = torch.randn(11, 2)
    draws = here.at_context(x)(z), there.at_context(x + 1e9)(z)
    assert draws[0].dtype == torch.float32
    torch.testing.assert_close(draws[1], draws[0], rtol=1e-4, atol=1e-4)


def test_a_map_of_a_subclass_is_the_one_that_is_drawn_from() -> None:
    class Doubled(ConditionalAutoregressiveGenerator):
        def forward(self, inputs: Tensor) -> Tensor:
            return 2 * super().forward(inputs)

    generator, z, context = Doubled(2, 3), torch.randn(4, 2), torch.randn(4, 3)
    draws = generator.at_context(context)(z)
    torch.testing.assert_close(draws, generator(torch.cat([z, context], -1)))
