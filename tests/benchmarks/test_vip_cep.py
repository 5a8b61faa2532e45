"""Molecules as sequences: how they are read, and a few steps of every method."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks import vip_cep
from benchmarks._cep import LastState, load_molecules


@pytest.fixture()
def data_root(tmp_path: Path) -> Path:
    """Forty short strings."""
    rows = [f"{'C' * (1 + i % 5)}{'O' * (i % 3)}N,{0.1 * i:.1f}" for i in range(40)]
    with gzip.open(tmp_path / "cep.csv.gz", "wt") as file:
        file.write("smiles,PCE\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_strings_end_at_the_last_place(data_root: Path) -> None:
    data = load_molecules(data_root, 40, 20, seed=0)
    assert data.x.shape == (40, 8, 3)  # at most 5 + 2 + 1 symbols of C, N and O
    assert bool((data.x[:, -1, 1] == 1).all())
    lengths = data.x.sum((1, 2))
    assert bool(((lengths >= 2) & (lengths <= 8)).all())
    starts = data.x.sum(-1).argmax(1)
    torch.testing.assert_close(8 - starts, lengths.long())
    assert data.y[:20].mean().item() == pytest.approx(0.0, abs=1e-5)
    assert data.y[:20].std().item() == pytest.approx(1.0)


def test_data_that_are_not_there(data_root: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no cep.csv.gz"):
        load_molecules(tmp_path / "nowhere", 5, 3, seed=0)
    with pytest.raises(SystemExit, match="41 molecules were asked for, of 40"):
        load_molecules(data_root, 41, 3, seed=0)


def test_leading_nothing_is_read_before_the_string() -> None:
    net = LastState(3, 4)
    x = torch.randn(2, 5, 3)
    assert net(x).shape == (2, 1)
    torch.testing.assert_close(net(x)[:1], net(x[:1]))


def test_every_method_runs(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = data_root / "record.json"
    small = {"hidden": 4, "num_functions": 3, "num_predictive": 5, "draws": 3, "batch_size": 10}
    for key, value in small.items():
        monkeypatch.setitem(vip_cep.SETTINGS, key, value)
    arguments = ["--data-root", str(data_root), "--num-steps", "3", "--quiet"]
    rows = vip_cep.main([*arguments, "--num-molecules", "40", "--output", str(record)])
    assert [row["method"] for row in rows] == list(vip_cep.METHODS)
    assert all(math.isfinite(row["rmse"] + row["nll"]) for row in rows)
    assert len(json.loads(record.read_text())["results"]) == len(rows)
