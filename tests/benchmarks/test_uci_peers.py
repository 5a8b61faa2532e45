"""The peers of regression against closed forms, and as the benchmark tells them."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from torch import nn

from benchmarks.posterior import refine
from benchmarks.shared import uci_peers
from benchmarks.shared.uci import Split, ranked_score, score
from benchmarks.shared.uci_peers import (
    _by_marginal_likelihood,
    gaussian_process,
    gaussian_scores,
    has_laplace,
    laplace,
    sparse_gaussian_process,
)


def line() -> Split:
    torch.manual_seed(0)
    x = torch.randn(70, 2)
    y = 0.7 * x[:, 0] + 0.3 * torch.randn(70)
    return Split(x[:50], y[:50], x[50:], y[50:], 2.0)


@pytest.mark.long
def test_scores_are_those_of_many_draws() -> None:
    """By the benchmark's own score of draws, of a model that is Gaussian at each row."""
    split = line()
    mean, scale = 0.7 * split.x_held[:, 0].double(), torch.full((20,), 0.5, dtype=torch.float64)

    def model(x: torch.Tensor) -> None:
        w = pyro.sample("w", pyro.distributions.Normal(0.0, 1.0))
        pyro.deterministic("mean", 0.7 * x[:, 0] + 0.3 * w[..., None])

    draws = {"w": torch.randn(4000), "sigma": torch.full((4000,), 0.4)}
    found = gaussian_scores(mean, scale, split)
    expected = score(model, draws, split)  # type: ignore[arg-type]
    assert found["rmse"] == pytest.approx(expected["rmse"], rel=0.01)
    assert found["log_likelihood"] == pytest.approx(expected["log_likelihood"], abs=0.02)
    assert found["coverage"] == pytest.approx(expected["coverage"], abs=0.051)
    expected |= ranked_score(model, draws, split)  # type: ignore[arg-type]
    assert found["crps"] == pytest.approx(expected["crps"], rel=0.02)


def test_the_process_finds_the_noise_of_a_line() -> None:
    split = line()
    mean, scale = gaussian_process(split, 0)
    errors = (mean - 0.7 * split.x_held[:, 0]).abs() / scale
    assert float(errors.max()) < 1.5
    assert 0.2 < float(scale.mean()) < 0.45


def test_more_rows_than_the_process_learns_from() -> None:
    split = line()
    whole, _ = gaussian_process(split, 0)
    mean, scale = gaussian_process(split, 0, learn_from=20, condition_on=40)
    few, _ = gaussian_process(split, 0, learn_from=20, condition_on=20)
    truth = 0.7 * split.x_held[:, 0]
    assert (mean - truth).square().mean() < (few - truth).square().mean()
    assert 0.15 < float(scale.mean()) < 0.5
    torch.testing.assert_close(gaussian_process(split, 0, learn_from=50)[0], whole)


@pytest.mark.long
def test_the_sparse_process_is_the_exact_one_with_every_row_inducing() -> None:
    split = line()
    mean, scale = sparse_gaussian_process(split, 0, num_inducing=50, steps=range(150), rate=0.1)
    exact, spread = gaussian_process(split, 0)
    torch.testing.assert_close(mean, exact, atol=0.05, rtol=0)
    torch.testing.assert_close(scale, spread, atol=0.03, rtol=0)
    short, _ = sparse_gaussian_process(split, 0, num_inducing=5, steps=range(2), rate=0.05)
    assert torch.isfinite(short).all() and not torch.allclose(short, mean, atol=0.01)


@pytest.mark.long
@pytest.mark.skipif(not has_laplace(), reason="laplace-torch is not installed")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_laplace_keeps_the_mode_and_has_a_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    split = line()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    weights = {name: value.detach() for name, value in net.state_dict().items()}
    mean, scale = laplace(split, weights, 0.3, "last_layer")
    torch.testing.assert_close(mean, net(split.x_held)[:, 0].double().detach())
    assert (scale > 0).all() and math.isfinite(gaussian_scores(mean, scale, split)["rmse"])
    same = laplace(split, weights, 0.3, "last_layer", dtype=torch.float64)
    torch.testing.assert_close((mean, scale), same, rtol=1e-3, atol=1e-5)
    factors = laplace(split, weights, 0.3, "all", "kron")
    assert (factors[1] > 0).all() and not torch.allclose(factors[1], scale, rtol=1e-3)
    whole = laplace(split, weights, 0.3, "all", dtype=torch.float64)
    monkeypatch.setattr(uci_peers, "_AT_ONCE", 20)
    parts = laplace(split, weights, 0.3, "all", dtype=torch.float64)
    torch.testing.assert_close(parts, whole)


@pytest.mark.long
@pytest.mark.skipif(not has_laplace(), reason="laplace-torch is not installed")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("structure", ["full", "kron"])
def test_the_noise_is_where_the_marginal_likelihood_is_highest(structure: str) -> None:
    from laplace import Laplace

    split = line()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    found = Laplace(net, "regression", subset_of_weights="all", hessian_structure=structure)
    rows = torch.utils.data.TensorDataset(split.x, split.y[:, None])
    found.fit(torch.utils.data.DataLoader(rows, batch_size=50))
    _by_marginal_likelihood(found, 0.3)
    prior, sigma = found.prior_precision.detach(), found.sigma_noise.detach()
    best = float(found.log_marginal_likelihood(prior, sigma))
    for factor in (0.9, 1.1):  # without the log-determinant 0.9 would be higher by some nats
        assert float(found.log_marginal_likelihood(prior, factor * sigma)) < best


def test_rows_of_peers_are_in_the_table() -> None:
    row = {"set": "toy", "split": 0, "seed": 0, "method": "GP", "r_hat": None, "cpu_seconds": 1.0}
    row |= {"rmse": 1.0, "log_likelihood": -0.5, "coverage": 0.9, "crps": 0.5}
    assert "| toy | GP " in refine.table([row])


def test_what_is_not_installed_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(refine, "has_laplace", lambda: False)
    monkeypatch.setattr(refine, "_fits", lambda arguments: [])
    monkeypatch.setattr(refine, "table", lambda rows: "")
    refine.main(["--methods", "laplace"])
    assert "no rows of ['laplace', 'laplace, last']: pip install laplace-torch" in (
        capsys.readouterr().out
    )
