"""Implicit processes on UCI: every method runs, and nothing is chosen by a test row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.papers.vip import _uci_peers, vip_uci
from benchmarks.papers.vip._vip_fits import Collapsed, Weights, negative_log_likelihood, train
from benchmarks.papers.vip._vip_uci import SETTINGS, run_gaussian_process, run_process
from benchmarks.shared import uci_fits
from benchmarks.shared.uci import load_split
from pyro_implicit.processes import RandomNetwork


@pytest.fixture()
def data_root(tmp_path: Path) -> Path:
    """A set of 60 rows with two splits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    rows = np.arange(60, dtype=np.int32)
    (tmp_path / "uci").mkdir()
    np.savez(
        tmp_path / "uci" / "toy.npz",
        X=x,
        y=(100 + 10 * x[:, 0] + rng.normal(size=60)).astype(np.float32),
        train_idx=np.stack([rows[:50], rows[10:]]),
        test_idx=np.stack([rows[50:], rows[:10]]),
    )
    return tmp_path


def test_a_split_that_is_not_there(data_root: Path) -> None:
    with pytest.raises(SystemExit, match="toy has splits 0 to 1"):
        vip_uci.main(["--data-root", str(data_root), "--sets", "toy", "--splits", "2"])


@pytest.mark.long
def test_test_rows_change_no_choice(data_root: Path) -> None:
    held = load_split(data_root, "toy", 0, validation=True)
    whole = load_split(data_root, "toy", 0)
    options = {"seed": 0, "max_steps": 4, "psis": [0.0, 1.0], "quiet": True}
    first = run_process("network, collapsed", held, whole, **options)
    whole.y_held.add_(100.0)
    second = run_process("network, collapsed", held, whole, **options)
    assert second["nll"] > first["nll"] and second["rmse"] > first["rmse"]
    for key in ("steps", "psi", "noise", "noise_factor", "validation_nll"):
        assert first[key] == second[key]


@pytest.mark.long
def test_controls_on_fewer_rows_than_the_test_part(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uci_fits, "NUM_DRAWS", 5)
    monkeypatch.setitem(SETTINGS, "sparse GP, steps", 20)
    command = ["--data-root", str(data_root), "--sets", "toy", "--splits", "0", "--quiet"]
    command += ["--max-rows", "8", "--num-steps", "4", "--effort", "0.001"]
    rows = vip_uci.main([*command, "--methods", "mean-field", "exact GP", "sparse GP"])
    assert [row["rows"] for row in rows] == [8, 8, 8]
    assert [row["steps"] for row in rows] == [4, None, 20]
    for row in rows:
        assert np.isfinite([row["rmse"], row["nll"]]).all() and 0 <= row["coverage"] <= 1


def test_an_exact_process_of_many_rows(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "exact GP", {"learn_from": 20, "condition_on": 30})
    whole = load_split(data_root, "toy", 0)
    row = run_gaussian_process("exact GP", whole, seed=0, quiet=True)
    assert row["rows"] == 30 and row["rmse"] < 2.0


@pytest.mark.long
def test_candidates_of_peers_are_tried_on_held_out_rows(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"mode_steps": 2, "num_steps": 20, "num_draws": 3, "num_members": 2}
    monkeypatch.setitem(SETTINGS, "peers", short)
    command = ["--data-root", str(data_root), "--sets", "toy", "--splits", "0", "--quiet"]
    command += ["--methods", "MC dropout", "SWAG"]
    tried = vip_uci.main([*command, "--choose"])
    assert [row["method"] for row in tried] == 3 * ["MC dropout"] + 3 * ["SWAG"]
    assert {row["rows"] for row in tried} == {42}
    header, _, line = vip_uci.choices(tried).splitlines()
    assert "MC dropout, 0.05" in header and "SWAG, 0.001" in header and "| toy " in line
    assert [row["rows"] for row in vip_uci.main(command)] == [50, 50]


def test_peers_without_their_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_uci_peers, "has_laplace", lambda: False)
    assert _uci_peers.installed(["MAP", "Laplace", "exact GP"]) == ["MAP", "exact GP"]
    assert "no rows of ['Laplace']: pip install laplace-torch" in capsys.readouterr().out


def test_differences_are_to_the_collapsed_objective_on_the_same_split() -> None:
    scores = {("exact GP", 0): 1.5, (vip_uci.BASE, 0): 0.5, ("exact GP", 1): 2.0}
    scores |= {(vip_uci.BASE, 1): 2.5, ("sparse GP", 2): 1.0}
    rows = [
        {"set": "toy", "split": split, "seed": 0, "method": method, "rmse": 2 * nll, "nll": nll}
        for (method, split), nll in scores.items()
    ]
    lines = vip_uci.differences(rows).splitlines()
    assert len(lines) == 3 and lines[-1].split("|")[2].strip() == "exact GP"
    found = [cell.strip() for cell in lines[-1].split("|")[3:6]]
    assert found == ["+0.50 ± 1.50", "+0.25 ± 0.75", "1 of 2"]


def test_records_without_a_coverage_have_a_table() -> None:
    row = {"set": "toy", "method": "exact GP", "steps": None, "rmse": 3e-5, "nll": 2.0}
    table = vip_uci.table([row | {"cpu_seconds": 1.0}])
    assert table.splitlines()[-1].replace(" ", "") == "|toy|exactGP|1|0.000030|2.00||||1|"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["collapsed", "weights"])
def test_training_learns_and_keeps_the_best_state(kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(120, 2)
    y = x[:, 0] + 0.1 * torch.randn(120)
    prior = RandomNetwork(nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1)))
    fit = Collapsed(prior, 0.3, 20, 50) if kind == "collapsed" else Weights(prior, 0.3, 20, 0.5)
    data, held = (x[:80], y[:80]), (x[80:], y[80:])
    scores: list[float] = []

    def score() -> float:
        scores.append(negative_log_likelihood(held[1], fit.predict(*data, held[0])))
        return scores[-1]

    with torch.no_grad():
        before = score()
    steps = train(fit, data, range(100), rate=0.05, batch_size=60, score=score, every=20)
    assert steps == 20 * scores[1:].index(min(scores[1:])) + 20
    with torch.no_grad():
        assert score() == pytest.approx(min(scores[1:]))
        assert min(scores) < before - 0.3
        wider = negative_log_likelihood(held[1], fit.predict(*data, held[0], factor=30.0))
    assert wider > min(scores)


def test_no_score_no_early_stopping() -> None:
    prior = RandomNetwork(nn.Linear(2, 1))
    data = (torch.randn(5, 2), torch.randn(5))
    assert train(Collapsed(prior, 0.3, 5, 5), data, range(3), rate=0.01) == 3
