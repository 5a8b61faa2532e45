"""How many rows and draws a prediction takes at a time, and what it does not do twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, evaluate, predict
from pyro_implicit.exceptions import ShapeError, SiteError
from pyro_implicit.handlers.rows import row_coupling
from pyro_implicit.inference import predictive_run

Model = Callable[..., Any]
ROWS = 600
X = torch.linspace(-1.0, 1.0, ROWS)

LIKELIHOODS: dict[str, Callable[[Tensor], Any]] = {
    "normal": lambda f: dist.Normal(f, 0.3),
    "classes": lambda f: dist.Categorical(logits=torch.stack([f, -f, 0 * f], -1)),
    "counts": lambda f: dist.Poisson(f.exp()),  # cut into units of rows
    "mixture": lambda f: dist.MixtureSameFamily(  # which cannot be cut
        dist.Categorical(torch.ones(*f.shape, 2)), dist.Normal(torch.stack([f, -f], -1), 0.1)
    ),
}


def guide(*_: Any, **__: Any) -> None:
    pyro.sample("w", dist.Normal(0.5, 0.2))


def make(
    likelihood: str = "normal",
    width: int = 1,
    seen: list[Any] | None = None,
    event_dim: int | None = 1,
) -> Model:
    """A model whose runs make some ``width`` numbers of a row; ``event_dim`` within the plate."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        if seen is not None:
            seen.append((len(x), tuple(w.shape)))
        hidden = (w[..., None] * x[:, None]) * torch.ones(width)
        f = pyro.deterministic("f", hidden.mean(-1)) if event_dim == 1 else hidden.mean(-1)
        with pyro.plate("data", len(x)):
            if event_dim != 1:
                pyro.deterministic("f", f, event_dim=event_dim)
            pyro.sample("y", LIKELIHOODS[likelihood](f), obs=y)

    return model


def seeded(model: Model, *args: Any, **options: Any) -> dict[str, Tensor]:
    return predict(model, guide, *args, seed=3, **options)


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(
    likelihood=st.sampled_from(list(LIKELIHOODS)),
    rows=st.integers(30, 200),
    batch_size=st.integers(1, 210),
    little=st.sampled_from([0, 400, 1500, 2**20]),
    num_samples=st.integers(1, 5),
    options=st.sampled_from([{}, {"sites": ["f"]}, {"sites": ["y", "w"]}, {"moments": True}]),
)
def test_the_same_whatever_is_taken_at_a_time(
    likelihood: str,
    rows: int,
    batch_size: int,
    little: int,
    num_samples: int,
    options: dict[str, Any],
) -> None:
    model = make(likelihood)
    options = {**options, "num_samples": num_samples}
    whole = seeded(model, X[:rows], **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_coupling, "_MAX_NUMBERS_OF_SMALL_RUN", little)
        parts = seeded(model, X[:rows], batch_size=batch_size, **options)
    assert parts.keys() == whole.keys()
    for name, value in whole.items():
        assert torch.equal(parts[name].isnan(), value.isnan())  # the variance of one draw
        torch.testing.assert_close(parts[name].nan_to_num(), value.nan_to_num())


@pytest.mark.parametrize("how", ["predict", "evaluate"])
def test_batches_that_save_nothing_are_joined(how: str) -> None:
    seen: list[Any] = []
    model = make(seen=seen)
    if how == "predict":
        seeded(model, X, num_samples=4, batch_size=32)
    else:
        evaluate(model, guide, X, X, num_samples=4, batch_size=32)
    runs = [size for size, _ in seen if size > 32]
    assert runs == [ROWS] * 4  # and no run that only looks


@pytest.mark.parametrize("event_dim", [0, 1, None])
def test_batches_that_save_memory_are_as_small_as_they_are_asked_for(
    event_dim: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_A_LOOK", 2**22)
    seen: list[Any] = []
    model = make(width=2**14, seen=seen, event_dim=event_dim)  # 64 rows make a million numbers
    seeded(model, X[:300], num_samples=3, batch_size=64)
    sizes = [size for size, _ in seen]
    assert max(sizes) == 255 and sizes.count(255) == 2  # two looks: four million numbers
    assert sizes.count(63) == 1  # the last batch of it
    assert sizes.count(44) == 3  # the last rows of each draw
    assert sizes.count(64) == 4 + 3 * 4 - 3  # four batches of looks, all but what they have found


def test_what_the_look_found_is_not_evaluated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_SMALL_RUN", 0)
    seen: list[Any] = []
    model = make(seen=seen)
    parts = seeded(model, X[:96], num_samples=2, batch_size=32)
    sizes = [size for size, _ in seen]
    assert sizes.count(96) == 1  # the first draw
    assert sizes.count(32) == 1 + 3 + 3  # the first rows, batches of the look, the second draw
    assert all(torch.equal(parts[name], value) for name, value in _whole(model, 96).items())


def _whole(model: Model, rows: int) -> dict[str, Tensor]:
    return seeded(model, X[:rows], num_samples=2)


def test_noise_that_nothing_depends_on_is_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    own = predictive_run.drawn_by_blocks
    monkeypatch.setattr(
        predictive_run, "drawn_by_blocks", lambda *args: (drawn.append(1), own(*args))[1]
    )
    model = make("classes")
    found = seeded(model, X, num_samples=9, sites=["f"])["f"]
    assert len(drawn) == 1
    drawn.clear()
    both = seeded(model, X, num_samples=9, sites=["f", "y"])
    assert len(drawn) == 9
    assert torch.equal(both["f"], found)


def test_loops_that_end_by_what_is_drawn_end() -> None:
    """Noise that nobody asked for is still one that the model may draw."""

    def tosses(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.deterministic("f", w * x)
        count = 0
        while not bool(pyro.sample(f"toss {count}", dist.Bernoulli(0.5))):
            count += 1

    options: dict[str, Any] = {"num_samples": 20, "sites": ["f"]}
    drawn = predict(tosses, guide, X, seed=0, **options)["f"]
    assert drawn.shape == (20, ROWS) and drawn[:, 0].unique().numel() == 20


def test_a_site_that_comes_and_goes_is_missed_as_ever() -> None:
    def sometimes(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        if w > 0.5:
            pyro.deterministic("f", w * x)

    with pytest.raises(SiteError, match=r"sites \['f'\] are not in the model"):
        predict(sometimes, guide, X, seed=0, num_samples=30, sites=["f"])


@pytest.mark.parametrize(("width", "draws"), [(1, 6), (20, 6), (4000, 1)])
def test_draws_are_evaluated_together_where_that_saves_time(width: int, draws: int) -> None:
    seen: list[Any] = []
    model = make(width=width, seen=seen)
    together = seeded(model, X, num_samples=6, parallel=True)["y"]
    assert max(torch.Size(shape).numel() for _, shape in seen) == draws
    if draws == 1:
        assert torch.equal(together, seeded(model, X, num_samples=6)["y"])


def test_draws_at_a_time_do_not_depend_on_the_batches() -> None:
    """Noise of several draws is one block: others would be drawn, were there fewer at a time."""
    model = make(width=800)  # 600 rows of some draws make four million numbers
    found = [
        seeded(model, X, num_samples=12, parallel=True, batch_size=size)["y"]
        for size in (None, 64, 600)
    ]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize("apart", [50, 100, 299])
def test_rows_that_belong_to_others_far_away_are_seen(
    apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_SMALL_RUN", 0)
    # fewer rows than they are apart
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_A_LOOK", 1000)
    groups = torch.arange(ROWS) % apart

    def model(x: Tensor, group: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        sums, ones = (
            torch.zeros(apart).index_add(0, group, one) for one in (x, torch.ones_like(x))
        )
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x - (sums / ones)[group], 0.3))

    whole, parts = (
        seeded(model, X, groups, num_samples=2, batch_size=size)["y"] for size in (None, 32)
    )
    assert torch.equal(whole, parts)


def test_a_model_that_fails_on_rows_in_another_order_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_SMALL_RUN", 0)
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_A_LOOK", 1000)

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        if not bool((x.diff() > 0).all()):
            raise ValueError("not sorted")
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x, 0.3))

    whole, parts = (seeded(model, X, num_samples=2, batch_size=size)["y"] for size in (None, 32))
    assert torch.equal(whole, parts)


def test_groups_that_are_counted_in_a_batch_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_SMALL_RUN", 0)
    groups = torch.arange(ROWS) // 100

    def model(x: Tensor, group: Tensor) -> None:
        with pyro.plate("groups", int(group.max()) + 1):
            level = pyro.sample("level", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(level[..., group] + x, 0.3))

    fitted = HyperNetworkGuide(poutine.block(model, hide=["y"]), init_from=None).setup(X, groups)
    with pytest.raises(ShapeError, match=r"write their number, pyro.plate\('groups', 6\)"):
        predict(model, fitted, X, groups, num_samples=2, batch_size=32)
