"""Classification by implicit processes: data, scores, and a fit of each kind that learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.common import fixed_seed
from benchmarks.papers.vip import _class_choice, _class_fits, _classes, vip_classification
from benchmarks.papers.vip._class_fits import METHODS, SETTINGS
from benchmarks.papers.vip._classes import (
    Task,
    area_under_curve,
    load_task,
    load_untested,
    nll,
    scores,
)

pytest.importorskip("sklearn")
pytest.importorskip("torchmetrics")


def separable(count: int, num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs near to a corner for each class."""
    y = torch.arange(count) % num_classes
    return torch.eye(num_classes)[y] * 3 + 0.3 * torch.randn(count, num_classes), y


@pytest.fixture()
def task() -> Task:
    with fixed_seed(0):
        return Task(separable(60, 3), separable(30, 3), separable(45, 3))


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_what_is_plain(
    task: Task, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"hidden units": [6], "num_functions": 6, "num_particles": 4, "num_draws": 20}
    for key, value in {**small, "members": 2, "num_inducing": 10, "every": 20}.items():
        monkeypatch.setitem(SETTINGS, key, value)
    with fixed_seed(0):
        predict, steps = METHODS[method](task, range(60))
        p = predict(task.test[0])
    assert p.shape == (45, 3) and bool((p >= 0).all())
    torch.testing.assert_close(p.sum(-1), torch.ones(45), atol=1e-4, rtol=0)
    assert steps is None or 20 <= steps <= 60
    found = scores(predict, task)
    assert found["accuracy"] > 0.9 and found["nll"] < 0.8 and found["auroc"] > 0.95
    assert found["auroc kmnist"] is None


def test_the_best_state_is_kept(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTINGS, "every", 1)
    monkeypatch.setitem(SETTINGS, "patience", 2)
    layer = torch.nn.Linear(1, 1, bias=False)
    likely = iter([0.2, 0.9, 0.5, 0.4, 0.99])
    seen = 0

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        nonlocal seen
        seen += 1
        torch.nn.init.constant_(layer.weight, seen)

    def predict(x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), 3), next(likely))

    assert _class_fits.run(task, step, predict, [layer], range(5)) == 2
    assert seen == 4 and layer.weight.item() == 2


def test_scores_by_hand() -> None:
    p = torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.7, 0.3], [0.1, 0.9]])
    x, y = torch.zeros(4, 1), torch.tensor([0, 1, 1, 1])
    part = (x, y)
    others = {"kmnist": torch.zeros(4, 1)}
    found = scores(lambda _: p, Task(part, part, part, others))
    assert found["accuracy"] == 0.75
    expected = -np.log([0.8, 0.6, 0.3, 0.9]).mean()
    assert found["nll"] == pytest.approx(expected) == pytest.approx(nll(p, y))
    assert found["auroc"] == 1.0  # each of the one label is above each of the other
    assert found["auroc kmnist"] == 0.5  # the same doubts


@pytest.mark.parametrize("ties", [False, True])
def test_areas_are_those_of_an_independent_library(ties: bool) -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(3)
    low, high = rng.normal(size=30), rng.normal(0.5, size=20)
    low, high = (v.round(1) if ties else v for v in (low, high))
    expected = roc_auc_score([0] * 30 + [1] * 20, np.concatenate([low, high]))
    assert area_under_curve(*map(torch.tensor, (low, high))) == pytest.approx(expected)


def test_parts_do_not_overlap_and_are_standardised(small_data: Path) -> None:
    found = load_task(small_data, "digits", 0, 20)
    assert [len(part[1]) for part in (found.fit, found.held, found.test)] == [1078, 270, 449]
    assert found.num_classes == 10 and not found.others
    torch.testing.assert_close(found.fit[0].mean(0), torch.zeros(64), atol=1e-5, rtol=0)
    again = load_task(small_data, "digits", 1, 20)
    assert not torch.equal(found.fit[1], again.fit[1])
    rows = torch.cat([part[0] for part in (found.fit, found.held, found.test)])
    assert len(rows) == 1797
    images = load_task(small_data, "mnist", 0, 20)
    assert [len(part[1]) for part in (images.fit, images.held, images.test)] == [16, 4, 4]
    assert {name: tuple(x.shape) for name, x in images.others.items()} == {
        "fashion_mnist": (4, 784),
        "kmnist": (4, 784),
    }
    assert images.fit[0].mean().item() == pytest.approx(0.0, abs=1e-4)


def test_prior_scales_are_those_of_the_process() -> None:
    from pyro_implicit.processes import RandomNetwork

    net = _class_fits.network(5, 3)
    process = RandomNetwork(net)
    expected = {
        name: log.exp().flatten()[0].item()
        for (name, _), log in zip(net.named_parameters(), process.log_scale, strict=True)
    }
    assert _class_fits.prior_scales(net) == pytest.approx(expected)


def test_tables_are_by_set_and_method() -> None:
    base = {"set": "digits", "steps": 50, "accuracy": 0.9, "ece": 0.1, "auroc": 0.8}
    base |= {"auroc kmnist": None, "auroc fashion_mnist": None, "cpu_seconds": 2.0}
    rows = [
        {**base, "method": method, "seed": seed, "nll": level + 0.1 * seed}
        for method, level in (("MAP", 0.5), (vip_classification.BASE, 0.3))
        for seed in (0, 1)
    ]
    rows[0] |= {"steps": None}
    table = vip_classification.table(rows).splitlines()
    assert len(table) == 4 and "0.55 ± 0.05" in table[2] and "0.90 ± 0.00" in table[2]
    (line,) = vip_classification.differences(rows).splitlines()[2:]
    assert "| digits | MAP " in line and "+0.20 ± 0.00" in line and "0 of 2" in line


def test_rates_are_chosen_on_rows_that_no_seed_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbered = (np.random.default_rng(0).normal(size=(200, 1)), np.arange(200))
    monkeypatch.setattr(_classes, "_arrays", lambda name: numbered)
    chosen = load_untested(tmp_path, "digits", range(3), 20)
    fit, held = (set(part[1].tolist()) for part in (chosen.fit, chosen.held))
    tested = [load_task(tmp_path, "digits", seed, 20).test[1].tolist() for seed in range(3)]
    assert fit | held == set(range(200)).difference(*tested) and not fit & held
    assert len(fit) == round(0.8 * len(fit | held))
    assert chosen.fit[0].mean().item() == pytest.approx(0.0, abs=1e-5)


def test_images_to_choose_by_are_not_those_of_a_seed(small_data: Path) -> None:
    chosen = load_untested(small_data, "mnist", [0], 10)
    again = load_task(small_data, "mnist", 1, 10)
    torch.testing.assert_close(chosen.fit[0], again.fit[0])
    assert chosen.test is chosen.held


@pytest.mark.long
def test_a_choice_has_all_rates(small_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"hidden units": [3], "num_functions": 3, "num_particles": 2, "num_draws": 3}
    for key, value in {**small, "num_inducing": 5, "prior_factors": [1.0]}.items():
        monkeypatch.setitem(SETTINGS, key, value)
    before = dict(SETTINGS)
    options = ["--choose", "--sets", "digits", "--num-steps", "1", "--seeds", "0", "--quiet"]
    rows = vip_classification.main([*options, "--data-root", str(small_data)])
    expected = [(name, rate) for name, all_ in _class_choice.RATES.values() for rate in all_]
    assert [(row["method"], row["rate"]) for row in rows] == expected
    assert SETTINGS == before and all(np.isfinite(row["held_nll"]) for row in rows)
    lines = _class_choice.rates(rows).splitlines()
    assert lines[0].split(" | ")[2].strip() == "digits" and len(lines) == 2 + len(expected)
