"""entropy_report: exact for Gaussians, the excess of a folded map is log 2, and both warnings."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, entropy_report
from pyro_implicit.diagnostics._entropy_part import effective_rank
from pyro_implicit.exceptions import ArgumentError, GuideError, StateError
from tests.diagnostics.known import affine_guide, normal_model

A = [[0.5, 0.0], [0.3, 0.8]]
B = [1.0, -2.0]


def exact_entropy(matrix, sigma=0.0):
    matrix = torch.tensor(matrix)
    covariance = matrix @ matrix.T + sigma**2 * torch.eye(len(matrix))
    return dist.MultivariateNormal(torch.zeros(len(matrix)), covariance).entropy().item()


@pytest.mark.parametrize(
    ("matrix", "sigma"),
    [(A, 0.0), (A, 0.1), ([[0.5], [0.8]], 0.1), ([[0.5, 0.1, 0.2], [0.3, 0.8, 0.1]], 0.3)],
)
def test_a_gaussian_guide(matrix, sigma):
    report = entropy_report(
        affine_guide(normal_model, matrix, B, scale=sigma), num_probes=2, num_inner=200
    )
    exact = exact_entropy(matrix, sigma)
    assert report.linearised == pytest.approx(exact, abs=1e-4)
    assert report.lanczos_upper == pytest.approx(exact, abs=1e-4)  # as many probes as there are
    assert report.singular_value_bound <= exact + 1e-4
    assert report.lower == pytest.approx(exact, abs=0.05)
    assert report.upper == pytest.approx(exact, abs=0.05)
    if sigma:
        assert report.lanczos_lower == pytest.approx(exact, abs=1e-4)
    assert not report.folds and not report.collapses and not report.refusal
    assert abs(report.excess) < 0.05
    assert f"linearised              {exact:>10.2f}" in str(report)


def test_the_bound_by_the_smallest_singular_value():
    matrix = [[0.5, 0.0], [0.0, 2.0]]
    report = entropy_report(affine_guide(normal_model, matrix, B))
    expected = exact_entropy([[0.5, 0.0], [0.0, 0.5]])
    assert report.singular_value_bound == pytest.approx(expected, abs=1e-5)


@pytest.mark.long
def test_a_folded_map_is_counted_twice():
    guide = affine_guide(normal_model, A, B, folded=True)
    with pytest.warns(UserWarning, match="the guide folds: its linearised entropy exceeds"):
        report = entropy_report(guide, num_samples=300)
    assert report.folds
    assert report.excess == pytest.approx(math.log(2), abs=0.15)
    assert report.upper == pytest.approx(exact_entropy(A), abs=0.15)
    assert report.minority_share == pytest.approx(0.5, abs=0.1)
    assert f"signs {report.minority_share:.1%}" in str(report)


@pytest.mark.long
def test_signs_tell_of_a_fold_where_the_excess_cannot():
    """With a hundred latents and more nobody knows the true entropy."""
    m = 101

    def model():
        pyro.sample("w", dist.Normal(torch.zeros(m), 1.0).to_event(1))

    guide = affine_guide(model, torch.eye(m), torch.zeros(m), folded=True)
    with pytest.warns(UserWarning, match="the guide folds: .* of its draws have the rarer sign"):
        report = entropy_report(guide, num_samples=40, num_inner=5, num_starts=1)
    assert math.isnan(report.excess) and report.folds
    assert report.minority_share == pytest.approx(0.5, abs=0.2)


def test_signs_of_maps_that_do_not_fold():
    flipped = [[-1.0, 0.0], [0.3, 0.5]]
    few = dict(num_samples=20, num_inner=5, num_starts=1)
    report = entropy_report(affine_guide(normal_model, flipped, B), **few)
    assert report.minority_share == 0 and not report.folds
    report = entropy_report(affine_guide(normal_model, [[1.0], [0.5]], B, scale=0.3), **few)
    assert math.isnan(report.minority_share) and "signs" not in str(report)


@pytest.mark.long
def test_a_lost_direction():
    guide = affine_guide(normal_model, [[1.0, 0.0], [0.5, 0.0]], B, scale=0.05)
    with pytest.warns(UserWarning, match="collapses: of 2 directions of its noises, 1.0 "):
        report = entropy_report(guide)
    assert report.collapses and report.dead_directions == 1.0
    assert report.effective_rank == pytest.approx(1.0, abs=1e-3)


@pytest.mark.long
def test_ranks_do_not_depend_on_units():
    for scale in (1.0, 1e4):
        matrix = [[scale, 0.0], [0.0, 0.01]]
        report = entropy_report(
            affine_guide(normal_model, matrix, B), num_samples=500, num_starts=1
        )
        assert report.effective_rank == pytest.approx(2.0, abs=0.02)
        assert report.singular_values.shape == (500, 2)


def test_effective_rank():
    assert effective_rank(torch.ones(3, 5)).tolist() == pytest.approx([5.0] * 3)
    assert effective_rank(torch.tensor([2.0, 0.0, 0.0])).item() == pytest.approx(1.0)


@pytest.mark.parametrize("factorized", [False, True])
def test_linearised_entropy_is_that_of_the_objective(factorized):
    def model():
        pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.sample("b", dist.Normal(0.0, 1.0))

    options = {"scale": 0.2, "init_scale": 1.0, "hidden_dims": (8,)}
    guide = HyperNetworkGuide(model, factorized=factorized, **options).setup()
    report = entropy_report(guide, num_samples=500, num_inner=20, num_starts=2)
    objective = LinearisedELBO(num_particles=500, vectorize_particles=True, max_plate_nesting=0)
    assert report.linearised == pytest.approx(
        objective.terms(model, guide)["entropy"].item(), abs=0.02
    )
    assert report.latent_dim == report.noise_dim == 3
    assert report.lower - 0.1 < report.upper


def test_no_estimate_of_the_true_entropy():
    guide = affine_guide(normal_model, [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]], B)
    report = entropy_report(guide)
    assert math.isnan(report.upper) and math.isnan(report.lower) and not report.folds
    assert "3 noises for 2 latents" in report.refusal
    assert report.linearised == pytest.approx(
        exact_entropy([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5]]), abs=1e-4
    )


def test_what_is_refused(monkeypatch):
    with pytest.raises(GuideError, match="entropy_report needs an implicit guide"):
        entropy_report(AutoNormal(normal_model))
    with pytest.raises(StateError, match="not built yet"):
        entropy_report(HyperNetworkGuide(normal_model))
    with pytest.raises(ArgumentError, match="scale=0 with 1 noise dimensions for 2 outputs"):
        entropy_report(affine_guide(normal_model, [[0.5], [0.8]], B))
    guide = affine_guide(normal_model, A, B)
    monkeypatch.setattr("pyro_implicit.diagnostics._entropy_part.MAX_JACOBIAN_ENTRIES", 3)
    with pytest.raises(GuideError, match="2 x 2 entries, too many to form; train with LanczosELBO"):
        entropy_report(guide)


@pytest.mark.parametrize("name", ["num_samples", "num_inner", "num_starts", "num_steps"])
def test_numbers_are_checked(name):
    guide = affine_guide(normal_model, A, B)
    with pytest.raises(ArgumentError, match=f"{name}=0; expected an integer"):
        entropy_report(guide, **{name: 0})
    with pytest.raises(ArgumentError, match="num_probes=0"):
        entropy_report(guide, num_probes=0)
