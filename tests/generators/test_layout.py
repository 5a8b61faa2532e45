"""Automatic shapes: the budget is kept and used, and every latent has exactly one entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.generators.layout import (
    MAX_LATENTS_WITH_FULL_NOISE,
    count_parameters,
    hidden_size,
    near_square,
    noise_side,
    plan_branches,
    plan_mmnn,
    split_columns,
)

sides = st.integers(1, 40)


@given(st.integers(1, 10**8))
def test_near_square_has_hardly_any_spare_entries(numel: int) -> None:
    rows, columns = near_square(numel)
    assert 0 <= rows * columns - numel < rows
    assert rows <= columns <= rows + 3


def test_parameters_are_two_factors_and_two_biases_of_each_layer() -> None:
    assert count_parameters([(2, 3)]) == 0
    assert count_parameters([(2, 3), (5, 7)]) == 5 * 2 + 5 * 3 + 3 * 7 + 5 * 7


@pytest.mark.parametrize(("hidden", "count"), [(2, 612_450), (1, 362_450)])
def test_the_papers_counts_for_lenet(hidden: int, count: int) -> None:
    shapes = plan_mmnn(44_426, 2.0, (65, 65), [(250, 250)] * hidden, (350, 127))
    assert shapes == [(65, 65), *[(250, 250)] * hidden, (350, 127)]
    assert count_parameters(shapes) == count


@given(sides, sides, sides, sides, st.integers(0, 50_000))
def test_hidden_size_is_the_largest_that_fits(
    a: int, b: int, rows: int, columns: int, parameters: int
) -> None:
    first, last = (a, b), (rows, columns)

    def count(h: int) -> int:
        return count_parameters([first, (h, h), last])

    h = hidden_size(first, last, parameters)
    assert h >= 1
    assert count(h) <= parameters or h == 1
    assert count(h + 1) > parameters


@given(st.integers(1_000, 10**8), st.floats(1.2, 8.0))
def test_automatic_layout_spends_the_budget(output_dim: int, budget: float) -> None:
    shapes = plan_mmnn(output_dim, budget)
    used = count_parameters(shapes) / output_dim
    assert 0.93 * budget < used <= budget
    assert len(shapes) == 3
    assert shapes[0][0] <= shapes[1][0]  # the noise is not squeezed on its way in


@given(st.integers(1, 10**8))
def test_noise_is_about_a_tenth_of_the_latents(output_dim: int) -> None:
    side = noise_side(output_dim)
    assert 1 <= side <= 130
    if output_dim <= MAX_LATENTS_WITH_FULL_NOISE:
        assert (side - 1) ** 2 < output_dim <= side**2
    else:
        assert side**2 <= output_dim
    if 1_000 <= output_dim <= 150_000:
        assert side**2 == pytest.approx(output_dim / 10, rel=0.2)


def test_noise_of_the_papers_networks() -> None:
    assert noise_side(44_426) == pytest.approx(65, abs=1.5)
    assert noise_side(2_700_000) == noise_side(36_500_000) == 130


@given(st.integers(1, 200))
def test_tiny_layouts_exist(output_dim: int) -> None:
    shapes = plan_mmnn(output_dim, 2.0)
    assert all(min(shape) >= 1 for shape in shapes)
    assert 0 <= shapes[-1][0] * shapes[-1][1] - output_dim < shapes[-1][0]


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=30), st.integers(0, 300))
def test_columns_are_all_given_away_and_no_group_goes_without(sizes: list[int], spare: int) -> None:
    widths = split_columns(len(sizes) + spare, sizes)
    assert sum(widths) == len(sizes) + spare
    assert min(widths) >= 1
    by_size = [width for _, width in sorted(zip(sizes, widths, strict=True))]
    assert all(small <= large + 1 for small, large in zip(by_size, by_size[1:], strict=False))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=10), st.floats(1.0, 4.0))
def test_branches_share_the_budget(sizes: list[int], budget: float) -> None:
    plans = plan_branches(20, [2] * len(sizes), sizes, budget * sum(sizes))
    for (first, hidden, last), size in zip(plans, sizes, strict=True):
        assert first == (20, 2)
        assert last == near_square(size)
        assert min(hidden) >= min(8, last[0])
    largest = plans[max(range(len(sizes)), key=lambda i: sizes[i])]
    if largest[1][0] > 8:  # what the small ones took beyond their share is made up for
        used = sum(count_parameters(plan) for plan in plans)
        assert used <= budget * sum(sizes)


@given(output_dim=st.integers(1, 10_000), rows=st.integers(1, 40), columns=st.integers(1, 40))
def test_an_automatic_hidden_layer_passes_on_a_given_noise(
    output_dim: int, rows: int, columns: int
) -> None:
    noise, hidden, _ = plan_mmnn(output_dim, 2.0, noise_shape=(rows, columns))
    assert noise == (rows, columns)
    assert hidden[0] * hidden[1] >= min(rows * columns, output_dim)


@pytest.mark.parametrize("budget", [1.0, 0.0, -3.0, float("nan")])
def test_a_budget_below_the_biases_is_refused(budget: float) -> None:
    with pytest.raises(ArgumentError, match=r"budget=.*; expected a finite number > 1"):
        plan_mmnn(100, budget)


@pytest.mark.parametrize(
    "options",
    [
        {"noise_shape": (0, 3)},
        {"hidden_shapes": [(3, 3), (2, -1)]},
        {"output_shape": (10, 10, 1)},
        {"noise_shape": (9,)},
    ],
)
def test_shapes_without_entries_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(
        ArgumentError, match=r"_shapes?(\[1\])?(\[[01]\])?=.*; expected a(n integer| sequence)"
    ):
        plan_mmnn(100, 2.0, **options)  # type: ignore[arg-type]


def test_a_small_output_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"\(9, 11\) has 99 entries for 100 latents"):
        plan_mmnn(100, 2.0, output_shape=(9, 11))
