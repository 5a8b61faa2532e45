"""Matrix-multiplication generators: structure, start, cost, and saving by value."""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.generators import CMMNN, MMNN, Generator
from pyro_implicit.ops.activations import ACTIVATIONS

PAPER: dict[str, Any] = {"noise_shape": (65, 65), "output_shape": (350, 127)}
activations = st.sampled_from(sorted(ACTIVATIONS))
seeds = st.integers(0, 2**20)


def _count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _autograd_jacobian(generator: Generator, z: Tensor) -> Tensor:
    rows = [torch.autograd.functional.jacobian(generator, one).flatten(1) for one in z]
    return torch.stack(rows)


def _shake(generator: Generator) -> Generator:
    """Double precision, and biases that are not zero."""
    with torch.no_grad():
        for parameter in generator.double().parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return generator


# ---- structure


@pytest.mark.long
@given(
    st.integers(1, 40),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=3),
    activations,
    seeds,
)
def test_mmnn_is_algorithm_1_cut_to_size(
    m: int, noise: tuple[int, int], hidden: list[tuple[int, int]], name: str, seed: int
) -> None:
    torch.manual_seed(seed)
    generator = MMNN(m, noise_shape=noise, hidden_shapes=hidden, activation=name, init_scale=0.3)
    _shake(generator)
    z = torch.randn(3, *noise, dtype=torch.float64)
    x, chain = z, generator.chain
    for index, (a, b) in enumerate([noise, *hidden]):
        left, right = chain.left[index] / a**0.5, chain.right[index] / b**0.5
        if index == len(hidden):
            right = right * 0.3
        x = (left @ x + chain.left_bias[index] / a**0.5) @ right + chain.right_bias[index]
        if index < len(hidden):
            x = ACTIVATIONS[name][0](x)
    torch.testing.assert_close(generator(z), x.flatten(-2)[:, :m])
    torch.testing.assert_close(generator.jacobian(z), _autograd_jacobian(generator, z))


@pytest.mark.long
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(0, 5),
    st.sampled_from([1.1, 3.0, 30.0]),
    activations,
    seeds,
)
def test_cmmnn_feeds_each_branch_its_own_columns(
    sizes: list[int], rows: int, extra: int, budget: float, name: str, seed: int
) -> None:
    torch.manual_seed(seed)
    trunk = [(3, 2), (rows, len(sizes) + extra)]
    generator = CMMNN(sizes, noise_shape=(2, 3), trunk_shapes=trunk, budget=budget, activation=name)
    _shake(generator)
    z = torch.randn(3, 2, 3, dtype=torch.float64)
    assert sum(generator.widths) == len(sizes) + extra
    assert min(generator.widths) >= 1
    hidden = generator.trunk.run(z)[0]
    parts = [
        branch.run(columns)[0].flatten(-2)[:, :size]
        for branch, columns, size in zip(
            generator.branches, hidden.split(generator.widths, -1), sizes, strict=True
        )
    ]
    torch.testing.assert_close(generator(z), torch.cat(parts, -1))
    torch.testing.assert_close(generator.linearise(z).value, generator(z))
    torch.testing.assert_close(generator.jacobian(z), _autograd_jacobian(generator, z))


def test_trunk_carries_dependence_across_groups_and_branches_are_apart() -> None:
    generator = _shake(CMMNN([4, 5], noise_shape=(2, 2), trunk_shapes=[(2, 2)]))
    z = torch.randn(1, 2, 2, dtype=torch.float64)
    first, second = generator(z).split([4, 5], -1)
    gradients = torch.autograd.grad(
        first.sum(), list(generator.branches[1].parameters()), allow_unused=True, retain_graph=True
    )
    assert not any(gradient.any() for gradient in gradients if gradient is not None)
    for part in (first, second):
        gradients = torch.autograd.grad(
            part.sum(), list(generator.trunk.parameters()), retain_graph=True
        )
        assert any(gradient.abs().max() > 0 for gradient in gradients)


@pytest.mark.parametrize(
    "generator",
    [
        lambda: MMNN(11, noise_shape=(2, 2), hidden_shapes=[(3, 3)]),
        lambda: CMMNN([7, 3, 1], noise_shape=(2, 2), trunk_shapes=[(3, 6)]),
    ],
)
def test_every_latent_has_an_entry_of_its_own(generator: Callable[[], Generator]) -> None:
    """Each output has its bias alone; what no output uses is the trim."""
    made = generator()
    chains = [made.chain] if isinstance(made, MMNN) else list(made.branches)
    biases = [chain.right_bias[-1] for chain in chains]
    outputs = made(torch.randn(*made.noise_shape))
    rows = [torch.autograd.grad(out, biases, retain_graph=True) for out in outputs]
    used = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    assert torch.equal(used.sum(1), torch.ones(made.output_dim))
    assert set(used.sum(0).tolist()) <= {0.0, 1.0}
    for bias, served in zip(biases, used.sum(0).split([b.numel() for b in biases]), strict=True):
        assert bias.numel() - served.sum() < bias.shape[0]


@pytest.mark.parametrize(("hidden", "count"), [(2, 612_450), (1, 362_450)])
def test_the_papers_generators_for_lenet(hidden: int, count: int) -> None:
    generator = MMNN(44_426, hidden_shapes=[(250, 250)] * hidden, **PAPER)
    assert _count(generator) == count
    assert generator(torch.randn(2, 65, 65)).shape == (2, 44_426)


@pytest.mark.parametrize("m", [500, 44_426, 300_000])
def test_mmnn_keeps_its_budget(m: int) -> None:
    assert 0.93 * 2 * m < _count(MMNN(m)) <= 2 * m


@pytest.mark.parametrize("budget", [1.5, 2.0, 3.0])
@pytest.mark.parametrize(
    "sizes", [[156, 2416, 30_840, 10_164, 850], [147_584] * 6 + [295_168] * 2, [300_000] * 5]
)
def test_cmmnn_keeps_its_budget(sizes: list[int], budget: float) -> None:
    used = _count(CMMNN(sizes, budget=budget)) / sum(sizes)
    assert used == pytest.approx(budget, rel=0.07)


def test_a_cmmnn_of_few_latents_pays_for_its_trunk() -> None:
    """A group is never squeezed through fewer than eight rows and columns."""
    generator = CMMNN([3, 200], noise_shape=(10, 10), budget=1.1)
    assert [branch.shapes[1] for branch in generator.branches] == [(1, 1), (8, 8)]


# ---- start


@pytest.mark.parametrize("name", sorted(set(ACTIVATIONS) - {"sin"}))
@pytest.mark.parametrize("depth", [0, 1, 3, 10])
def test_first_draws_have_variance_one_at_any_depth(name: str, depth: int) -> None:
    generator = MMNN(2500, noise_shape=(30, 30), hidden_shapes=[(40, 40)] * depth, activation=name)
    with torch.no_grad():
        draws = generator(torch.randn(64, 30, 30))
    assert draws.var(0).mean().sqrt() == pytest.approx(1.0, abs=0.15)
    assert draws.mean(0).square().mean() < 0.1  # nothing that is the same in every draw


@pytest.mark.parametrize("init_scale", [0.01, 5.0])
@pytest.mark.parametrize("depth", [1, 6])
def test_first_draws_of_every_branch_have_the_scale_asked_for(
    init_scale: float, depth: int
) -> None:
    sizes = [400, 3000, 1000]
    generator = CMMNN(
        sizes, noise_shape=(20, 20), trunk_shapes=[(30, 60)] * depth, init_scale=init_scale
    )
    with torch.no_grad():
        draws = generator(torch.randn(64, 20, 20))
    for part in draws.split(sizes, -1):
        assert part.var(0).mean().sqrt() == pytest.approx(init_scale, rel=0.25)
        assert part.mean(0).square().mean() < 0.1 * init_scale**2


@pytest.mark.parametrize("init_scale", [0.01, 1.0])
def test_factors_start_with_entries_of_size_one(init_scale: float) -> None:
    """Whatever their shape and the size of the outputs: one learning rate suits them all."""
    mmnn = MMNN(44_426, hidden_shapes=[(250, 250)] * 2, init_scale=init_scale, **PAPER)
    cmmnn = CMMNN([400, 90_000], init_scale=init_scale)
    for generator in (mmnn, cmmnn):
        for name, parameter in generator.named_parameters():
            if "bias" not in name:
                assert parameter.detach().square().mean().sqrt() == pytest.approx(1, rel=0.5), name


def test_dead_units_do_not_make_the_start_infinite() -> None:
    for seed in range(20):
        torch.manual_seed(seed)
        generator = MMNN(6, noise_shape=(50, 50), hidden_shapes=[(1, 1)] * 3, activation="relu")
        with torch.no_grad():
            assert generator(torch.randn(200, 50, 50)).abs().max() < 1e3


# ---- cost


def _flops(function: Callable[[], Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "make",
    [
        lambda: MMNN(44_426, hidden_shapes=[(250, 250)], **PAPER),
        lambda: MMNN(44_426, hidden_shapes=[(250, 250)] * 2, **PAPER),
        lambda: MMNN(44_426),
        lambda: CMMNN([156, 2416, 30_840, 10_164, 850]),
    ],
)
def test_a_product_costs_at_most_1_3_forward_passes(make: Callable[[], Generator]) -> None:
    generator = make()
    z = torch.randn(2, *generator.noise_shape)
    with torch.no_grad():
        forward = _flops(lambda: generator(z))
        lin = generator.linearise(z)
        v, u = torch.randn(2, generator.noise_dim), torch.randn(2, generator.output_dim)
        assert _flops(lambda: lin.jvp(v)) <= 1.05 * forward
        assert _flops(lambda: lin.vjp(u)) <= 1.05 * forward
        assert _flops(lambda: generator.linearise(z)) == forward


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [1, 2])
def test_a_product_takes_at_most_1_3_times_a_forward_pass(hidden: int) -> None:
    generator = MMNN(44_426, hidden_shapes=[(250, 250)] * hidden, **PAPER)
    z = torch.randn(2, 65, 65)
    v = torch.randn(2, generator.noise_dim)
    times: dict[str, list[float]] = {"forward": [], "jvp": []}
    with torch.no_grad():
        lin = generator.linearise(z)
        for _ in range(60):
            for name, job in (("forward", lambda: generator(z)), ("jvp", lambda: lin.jvp(v))):
                start = time.process_time()
                job()
                times[name].append(time.process_time() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    assert medians["jvp"] <= 1.3 * medians["forward"]


# ---- saving


@pytest.mark.parametrize(
    "generator",
    [
        lambda: MMNN(500, budget=3.0, activation="tanh", init_scale=0.05),
        lambda: MMNN(11, noise_shape=(2, 3), hidden_shapes=[(3, 4), (2, 2)], output_shape=(4, 3)),
        lambda: CMMNN([70, 3, 400], budget=2.5, activation="identity"),
        lambda: CMMNN([7, 3], noise_shape=(2, 3), trunk_shapes=[(3, 4), (4, 5)], init_scale=3.0),
    ],
)
def test_config_makes_the_same_structure(generator: Callable[[], Generator]) -> None:
    made = generator()
    config = made.config()
    assert config is not None
    kind = {"MMNN": MMNN, "CMMNN": CMMNN}[config.pop("type")]
    again = kind(**config)
    again.load_state_dict(made.state_dict())
    z = torch.randn(3, *made.noise_shape)
    assert torch.equal(made(z), again(z))
    assert torch.equal(made(z), pickle.loads(pickle.dumps(made))(z))


# ---- errors


@pytest.mark.parametrize("make", [lambda **o: MMNN(100, **o), lambda **o: CMMNN([60, 40], **o)])
def test_bad_options_are_refused(make: Callable[..., Generator]) -> None:
    with pytest.raises(ArgumentError, match=r"budget=1"):
        make(budget=1.0)
    with pytest.raises(ArgumentError, match="activation 'cosh' is unknown"):
        make(activation="cosh")


def test_an_output_that_is_too_small_is_refused() -> None:
    with pytest.raises(ShapeError, match="has 99 entries for 100 latents"):
        MMNN(100, output_shape=(9, 11))


@pytest.mark.parametrize("sizes", [[], [3, 0]])
def test_empty_groups_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ArgumentError, match="^group_sizes.*; expected a"):
        CMMNN(sizes)


def test_a_trunk_with_fewer_columns_than_groups_is_refused() -> None:
    with pytest.raises(ArgumentError, match="ends in 2 columns for 3 groups"):
        CMMNN([1, 2, 3], trunk_shapes=[(9, 2)])


# ---- no direction is lost where there are few latents


def _rank(generator: Generator) -> int:
    """Of the Jacobian at a draw, in float64."""
    generator = generator.double()
    with torch.no_grad():
        jacobian = generator.jacobian(torch.randn(generator.noise_shape).double())
    values = torch.linalg.svdvals(jacobian)
    return int((values > 1e-9 * values[0]).sum())


@pytest.mark.long
@settings(max_examples=25)
@given(size=st.integers(1, 256), budget=st.sampled_from([1.1, 2.0, 5.0]))
def test_up_to_256_latents_draws_fill_the_space(size: int, budget: float) -> None:
    torch.manual_seed(size)
    generator = MMNN(size, budget=budget)
    assert size <= generator.noise_dim
    assert _rank(generator) == size


@pytest.mark.long
@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12).filter(lambda s: sum(s) <= 256),
    budget=st.sampled_from([1.1, 2.0, 5.0]),
)
def test_up_to_256_latents_in_groups_fill_the_space(sizes: list[int], budget: float) -> None:
    torch.manual_seed(sum(sizes))
    generator = CMMNN(sizes, budget=budget)
    assert sum(sizes) <= generator.noise_dim
    assert _rank(generator) == sum(sizes)


@pytest.mark.parametrize("options", [{"noise_shape": (1, 5)}, {"output_shape": (1, 5)}])
def test_shapes_that_are_given_lose_no_direction_either(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    assert _rank(MMNN(5, **options)) == 5


def test_less_noise_than_latents_is_had_on_request() -> None:
    assert MMNN(5, noise_shape=(1, 2)).noise_dim == 2
    assert CMMNN([3, 2], noise_shape=(1, 2)).noise_dim == 2
    assert MMNN(257).noise_dim < 257
