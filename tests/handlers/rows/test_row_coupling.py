"""predict where rows belong together: evaluated and drawn at once, whatever the batch size."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.infer.autoguide import AutoNormal
from torch import Tensor

from pyro_implicit import ImplicitProcess, evaluate, predict, to_arviz
from pyro_implicit.exceptions import ArgumentError, OutOfMemoryError
from pyro_implicit.handlers.rows import row_coupling
from pyro_implicit.handlers.rows.row_coupling import coupled_sites, drawn_jointly

# latents that the guide does not have, and a process, are what some of these models are made of
pytestmark = [
    pytest.mark.filterwarnings("ignore:the guide does not draw"),
    pytest.mark.filterwarnings("ignore:the sites .* were drawn from processes"),
]
ROWS = 75
X = torch.linspace(-1, 1, ROWS)


@pytest.fixture(autouse=True)
def however_few_rows(monkeypatch):
    """Batches are as small as they are asked for, though there is nothing to save by that here."""
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_SMALL_RUN", 0)


def kernel(x, jitter=1e-3):
    return torch.exp(-((x[:, None] - x) ** 2) / 2) + jitter * torch.eye(len(x))


def slope():
    return pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))


def multivariate(x):
    w = slope()[..., None]
    pyro.sample("y", dist.MultivariateNormal(w * x, kernel(x)))


def masked(x):
    w = slope()
    fn = dist.MultivariateNormal(w * x, kernel(x)).mask(torch.tensor(True))
    pyro.sample("y", fn)


def process(x):
    w = slope()
    lines = lambda x, n: torch.randn(n, 1) * x[:, 0]  # noqa: E731
    pyro.sample("y", ImplicitProcess(lines, w + x[:, None], 20, 0.01))


def outputs(x):
    """Two outputs in a plate, each of correlated rows."""
    slope()
    with pyro.plate("outputs", 2):
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), kernel(x)))


def hidden_field(x):
    """A joint latent that the guide does not have."""
    slope()
    field = pyro.sample("field", dist.MultivariateNormal(torch.zeros(len(x)), kernel(x)))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(field, 0.01))


def loop_over_time(x):
    level = slope()
    for i in pyro.markov(range(len(x))):
        level = pyro.sample(f"y_{i}", dist.Normal(level, 0.01))


def standardised(x):
    w = slope()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w + (x - x.mean()) / x.std(), 1e-3))


def by_the_largest_of_all(x):
    w = slope()
    peaks = (x * 7).sin()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w + peaks / peaks.abs().max(), 1e-3))


def by_the_third(x):
    """Windows of three rows, which batches of 32 cut."""
    w = slope()
    f = torch.nn.functional.pad(x, (0, -len(x) % 3)).unflatten(0, (-1, 3)).cumsum(1)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w + f.flatten()[: len(x)], 1e-3))


def cumulative(x):
    w = slope()
    f = pyro.deterministic("f", w + x.cumsum(0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(f, 1e-3))


def against_the_last(x):
    w = slope()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w + x - x.flip(0).cumsum(0).flip(0), 1e-3))


def own_random_numbers(x):
    w = slope()
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w + torch.randn(len(x)), 1e-3))


def mixture_beside(x):
    """The one cannot be cut by its arguments, the other not at all."""
    slope()
    with pyro.plate("data", len(x)):
        weights = torch.ones(len(x), 2)
        fn = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(weights - 1, 0.1))
        pyro.sample("z", fn)
    pyro.sample("y", dist.MultivariateNormal(x, kernel(x)))


COUPLED = [
    multivariate,
    masked,
    process,
    outputs,
    hidden_field,
    loop_over_time,
    standardised,
    by_the_largest_of_all,
    by_the_third,
    cumulative,
    against_the_last,
    own_random_numbers,
    mixture_beside,
]


def fitted(model, *args):
    guide = AutoNormal(pyro.poutine.block(model, expose=["w"]))
    guide(*args)
    return guide


def seeded(*args, **kwargs):
    pyro.set_rng_seed(0)
    return predict(*args, **kwargs)


@pytest.mark.parametrize("model", COUPLED)
def test_the_batch_size_changes_nothing(model):
    guide = fitted(model, X)
    whole = seeded(model, guide, X, num_samples=3)
    parts = seeded(model, guide, X, num_samples=3, batch_size=32)
    torch.testing.assert_close(parts, whole)
    assert all(value.shape[0] == 3 for value in whole.values())


@pytest.mark.parametrize(
    "model, parallel",
    [(multivariate, False), (multivariate, True), (process, False), (hidden_field, False)],
)
def test_correlations_of_rows_are_those_of_the_model(model, parallel):
    guide = fitted(model, X)
    draws = seeded(model, guide, X, num_samples=80, batch_size=32, parallel=parallel)["y"]
    assert draws.shape == (80, ROWS)
    found = torch.corrcoef(draws.T)
    assert found[31, 32] > 0.95 and found[10, 11] > 0.95
    assert found[63, 64] > 0.95


@pytest.mark.long
def test_a_loop_over_rows_keeps_all_of_them():
    draws = seeded(loop_over_time, fitted(loop_over_time, X), X, num_samples=2, batch_size=32)
    assert len(draws) == ROWS
    steps = torch.stack([draws[f"y_{i}"] for i in range(ROWS)]).diff(dim=0)
    assert steps.abs().max() < 0.06


def test_a_latent_of_all_rows_in_the_guide():
    def model(x):
        field = pyro.sample("field", dist.MultivariateNormal(torch.zeros(len(x)), kernel(x)))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(field + x, 0.01))

    guide = AutoNormal(pyro.poutine.block(model, expose=["field"]))
    guide(X)
    options = {"num_samples": 3, "sites": ["field", "y"]}
    whole = seeded(model, guide, X, **options)
    parts = seeded(model, guide, X, batch_size=32, **options)
    torch.testing.assert_close(parts, whole)
    assert (whole["y"] - whole["field"] - X).abs().max() < 0.05


@pytest.mark.parametrize(
    "likelihood",
    [
        lambda f: dist.Normal(f, 0.1),
        lambda f: dist.Normal(f, 0.1).mask(f > 0),
        lambda f: dist.Poisson(f.exp()),
        lambda f: dist.MultivariateNormal(torch.stack([f, -f], -1), torch.eye(2)),
        lambda f: dist.MixtureSameFamily(
            dist.Categorical(torch.ones(len(f), 2)), dist.Normal(torch.stack([f, -f], -1), 0.1)
        ),
    ],
)
@pytest.mark.parametrize("event", [False, True])
def test_independent_rows_are_still_cut(likelihood, event):
    largest = []

    def model(x):
        largest.append(len(x))
        w = slope()
        with pyro.plate("local", len(x)):
            shift = pyro.sample("shift", dist.Normal(0.0, 1.0))  # in no guide
        f = pyro.deterministic("f", w * x + shift)
        if event:
            return pyro.sample("y", likelihood(f).to_event(1))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", likelihood(f))

    guide = fitted(model, X)
    largest.clear()
    parts = seeded(model, guide, X, num_samples=2, batch_size=32)
    assert largest.count(len(X)) == 1  # the look at what the cut changes
    assert max(size for size in largest if size != len(X)) == 32
    torch.testing.assert_close(parts, seeded(model, guide, X, num_samples=2))


def test_rows_that_will_not_fit_together(monkeypatch):
    guide = fitted(multivariate, X)
    x = torch.linspace(-1, 1, 10_000_000)
    with pytest.raises(OutOfMemoryError, match=r"site 'y', whose rows .*Pass fewer rows"):
        predict(multivariate, guide, x, num_samples=1, batch_size=32)
    checked = []
    monkeypatch.setattr(row_coupling, "check_fits", lambda numel, *_: checked.append(numel))
    predict(multivariate, guide, X, num_samples=1, batch_size=32)
    assert max(checked) == ROWS**2  # the covariance


def test_what_is_one_event():
    normal = dist.Normal(torch.zeros(5), 1.0)
    assert not drawn_jointly(normal, None)
    assert not drawn_jointly(normal.to_event(1), -1)
    assert not drawn_jointly(normal.to_event(1).mask(False).to_event(0), -1)
    both = dist.MultivariateNormal(torch.zeros(3, 5), torch.eye(5)).to_event(1)
    assert drawn_jointly(both, -1) and not drawn_jointly(both, -2)
    assert not drawn_jointly(dist.Delta(torch.zeros(5), event_dim=1), -1)


def centred(x: Tensor) -> Tensor:
    return x - x.mean()


def of_groups(x: Tensor) -> Tensor:
    group = torch.arange(len(x)) % 40  # of which the first 32 rows are different ones
    total = torch.zeros(40).index_add(0, group, x)
    return x - (total / group.bincount(minlength=40))[group]


def lagged(x: Tensor) -> Tensor:
    return torch.cat([x.new_zeros(40), x])[: len(x)]


@pytest.mark.long
@pytest.mark.parametrize("feature", [centred, of_groups, lagged])
@pytest.mark.parametrize("kind", ["normal", "mixture"])
@pytest.mark.parametrize("batch_size", [None, 32])
def test_rows_far_apart_that_belong_together(feature, kind, batch_size):
    """The first rows are alike, or owe nothing to each other: only all of them show it."""
    x = (torch.arange(120) >= 60).float() if feature is centred else torch.randn(120)

    def model(x, y=None):
        f = pyro.sample("w", dist.Normal(2.0, 1e-4)) * feature(x)
        noise = dist.Normal(f, 0.1)
        if kind == "mixture":
            weights = dist.Categorical(torch.ones(len(x), 2))
            noise = dist.MixtureSameFamily(weights, dist.Normal(f[:, None].expand(-1, 2), 0.1))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", noise, obs=y)

    def guide(x, y=None):
        pyro.sample("w", dist.Normal(2.0, 1e-4))

    y = 2 * feature(x) + 0.1 * torch.randn(120)
    exact = dist.Normal(2 * feature(x), 0.1).log_prob(y).mean()
    report = evaluate(model, guide, x, y, num_samples=4, batch_size=batch_size, seed=0)
    assert float(report.rows["log_density"].mean()) == pytest.approx(float(exact), abs=0.01)
    drawn = predict(model, guide, x, num_samples=200, batch_size=batch_size)["y"].mean(0)
    torch.testing.assert_close(drawn, 2 * feature(x), atol=0.05, rtol=0.0)
    if batch_size is not None:
        with pytest.raises(ArgumentError, match="depend on each other"):
            to_arviz(model, guide, x, y, num_samples=2, batch_size=batch_size)


@pytest.mark.long
@given(
    values=st.lists(st.sampled_from([0.0, 1.0, -3.0, 1e6, 1e30, math.nan, math.inf]), min_size=1),
    other=st.sampled_from([0.0, 1e-8, 1e-4, 0.1, math.nan, math.inf]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
)
def test_rows_are_compared_as_torch_compares_them(
    values: list[float], other: float, dtype: torch.dtype
) -> None:
    """With what rounding may change; infinities and what is missing are the same or not."""
    more = torch.tensor(values, dtype=dtype)
    fewer = more.clone()
    fewer[-1] += other
    eps, finite = torch.finfo(dtype).eps, more[more.isfinite()].double()
    allowed = 0.0
    if len(finite):
        allowed = float(eps**0.5 * (finite.max() - finite.min()) + 64 * eps * finite.abs().max())
    expected = torch.allclose(fewer, more, rtol=0.0, atol=allowed, equal_nan=True)
    assert row_coupling._same(fewer, more, 0) is expected


def test_a_large_offset_hides_no_coupling():
    x = torch.randn(100)
    values = 101325 + 10 * (x - x.mean())
    other = 101325 + 10 * (x[:32] - x[:32].mean())
    parts = {"y": dist.Normal(other, 1.0)}, {"y": dist.Normal(values, 1.0)}
    assert coupled_sites(*parts, {"y": -1}, 0) == ["y"]
    rounded = {"y": dist.Normal(values[:32] + 0.02, 1.0)}, parts[1]
    assert coupled_sites(*rounded, {"y": -1}, 0) == []


@pytest.mark.parametrize("batch_size", [None, 32])
def test_pairs_of_rows_are_all_predicted(batch_size):
    def model(x):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("i", len(x), dim=-2), pyro.plate("j", len(x), dim=-1):
            scaled = dist.TransformedDistribution(
                dist.Normal(w * (x[:, None] - x).abs(), 0.01), dist.transforms.ExpTransform()
            )
            pyro.sample("near", scaled)

    def guide(x):
        pyro.sample("w", dist.Delta(torch.tensor(1.0)))

    x = torch.randn(80)
    drawn = predict(model, guide, x, num_samples=20, batch_size=batch_size)["near"]
    expected = (x[:, None] - x).abs()
    torch.testing.assert_close(drawn.log().mean(0), expected, atol=0.02, rtol=0.0)


@pytest.mark.parametrize(
    ("width", "size", "rows", "expected"),
    [
        (1000, 100, 50_000, 50_000),  # fifty million numbers in all
        (10_000, 100, 50_000, 6_710),
        (10_000, 10_000, 50_000, 20_000),  # two batches, whatever they make
        (10_000, 30_000, 50_000, 50_000),
    ],
)
def test_as_many_rows_are_looked_at_as_make_so_many_numbers(
    width: int, size: int, rows: int, expected: int
) -> None:
    seen = []

    def run(count: int) -> None:
        seen.append(count)
        torch.ones(500_000)  # of no row
        torch.ones(count, width)

    by_row = row_coupling.numbers_of_a_row(run, 32)
    assert row_coupling.rows_to_look_at(by_row, size, rows) == expected
    assert seen == [32, 16]


def test_what_cannot_be_counted_is_small() -> None:
    def run(count: int) -> None:
        raise RuntimeError("no such operation")

    by_row = row_coupling.numbers_of_a_row(run, 32)
    assert row_coupling.rows_to_look_at(by_row, 100, 50_000) == 50_000
    assert row_coupling.rows_of_little(by_row, 32) == 0  # and is cut as it was to be
    assert row_coupling.draws_of_little(by_row, 50_000) == float("inf")


@pytest.mark.parametrize(("by_row", "rows"), [(100.0, 10_464), (2.0**20 / 64, 64), (40_000.0, 0)])
def test_rows_of_which_there_is_nothing_to_save(
    monkeypatch: pytest.MonkeyPatch, by_row: float, rows: int
) -> None:
    monkeypatch.undo()
    assert row_coupling.rows_of_little(by_row, 32) == rows


@pytest.mark.long
@pytest.mark.parametrize("how", ["predict", "evaluate", "to_arviz"])
@pytest.mark.parametrize("width", [2, 400])
def test_a_look_takes_no_more_memory_than_it_may(
    monkeypatch: pytest.MonkeyPatch, how: str, width: int
) -> None:
    """It once ran the model on all rows at once, whose memory batch_size was given to save."""
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_A_LOOK", 300_000)
    seen = []

    def model(x: Tensor, y: Tensor | None = None) -> None:
        seen.append(len(x))
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        hidden = (w * x)[:, None] * torch.ones(width)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(hidden.mean(-1), 1.0), obs=y)

    x = torch.linspace(-1, 1, 4000)
    guide = AutoNormal(model)
    guide(x, x)
    seen.clear()
    if how == "predict":
        predict(model, guide, x, num_samples=2, batch_size=160)
    elif how == "evaluate":
        evaluate(model, guide, x, x, num_samples=2, batch_size=160)
    else:
        to_arviz(model, guide, x, x, num_samples=2, batch_size=160, groups=("log_likelihood",))
    assert max(seen) == 4000 if width == 2 else 320 <= max(seen) < 1000


@pytest.mark.long
@pytest.mark.parametrize("how", ["predict", "evaluate"])
def test_wide_rows_that_belong_together_are_still_seen(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_A_LOOK", 300_000)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        hidden = (w * (x - x.mean()))[:, None] * torch.ones(400)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(hidden.mean(-1), 1.0), obs=y)

    x = torch.cat([torch.zeros(100), torch.linspace(-1, 1, 3900)])  # the first rows are alike
    guide = AutoNormal(model)
    guide(x, x)
    if how == "predict":
        found = []
        for size in (None, 160):
            pyro.set_rng_seed(0)
            found.append(predict(model, guide, x, num_samples=2, batch_size=size)["y"])
        assert torch.equal(*found)
    else:
        scores = [
            evaluate(model, guide, x, x, num_samples=2, batch_size=size, seed=0).scores
            for size in (None, 160)
        ]
        assert scores[0] == scores[1]


TRANSFORMED = {
    "standardised": lambda y: (y - y.mean()) / y.std(),
    "ranks": lambda y: y.argsort().argsort().to(y),
    "differences": lambda y: y - y.roll(1),
    "by place": lambda y: torch.arange(len(y)).to(y) % 3,
}


@pytest.mark.parametrize("kind", TRANSFORMED)
def test_observations_that_a_model_makes_of_all_rows_are_evaluated_at_once(kind: str) -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=TRANSFORMED[kind](y))

    torch.manual_seed(0)
    x = torch.randn(70)
    y = x + torch.randn(70) + torch.linspace(0, 5, 70)
    guide = AutoNormal(model)
    guide(x, y)
    scores = [
        evaluate(model, guide, x, y, num_samples=3, batch_size=size, seed=0).scores
        for size in (None, 32)
    ]
    assert scores[0] == scores[1]
    with pytest.raises(ArgumentError, match="'y, as observed' depend on each other"):
        to_arviz(model, guide, x, y, num_samples=3, batch_size=32)


@pytest.mark.long
@pytest.mark.parametrize(
    "likelihood",
    [
        lambda f: dist.BetaBinomial(2.0, f.exp(), 9),
        lambda f: dist.DirichletMultinomial(
            torch.stack([f.exp(), 1 + 0 * f], -1), torch.tensor(5.0)
        ),
        lambda f: dist.Gamma(f.exp(), 1.0),
    ],
    ids=["beta-binomial", "Dirichlet-multinomial", "gamma"],
)
def test_samplers_of_two_stages_are_drawn_in_parallel(likelihood) -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.deterministic("w x", w * x)
            pyro.sample("y", likelihood(w + x), obs=y)

    guide = AutoNormal(pyro.poutine.block(model, expose=["w"]))
    guide(X)
    found = predict(model, guide, X, num_samples=400, parallel=True)
    assert found["y"].shape[:2] == (400, ROWS)
    expected = predict(model, guide, X, num_samples=400)["y"].mean(0)
    spread = found["y"].std(0) / 20
    assert ((found["y"].mean(0) - expected).abs() < 6 * spread + 1e-6).all()
