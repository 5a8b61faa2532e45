"""Networks on CIFAR-10: what photographs are spoilt to, which are read, and the tables."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("torchvision")
pytest.importorskip("torchmetrics")

from benchmarks.networks import WideResNet
from benchmarks.papers.livi import cifar
from benchmarks.papers.livi._bfloat16 import in_bfloat16
from benchmarks.papers.livi._cifar_data import CORRUPTIONS, corrupted, load
from benchmarks.papers.livi._cifar_figure import draw_levels
from benchmarks.shared.image_scores import PREDICTIONS


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_spoilt_images_are_further_off_the_higher_the_level(kind: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(5, 3, 32, 32)
    found = corrupted(x, kind)
    assert found.shape == x.shape and found.min() >= 0 and found.max() <= 1
    assert torch.equal(found, corrupted(x, kind))
    name, level = kind.split()
    if level != "5":
        more = corrupted(x, f"{name} 5")
        assert (found - x).abs().mean() < (more - x).abs().mean()


def test_a_blur_leaves_the_mean_of_an_image_and_brightness_moves_it() -> None:
    grey = torch.full((1, 3, 32, 32), 0.4)
    torch.testing.assert_close(corrupted(grey, "blur 5"), grey)
    torch.testing.assert_close(corrupted(grey, "brightness 3"), grey + 0.3)
    noisy = corrupted(torch.full((50, 3, 32, 32), 0.5), "noise 1")
    assert noisy.std().item() == pytest.approx(0.04, rel=0.02)


@pytest.mark.parametrize("validation", [False, True])
def test_images_to_judge_by(small_data: Path, validation: bool) -> None:
    numbers = {"num_train": 14, "num_test": 5, "num_shifted": 3}
    images = load(Namespace(data_root=small_data, validation=validation, **numbers))
    assert images.x.shape == (14, 3, 32, 32) and images.y.dtype == torch.int64
    assert len(images.x_test) == 5 and len(images.others["CIFAR-100"]) == 3
    assert tuple(images.shifted) == tuple(CORRUPTIONS)
    together = torch.cat([images.x, images.x_test]).flatten(1)
    assert len(together.unique(dim=0)) == 19  # no image is trained on and judged by


def test_networks_have_a_logit_for_each_class() -> None:
    net = cifar.colour_lenet()
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert sum(p.numel() for p in net.parameters()) == 62_006


def test_tables() -> None:
    shown = (*cifar._SHOWN.values(), *cifar._OTHERS.values())
    rows = [
        {"method": method, "seed": seed, "cpu_seconds": 3.0}
        | {key: value + seed for key, _ in shown}
        for value, method in ((0.5, "map"), (0.25, "lanczos"))
        for seed in (0, 1)
    ]
    for row in rows[:2]:
        row |= {key: None for key, _ in shown if "information" in key}
    lines = cifar.table(rows).splitlines()[2:]
    assert lines[0].startswith("| MAP ") and "1.000 ± 0.500" in lines[0]
    assert cifar.others(rows).splitlines()[2].count("±") == 2
    (apart,) = cifar.differences(rows).splitlines()[2:]
    assert "-0.250 ± 0.000" in apart
    assert all(math.isfinite(row["accuracy 0"]) for row in rows)


@pytest.mark.long
def test_the_figure_shows_every_level(tmp_path: Path) -> None:
    scores = [f"{score} {kind}" for score in PREDICTIONS for kind in ("0", *CORRUPTIONS)]
    rows = [{"method": method, **dict.fromkeys(scores, 0.5)} for method in ("map", "lanczos")]
    draw_levels(tmp_path / "figure.png", rows, cifar.NAMES)
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_laplace_is_left_out_where_it_is_not_installed(
    small_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(cifar, "has_laplace", lambda: False)
    monkeypatch.setattr(cifar, "run", lambda arguments, _: asked.extend(arguments.methods) or [])
    options = ["--data-root", str(small_data), "--num-shifted", "2", "--methods", "map", "laplace"]
    cifar.main(options)
    assert "no rows of laplace: pip install laplace-torch" in capsys.readouterr().out
    assert asked == ["map"]


def test_a_network_may_have_settings_of_its_own() -> None:
    plain, wide, other = (
        cifar._settings(Namespace(network=name, batch_size=size))
        for name, size in (("lenet", None), ("wideresnet-10-1", None), ("wideresnet-10-1", 3))
    )
    assert plain == cifar.SETTINGS
    assert set(wide) == set(plain) and wide["batch_size"] != plain["batch_size"]
    assert other == wide | {"batch_size": 3}


def test_blocks_in_bfloat16_are_the_same_network() -> None:
    torch.manual_seed(0)
    net, x = WideResNet(10, 1), torch.randn(4, 3, 32, 32)
    exact = net(x)
    names = [name for name, _ in net.named_parameters()]
    near = in_bfloat16(net)(x)
    assert [name for name, _ in net.named_parameters()] == names
    assert near.dtype == torch.float32 and not torch.equal(near, exact)
    torch.testing.assert_close(near, exact, rtol=0.05, atol=0.02)
    near.sum().backward()
    assert all(weight.grad.dtype == torch.float32 for weight in net.parameters())


def test_a_network_without_blocks_has_none_in_bfloat16(small_data: Path) -> None:
    with pytest.raises(SystemExit, match="is for wide residual networks"):
        cifar.main(["--data-root", str(small_data), "--num-shifted", "2", "--bfloat16"])


def test_each_rate_is_tried_from_its_own_mode(
    small_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, float, int]] = []

    def row(fits: Any, method: str, _: Any) -> dict[str, float]:
        asked.append((method, fits.settings["lr"], id(fits)))
        return {f"{score} 0": 0.5 for score in cifar.PREDICTIONS} | {"cpu_seconds": 1.0}

    monkeypatch.setattr(cifar, "_row", row)
    options = ["--data-root", str(small_data), "--num-train", "14", "--num-shifted", "2"]
    rows = cifar.main([*options, "--seeds", "0", "--choose", "--methods", "map", "swag", "control"])
    tried = [(row["method"], row["rate"]) for row in rows]
    assert tried == [
        (name, rate) for name in ("map", "swag", "control") for rate in cifar.CANDIDATES[name]
    ]
    assert [rate for name, rate, _ in asked if name == "map"] == list(cifar.CANDIDATES["map"])
    assert {rate for name, rate, _ in asked if name != "map"} == {cifar.SETTINGS["lr"]}
    assert len({fits for name, _, fits in asked if name != "map"}) == 1  # modes are kept
    assert capsys.readouterr().out.count("0.500") == 4 * len(rows)
