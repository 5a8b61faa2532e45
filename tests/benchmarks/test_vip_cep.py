"""Molecules as sequences: how they are read, and a few steps of every method."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.papers.vip import vip_cep
from benchmarks.papers.vip._cep import CELLS, LastGated, LastState, load_molecules
from pyro_implicit.processes import RandomNetwork


def test_strings_end_at_the_last_place(small_data: Path) -> None:
    data = load_molecules(small_data, 40, 20, seed=0)
    assert data.x.shape == (40, 8, 3)  # at most 5 + 2 + 1 symbols of C, N and O
    assert bool((data.x[:, -1, 1] == 1).all())
    lengths = data.x.sum((1, 2))
    assert bool(((lengths >= 2) & (lengths <= 8)).all())
    starts = data.x.sum(-1).argmax(1)
    torch.testing.assert_close(8 - starts, lengths.long())
    assert data.y[:20].mean().item() == pytest.approx(0.0, abs=1e-5)
    assert data.y[:20].std().item() == pytest.approx(1.0)


def test_data_that_are_not_there(small_data: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no cep.csv.gz"):
        load_molecules(tmp_path / "nowhere", 5, 3, seed=0)
    with pytest.raises(SystemExit, match="41 molecules were asked for, of 40"):
        load_molecules(small_data, 41, 3, seed=0)


def test_leading_nothing_is_read_before_the_string() -> None:
    net = LastState(3, 4)
    x = torch.randn(2, 5, 3)
    assert net(x).shape == (2, 1)
    torch.testing.assert_close(net(x)[:1], net(x[:1]))


def test_the_gate_by_hand() -> None:
    torch.manual_seed(0)
    net, x = LastGated(3, 4), torch.randn(2, 5, 3)
    state = torch.zeros(2, 4)
    for place in range(5):
        j, i = net.symbols(x[:, place]).split(4, -1)
        opened = torch.sigmoid(net.gate(state) + j)
        state = (1 - opened) * state + opened * torch.tanh(net.candidate(state) + i)
    torch.testing.assert_close(net(x), net.head(state))


def test_functions_of_the_gated_network_together_or_one_by_one() -> None:
    x, values = torch.randn(6, 5, 3), []
    for how in ("vmap", "loop"):
        torch.manual_seed(1)
        values.append(RandomNetwork(LastGated(3, 4), vectorize=how)(x, 3))
    assert values[0].shape == (3, 6)
    torch.testing.assert_close(*values)
    assert set(CELLS.values()) == {LastState, LastGated}


@pytest.mark.parametrize("cell", list(CELLS))
def test_members_of_an_ensemble_have_starts_of_their_own(cell: str) -> None:
    torch.manual_seed(0)
    members = vip_cep._ensemble(CELLS[cell](3, 4)).prior
    assert isinstance(members, torch.nn.ModuleList)
    starts = [torch.nn.utils.parameters_to_vector(one.parameters()) for one in members]
    assert len(starts) == vip_cep.SETTINGS["num_members"] == 5
    assert len(torch.stack(starts).unique(dim=0)) == 5


def test_tables_are_over_seeds() -> None:
    scores = {"rmse": 1.0, "rmse_percent": 2.0, "cpu_seconds": 1.0}
    rows = [
        {"method": method, "seed": seed, "steps": 30 * seed, "nll": nll + seed, **scores}
        for method, nll in (("mean-field", 1.5), ("plain", 1.0))
        for seed in (1, 2)
    ]
    assert "| 3.00 ± 0.50 |" in vip_cep.table(rows) and "| 30, 60 |" in vip_cep.table(rows)
    (line,) = vip_cep.differences(rows).splitlines()[2:]
    assert "| mean-field | " in line and "+0.50 ± 0.00" in line and "0 of 2" in line
