"""The toy curve: its data, and every method in a few steps."""

from __future__ import annotations

import pyro
import pytest
import torch

from benchmarks.papers.livi import _toy_fits, _toy_peers, toy_regression
from benchmarks.shared.uci_peers import has_laplace


def test_the_data_leave_a_gap() -> None:
    torch.manual_seed(0)
    x, y = _toy_fits.data()
    assert len(x) == 70 and x.abs().min() == pytest.approx(0.7)
    assert (y - _toy_fits.curve(x)).std().item() == pytest.approx(0.15, rel=0.3)


def test_the_network_has_105_weights() -> None:
    model = _toy_fits.make_model()
    trace = torch.no_grad()(_toy_fits.pyro.poutine.trace(model).get_trace)(torch.zeros(3, 1))
    weights = [node["value"].numel() for name, node in trace.nodes.items() if "weight" in name]
    biases = [node["value"].numel() for name, node in trace.nodes.items() if "bias" in name]
    assert sum(weights) + sum(biases) == 105


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("method", _toy_peers.PEERS)
def test_peers_begin_at_the_mode(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if method == "laplace" and not has_laplace():
        pytest.skip("laplace-torch is not installed")
    for name, value in {"map_steps": 30, "num_draws": 300, "num_modes": 2}.items():
        monkeypatch.setitem(_toy_fits.SETTINGS, name, value)
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    rows, model, x = _toy_fits.data(), _toy_fits.make_model(), torch.linspace(-1, 1, 5)[:, None]
    start = _toy_fits.mode(model, rows)
    exact = _toy_peers._outputs([start], x)[0]
    f = _toy_peers.peer(method, model, start, rows, x, range(60), 0)
    assert f.shape[1:] == (5,) and bool(torch.isfinite(f).all())
    if method == "laplace":
        assert bool(((f.mean(0) - exact).abs() < 5 * f.std(0) / 300**0.5).all())
    else:
        torch.testing.assert_close(f[0], exact, atol=0.5, rtol=0)
    assert (method == "MAP") == (float(f.std(0).max()) == 0)


def test_a_unit_is_left_out_for_all_inputs() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Dropout(0.5))
    draws = torch.stack([_toy_peers._each(net, torch.ones(4, 1)) for _ in range(200)])
    assert bool((draws == draws[:, :1]).all())
    assert draws.unique().tolist() == [0, 2]


def test_the_distance_is_in_deviations_of_the_reference() -> None:
    torch.manual_seed(0)
    reference = torch.randn(4000, 2) * torch.tensor([1.0, 5.0])
    moved = reference + torch.tensor([2.0, 5.0])
    assert toy_regression.distances(moved, reference).tolist() == pytest.approx([2, 1], rel=0.05)
    point = torch.zeros(10, 2)  # the mean of the absolute value of a standard normal
    assert toy_regression.distances(point, reference).tolist() == pytest.approx([0.8, 0.8], rel=0.1)


def test_the_table_is_over_seeds_and_begins_with_the_reference() -> None:
    scores = dict.fromkeys(toy_regression.SHOWN, 1.0)
    rows = [
        {"method": method, "seed": seed, **scores, "critic right": critic}
        for seed in (0, 1)
        for method, critic in (("linearised", None), ("adversarial", 0.5), ("HMC", None))
    ]
    lines = toy_regression.table(rows).splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["HMC", "linearised", "adversarial"]
    assert "1.000 ± 0.000" in lines[0] and " 50% " in lines[2] and "%" not in lines[1]
    apart = toy_regression.differences(
        [row | {"method": row["method"].replace("linearised", "autoregressive")} for row in rows]
    )
    assert [line.split()[1] for line in apart.splitlines()[2:]] == ["HMC", "adversarial"]
    assert apart.count("0.000 ± 0.000") == 8
    for row in rows:
        row |= {"r-hat, data": 1.01, "r-hat, gap": 1.2}
    assert [line.split()[5] for line in toy_regression.r_hat(rows).splitlines()[2:]] == [
        "1.200"
    ] * 2
