"""The package's generators against brute force, and their promises about cost and start."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.generators import Generator, MLPGenerator, ResidualGenerator
from pyro_implicit.ops.activations import ACTIVATIONS

SMOOTH = ["elu", "gelu", "silu", "sin", "softplus", "tanh"]
seeds = st.integers(0, 2**20)
sizes = st.integers(1, 6)


def _brute_jacobian(generator: Generator, z: Tensor) -> Tensor:
    flat = z.reshape(-1, z.shape[-1])
    rows = [torch.autograd.functional.jacobian(generator, row, create_graph=True) for row in flat]
    return torch.stack(rows).reshape(*z.shape[:-1], *rows[0].shape)


def _brute_half_log_det(generator: Generator, z: Tensor, scale: float | Tensor) -> Tensor:
    jac = _brute_jacobian(generator, z)
    m = generator.output_dim
    noise = torch.as_tensor(scale, dtype=jac.dtype).expand(m) ** 2
    return 0.5 * torch.linalg.slogdet(jac @ jac.mT + torch.diag(noise)).logabsdet


def _check(generator: Generator, batch: tuple[int, ...], scale: float | Tensor) -> None:
    z = torch.randn(*batch, generator.noise_dim, dtype=torch.float64)
    jac = generator.jacobian(z)
    assert jac.shape == (*batch, generator.output_dim, generator.noise_dim)
    torch.testing.assert_close(jac, _brute_jacobian(generator, z))
    value, brute = generator.half_log_det(z, scale), _brute_half_log_det(generator, z, scale)
    assert value.shape == batch
    torch.testing.assert_close(value, brute, rtol=1e-5, atol=1e-5)
    parameters = [p for p in generator.parameters() if p.requires_grad]
    mine = torch.autograd.grad(value.sum(), parameters, allow_unused=True)
    theirs = torch.autograd.grad(brute.sum(), parameters, allow_unused=True)
    for p, gradient, expected in zip(parameters, mine, theirs, strict=True):
        zero = torch.zeros_like(p)
        found, wanted = (zero if g is None else g for g in (gradient, expected))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.long
@given(
    sizes,
    sizes,
    st.lists(st.integers(1, 6), min_size=1, max_size=3),
    st.sampled_from(SMOOTH),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), (3,), (2, 2)]),
    st.sampled_from(["number", "scalar", "diagonal"]),
    seeds,
)
def test_mlp_is_the_brute_force_one(
    d: int,
    m: int,
    hidden: list[int],
    activation: str,
    skip: bool,
    short: bool,
    batch: tuple[int, ...],
    kind: str,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    options: dict[str, Any] = {"activation": activation, "skip": skip, "short_steps": short}
    generator = MLPGenerator(d, m, hidden, **options).double()
    scale: float | Tensor = 0.1
    if kind != "number":
        shape = () if kind == "scalar" else (m,)
        scale = 0.05 + 0.1 * torch.rand(shape, dtype=torch.float64)
    _check(generator, batch, scale)


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("skip", [False, True])
def test_mlp_with_every_activation(activation: str, skip: bool) -> None:
    _check(MLPGenerator(3, 3, (4, 5), activation=activation, skip=skip).double(), (2,), 0.2)


@pytest.mark.long
@given(st.integers(1, 4), st.integers(0, 3), seeds)
def test_mlp_without_output_noise(m: int, extra: int, seed: int) -> None:
    torch.manual_seed(seed)
    generator = MLPGenerator(m + extra, m, (6,), skip=True).double()
    _check(generator, (2,), 0.0)


@pytest.mark.long
@given(seeds, st.sampled_from([1, 4]), st.sampled_from([0.1, torch.tensor(0.1)]))
def test_learned_scale_gets_the_brute_force_gradient(seed: int, d: int, start: Any) -> None:
    torch.manual_seed(seed)
    generator = MLPGenerator(d, 3, (5,)).double()
    z = torch.randn(2, d, dtype=torch.float64)
    scale = torch.as_tensor(start).double().clone().requires_grad_()
    (mine,) = torch.autograd.grad(generator.half_log_det(z, scale).sum(), scale)
    (theirs,) = torch.autograd.grad(_brute_half_log_det(generator, z, scale).sum(), scale)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.long
@given(st.integers(1, 300), seeds)
def test_a_step_moves_an_output_by_a_third_of_what_its_bias_does(h: int, seed: int) -> None:
    """Whatever the hidden width: of the last layer, by Adam, where features are within (-1, 1)."""
    torch.manual_seed(seed)
    generator = MLPGenerator(2, 5, (h,), short_steps=True)
    torch.testing.assert_close(generator.weight_out * h / 0.3, generator.stored_weight_out)
    z, lr = torch.randn(1, 2), 0.01
    before = generator(z)
    adam = torch.optim.Adam([generator.stored_weight_out], lr=lr)
    before.sum().backward()
    adam.step()
    moved = (before - generator(z)).abs().max()
    assert float(moved.detach()) <= 0.3 * lr * (1 + 1e-3) + 1e-6 * float(
        before.abs().max().detach()
    )


# ---- cost


class _Largest(TorchDispatchMode):
    """Notes the number of entries of the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_flatten(result)[0]:
            if isinstance(tensor, Tensor):
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.itemsize)
        return result


def test_gram_route_forms_neither_jacobian_nor_square_matrix() -> None:
    m, d, h, draws = 20_000, 5, 8, 64
    generator = MLPGenerator(d, m, (h,))
    z = torch.randn(draws, d)
    with _Largest() as largest:
        value = generator.half_log_det(z, 0.01)
        value.sum().backward()
    assert value.isfinite().all()
    assert largest.numel == m * h  # the output weights; all Jacobians have 40 times as many entries


def test_residual_never_forms_a_square_matrix() -> None:
    m, h, draws = 20_000, 4, 3
    generator = ResidualGenerator(m, h)
    with _Largest() as largest:
        generator.half_log_det(torch.randn(draws, m)).sum().backward()
        assert largest.numel == m * h  # not even once for each draw
        generator.half_log_det(torch.randn(draws, m), 0.1).sum().backward()
        assert largest.numel == draws * m * 2 * h


@pytest.mark.parametrize("d", [2, 6])
@pytest.mark.parametrize("skip", [False, True])
def test_log_det_factors_on_the_smaller_side(d: int, skip: bool) -> None:
    m = 4
    generator = MLPGenerator(d, m, (9,), skip=skip)
    seen: list[int] = []
    factorise = torch.linalg.cholesky_ex

    def spy(matrix: Tensor, **options: Any) -> Any:
        seen.append(matrix.shape[-1])
        return factorise(matrix, **options)

    with mock.patch.object(torch.linalg, "cholesky_ex", spy):
        generator.half_log_det(torch.randn(3, d), 0.1)
    assert seen == [min(d, m)]


# ---- start


@pytest.mark.parametrize("init_scale", [0.01, 1.0, 7.0])
@pytest.mark.parametrize("skip", [False, True])
def test_mlp_starts_centred_with_the_scale_asked_for(init_scale: float, skip: bool) -> None:
    generator = MLPGenerator(8, 5, (50,), init_scale=init_scale, skip=skip)
    with torch.no_grad():
        out = generator(torch.randn(20_000, 8))
    torch.testing.assert_close(out.std(0), torch.full((5,), init_scale), rtol=0.15, atol=0)
    assert out.mean(0).abs().max() < 0.15 * init_scale


@pytest.mark.parametrize("init_scale", [0.01, 7.0])
def test_residual_starts_with_the_scale_asked_for(init_scale: float) -> None:
    generator = ResidualGenerator(30, 10, init_scale=init_scale)
    with torch.no_grad():
        out = generator(torch.randn(20_000, 30))
    torch.testing.assert_close(out.std(0), torch.full((30,), init_scale), rtol=0.15, atol=0)
    assert out.mean(0).abs().max() < 0.15 * init_scale


def test_dead_units_do_not_make_the_start_infinite() -> None:
    with mock.patch.object(torch, "randn", lambda *shape, **_: -torch.ones(*shape)):
        generator = MLPGenerator(2, 3, (4,), activation="relu")
    assert all(p.isfinite().all() for p in generator.parameters())


def test_rank_is_told() -> None:
    assert ResidualGenerator(3).full_rank
    assert MLPGenerator(3, 3, skip=True).full_rank
    assert MLPGenerator(4, 3, skip=True).full_rank
    assert not MLPGenerator(2, 3, skip=True).full_rank
    assert not MLPGenerator(3, 3).full_rank


# ---- precision


@pytest.mark.parametrize(
    "generator",
    [
        lambda: MLPGenerator(5, 20, (16,)),
        lambda: MLPGenerator(20, 20, (16,), skip=True),
        lambda: MLPGenerator(20, 5, (16,)),
        lambda: ResidualGenerator(20),
    ],
    ids=["gram", "skip", "wide", "residual"],
)
@pytest.mark.parametrize("scale", [1e-2, 1e-4])
def test_low_precision_gives_the_same_log_det(generator: Any, scale: float) -> None:
    made = generator()
    z = torch.randn(3, made.noise_dim)
    plain = made.half_log_det(z, scale)
    reference = made.double().half_log_det(z.double(), scale)
    assert plain.dtype == torch.float32
    torch.testing.assert_close(plain.double(), reference, atol=1e-3, rtol=1e-6)
    made.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert made(z).isfinite().all()
        mixed = made.half_log_det(z, scale)
    assert mixed.isfinite().all()
    torch.testing.assert_close(mixed, plain, atol=1e-2, rtol=0)


# ---- errors and records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_dims": ()}, r"hidden_dims=\(\); expected a non-empty sequence"),
        ({"hidden_dims": (3, 0)}, r"hidden_dims\[1\]=0; expected an integer >= 1"),
        ({"activation": "swish"}, "activation 'swish' is unknown"),
        ({"init_scale": 0.0}, "init_scale=0.0; expected a finite number > 0"),
        ({"init_scale": math.nan}, "init_scale=nan; expected a finite number > 0"),
    ],
)
def test_mlp_refuses_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MLPGenerator(2, 3, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_dim": 0}, "hidden_dim=0; expected an integer >= 1"),
        ({"activation": "swish"}, "activation 'swish' is unknown"),
        ({"init_scale": -1.0}, "init_scale=-1.0; expected a finite number > 0"),
    ],
)
def test_residual_refuses_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ResidualGenerator(3, **options)


@pytest.mark.parametrize("d", [2, 4])
def test_unusable_scales_are_refused(d: int) -> None:
    generator, z = MLPGenerator(d, 3), torch.randn(1, d)
    with pytest.raises(ArgumentError, match="scale=-1"):
        generator.half_log_det(z, -1.0)
    with pytest.raises(ShapeError, match=r"scale has shape \(2,\)"):
        generator.half_log_det(z, torch.ones(2))
    if d < 3:
        with pytest.raises(ArgumentError, match="scale=0 with 2 noise dimensions for 3 outputs"):
            generator.half_log_det(z, 0.0)


@pytest.mark.parametrize(
    "generator",
    [
        MLPGenerator(2, 3, (4, 5), activation="sin", skip=True),
        MLPGenerator(2, 3, (4,)),
        ResidualGenerator(3, 4, activation="tanh"),
    ],
    ids=["skip", "mlp", "residual"],
)
def test_config_makes_the_same_generator_again(generator: Generator) -> None:
    config = generator.config()
    assert config is not None
    kind = {"MLPGenerator": MLPGenerator, "ResidualGenerator": ResidualGenerator}[
        config.pop("type")
    ]
    again: Generator = kind(**config)  # type: ignore[operator]
    again.load_state_dict(generator.state_dict())
    z = torch.randn(4, generator.noise_dim)
    torch.testing.assert_close(again(z), generator(z))
