"""A few steps of each method on real data, and the recorded training step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from benchmarks.common import parser
from benchmarks.posterior import uci_regression
from benchmarks.shared import replay, uci_fits
from benchmarks.shared.replay import cosine, flat_then_cosine, record
from benchmarks.shared.uci import Split, build_model, load_split, score
from benchmarks.shared.uci_fits import CANDIDATES, METHODS, Settings, Workbench, choice
from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.generators import ResidualGenerator

DATA_ROOT: Path = parser("").get_default("data_root")
needs_data = pytest.mark.skipif(
    not (DATA_ROOT / "uci" / "concrete.npz").is_file(), reason="the UCI sets are not here"
)


@pytest.fixture()
def data_root(tmp_path: Path) -> Path:
    """A set of 40 rows with two splits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    x[:, 2] = 5.0
    rows = np.arange(40, dtype=np.int32)
    (tmp_path / "uci").mkdir()
    np.savez(
        tmp_path / "uci" / "toy.npz",
        X=x,
        y=(100 + 10 * x[:, 0]).astype(np.float32),
        train_idx=np.stack([rows[:36], rows[4:]]),
        test_idx=np.stack([rows[36:], rows[:4]]),
    )
    return tmp_path


def test_validation_never_touches_a_test_row(data_root: Path) -> None:
    test = load_split(data_root, "toy", 0)
    validation = load_split(data_root, "toy", 0, validation=True)
    assert len(test.x) == 36 and len(test.x_held) == 4
    assert len(validation.x) + len(validation.x_held) == 36
    y = np.load(data_root / "uci" / "toy.npz")["y"]
    shown = torch.cat([validation.y, validation.y_held]) * validation.y_scale
    shown = (shown - shown.mean()).sort().values
    expected = torch.tensor(y[:36] - y[:36].mean()).sort().values
    torch.testing.assert_close(shown, expected, atol=1e-3, rtol=0)


def test_standardisation_survives_a_constant_column(data_root: Path) -> None:
    split = load_split(data_root, "toy", 0)
    assert torch.isfinite(split.x).all() and (split.x[:, 2] == 0).all()


def test_score_is_in_the_units_of_the_target(data_root: Path) -> None:
    split = load_split(data_root, "toy", 0)
    model = build_model(3, 36)
    zero = {"0.weight": (50, 3), "0.bias": (50,), "2.weight": (1, 50), "2.bias": (1,)}
    draws = {name: torch.zeros(7, *shape) for name, shape in zero.items()}
    found = score(model, {**draws, "sigma": torch.full((7,), 0.5)}, split)
    y = split.y_held.double() * split.y_scale
    exact = torch.distributions.Normal(0.0, 0.5 * split.y_scale).log_prob(y).mean()
    assert found["log_likelihood"] == pytest.approx(float(exact), rel=1e-6)
    assert found["rmse"] == pytest.approx(float(y.square().mean().sqrt()), rel=1e-6)


def test_fewer_rows_to_fit_than_to_score(data_root: Path) -> None:
    """The model's plate is smaller than the test part."""
    split = load_split(data_root, "toy", 0)
    turned = replace(split, x=split.x_held, y=split.y_held, x_held=split.x, y_held=split.y)
    shapes = {"0.weight": (50, 3), "0.bias": (50,), "2.weight": (1, 50), "2.bias": (1,)}
    torch.manual_seed(0)
    draws = {name: torch.randn(7, *shape) for name, shape in shapes.items()}
    draws["sigma"] = torch.full((7,), 0.5)
    found = [score(build_model(3, rows), draws, turned) for rows in (4, 36)]
    assert found[0]["rmse"] == pytest.approx(found[1]["rmse"])
    assert found[0]["log_likelihood"] == pytest.approx(found[1]["log_likelihood"])


def test_some_of_the_training_rows(data_root: Path) -> None:
    whole = load_split(data_root, "toy", 0)
    some = load_split(data_root, "toy", 0, max_rows=20)
    held = load_split(data_root, "toy", 0, max_rows=20, validation=True)
    assert len(some.x) == 20 and len(some.x_held) == len(whole.x_held) == 4
    assert some.y.mean().item() == pytest.approx(0.0, abs=1e-5)
    assert len(held.x) == 17 and len(held.x_held) == 3

    def raw(split: Split, y: Tensor) -> set[float]:
        offset = np.load(data_root / "uci" / "toy.npz")["y"][36] - split.y_held[0] * split.y_scale
        return {round(value, 2) for value in (y * split.y_scale + offset).tolist()}

    assert raw(some, some.y) < raw(whole, whole.y)
    shown = torch.cat([held.y, held.y_held]) * held.y_scale
    shown, expected = shown - shown.mean(), some.y * some.y_scale
    torch.testing.assert_close(shown.sort().values, expected.sort().values, atol=1e-3, rtol=0)
    more = load_split(data_root, "toy", 0, max_rows=1000)
    torch.testing.assert_close(more.x, whole.x)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["implicit", "mean-field"])
def test_a_recorded_step_is_the_step(data_root: Path, kind: str) -> None:
    split = load_split(data_root, "toy", 0)
    model = build_model(3, 36)
    options = {"num_particles": 2, "vectorize_particles": True, "max_plate_nesting": 1}
    with pyro.validation_enabled(False):
        if kind == "implicit":
            guide = HyperNetworkGuide(model, generator=ResidualGenerator)
            loss = LinearisedELBO(**options, likelihood="per_datum")(model, guide)
        else:
            loss = Trace_ELBO(**options)(model, AutoNormal(model))
        loss(*split.data)
        parameters = list(loss.parameters())
        step = record(lambda: loss(*split.data), parameters)
        with torch.no_grad():
            for parameter in parameters:
                parameter.add_(0.1)  # the recording must see it
        pyro.set_rng_seed(3)
        value, *gradients = step()
        pyro.set_rng_seed(3)
        expected = loss(*split.data)
        torch.testing.assert_close(value, expected.detach())
        for gradient, exact in zip(
            gradients, torch.autograd.grad(expected, parameters), strict=True
        ):
            torch.testing.assert_close(gradient, exact)


def test_schedules() -> None:
    assert cosine(0.0) == flat_then_cosine(0.0) == flat_then_cosine(0.3) == 1.0
    assert cosine(1.0) == pytest.approx(0.02) and flat_then_cosine(1.0) == pytest.approx(0.02)


@pytest.mark.parametrize("name", [*uci_regression.SETS, "boston"])
def test_every_method_has_a_choice_among_the_candidates(name: str) -> None:
    assert all(choice(method, name) in CANDIDATES[method] for method in METHODS)


def test_settings_name_their_start_and_records_without_one_are_read() -> None:
    hessian, ggn = CANDIDATES["full-rank"]
    assert (str(hessian), str(ggn)) == (
        "3000 steps, rate 0.003, start 0.9, hessian",
        "3000 steps, rate 0.003, start 0.9, ggn",
    )
    before = {key: value for key, value in asdict(hessian).items() if key != "init_from"}
    assert str(Settings(**before)) == "3000 steps, rate 0.003, start 0.9"


def test_a_full_rank_guide_starts_from_what_its_settings_name(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start is made once for all fits of a split."""
    made: list[str] = []

    class Guide(HyperNetworkGuide):
        def __init__(self, model: Callable[..., None], *, init_from: str, **options: Any) -> None:
            made.append(init_from)
            super().__init__(model, init_from=None, **options)  # a curvature takes seconds

    monkeypatch.setattr(uci_fits, "HyperNetworkGuide", Guide)
    split = load_split(data_root, "toy", 0)
    bench = Workbench(build_model(3, 36), split, 0, effort=1.0, quiet=True)
    monkeypatch.setattr(bench, "_train", lambda guide, *options: guide(*split.data))
    for settings in (*CANDIDATES["full-rank"], CANDIDATES["full-rank"][1]):
        bench.run("full-rank", settings)
    assert made == ["hessian", "ggn"]


def test_unknown_split(data_root: Path) -> None:
    with pytest.raises(SystemExit, match="toy has splits 0 to 1, found 2"):
        uci_regression.main(["--data-root", str(data_root), "--sets", "toy", "--splits", "2"])


def _eager(
    loss: Callable[[], Tensor], parameters: Sequence[Tensor], light: bool = False
) -> Callable[[], tuple]:
    """In place of :func:`~benchmarks.shared.replay.record`."""

    def step() -> tuple[Tensor, ...]:
        value = loss()
        return value.detach(), *torch.autograd.grad(value, parameters)

    return step


@pytest.mark.long
def test_a_split_does_not_depend_on_what_was_run_before(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pyro's parameter store would let the second split start from the first one's fit."""
    monkeypatch.setattr(uci_fits, "NUM_DRAWS", 5)
    monkeypatch.setattr(replay, "record", _eager)  # it takes a second for each fit
    found = []
    for splits in (["0", "1"], ["1"]):
        command = ["--data-root", str(data_root), "--sets", "toy", "--splits", *splits, "--quiet"]
        command += ["--methods", "mean-field", "--num-steps", "0.002"]
        rows = uci_regression.main(command)
        found.append([row["log_likelihood"] for row in rows if row["split"] == 1])
    assert found[0] == found[1]


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", uci_regression.SETS)
def test_all_methods(name: str) -> None:
    rows = uci_regression.main(["--sets", name, "--splits", "0", "--num-steps", "0.001", "--quiet"])
    found = {row["method"]: row["log_likelihood"] for row in rows}
    assert list(found) == list(METHODS)
    assert np.isfinite(list(found.values())).all()
    assert found["full-rank"] != found["full-rank-per-datum"]


def test_differences_are_to_mean_field_on_the_same_split() -> None:
    scores = {("map", 0): 1.0, ("mean-field", 0): 0.5, ("map", 1): 2.0, ("mean-field", 1): 2.5}
    rows = [
        {"set": "toy", "split": split, "seed": 0, "method": method, "log_likelihood": score}
        for (method, split), score in scores.items()
    ]
    assert "| toy | map    | +0.00 ± 0.50 | 1 of 2       |" in uci_regression.differences(rows)
