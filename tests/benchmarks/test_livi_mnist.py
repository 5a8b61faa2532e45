"""LeNet on MNIST: moments of a path, scores, what is told from digits, and the tables."""

from __future__ import annotations

import math
from argparse import Namespace
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")
pytest.importorskip("torchmetrics")

from benchmarks.networks import LeNet
from benchmarks.papers.livi import mnist
from benchmarks.papers.livi._mnist_data import ANGLES, OTHERS, load
from benchmarks.papers.livi._mnist_figure import draw_angles
from benchmarks.shared.image_posteriors import by_weights, with_dropout
from benchmarks.shared.image_scores import (
    PERCENT,
    all_scores,
    doubts,
    entropy_quantiles,
    false_positives,
    scores,
)
from benchmarks.shared.judged_images import Images
from benchmarks.shared.swag import PathMoments


@pytest.mark.long
def test_draws_have_the_moments_of_the_path() -> None:
    torch.manual_seed(0)
    factor = torch.tensor([[1.0, 0.0], [0.9, 0.1]])
    path = torch.randn(4000, 2) @ factor.T + torch.tensor([3.0, -1.0])
    moments = PathMoments(rank=2000).see_all(path)
    draws = torch.stack([moments.draw() for _ in range(4000)])
    torch.testing.assert_close(draws.mean(0), path.mean(0), atol=0.08, rtol=0)
    covariance = path.T.cov()
    expected = (covariance + covariance.diagonal().diag()) / 2  # one half has no correlations
    torch.testing.assert_close(draws.T.cov(), expected, atol=0.08, rtol=0)


def test_a_path_of_one_place_is_that_place() -> None:
    draw = PathMoments(rank=3).see_all([torch.ones(4)]).draw()
    torch.testing.assert_close(draw, torch.ones(4))


def test_information_is_what_members_disagree_on() -> None:
    sure = torch.eye(2)[:, None]  # two members, each sure of another class
    alike = torch.full((2, 1, 2), 0.5)
    for p, information in ((sure, math.log(2)), (alike, 0.0)):
        told = doubts(p)
        assert told["entropy"].item() == pytest.approx(math.log(2))
        assert told["information"].item() == pytest.approx(information, abs=1e-6)
    assert doubts(sure[:1])["information"].item() == 0


def test_scores_of_known_predictions() -> None:
    p = torch.full((4, 10), 0.1)
    found = scores(p, torch.tensor([0, 1, 2, 3]))
    assert found["nll"] == pytest.approx(math.log(10))
    assert found["brier"] == pytest.approx(0.9)
    assert found["ece"] == pytest.approx(0.15) and found["accuracy"] == 0.25
    right = scores(torch.eye(10), torch.arange(10))
    assert right["accuracy"] == 1 and right["brier"] == 0 and right["ece"] == pytest.approx(0)


def test_false_positives_pass_where_most_digits_do() -> None:
    digits = torch.arange(101.0)  # the quantile is 95
    assert false_positives(digits, torch.tensor([94.0, 95.0, 95.5, 200.0])) == 0.5


def _images() -> Images:
    torch.manual_seed(0)
    x, y = torch.zeros(20, 1, 28, 28), torch.arange(20) % 10
    return Images(x, y, x, y, {"15": x[:5]}, {"KMNIST": torch.ones(6, 1, 28, 28)})


def test_other_images_are_told_by_doubt() -> None:
    def members(x: torch.Tensor) -> torch.Tensor:
        """Sure of digits, apart on others."""
        class_of = (x.flatten(1).mean(-1) > 0).long()
        first = torch.eye(10)[class_of]
        return torch.stack([first, torch.eye(10)[2 * class_of]])

    found = all_scores(members, _images())
    for doubt in ("entropy", "information"):
        assert found[f"auroc {doubt} KMNIST"] == 1 and found[f"fpr95 {doubt} KMNIST"] == 0
    assert found["accuracy 15"] == pytest.approx(0.2)
    one = all_scores(lambda x: members(x)[:1] * 0.9 + 0.01, _images())
    assert one["auroc information KMNIST"] is None and one["fpr95 information KMNIST"] is None
    assert one["auroc entropy KMNIST"] is None  # as sure of the others


def test_dropout_stays_on_and_leaves_all_in_at_rate_zero() -> None:
    x = torch.randn(3, 1, 28, 28)
    net = with_dropout(LeNet(), 0.5).eval()
    assert not torch.equal(net(x), net(x))
    still = with_dropout(LeNet(), 0.0)
    weights = dict(still.named_parameters())
    torch.testing.assert_close(by_weights(LeNet(), [weights])(x)[0], still(x).softmax(-1).detach())


@pytest.mark.parametrize("validation", [False, True])
def test_images_to_judge_by(small_data: Path, validation: bool) -> None:
    numbers = {"num_train": 16, "num_test": 4, "num_shifted": 3}
    arguments = Namespace(data_root=small_data, download=False, validation=validation, **numbers)
    images = load(arguments)
    assert len(images.x) == (15 if validation else 16)
    assert len(images.x_test) == len(images.y_test) == (1 if validation else 4)
    assert tuple(images.shifted) == tuple(map(str, ANGLES[1:])) and set(images.others) == set(
        OTHERS
    )
    assert all(x.shape[1:] == (1, 28, 28) for x in images.others.values())
    turned = images.shifted["180"]
    torch.testing.assert_close(turned, images.x_test[: len(turned)].flip(-1, -2))


def _rows() -> list[mnist.Row]:
    keys = [key for key, _ in (*mnist._SHOWN.values(), *mnist._COMPARED.values())]
    keys += [f"{key} {kind}" for key in mnist._OTHER_IMAGES.values() for kind in OTHERS]
    keys += [f"{score} {angle}" for score in ("nll", "ece") for angle in ANGLES]
    rows = []
    for value, method in ((0.5, "map"), (0.25, "lanczos")):
        for seed in (0, 1):
            row = dict.fromkeys(keys, value + seed) | {"cpu_seconds": 3.0}
            rows.append({"method": method, "seed": seed, **row})
    for row in rows[:2]:
        row |= {key: None for key in keys if "information" in key}
    return rows


def test_tables() -> None:
    lines = mnist.table(_rows()).splitlines()[2:]
    assert lines[0].startswith("| MAP ") and "1.0000 ± 0.5000" in lines[0]
    told = mnist.others(_rows()).splitlines()[2:]
    assert len(told) == 2 * len(OTHERS) and told[0].count("±") == 2 and told[1].count("±") == 4
    apart = mnist.differences(_rows()).splitlines()[2:]
    assert len(apart) == 1 and "-0.250 ± 0.000" in apart[0]  # of seeds in pairs


def test_quantiles_of_the_entropy_on_other_images() -> None:
    images = _images()
    images.others["KMNIST"] = torch.linspace(0, 1, 6).reshape(6, 1, 1, 1).expand(6, 1, 28, 28)

    def members(x: torch.Tensor) -> torch.Tensor:
        """From sure to one probability for all, by the brightness."""
        doubt = x.flatten(1).mean(-1, keepdim=True)
        return (doubt * torch.full((len(x), 10), 0.1) + (1 - doubt) * torch.eye(10)[0])[None]

    found = entropy_quantiles(members, images)
    assert len(found) == len(PERCENT) and found["entropy 0% KMNIST"] == pytest.approx(0, abs=1e-6)
    assert found["entropy 100% KMNIST"] == pytest.approx(math.log(10))
    p = torch.full((10,), 0.04) + 0.6 * torch.eye(10)[0]  # the third of six, at 40%
    assert found["entropy 40% KMNIST"] == pytest.approx(float(torch.special.entr(p).sum()))


@pytest.mark.long
@pytest.mark.parametrize("has_entropies", [False, True])
def test_figure(tmp_path: Path, has_entropies: bool) -> None:
    keys = [f"entropy {percent}% {kind}" for percent in PERCENT for kind in OTHERS]
    more = dict.fromkeys(keys, 1.0) if has_entropies else {}
    rows = [row | more for row in _rows()]
    draw_angles(tmp_path / "figure.png", rows, mnist.NAMES)
    if has_entropies:
        assert mnist.entropies(rows).count("1.000") == 3 * 2 * len(OTHERS)
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_laplace_is_left_out_where_it_is_not_installed(
    small_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mnist, "has_laplace", lambda: False)
    monkeypatch.setattr(mnist, "run", lambda arguments, images: iter(_rows()))
    found = ["--data-root", str(small_data), "--methods", "map", "laplace", "--num-shifted", "2"]
    mnist.main(found)
    assert "no rows of laplace: pip install laplace-torch" in capsys.readouterr().out
