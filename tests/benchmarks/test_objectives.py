"""The comparison of objectives: its measures on known cases, and a few steps of every method."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from pyro import poutine

from benchmarks.posterior import _objectives_references as references
from benchmarks.posterior import objectives
from benchmarks.posterior._objectives_fits import make_guide
from benchmarks.posterior._objectives_instability import ESTIMATES, NETWORKS, build_model
from benchmarks.posterior._objectives_references import REFERENCED
from benchmarks.posterior._objectives_targets import TARGETS, entropy, gaussian_kl
from pyro_implicit.distributions import ImplicitDistribution


@pytest.mark.parametrize("dim", [1, 2])
def test_entropy_of_a_gaussian(dim: int) -> None:
    torch.manual_seed(0)
    exact = dim * (0.5 * math.log(2 * math.pi * math.e) + math.log(3.0))
    assert entropy(3.0 * torch.randn(10_000, dim)) == pytest.approx(exact, abs=0.05)


def test_gaussian_kl_of_a_shift() -> None:
    draws = torch.randn(5000, 2, dtype=torch.float64)
    draws = torch.linalg.solve(torch.linalg.cholesky(draws.T.cov()), draws.T).T
    assert gaussian_kl(draws + torch.tensor([2.0, 0.0]), draws) == pytest.approx(2.0)


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_exact_draws_have_no_error(name: str) -> None:
    torch.manual_seed(0)
    target = TARGETS[name]()
    errors = target.errors(target.exact(10_000))
    assert errors["w1"] < 0.25
    assert errors["gaussian_kl"] < 0.01
    assert abs(errors["true_kl"]) < 0.06
    if name == "mixture":
        assert errors["right"] == pytest.approx(0.5, abs=0.03)
        assert errors["bridge"] == pytest.approx(0.0228, abs=0.01)


@pytest.mark.parametrize("name", objectives.ALL)
def test_output_noise_of_every_target(name: str) -> None:
    target = objectives.ALL[name]()
    guide = make_guide(target, "linearised, output noise")
    nodes = poutine.trace(guide).get_trace().nodes.values()
    made = [node["fn"] for node in nodes if isinstance(node.get("fn"), ImplicitDistribution)]
    assert [fn.scale.item() for fn in made] == [pytest.approx(target.guide_noise["scale"])]


@pytest.mark.long
def test_instability(tmp_path: Path) -> None:
    figure = tmp_path / "curves.png"
    options = ["--instability", "--num-steps", "4", "--seeds", "0", "--quiet"]
    rows = objectives.main([*options, "--figure", str(figure)])
    found = [(row["weights"], row["estimate"]) for row in rows]
    assert found == [(weights, name) for weights in NETWORKS for name in ESTIMATES]
    assert all(math.isfinite(row["sd"]) and row["forced"] > 0 for row in rows)
    assert figure.stat().st_size > 0


@pytest.mark.parametrize("weights", NETWORKS)
def test_networks_have_as_many_weights(weights: int) -> None:
    nodes = poutine.trace(build_model(NETWORKS[weights])).get_trace().nodes.values()
    sites = [node for node in nodes if node["type"] == "sample" and not node["is_observed"]]
    drawn = [node for node in sites if torch.is_tensor(node["value"]) and node["name"] != "data"]
    assert sum(node["value"].numel() for node in drawn) == weights


@pytest.mark.parametrize("name", REFERENCED)
def test_densities_are_those_of_the_models(name: str) -> None:
    target = REFERENCED[name]()
    torch.manual_seed(0)
    w = torch.randn(target.dim)
    trace = poutine.trace(poutine.condition(target.model, data={"w": w})).get_trace()
    assert float(target.log_density(w)) == pytest.approx(float(trace.log_prob_sum()), rel=1e-5)
    both = target.log_density(torch.stack([w, 0 * w]))
    assert torch.allclose(both[0], target.log_density(w))


def test_the_path_by_hand() -> None:
    target = references.Diffusion()
    path = torch.linspace(0.1, 1.0, 100)
    before, total = 0.0, 0.0
    for i, x in enumerate(path.tolist()):
        total += _normal(x, before + 0.1 * before * (1 - before**2), 0.1)
        before = x
        if (i + 1) % 5 == 0:
            total += _normal(float(target.y[(i + 1) // 5 - 1]), x, 0.1)
    assert float(target.log_density(path)) == pytest.approx(total, rel=1e-4)


def _normal(x: float, mean: float, sd: float) -> float:
    return -0.5 * ((x - mean) / sd) ** 2 - math.log(sd * math.sqrt(2 * math.pi))


def test_waveforms_have_the_means_of_their_triangles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class is half of each of its two triangles on average: peaks at 11 and 15, or 11 and 7."""
    monkeypatch.setattr(references.Waveform, "num_rows", 20_000)
    target = references.Waveform()
    for label, peak in ((0.0, 7), (1.0, 15)):
        mean = target.x[target.y == label, 1:].mean(0)
        both = [max(6 - abs(i - 11), 0) + max(6 - abs(i - peak), 0) for i in range(1, 22)]
        assert torch.allclose(mean, 0.5 * torch.tensor(both, dtype=torch.float32), atol=0.08)


def test_errors_against_known_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of draws with twice the deviation, one deviation away, whose correlation is turned."""
    covariance = torch.tensor([[4.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    monkeypatch.setattr(references, "moments", lambda _: (torch.zeros(2).double(), covariance))
    target = references.Waveform()
    monkeypatch.setattr(references.Waveform, "dim", 2)
    draws = torch.randn(1000, 2, dtype=torch.float64)
    draws = torch.linalg.solve(torch.linalg.cholesky((draws - draws.mean(0)).T.cov()), draws.T).T
    draws = (draws - draws.mean(0)) @ torch.linalg.cholesky(covariance).T
    errors = target.errors(draws)
    assert max(map(abs, errors.values())) < 1e-6
    scale = torch.tensor([2.0, -2.0])
    errors = target.errors(draws * scale + covariance.diagonal().sqrt())
    assert errors["mean_error"] == pytest.approx(1.0)
    assert errors["sd_error"] == pytest.approx(math.log(2))
    assert errors["correlation_error"] == pytest.approx(1.0)  # 0.5 to -0.5
    with pytest.raises(NotImplementedError, match="no exact draws"):
        target.exact(3)


@pytest.mark.long
def test_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(references.REFERENCE_SETTINGS, "num_draws", 4)
    monkeypatch.setitem(references.REFERENCE_SETTINGS, "warmup_steps", 2)
    monkeypatch.setattr(objectives, "REFERENCED", {"waveform": references.Waveform})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Pyro's compilation
        (row,) = objectives.main(["--reference", "--quiet"])
    assert (len(row["mean"]), len(row["covariance"]), row["draws"]) == (22, 22 * 23 // 2, 16)
    assert row["covariance"][0] > 0


@pytest.mark.parametrize("name", REFERENCED)
def test_kept_references_are_sound(name: str) -> None:
    mean, covariance = references.moments(name)
    assert torch.equal(covariance, covariance.T)
    assert float(torch.linalg.eigvalsh(covariance).min()) > 0
    assert len(mean) == REFERENCED[name].dim


def test_differences_to_the_adaptive_kernels_are_by_seed() -> None:
    def row(method: str, seed: int, w1: float, true_kl: float) -> dict[str, Any]:
        return {"method": method, "seed": seed, "w1": w1, "true_kl": true_kl}

    rows = [
        row("kernel adaptive", 0, 0.5, 0.25),
        row("kernel adaptive", 1, 0.5, 0.75),
        row("mean-field", 0, 1.0, 0.5),
        row("mean-field", 1, 2.0, 0.5),
        row("mean-field", 2, 9.0, 9.0),  # has no counterpart
    ]
    lines = objectives.differences(rows).splitlines()[2:]
    assert [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines] == [
        ["mean-field", "+1.000 ± 0.500", "+0.000 ± 0.250", "1 of 2"]
    ]
    without = [row("linearised", 0, 0.5, 0.25), row("mean-field", 0, 1.0, 0.5)]
    header, _, line = objectives.differences(without).splitlines()
    assert "method less linearised" in header
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        "mean-field",
        "+0.500",
        "+0.250",
        "0 of 1",
    ]
