"""Predictions at many draws by a recorded run: the same bits, or a model that is run as ever."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from torch import Tensor, nn

from pyro_implicit import BayesianModule, predict
from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.inference import noise_by_block, predictive_job, recorded_draws
from pyro_implicit.inference.recorded_draws import RecordedDraws, saves_time

Model = Callable[..., Any]
X = torch.linspace(-1.0, 1.0, 200)[:, None] * torch.tensor([1.0, -0.5])


def slope() -> Tensor:
    drawn: Tensor = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    return drawn


def guide(*_: Any, **__: Any) -> None:
    pyro.sample("w", dist.Normal(torch.tensor([0.4, -0.2]), 0.3).to_event(1))


def observed(make: Callable[[Tensor], Any], plate: bool = True) -> Model:
    """A regression with one likelihood; rows in a plate, or as one event."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        f = pyro.deterministic("f", x @ slope())
        if not plate:
            pyro.sample("y", make(f).to_event(1), obs=y)
            return
        with pyro.plate("data", len(x)):
            pyro.sample("y", make(f), obs=y)

    return model


def shared_noise(x: Tensor) -> None:
    """A latent that no guide has, of all rows, and one of each row."""
    w, level = slope(), pyro.sample("level", dist.LogNormal(0.0, 0.5))
    with pyro.plate("data", len(x)):
        shift = pyro.sample("shift", dist.Normal(0.0, level))
        pyro.sample("y", dist.Normal(x @ w + shift, 0.1))


def two_sites(x: Tensor) -> None:
    w = slope()
    with pyro.plate("outputs", 3, dim=-2), pyro.plate("data", len(x), dim=-1):
        one = pyro.sample("one", dist.Normal(x @ w, 0.1))
        pyro.sample("two", dist.Bernoulli(logits=one).mask(one > 0))


def subsampled(x: Tensor) -> None:
    w = slope()
    with pyro.plate("data", 1000, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(x @ w, w.exp().sum()))


def named_rows(x: Tensor) -> None:
    w = slope()
    with pyro.plate("data", 200, subsample=torch.arange(len(x))):
        pyro.sample("y", dist.Normal(x @ w, 0.3))


def data_alone(x: Tensor) -> None:
    """What does not depend on draws is evaluated once."""
    scaled = (x - 0.1).tanh().cumsum(-1)
    w = slope()
    pyro.deterministic("constant", torch.tensor(2.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(scaled @ w, 0.3))


def changes_in_place(x: Tensor) -> None:
    f = x @ slope()
    f.clamp_(-0.5, 0.5).mul_(2.0)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 0.3))


RECORDED: dict[str, Model] = {
    "normal": observed(lambda f: dist.Normal(f, 0.3)),
    "scale of the row": observed(lambda f: dist.Normal(f, f.exp())),
    "log-normal": observed(lambda f: dist.LogNormal(f, 0.3)),
    "bernoulli": observed(lambda f: dist.Bernoulli(logits=f)),
    "classes": observed(lambda f: dist.Categorical(logits=torch.stack([f, -f, 0 * f], -1))),
    "two outputs": observed(lambda f: dist.Normal(torch.stack([f, -f], -1), 0.3).to_event(1)),
    "no plate": observed(lambda f: dist.Normal(f, 0.3), plate=False),
    "shared noise": shared_noise,
    "two sites": two_sites,
    "named rows": named_rows,
    "data alone": data_alone,
}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether each recording that was tried is one; all predictions are worth one."""
    found: list[bool] = []

    class Watched(RecordedDraws):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            found.append(self.is_recorded)

    monkeypatch.setattr(predictive_job, "RecordedDraws", Watched)
    monkeypatch.setattr(predictive_job, "saves_time", lambda _: True)
    yield found


def by_program(model: Model, *args: Any, **options: Any) -> dict[str, Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive_job, "saves_time", lambda _: False)
        return predict(model, guide, *args, **options)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and torch.equal(found[name], value)


@pytest.mark.filterwarnings("ignore:the guide does not draw")
@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("rows", [200, 20])
def test_the_same_bits(made: list[bool], name: str, rows: int) -> None:
    options: dict[str, Any] = {"num_samples": 9, "seed": 4}
    found = predict(RECORDED[name], guide, X[:rows], **options)
    assert_same(found, by_program(RECORDED[name], X[:rows], **options))
    few = rows == 20 and name in ("bernoulli", "classes", "two sites")  # drawn as one, by torch
    assert made == [not few]


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(sorted(set(RECORDED) - {"shared noise"})),
    rows=st.integers(1, 200),
    batch_size=st.integers(1, 250),
    num_samples=st.integers(2, 6),
    seed=st.integers(0, 2**40),
    moments=st.booleans(),
)
def test_the_same_bits_whatever_the_call(name: str, seed: int, rows: int, **options: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive_job, "saves_time", lambda _: True)
        found = predict(RECORDED[name], guide, X[:rows], seed=seed, **options)
    assert_same(found, by_program(RECORDED[name], X[:rows], seed=seed, **options))


@pytest.mark.parametrize("sites", [["f"], ["y"], ["w"], ["w", "f", "y"]])
def test_sites_that_are_asked_for(
    made: list[bool], monkeypatch: pytest.MonkeyPatch, sites: list[str]
) -> None:
    options: dict[str, Any] = {"num_samples": 20, "seed": 4, "sites": sites}
    expected = by_program(RECORDED["normal"], X, **options)
    drawn = []
    own = noise_by_block.RowBlocks.noise
    monkeypatch.setattr(noise_by_block.RowBlocks, "noise", lambda *a: (drawn.append(1), own(*a))[1])
    assert_same(predict(RECORDED["normal"], guide, X, **options), expected)
    assert made == [True]
    assert (len(drawn) < 10) is ("y" not in sites)  # noise that no site depends on


@pytest.mark.parametrize("training", [True, False])
def test_networks_are_in_evaluation_mode(made: list[bool], training: bool) -> None:
    inner = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        inner[1].running_mean.fill_(0.3)
    net = BayesianModule(inner, dist.Normal(0.0, 1.0)).train(training)

    def model(x: Tensor) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 0.1))

    start = poutine.block(model, hide=["y"])
    options: dict[str, Any] = {"num_samples": 7, "seed": 4}
    found = predict(model, start, X, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictive_job, "saves_time", lambda _: False)
        assert_same(found, predict(model, start, X, **options))
    assert made == [True]
    assert all(part.training is training for part in net.modules())


# ---- models whose runs differ by more than the draw


def branches(x: Tensor) -> None:
    w = slope()
    f = x @ w if w.sum() > 0.2 else -x @ w
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 0.3))


def by_numpy(x: Tensor) -> None:
    f = torch.from_numpy(x.numpy() @ np.sin(slope().numpy()))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 0.3))


def rare_branch(x: Tensor) -> None:
    """Not taken at the draws that are compared."""
    w = slope()
    f = x @ w + (1.0 if w.tolist()[0] > 0.8 else 0.0)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 0.3))


def masks(x: Tensor) -> None:
    """As many rows are above at the draws that are compared, and not at others."""
    w = slope()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w + len(w[w > 0.0]), 0.3))


def own_noise(x: Tensor) -> None:
    f = F.dropout(x @ slope(), 0.5, training=True)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 0.3))


def matrices(x: Tensor) -> None:
    w = slope()
    root = torch.linalg.cholesky(torch.eye(2) + w[:, None] * w)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ root @ w, 0.3))


class Counting:
    """It counts its calls, and adds the number."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor) -> None:
        self.calls += 1
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ slope() + self.calls, 0.3))


class Buffered(nn.Module):
    """It writes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> None:
        self.calls += 1
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ slope() + self.calls, 0.3))


def written(path: Path) -> Model:
    """A model that counts in a file."""

    def model(x: Tensor) -> None:
        with path.open("a") as file:
            file.write("x")
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ slope() + path.stat().st_size, 0.3))

    return model


RUN: dict[str, Callable[[Path], Model]] = {
    "branches": lambda _: branches,
    "NumPy": lambda _: by_numpy,
    "a rare branch": lambda _: rare_branch,
    "masks": lambda _: masks,
    "noise of its own": lambda _: own_noise,
    "matrices": lambda _: matrices,
    "counts": lambda _: Counting(),
    "buffers": lambda _: Buffered(),
    "files": written,
    "numbers of rows by chance": lambda _: subsampled,
    "in place": lambda _: changes_in_place,
    "counts of events": lambda _: observed(lambda f: dist.Poisson(f.exp())),
    "half precision": lambda _: observed(lambda f: dist.Normal(f.half(), 0.3), plate=False),
}


@pytest.mark.parametrize("name", RUN)
def test_models_that_are_not_recorded(made: list[bool], tmp_path: Path, name: str) -> None:
    options: dict[str, Any] = {"num_samples": 30, "seed": 4}
    rows = 20 if name == "half precision" else 200
    found = predict(RUN[name](tmp_path / "a"), guide, X[:rows], **options)
    expected = by_program(RUN[name](tmp_path / "b"), X[:rows], **options)
    if name not in ("counts", "buffers", "files"):  # one more run is one more number
        assert_same(found, expected)
    assert made == [False]


def test_a_model_that_is_looked_at_is_run(made: list[bool]) -> None:
    names: list[str] = []

    class Looks(poutine.messenger.Messenger):
        def _pyro_post_sample(self, msg: Any) -> None:
            names.append(msg["name"])

    with Looks():
        predict(RECORDED["normal"], guide, X, num_samples=20, seed=4)
    assert made == [False] and names.count("y") > 20


def test_large_runs_are_not_recorded(made: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_draws, "_MAX_NUMBERS_PER_RUN", 1000)
    predict(RECORDED["normal"], guide, X, num_samples=4)
    assert made == [False]


@pytest.mark.long
def test_batches_are_tried_once(made: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyro_implicit.handlers.rows.row_coupling._MAX_NUMBERS_OF_SMALL_RUN", 0)
    predict(branches, guide, X, num_samples=4, batch_size=32)
    assert made == [False]
    made.clear()
    predict(RECORDED["normal"], guide, X, num_samples=4, batch_size=32)
    assert made == [True] * 7


@pytest.mark.parametrize("validated", [True, False])
def test_parameters_are_checked_at_each_draw(made: list[bool], validated: bool) -> None:
    """A scale that is negative at some draws, none of them among those that are compared."""

    def model(x: Tensor) -> None:
        w = slope()
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w, w[..., 0] + 0.1))

    options: dict[str, Any] = {"num_samples": 200, "seed": 3}
    with pyro.validation_enabled(validated):
        if not validated:
            assert_same(predict(model, guide, X, **options), by_program(model, X, **options))
        else:
            told = []
            for call in (partial(predict, model, guide), partial(by_program, model)):
                with pytest.raises(NonFiniteError, match="a scale that is not positive") as error:
                    call(X, **options)
                told.append(str(error.value))
            assert told[0] == told[1]
    assert made == [True]


def test_a_run_that_differs_in_the_end_is_noticed(
    made: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"num_samples": 12, "seed": 4}
    expected = by_program(RECORDED["normal"], X, **options)
    own_truth, own_values = RecordedDraws.is_true, RecordedDraws.values

    def wrong(self: RecordedDraws, draw: int) -> dict[str, Tensor] | None:
        found = own_values(self, draw)
        return {name: value + (draw > 4) for name, value in (found or {}).items()}

    monkeypatch.setattr(RecordedDraws, "values", wrong)
    assert_same(predict(RECORDED["normal"], guide, X, **options), expected)
    assert made == [True] and own_truth is RecordedDraws.is_true


def test_when_a_recording_saves_time() -> None:
    assert not saves_time(299) and saves_time(300)


READ: dict[str, Callable[[Tensor], float]] = {
    "tolist": lambda w: w.tolist()[0],
    "numpy": lambda w: float(w.data.numpy()[0]),
    "asarray": lambda w: float(np.asarray(w)[0]),
    "dlpack": lambda w: float(np.from_dlpack(w)[0]),
    "text": lambda w: float(str(w[0]).split("(")[1].rstrip(")")),
    "number": lambda w: w[0].item(),
    "tensor": lambda w: torch.tensor([w[0], 0.0]).sum(),
    "index": lambda w: torch.tensor([[0.0], [1.0]])[[(w[0] > 0.85).long(), 0], 0][0],
}


@pytest.mark.parametrize("name", READ)
def test_a_branch_that_few_draws_take_is_taken_by_these(made: list[bool], name: str) -> None:
    def model(x: Tensor) -> None:
        w = slope()
        # a draw of ten; not the first, nor the last
        far = torch.where(torch.as_tensor(READ[name](w)) > 0.85, 100.0, 0.0)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(x @ w + far, 0.3))

    options: dict[str, Any] = {"num_samples": 40, "seed": 7}
    expected = by_program(model, X, **options)
    rare = expected["y"].mean(-1) > 50.0
    assert 0 < int(rare.sum()) < 10 and not rare[[0, 1, -1]].any()
    assert_same(predict(model, guide, X, **options), expected)
    assert made == [False]
