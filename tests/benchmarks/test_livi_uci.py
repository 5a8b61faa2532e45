"""Both bounds on UCI: minibatches that are replayed, choices, and the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta
from torch import Tensor

from benchmarks.papers.livi import livi_uci
from benchmarks.papers.livi._uci_fits import METHODS, SETTINGS, Fits, candidates, choice
from benchmarks.shared.replay import _shown, cosine, train
from benchmarks.shared.uci import Split, build_model
from benchmarks.shared.uci_controls import _path, dropout_draws, path_draws
from benchmarks.shared.uci_fits import Settings
from tests.turns import in_turns


@pytest.mark.long
@pytest.mark.parametrize(("batch_size", "light"), in_turns([None, 8, 30, 100], [False, True]))
def test_minibatches_find_the_mode_of_all_rows(batch_size: int | None, light: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(30, 1)

    def model(x: torch.Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 30, subsample_size=len(x)):
            pyro.sample("x", dist.Normal(mean, 1.0), obs=x[:, 0])

    pyro.clear_param_store()
    guide = AutoDelta(model)
    options: dict[str, Any] = {"num_steps": 600, "rate": 0.02, "schedule": cosine}
    train(model, guide, Trace_ELBO(), (x,), batch_size=batch_size, light=light, **options)
    assert guide.median()["mean"].item() == pytest.approx(x.sum().item() / 31, abs=0.03)


def test_each_row_is_shown_once_in_an_epoch() -> None:
    torch.manual_seed(0)
    x, y = torch.arange(12.0)[:, None], torch.arange(12.0)
    (shown, targets), renew = _shown((x, y), 4)
    for _ in range(3):
        seen = []
        for _ in range(3):
            next(renew)
            assert torch.equal(shown[:, 0], targets)
            seen += targets.tolist()
        assert sorted(seen) == y.tolist()
    assert _shown((x, y), 12)[0][0] is x  # all rows are no minibatch


def test_the_control_has_the_settings_of_the_linearised_bound() -> None:
    for name in livi_uci.SETS:
        assert choice("no entropy", name) == choice("linearised", name)
        for method in METHODS:
            asked = "linearised" if method == "no entropy" else method
            assert choice(method, name) in candidates(asked)


def _split() -> Split:
    x, y = torch.randn(60, 2), torch.randn(60)
    return Split(x, y, x[:5], y[:5], 1.0)


@pytest.mark.parametrize("method", ["mean-field", "linearised"])
def test_no_guide_moves_where_the_next_one_begins(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mode_steps", "num_steps"):
        monkeypatch.setitem(SETTINGS, name, 3)
    fits = Fits(build_model(2, 60), _split(), 0, quiet=True)
    first = {name: values.clone() for name, values in fits._first().items()}
    fits.scores(method, Settings(3, 0.1, 0.02, 0.01 if method == "linearised" else None))
    assert all(torch.equal(values, first[name]) for name, values in fits._first().items())


def test_dropout_goes_on_after_training() -> None:
    pyro.set_rng_seed(0)
    pyro.clear_param_store()
    draws = dropout_draws(_split(), Settings(5, 0.01, dropout=0.25), 4000, None, 500)
    weights = draws["2.weight"]
    assert weights.shape == (4000, 1, 50)
    kept = (weights != 0).double().mean(0)
    assert torch.allclose(kept, torch.tensor(0.75, dtype=kept.dtype), atol=0.03)
    largest = weights.abs().amax(0)  # what is kept makes up for what is not
    assert torch.allclose(weights.mean(0).abs(), 0.75 * largest, rtol=0.1)
    assert torch.equal(draws["0.weight"][0], draws["0.weight"][-1])


def test_the_path_descends_the_log_joint() -> None:
    """Without noise of its gradients: all rows in each step, as in one that autograd takes."""
    pyro.set_rng_seed(0)
    split = _split()
    few = replace(split, x=split.x[:50], y=split.y[:50])
    model = build_model(2, 50)
    nodes = poutine.trace(model).get_trace(*few.data).nodes
    start = {n: v["value"].detach() for n, v in nodes.items() if n in ("sigma", "2.bias")}
    others = {n: nodes[n]["value"].detach() for n in ("0.weight", "0.bias", "2.weight")}
    start = start | others

    def after(rate: float, num_steps: int) -> Tensor:
        settings = Settings(num_steps, rate)
        return torch.stack(list(_path(model, few, start, settings, None, "sigma")))[-1]

    flat = {n: v.clone().requires_grad_() for n, v in start.items()}
    log_sigma = start["sigma"].log().requires_grad_()
    given: Any = poutine.condition(model, flat | {"sigma": log_sigma.exp()})
    (-poutine.trace(given).get_trace(*few.data).log_prob_sum() / 50).backward()
    expected = [
        log_sigma - 1e-3 * log_sigma.grad if n == "sigma" else v - 1e-3 * v.grad  # type: ignore
        for n, v in flat.items()
    ]
    found = after(1e-3, 1)
    assert torch.allclose(found, torch.cat([v.flatten() for v in expected]), atol=1e-5)
    draws = path_draws(model, few, start, Settings(80, 1e-4), 3, None)
    assert {n: tuple(v.shape) for n, v in draws.items()} == {
        n: (3, *v.shape) for n, v in start.items()
    }
    assert bool((draws["sigma"] > 0).all())


def _row(method: str, split: int, value: float, **more: Any) -> dict[str, Any]:
    numbers = {"rmse": 1 - value, "log_likelihood": value, "coverage": 0.9, "cpu_seconds": 2.0}
    place = {"set": "boston", "split": split, "seed": 0, "method": method}
    return {**place, "settings": {"num_steps": 1, "rate": 0.1}, **numbers, **more}


def test_tables() -> None:
    rows = [
        _row(method, split, value + 0.01 * split)
        for split in (0, 1)
        for method, value in (("map", 0.2), ("linearised", 0.3), ("singular value", 0.35))
    ]
    assert livi_uci.table(rows).splitlines()[2].split("|")[2:4] == [" map            ", "      2 "]
    first, second = livi_uci.bounds(rows).splitlines()[2:]
    assert "+0.100 ± 0.000" in first and "2 of 2" in first
    assert "-0.050 ± 0.000" in second and "0 of 2" in second
    assert livi_uci.singular_value(rows).count("2 of 2") == 2


def test_choices_are_shown_with_their_settings() -> None:
    rows = [
        _row("linearised", 0, 0.3, settings={"num_steps": 1, "rate": rate}) for rate in (0.1, 0.2)
    ]
    assert "rate 0.2" in livi_uci.table(rows) and "rate 0.1" in livi_uci.table(rows)


def test_chains_are_those_of_their_own_record(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = [_row(method, 1, 0.5) for method in livi_uci._CHAINS]
    monkeypatch.setattr(livi_uci, "read_record", lambda _: {"rows": chains})
    rows = [_row("map", split, 0.2) for split in (0, 1)]
    (line,) = livi_uci.reference(rows).splitlines()[2:]
    assert line.count("-0.300") == 2


def test_laplace_is_left_out_where_it_is_not_installed(
    small_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(livi_uci, "has_laplace", lambda: False)
    monkeypatch.setattr(
        livi_uci, "_rows", lambda arguments: [_row(m, 0, 0.1) for m in arguments.methods]
    )
    rows = livi_uci.main(["--data-root", str(small_data), "--methods", "map", "laplace"])
    assert [row["method"] for row in rows] == ["map"]
    assert "no rows of laplace" in capsys.readouterr().out
