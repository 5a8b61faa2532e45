"""DiagonalMixture against torch's mixtures, and its weighted draws against exact gradients."""

from __future__ import annotations

import pyro
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from torch import Tensor
from torch import distributions as D

from pyro_implicit.distributions.diagonal_mixture import DiagonalMixture, WeightedDraws
from pyro_implicit.exceptions import ArgumentError, ShapeError


def make(batch: tuple[int, ...], k: int, m: int) -> DiagonalMixture:
    torch.manual_seed(k + m)
    loc = torch.randn(*batch, k, m, dtype=torch.float64)
    scale = torch.rand(*batch, k, m, dtype=torch.float64) + 0.2
    return DiagonalMixture(loc, scale, torch.randn(*batch, k, dtype=torch.float64))


def reference(fn: DiagonalMixture) -> D.MixtureSameFamily:
    normals = D.Independent(D.Normal(fn.loc, fn.scale), 1)
    return D.MixtureSameFamily(D.Categorical(logits=fn.logits), normals)


@settings(max_examples=20)
@given(batch=st.sampled_from([(), (3,), (2, 3)]), k=st.integers(1, 4), m=st.integers(1, 3))
def test_the_density_is_that_of_torch(batch, k, m) -> None:
    fn = make(batch, k, m)
    assert (fn.batch_shape, fn.event_shape) == (batch, (m,))
    value = torch.randn(5, *batch, m, dtype=torch.float64)
    torch.testing.assert_close(fn.log_prob(value), reference(fn).log_prob(value))
    wide = fn.expand((4, *batch))
    assert wide.batch_shape == (4, *batch)
    assert wide.sample((2,)).shape == (2, 4, *batch, m)


def test_draws_have_the_moments_of_the_mixture() -> None:
    fn = make((2,), 3, 2)
    draws, theirs = fn.sample((200_000,)), reference(fn)
    assert not draws.requires_grad
    torch.testing.assert_close(draws.mean(0), theirs.mean, rtol=0, atol=0.02)
    torch.testing.assert_close(draws.var(0), theirs.variance, rtol=0.02, atol=0.01)


def test_weighted_draws_have_the_gradient_of_the_exact_expectation() -> None:
    torch.manual_seed(0)
    leaves = [
        torch.randn(3, 2, dtype=torch.float64),
        torch.rand(3, 2, dtype=torch.float64) + 0.3,
        torch.randn(3, dtype=torch.float64),
    ]
    for leaf in leaves:
        leaf.requires_grad_()
    loc, scale, logits = leaves
    exact = (logits.softmax(-1) @ (loc**2 + scale**2 + loc).sum(-1)).sum()
    expected = torch.autograd.grad(exact, leaves)
    fn = DiagonalMixture(loc, scale, logits)
    draws, log_weight = fn.weighted_rsample((400_000,))
    assert torch.equal(log_weight, torch.zeros_like(log_weight))
    estimate = (log_weight.exp() * (draws**2 + draws).sum(-1)).mean()
    for mine, theirs in zip(torch.autograd.grad(estimate, leaves), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0.03, atol=0.03)


def test_a_program_is_drawn_with_weights_only_inside_of_the_handler() -> None:
    fn = make((), 2, 3)
    fn.logits.requires_grad_()

    def program() -> Tensor:
        with pyro.plate("rows", 4):
            return pyro.sample("x", fn)

    plain = poutine.trace(program).get_trace().nodes["x"]
    assert "log_weight" not in plain["infer"]
    with WeightedDraws():
        node = poutine.trace(program).get_trace().nodes["x"]
    assert node["value"].shape == (4, 3)
    assert node["infer"]["log_weight"].shape == (4,)
    assert node["infer"]["log_weight"].requires_grad
    with WeightedDraws():
        held = poutine.trace(poutine.condition(program, {"x": node["value"]})).get_trace()
    assert "log_weight" not in held.nodes["x"]["infer"]


def test_parameters_are_validated() -> None:
    with pytest.raises(ValueError, match="scale"):
        DiagonalMixture(torch.zeros(2, 3), -torch.ones(2, 3), torch.zeros(2), validate_args=True)


@pytest.mark.parametrize("which", range(3))
def test_batch_shapes_are_broadcast(which):
    shapes = [[], [], []]
    shapes[which] = [5]
    loc, scale = torch.randn(*shapes[0], 3, 2), torch.rand(*shapes[1], 3, 2) + 0.1
    mixture = DiagonalMixture(loc, scale, torch.randn(*shapes[2], 3), validate_args=True)
    assert mixture.batch_shape == (5,) and mixture.event_shape == (2,)
    value = mixture.sample((4,))
    assert value.shape == (4, 5, 2) and mixture.log_prob(value).shape == (4, 5)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 1), (2, 1), (1,)),
        ((2, 1), (2, 1), (3,)),
        ((2, 3), (2, 2), (2,)),
        ((2, 1), (3, 1), (2,)),
        ((2,), (2,), (2,)),
        ((2, 1), (2, 1), ()),
        ((3, 2, 1), (2, 2, 1), (2,)),
    ],
)
def test_other_numbers_of_components_or_entries_are_refused(shapes) -> None:
    loc, scale, logits = (torch.ones(shape) for shape in shapes)
    with pytest.raises(ShapeError, match="loc, scale and logits have the shapes"):
        DiagonalMixture(loc, scale, logits)


def test_what_is_no_tensor_is_refused() -> None:
    with pytest.raises(ArgumentError, match="logits is None; expected a tensor"):
        DiagonalMixture(torch.zeros(2, 1), torch.ones(2, 1), None)  # type: ignore[arg-type]


@given(k=st.integers(1, 4))
def test_it_integrates_to_one(k) -> None:
    fn, grid = make((), k, 1), torch.linspace(-20, 20, 8001, dtype=torch.float64)
    total = torch.trapezoid(fn.log_prob(grid.unsqueeze(-1)).exp(), grid)
    assert abs(float(total) - 1) < 1e-4
