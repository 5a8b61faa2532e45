"""The derivative that is written out: autograd's, also once more, and under torch's transforms."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import JitTrace_ELBO
from torch import Tensor
from torch.autograd import forward_ad

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.generators import AutoregressiveGenerator
from pyro_implicit.generators.autoregressive_gradient import (
    Passed,
    WrittenOut,
    is_plain_step,
)
from tests.generators.test_residual import jolted

shapes = st.sampled_from([(), (1,), (4,), (3, 1), (2, 3)])
options = st.fixed_dictionaries(
    {
        "hidden_dim": st.integers(1, 7),
        "num_blocks": st.integers(1, 3),
        "num_steps": st.integers(0, 3),
        "mixing": st.sampled_from(["diagonal", "triangular"]),
    }
)


def made(m: int, seed: int = 0, **kwargs: Any) -> AutoregressiveGenerator:
    torch.manual_seed(seed)
    generator: AutoregressiveGenerator = jolted(AutoregressiveGenerator(m, **kwargs), 0.5)
    return generator


def by_operations(generator: Any, z: Tensor) -> tuple[Tensor, Tensor]:
    x, log_det = generator._by_operations(generator.weights, z.reshape(-1, z.shape[-1]))
    return x.reshape(z.shape), log_det.reshape(z.shape[:-1])


def gradients(
    generator: Any, z: Tensor, drawn: tuple[Tensor, Tensor], u: Tensor
) -> tuple[Tensor, ...]:
    value, log_det = drawn
    total = (u * value).sum() + log_det.square().sum()
    return torch.autograd.grad(total, [generator.weights, z])


@pytest.mark.long
@settings(max_examples=60)
@given(st.integers(1, 5), shapes, options, st.integers(0, 2**31))
def test_it_is_what_autograd_finds(
    m: int, batch: tuple[int, ...], options: dict[str, Any], seed: int
) -> None:
    generator = made(m, seed, **options)
    z = torch.randn(*batch, m, dtype=torch.float64, requires_grad=True)
    u = torch.randn_like(z)
    at = generator.linearise(z)
    assert "WrittenOut" in at.value.grad_fn.next_functions[0][0].name()  # type: ignore[union-attr]
    other = by_operations(generator, z)
    torch.testing.assert_close((at.value, at.log_abs_det), other)  # type: ignore[attr-defined]
    found = gradients(generator, z, (at.value, at.log_abs_det), u)  # type: ignore[attr-defined]
    torch.testing.assert_close(found, gradients(generator, z, other, u))


@pytest.mark.long
@pytest.mark.parametrize("mixing", ["diagonal", "triangular"])
def test_finite_differences_find_it_and_its_own_derivative(mixing: str) -> None:
    generator = made(2, hidden_dim=2, num_blocks=2, num_steps=1, mixing=mixing)
    z = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    weights = generator.weights.detach().clone().requires_grad_()

    def function(weights: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        found: Any = torch.func.functional_call(generator, {"weights": weights}, (z,))
        return found, WrittenOut.apply(generator, Passed(), weights, z)[1]

    torch.autograd.gradcheck(function, (weights, z))
    torch.autograd.gradgradcheck(function, (weights, z))


@pytest.mark.parametrize("asked", ["weights", "noise"])
def test_one_of_the_two_alone(asked: str) -> None:
    generator = made(3)
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=asked == "noise")
    generator.requires_grad_(asked == "weights")
    wanted = z if asked == "noise" else generator.weights
    for create_graph in (False, True):
        at: Any = generator.linearise(z)
        value, log_det = by_operations(generator, z)
        found = torch.autograd.grad(
            at.value.sin().sum() + at.log_abs_det.sum(), wanted, create_graph=create_graph
        )
        expected = torch.autograd.grad(value.sin().sum() + log_det.sum(), wanted)
        torch.testing.assert_close(found, expected)
        assert found[0].requires_grad == create_graph
    generator.requires_grad_(False)
    assert not generator(z.detach()).requires_grad


def test_masked_weights_have_no_gradient() -> None:
    generator = made(4)
    at: Any = generator.linearise(torch.randn(5, 4, dtype=torch.float64))
    (at.value.square().sum() + at.log_abs_det.sum()).backward()
    found = dict(generator._each(generator._unpacked(generator.weights.grad)))
    for name, mask in (("weight_in", generator.mask_in), ("weight_out", generator.mask_out)):
        for number in range(3):
            grad = found[f"blocks.{number}.{name}"]
            assert bool((grad == 0).logical_or(mask).all()) and bool((grad != 0).any())
    assert bool((found["maps.0.lower"].triu() == 0).all())
    assert bool((found["maps.0.upper"].tril() == 0).all())


def test_transforms_of_torch_take_the_operations() -> None:
    generator, z = made(3), torch.randn(4, 3, dtype=torch.float64)
    assert is_plain_step()
    with torch.no_grad():
        assert not is_plain_step()
    seen = []

    def noted(z: Tensor) -> Tensor:
        seen.append(is_plain_step())
        drawn: Tensor = generator(z)
        return drawn

    expected = torch.autograd.functional.jacobian(lambda z: generator(z).sum(0), z).movedim(1, 0)
    torch.testing.assert_close(torch.func.vmap(torch.func.jacrev(noted))(z), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.jacfwd(noted))(z), expected)
    with forward_ad.dual_level():
        v = torch.randn_like(z)
        tangent = forward_ad.unpack_dual(noted(forward_ad.make_dual(z, v))).tangent
    torch.testing.assert_close(tangent, (expected @ v[..., None])[..., 0])
    assert seen == [False] * 3


def test_weights_that_were_written_into_are_an_error() -> None:
    generator = made(2)
    drawn = generator(torch.randn(3, 2, dtype=torch.float64))
    with torch.no_grad():
        generator.weights.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        drawn.sum().backward()


def test_a_graph_can_be_kept_and_not_used_twice_without() -> None:
    generator = made(2)
    total = generator(torch.randn(3, 2, dtype=torch.float64)).sum()
    total.backward(retain_graph=True)
    first = generator.weights.grad.clone()  # type: ignore[union-attr]
    total.backward()
    torch.testing.assert_close(generator.weights.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()


def test_autocast_around_the_derivative_changes_nothing() -> None:
    generator = made(3).float()
    z, found = torch.randn(5, 3), []
    for enabled in (False, True):
        generator.zero_grad()
        drawn = generator(z)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            drawn.sum().backward()
        found.append(generator.weights.grad)
    assert torch.equal(*found)


def test_noise_of_another_precision_than_the_weights() -> None:
    generator, wide = made(3).float(), made(3)
    wide.weights.data.copy_(generator.weights.detach())
    z, found = torch.randn(5, 3, dtype=torch.float64, requires_grad=True), []
    for one in (generator, wide):
        at: Any = one.linearise(z)
        assert at.value.dtype == at.log_abs_det.dtype == torch.float64
        (at.value.sum() + at.log_abs_det.sum()).backward()
        found.append(one.weights.grad)
    assert found[0].dtype == torch.float32  # type: ignore[union-attr]
    torch.testing.assert_close(found[0], found[1].float())  # type: ignore[union-attr]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:FutureWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_pyros_jit_objectives_trace_it() -> None:
    def model(y: torch.Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w.sum(), 1.0), obs=y)

    y = torch.randn(5)
    guide = HyperNetworkGuide(model, init_from=None)
    guide(y)
    objective = JitTrace_ELBO(ignore_jit_warnings=True)
    traced = [objective.loss_and_grads(model, guide, y) for _ in range(2)]
    assert all(map(math.isfinite, traced))


def test_second_derivatives_of_all_directions_at_once() -> None:
    torch.manual_seed(0)
    generator = AutoregressiveGenerator(3).double()
    z = torch.randn(3, dtype=torch.double, requires_grad=True)
    value = generator(z).square().sum()
    (gradient,) = torch.autograd.grad(value, z, create_graph=True)
    (rows,) = torch.autograd.grad(
        gradient, z, torch.eye(3, dtype=torch.double), is_grads_batched=True, retain_graph=True
    )
    one_by_one = [torch.autograd.grad(g, z, retain_graph=True)[0] for g in gradient]
    torch.testing.assert_close(rows, torch.stack(one_by_one))
