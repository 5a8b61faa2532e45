"""The targets of the comparison of generators, their references, and its tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor

from benchmarks.common import fixed_seed
from benchmarks.posterior import generators
from benchmarks.posterior._generators_horseshoe import NOISE, horseshoe_data, horseshoe_moments
from benchmarks.posterior._generators_methods import METHODS, coupling_flow, fit, measure
from benchmarks.posterior._generators_targets import TARGETS, load
from benchmarks.posterior.neural_transport import funnel

PLANE = [name for name, kind in generators.KINDS.items() if kind == "plane"]


def test_every_target_has_a_time() -> None:
    assert set(generators.KINDS) == set(TARGETS)
    assert set(generators.KINDS.values()) == set(generators.SECONDS)


@pytest.mark.long
@pytest.mark.parametrize("name", PLANE)
def test_densities_integrate_to_one_and_have_their_moments(name: str) -> None:
    with fixed_seed(0, torch.float64):
        target = load(name, Path(), {})
        x = torch.cartesian_prod(torch.linspace(-8, 8, 801), torch.linspace(-26, 8, 1701))
        assert target.log_density is not None
        weight = target.log_density(x).exp() * 0.02**2
    assert weight.sum() == pytest.approx(1, abs=2e-3)
    for j, (mean, deviation) in enumerate(target.moments.values()):
        found = (weight * x[:, j]).sum()
        assert found == pytest.approx(mean, abs=0.01)
        spread = (weight * (x[:, j] - found) ** 2).sum().sqrt()
        assert spread == pytest.approx(deviation, rel=0.01)


def test_higher_dimensions_are_what_their_parts_are() -> None:
    with fixed_seed(0, torch.float64):
        x = torch.randn(5, 20)
        one, ten, known = (load(n, Path(), {}) for n in ("banana", "ten bananas", "funnel"))
        assert ten.log_density is not None and one.log_density is not None
        expected = one.log_density(x.reshape(5, 10, 2)).sum(-1)
        assert torch.allclose(ten.log_density(x), expected)
        values = {"v": x[0, 0], "x": x[0, 1:10]}
        trace = pyro.poutine.trace(pyro.condition(funnel().model, data=values)).get_trace()
        assert known.log_density is not None
        assert torch.allclose(trace.log_prob_sum(), known.log_density(x[0, :10]))


def _by_quadrature(x: Tensor, y: Tensor) -> dict[str, tuple[float, float]]:
    """With one column: over logarithms of both scales and of the variance; the weight exactly."""
    scale = torch.linspace(-14, 14, 141, dtype=torch.float64)
    log_variance = torch.linspace(0, 4, 81, dtype=torch.float64)
    tau, local, noise = torch.meshgrid(scale, scale, log_variance, indexing="ij")
    variance, prior = noise.exp(), (2 * (tau + local)).exp()
    half_cauchy = [part - torch.log1p((2 * part).exp()) for part in (tau, local)]
    inverse_gamma = -NOISE[0] * noise - NOISE[1] / variance
    gram, moment = (x**2).sum(), (x[:, 0] * y).sum()
    precision = gram / variance + 1 / prior
    mean = moment / variance / precision
    likelihood = -(len(y) * noise + (prior * precision).log()) / 2
    likelihood = likelihood - (y @ y / variance - mean**2 * precision) / 2
    weight = (sum(half_cauchy) + inverse_gamma + likelihood).flatten().softmax(0).reshape(tau.shape)

    def pair(first: Tensor, second: Tensor) -> tuple[float, float]:
        average = float((weight * first).sum())
        return average, math.sqrt(float((weight * second).sum()) - average**2)

    return {
        "weight[1]": pair(mean, mean**2 + 1 / precision),
        "log tau": pair(tau, tau**2),
        "sigma": pair(variance.sqrt(), variance),
    }


@pytest.mark.long
def test_gibbs_sampler_against_quadrature() -> None:
    x, y = horseshoe_data()
    before = torch.random.get_rng_state()
    found, _ = horseshoe_moments(x[:, 2:3], y, 500)
    assert torch.equal(before, torch.random.get_rng_state())
    for name, (mean, deviation) in _by_quadrature(x[:, 2:3], y).items():
        assert found[name][0] == pytest.approx(mean, abs=0.03 * deviation), name
        assert found[name][1] == pytest.approx(deviation, rel=0.03), name


def test_couplings_reach_every_entry() -> None:
    with fixed_seed(0, torch.float64):
        target = load("funnel", Path(), {})
        guide = coupling_flow(target.model)
        guide()
        z = torch.randn(10)
        jacobian = torch.autograd.functional.jacobian(guide.transform, z)
    assert bool((jacobian - torch.diag(jacobian.diagonal())).abs().amax(-1).gt(1e-6).all())


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_measured(method: str) -> None:
    with fixed_seed(0, torch.float64), pytest.MonkeyPatch.context() as patch:
        target = load("two modes", Path(), {})
        for key, value in {
            "num_draws": (200, 20),
            "num_at_once": 20,
            "num_for_density": 10,
        }.items():
            patch.setitem(generators.SETTINGS, key, value)
        guide, effort = fit(target, method, 0.0)
        found = measure(target, method, guide)
    assert effort["steps"] == 1 and effort["skipped"] == 0
    assert math.isfinite(found["kl"]) and found["claimed_kl"] == -found["claimed_elbo"]
    assert 0 <= found["minority"] <= 0.5
    if "perceptron" not in method and "residual, K" not in method:
        assert found["excess"] == 0 and not found["warned"]


def _row(method: str, **more: Any) -> dict[str, Any]:
    row = {"target": "banana", "method": method, "seed": 0, "steps": 2, "cpu_seconds": 1.0}
    row |= {"kl": 0.5, "claimed_kl": 0.1, "mean_error": 0.1, "sd_error": 0.2, "minority": 0.0}
    return row | {"excess": 0.4, "warned": True, "claimed_elbo": -0.1} | more


def test_tables() -> None:
    rows = [_row("a"), _row("a", seed=1, excess=0.01), _row("b", warned=False)]
    rows.append({"target": "banana", "method": "c", "seed": 0, "note": "no fit: ValueError"})
    told = [line.split("|")[1:3] for line in generators.claims(rows).splitlines()[2:]]
    assert [[cell.strip() for cell in line] for line in told] == [
        ["a", "0.400*"],
        ["b", "0.400"],
        ["c", "no fit"],
    ]
    assert "0.500 ± 0.000" in generators.divergences(rows)
    assert "0 of 1" in generators.table(rows).splitlines()[-1]


def test_scores_are_compared_on_the_same_split() -> None:
    rows = [
        _row(method, target="energy", seed=seed, log_likelihood=level + seed)
        for method, level in (("a", 0.25), (generators.REFERENCE, 0.0))
        for seed in range(3)
    ]
    told = generators.paired_scores([*rows, _row("a")]).splitlines()
    assert [cell.strip() for cell in told[0].split("|")[1:-1]] == ["method", "energy"]
    assert "0.250 ± 0.000" in told[2] and "0.000 ± 0.000" in told[3]
    assert "0.250 " in generators.scores(rows) and "±" not in generators.scores(rows)


@pytest.mark.slow
def test_processes_give_the_rows_in_order(tmp_path: Path) -> None:
    options = ["--targets", "two modes", "X", "--methods", "autoregressive, bare", "--seeds", "0"]
    options += ["--effort", "0", "--processes", "2", "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generators, "write_record", lambda *_: None)
        rows = generators.main(options)
    assert [row["target"] for row in rows] == ["two modes", "X"]
    assert all(row["steps"] == 1 for row in rows)
