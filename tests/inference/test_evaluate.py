"""Scores of a fit against closed forms, brute force and other libraries."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
from scipy import stats
from sklearn.metrics import brier_score_loss

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    MixtureDensityGuide,
    evaluate,
    log_predictive_density,
)
from pyro_implicit.exceptions import (
    ArgumentError,
    MissingExtraError,
    NonFiniteError,
    ShapeError,
    SiteError,
)
from pyro_implicit.handlers.rows import row_coupling
from pyro_implicit.inference.evaluation import draw_chunks, evaluation_job
from tests.contract.registry import MODELS


@pytest.fixture(autouse=True)
def however_few_rows(monkeypatch):
    """Batches are as small as they are asked for, though there is nothing to save by that here."""
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_SMALL_RUN", 0)


def line(x, y=None, size=None, noise=0.5):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", size or len(x), subsample_size=len(x)):
        pyro.sample("y", dist.Normal(w * x, noise), obs=y)


def gaussian_guide(*_, **__):
    pyro.sample("w", dist.Normal(0.2, 0.3))


def fixed(w):
    """A guide at one point."""
    w = torch.as_tensor(w)
    return lambda *_, **__: pyro.sample("w", dist.Delta(w, event_dim=w.dim()))


def gaussian_crps(y, mean, deviation):
    """The closed form of T. Gneiting and A. Raftery (2007), as properscoring has it."""
    z = (y - mean) / deviation
    inner = z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi)
    return deviation * inner


@pytest.mark.long
def test_the_gaussian_predictive_in_closed_form():
    """w ~ N(0.2, 0.3^2): y ~ N(0.2 x, (0.3 x)^2 + 0.5^2)."""
    x, y = torch.linspace(-2.0, 2.0, 40), torch.randn(40)
    report = evaluate(line, gaussian_guide, x, y, num_samples=1000, seed=0)
    mean, deviation = 0.2 * x.numpy(), ((0.3 * x) ** 2 + 0.25).sqrt().numpy()
    rows, observed = report["y"].rows, y.numpy()
    logs = stats.norm.logpdf(observed, mean, deviation)
    np.testing.assert_allclose(rows["log_density"], logs, atol=0.15)
    np.testing.assert_allclose(rows["mean"], mean, atol=0.06)
    np.testing.assert_allclose(rows["crps"], gaussian_crps(observed, mean, deviation), atol=0.06)
    assert report.log_density.value == pytest.approx(logs.mean(), abs=0.03)
    assert report.log_density.standard_error == pytest.approx(stats.sem(logs), rel=0.1)
    assert report.crps.value == pytest.approx(
        gaussian_crps(observed, mean, deviation).mean(), abs=0.02
    )
    assert report.rmse.value == pytest.approx(np.sqrt(((mean - observed) ** 2).mean()), abs=0.01)
    assert report.mae.value == pytest.approx(np.abs(mean - observed).mean(), abs=0.02)
    for percent in (50, 90, 95):
        half = stats.norm.ppf(0.5 + percent / 200) * deviation
        width = getattr(report, f"width_{percent}")
        assert width.value == pytest.approx(2 * half.mean(), rel=0.05)
        np.testing.assert_allclose(rows[f"upper_{percent}"], mean + half, atol=0.35)
        covered = np.abs(observed - mean) < half
        assert getattr(report, f"coverage_{percent}").value == pytest.approx(
            covered.mean(), abs=0.1
        )


@pytest.mark.long
def test_coverage_of_data_from_the_predictive_distribution():
    x = torch.full((1500,), 1.5)
    w = 0.2 + 0.3 * torch.randn(1500)
    y = w * x + 0.5 * torch.randn(1500)
    report = evaluate(line, gaussian_guide, x, y, num_samples=100, seed=0)
    for percent in (50, 90, 95):
        found = getattr(report, f"coverage_{percent}")
        assert found.value == pytest.approx(percent / 100, abs=0.05)


def test_its_density_is_the_log_predictive_density():
    guide = fixed(0.3)
    x, y = torch.randn(50), torch.randn(50)
    report = evaluate(line, guide, x, y, num_samples=3, size=500)
    expected = log_predictive_density(line, guide, x, y, num_samples=3, size=500)
    torch.testing.assert_close(report.rows["log_density"], expected.double())
    assert report.log_density.value == pytest.approx(expected.mean().item())
    assert report["y"].log_density == report.log_density
    assert torch.equal(report.rows["row"], torch.arange(50))


@pytest.mark.long
def test_standard_errors_are_the_spread_over_other_data():
    """By brute force: the scores of 100 data sets of one model, and what each says of itself."""
    guide, names = fixed(0.3), ("log_density", "rmse", "mae", "crps", "coverage_50")
    found = {name: [] for name in names}
    for _ in range(100):
        x = torch.randn(40)
        report = evaluate(line, guide, x, 0.3 * x + 0.6 * torch.randn(40), num_samples=1)
        for name in names:
            found[name].append(getattr(report["y"], name))
    for name, scores in found.items():
        values, errors = np.array(scores).T
        assert np.sqrt((errors**2).mean()) == pytest.approx(values.std(), rel=0.25), name


# ---- whatever the batches


def _counts(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 0.3))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Poisson((w * x).exp()), obs=y)


def _classes(x, y=None):
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Categorical(logits=x[:, None] * w), obs=y)


def _local(x, y=None):
    with pyro.plate("data", len(x)):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w * x, 0.5), obs=y)


def _crossed(x, y=None):
    """Rows are the inner of two plates."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x), dim=-1), pyro.plate("outputs", 2, dim=-2):
        pyro.sample("y", dist.Normal(w * x, 0.5), obs=None if y is None else y.mT)


KINDS = {
    "numbers": (line, lambda x: torch.randn(len(x))),
    "counts": (_counts, lambda x: torch.randint(4, x.shape).float()),
    "classes": (_classes, lambda x: torch.randint(3, x.shape)),
    "local": (_local, lambda x: torch.randn(len(x))),
    "crossed": (_crossed, lambda x: torch.randn(len(x), 2)),
}


def _assert_same(one, other):
    assert one.rows.keys() == other.rows.keys()
    torch.testing.assert_close(one.rows, other.rows)
    for name, site in one.sites.items():
        torch.testing.assert_close(dict(site.rows), dict(other[name].rows), rtol=1e-4, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@given(rows=st.integers(33, 100), batch_size=st.integers(1, 100), few=st.booleans())
@settings(max_examples=6)
def test_batches_change_nothing(kind, rows, batch_size, few):
    """Also where draws are too many to be kept, and are made again for each batch."""
    model, observe = KINDS[kind]
    x = torch.randn(rows)
    y = observe(x)
    make = ConditionalHyperNetworkGuide if kind == "local" else HyperNetworkGuide
    guide = make(model, hidden_dims=(3,)).setup(x, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draw_chunks, "_MAX_NUMBERS_HELD", 2 if few else 10**6)
        whole, parts = (
            evaluate(model, guide, x, y, num_samples=5, seed=3, batch_size=size)
            for size in (None, batch_size)
        )
    _assert_same(whole, parts)


def test_draws_that_are_not_kept_are_as_many_and_all_different(monkeypatch):
    monkeypatch.setattr(draw_chunks, "_MAX_NUMBERS_HELD", 3)
    chunks = draw_chunks.DrawChunks(gaussian_guide, (), {}, 8, seed=1)

    def draw(index):
        held, offset = chunks.holding(index)
        assert len(held["w"]) <= 3
        return float(held["w"][index - offset])

    once = [draw(index) for index in range(8)]
    assert len(set(once)) == 8
    assert [draw(index) for index in (7, 0, 3, 4, 1)] == [once[i] for i in (7, 0, 3, 4, 1)]


def test_a_guide_that_makes_its_draws_together_is_asked_for_all():
    """Such as a mixture of guides in fixed shares."""
    asked = []

    class Shares:
        def __call__(self, *_):
            raise AssertionError

        def sample(self, num_samples):
            asked.append(num_samples)
            return {"w": torch.linspace(-1.0, 1.0, num_samples)}

    x = torch.randn(5)
    report = evaluate(line, Shares(), x, x, num_samples=3)
    densities = [dist.Normal(w * x, 0.5).log_prob(x) for w in (-1.0, 0.0, 1.0)]
    expected = torch.stack(densities).exp().mean(0).log()
    torch.testing.assert_close(report.rows["log_density"], expected.double())
    assert asked == [1, 3]


def test_few_rows_at_a_time_by_default_where_draws_take_much_memory(monkeypatch):
    sizes = []

    def watched(x, y):
        sizes.append(len(x))
        line(x, y)

    monkeypatch.setattr(evaluation_job, "_MAX_NUMBERS_OF_OUTCOMES", 1000 * 32)
    x = torch.randn(100)
    evaluate(watched, gaussian_guide, x, x, num_samples=2)
    assert sizes.count(100) == 1  # the look at what the cut changes
    assert max(size for size in sizes if size != 100) == 32 and sizes.count(4) == 3


def test_a_seed_repeats_all_and_leaves_random_numbers_alone():
    x, before = torch.randn(10), torch.get_rng_state()
    one, other = (evaluate(line, gaussian_guide, x, x, num_samples=3, seed=5) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert one.to_dict() == other.to_dict()
    assert evaluate(line, gaussian_guide, x, x, num_samples=3).to_dict() != one.to_dict()


# ---- guides


@pytest.mark.parametrize("kind", [AutoNormal, AutoMultivariateNormal, HyperNetworkGuide])
@pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)
def test_every_model(case, kind):
    if case is MODELS["flat priors"] and kind is not HyperNetworkGuide:
        pytest.skip("Pyro's guides draw from the prior first")
    model = case.make()
    guide = kind(model)
    guide(*case.data())
    report = evaluate(model, guide, *case.data(), num_samples=3)
    assert report.rows["log_density"].shape == (6,)
    assert math.isfinite(report.log_density.value) and not report.notes


@pytest.mark.parametrize("kind", [ConditionalHyperNetworkGuide, MixtureDensityGuide])
def test_conditional_guides_draw_for_the_rows_at_hand(kind):
    x = torch.randn(8)
    guide = kind(_local, hidden_dims=(3,)).setup(x, x + 1)
    report = evaluate(_local, guide, x[:5], x[:5] + 1, num_samples=4)
    assert report["y"].num_data == 5


def test_a_function_with_draws_of_its_own_is_a_guide():
    """Such as the draws of a chain, one after the other."""
    chain = iter(torch.tensor([0.1, 0.2, 0.3]))
    x = torch.randn(5)
    report = evaluate(
        line, lambda *_: pyro.sample("w", dist.Delta(next(chain))), x, x, num_samples=3
    )
    densities = [dist.Normal(w * x, 0.5).log_prob(x) for w in (0.1, 0.2, 0.3)]
    expected = torch.stack(densities).exp().mean(0).log()
    torch.testing.assert_close(report.rows["log_density"], expected.double())


# ---- classes


def test_classes_against_other_libraries():
    x, y = torch.randn(200), torch.randint(3, (200,))
    w = torch.tensor([0.5, -1.0, 2.0])
    report = evaluate(_classes, fixed(w), x, y, num_samples=2)
    probabilities = (x[:, None] * w).double().softmax(-1)
    confidence, predicted = probabilities.max(-1)
    right = predicted == y
    assert report["y"].kind == "class"
    assert report.accuracy.value == pytest.approx(right.float().mean().item())
    assert report.nll.value == pytest.approx(-report.log_density.value)
    assert report.brier.value == pytest.approx(brier_score_loss(y, probabilities), rel=1e-5)
    bins = (confidence * 15).ceil().long()
    gaps = [abs(float((confidence - right.float())[bins == b].sum())) for b in range(1, 16)]
    assert report.ece.value == pytest.approx(sum(gaps) / 200, abs=1e-5)
    assert math.isnan(report.ece.standard_error)
    from torchmetrics.classification import MulticlassCalibrationError

    metric = MulticlassCalibrationError(3, n_bins=15)
    assert report.ece.value == pytest.approx(float(metric(probabilities, y)), abs=1e-6)


def _observing(function):
    """A model with a latent w whose observed site is made from it."""

    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", function(w, x), obs=y)

    return model


def test_ways_to_write_the_same_classes():
    """Bernoulli, two categories, a one-hot vector and a mixture of one component."""
    x = torch.randn(60)
    y = torch.randint(2, (60,)).float()

    def logits(w, x):
        return torch.stack([torch.zeros_like(x), w * x], -1)

    def mixture(w, x):
        parts = dist.Categorical(logits=logits(w, x)[:, None])
        return dist.MixtureSameFamily(dist.Categorical(torch.ones(len(x), 1)), parts)

    ways = {
        "bernoulli": (lambda w, x: dist.Bernoulli(logits=w * x), y),
        "categories": (lambda w, x: dist.Categorical(logits=logits(w, x)), y.long()),
        "one-hot": (
            lambda w, x: dist.OneHotCategorical(logits=logits(w, x)),
            torch.nn.functional.one_hot(y.long(), 2).float(),
        ),
        "mixture": (mixture, y.long()),
        "binary": (lambda w, x: dist.Bernoulli(logits=(w * x)[:, None]).to_event(1), y[:, None]),
    }
    reports = []
    for function, observed in ways.values():
        model = _observing(function)
        reports.append(evaluate(model, gaussian_guide, x, observed, num_samples=4, seed=0))
    first = reports[0]["y"].scores
    assert set(first) == {"log_density", "accuracy", "nll", "brier", "ece"}
    for report in reports[1:]:
        for name, score in report["y"].scores.items():
            assert score == pytest.approx(first[name], rel=1e-4, nan_ok=True), name
    brier = brier_score_loss(y, _mean_probability(x))
    assert first["brier"].value == pytest.approx(brier, abs=0.02)


def _mean_probability(x):
    draws = 0.2 + 0.3 * torch.randn(2000, 1)
    return (draws * x).sigmoid().mean(0)


def test_classes_without_torchmetrics(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torchmetrics", None)
    x = torch.randn(5)
    with pytest.raises(MissingExtraError, match=r"pyro-implicit\[main\]"):
        evaluate(_classes, fixed(torch.zeros(3)), x, torch.zeros(5).long())


# ---- counts, several entries, several sites, masks


@pytest.mark.parametrize(
    ("function", "moment"),
    [
        (lambda w, x: dist.Poisson(3.0 + 0.0 * w * x), stats.poisson(3.0)),
        (
            lambda w, x: dist.NegativeBinomial(torch.tensor(4.0), torch.full_like(x, 0.4)),
            stats.nbinom(4, 0.6),
        ),
        (lambda w, x: dist.Binomial(7, torch.full_like(x, 0.3)), stats.binom(7, 0.3)),
    ],
    ids=["poisson", "negative binomial", "binomial"],
)
def test_counts(function, moment):
    """CRPS as the sum of squared differences of distribution functions."""
    x = torch.zeros(40)
    y = torch.from_numpy(moment.rvs(40, random_state=0)).float()
    report = evaluate(_observing(function), gaussian_guide, x, y, num_samples=20, seed=0)
    grid = np.arange(60)
    steps = (grid >= y.numpy()[:, None]).astype(float)
    crps = ((moment.cdf(grid) - steps) ** 2).sum(-1)
    assert report["y"].kind == "count"
    np.testing.assert_allclose(report["y"].rows["crps"], crps, atol=0.1, rtol=0.05)
    assert report.rmse.value == pytest.approx(np.sqrt(((y.numpy() - moment.mean()) ** 2).mean()))
    lower, upper = moment.interval(0.9)
    covered = ((lower <= y.numpy()) & (y.numpy() <= upper)).mean()
    assert report.coverage_90.value == pytest.approx(covered, abs=0.1)
    assert torch.equal(report["y"].rows["upper_90"] % 1, torch.zeros(40).double())


def test_entries_of_an_observation_are_scored_alone_and_averaged():
    scale = torch.tensor([[1.0, 0.0], [0.8, 0.6]])

    def function(w, x):
        return dist.MultivariateNormal(torch.stack([x, 2 * x], -1), scale_tril=scale)

    x, y = torch.randn(30), torch.randn(30, 2)
    report = evaluate(_observing(function), gaussian_guide, x, y, num_samples=1, seed=0)
    mean = torch.stack([x, 2 * x], -1)
    expected = dist.MultivariateNormal(mean, scale_tril=scale).log_prob(y)
    torch.testing.assert_close(report.rows["log_density"], expected.double())
    squared = (y - mean).square().mean(-1)
    torch.testing.assert_close(report["y"].rows["squared_error"], squared.double())
    crps = gaussian_crps(y.numpy(), mean.numpy(), 1.0).mean(-1)
    np.testing.assert_allclose(report["y"].rows["crps"], crps, atol=0.12)


def test_a_constrained_observation_keeps_to_its_support():
    x, y = torch.zeros(30), torch.rand(30) + 0.5
    model = _observing(lambda w, x: dist.LogNormal(x, 0.5))
    report = evaluate(model, gaussian_guide, x, y, num_samples=1, seed=0)
    assert float(report["y"].rows["lower_95"].min()) > 0
    assert report["y"].rows["mean"][0].item() == pytest.approx(math.exp(0.125))
    assert report.width_90.value == pytest.approx(
        float(np.diff(stats.lognorm(0.5).ppf([0.05, 0.95]))[0]), rel=0.15
    )


@pytest.mark.long
def test_a_mean_that_is_not_told_is_that_of_draws():
    class Untold(dist.Normal):
        @property
        def mean(self):
            raise NotImplementedError

    x = torch.zeros(20)
    report = evaluate(_observing(lambda w, x: Untold(x, 1.0)), gaussian_guide, x, x, seed=0)
    assert 0 < float(report["y"].rows["mean"].abs().max()) < 0.2


@pytest.mark.long
def test_what_cannot_be_drawn_has_no_intervals():
    class Undrawn(dist.Normal):
        def rsample(self, sample_shape=()):
            raise NotImplementedError

        sample = rsample

    x = torch.zeros(4)
    report = evaluate(_observing(lambda w, x: Undrawn(x, 1.0)), gaussian_guide, x, x)
    assert set(report["y"].scores) == {"log_density", "rmse"} and report.rmse.value == 0
    assert math.isnan(report.rmse.standard_error)
    assert report.notes == ("site 'y' cannot be drawn from: no CRPS and no intervals",)


@pytest.mark.long
def test_angles_are_scored_by_density_alone():
    x = torch.zeros(4)
    report = evaluate(_observing(lambda w, x: dist.VonMises(x, 1.0)), gaussian_guide, x, x)
    assert set(report["y"].scores) == {"log_density"}
    assert report.notes == ("site 'y' observes angles, which are scored by density alone",)


def two_sites(x, y, z, mask=True):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        with poutine.mask(mask=mask):
            pyro.sample("y", dist.Normal(w * x, 0.5), obs=y)
        pyro.sample("z", dist.Poisson((w * x).exp()), obs=z)
    pyro.sample("v", dist.Normal(w, 1.0), obs=torch.tensor(0.5))


def test_several_sites_have_an_entry_each():
    x = torch.randn(40)
    y, z = torch.randn(40), torch.randint(3, (40,)).float()
    report = evaluate(two_sites, gaussian_guide, x, y, z, num_samples=3, seed=0)
    assert {name: site.kind for name, site in report.sites.items()} == {
        "y": "real",
        "z": "count",
        "v": "real",
    }
    assert [site.num_data for site in report.sites.values()] == [40, 40, 1]
    assert len(report.rows["log_density"]) == 41 and len(set(report.rows["row"].tolist())) == 41
    with pytest.raises(AttributeError, match=r"no attribute 'rmse'; the observed sites are \['v'"):
        report.rmse  # noqa: B018
    table = str(report)
    assert "all sites" in table and "z          RMSE" in table and "40 data of z" in table


def test_masked_data_are_left_out():
    """As if they were not there, at one point (whose draws are those of fewer rows)."""
    x, y, z = torch.randn(50), torch.randn(50), torch.ones(50)
    mask = torch.rand(50) < 0.6
    spoiled = torch.where(mask, y, 1e6)
    guide = fixed(0.3)
    report = evaluate(two_sites, guide, x, spoiled, z, mask, num_samples=2)
    expected = dist.Normal(0.3 * x, 0.5).log_prob(y)[mask]
    rows = report["y"].rows
    torch.testing.assert_close(rows["log_density"], expected.double())
    assert torch.equal(rows["row"], mask.nonzero()[:, 0])
    assert report["y"].rmse.value == pytest.approx(
        (0.3 * x - y)[mask].square().mean().sqrt().item(), rel=1e-5
    )
    assert report["y"].crps.value < 10 and report["z"].num_data == 50
    said = f"{int((~mask).sum())} data of 'y' are masked and left out"
    assert sum(note.startswith(said) for note in report.notes) == 1
    assert "of 'z' are masked" not in str(report)
    assert len(report.rows["row"]) == 51  # of z everything counts


def test_a_mask_within_a_distribution():
    x, y = torch.randn(6), torch.randn(6, 2)
    mask = torch.tensor([True, True, False, True, False, True])
    model = _observing(
        lambda w, x: dist.Normal(x[:, None], torch.ones(2)).mask(mask[:, None]).to_event(1)
    )
    report = evaluate(model, gaussian_guide, x, y, num_samples=1)
    assert report["y"].rows["row"].tolist() == [0, 1, 3, 5]
    expected = (y - x[:, None]).square().mean(-1)[mask]
    torch.testing.assert_close(report["y"].rows["squared_error"], expected.double())


def test_entries_that_are_no_rows_are_one_datum():
    """Without a plate for the second dimension, and partly masked."""

    def model(x, y, mask):
        pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x), dim=-2), poutine.mask(mask=mask):
            pyro.sample("y", dist.Normal(x[:, None], torch.ones(2)), obs=y)

    x, y = torch.randn(5), torch.randn(5, 2)
    mask = torch.ones(5, 2, dtype=torch.bool)
    mask[0, 1], mask[1] = False, False
    report = evaluate(model, gaussian_guide, x, y, mask, num_samples=1)
    squared = (y - x[:, None]).square()
    expected = torch.cat([squared[0, :1], squared[2:].mean(-1)])
    torch.testing.assert_close(
        report["y"].rows["squared_error"], expected.double(), rtol=1e-5, atol=1e-5
    )
    densities = torch.where(mask, dist.Normal(x[:, None], 1.0).log_prob(y), 0.0).sum(-1)
    kept = torch.tensor([0, 2, 3, 4])
    torch.testing.assert_close(
        report.rows["log_density"], densities[kept].double(), rtol=1e-5, atol=1e-5
    )


def test_data_of_the_same_row_are_counted_as_one():
    x, y = torch.randn(50), torch.randn(50, 2)
    report = evaluate(_crossed, fixed(0.3), x, y, num_samples=1)
    rows = report["y"].rows
    assert torch.equal(rows["row"], torch.arange(50).repeat(2))
    by_row = rows["log_density"].reshape(2, 50).mean(0)
    assert report.log_density.standard_error == pytest.approx(stats.sem(by_row.numpy()))


@pytest.mark.parametrize("count", [20, 50])
def test_rows_without_a_plate_are_told(count):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w * x, 0.5), obs=y)

    x = torch.randn(count)
    report = evaluate(model, gaussian_guide, x, x, num_samples=2)
    assert report["y"].num_data == count
    assert report.notes == (
        "the rows of site 'y' are in no plate, and were taken for independent data",
    )


def test_rows_that_belong_together_are_one_observation():
    """A Gaussian process over more rows than are looked at first."""

    def model(x, y):
        pyro.sample("w", dist.Normal(0.0, 1.0))
        covariance = (-(x[:, None] - x).square()).exp() + torch.eye(len(x))
        pyro.sample("y", dist.MultivariateNormal(torch.zeros(len(x)), covariance), obs=y)

    x = torch.linspace(0.0, 3.0, 40)
    report = evaluate(model, gaussian_guide, x, x.sin(), num_samples=2, batch_size=32)
    assert report["y"].num_data == 1 and math.isnan(report.log_density.standard_error)
    assert report.rmse.value == pytest.approx(x.sin().square().mean().sqrt().item(), rel=1e-5)


def test_data_without_arguments():
    y = torch.randn(4)

    def model():
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 4):
            pyro.sample("y", dist.Normal(w, 1.0), obs=y)

    report = evaluate(model, gaussian_guide, num_samples=2)
    assert report["y"].num_data == 4 and report.log_density.standard_error > 0


def test_noise_that_cannot_be_cut_by_row():
    class Own(dist.Normal):
        arg_constraints = {}  # so that nobody can make it again for fewer rows

    x = torch.randn(70)
    model = _observing(lambda w, x: Own(w * x, 1.0))
    whole = evaluate(model, gaussian_guide, x, x, num_samples=2, seed=0)
    _assert_same(whole, evaluate(model, gaussian_guide, x, x, num_samples=2, seed=0, batch_size=32))


# ---- the report


def test_differences_are_paired():
    x = torch.randn(60)
    y = 0.3 * x + 0.5 * torch.randn(60)
    good, bad = (evaluate(line, fixed(w), x, y, num_samples=1) for w in (0.3, -0.5))
    logs = [dist.Normal(w * x, 0.5).log_prob(y) for w in (0.3, -0.5)]
    found = good.difference(bad)
    assert found.value == pytest.approx((logs[0] - logs[1]).mean().item(), rel=1e-5)
    assert found.standard_error == pytest.approx(stats.sem((logs[0] - logs[1]).numpy()), rel=1e-5)
    assert found == pytest.approx((-bad.difference(good).value, found.standard_error))
    with pytest.raises(ShapeError, match="of 60 and 5 data"):
        good.difference(evaluate(line, fixed(0.3), x[:5], y[:5], num_samples=1))


def test_differences_of_other_data_are_refused():
    """Whatever the batches, and for one observation of many numbers or classes."""
    x, y = torch.randn(60), torch.randn(60)
    report = evaluate(line, fixed(0.3), x, y, num_samples=1)
    assert report.difference(evaluate(line, fixed(0.3), x, y, num_samples=1, batch_size=32)) == (
        0,
        0,
    )
    other = y.clone()
    other[[3, 5]] = other[[5, 3]]
    with pytest.raises(ShapeError, match="2 of 60 have other observations.*same order"):
        report.difference(evaluate(line, fixed(0.3), x, other, num_samples=1))
    one_hot = torch.eye(3)[[0, 1, 2, 0]]
    model = _observing(lambda w, x: dist.OneHotCategorical(logits=(w * x)[:, None].expand(4, 3)))
    reports = [
        evaluate(model, fixed(0.3), x[:4], data, num_samples=1)
        for data in (one_hot, one_hot.flip(1))
    ]
    with pytest.raises(ShapeError, match="3 of 4 have other observations"):
        reports[0].difference(reports[1])
    old = replace(report, rows={name: report.rows[name] for name in ("log_density", "row")})
    assert old.difference(report).value == 0.0


def test_the_report_can_be_read_and_written():
    x = torch.randn(40)
    report = evaluate(line, gaussian_guide, x, x, num_samples=3)
    plain = report.to_dict()
    assert plain["num_samples"] == 3 and plain["notes"] == []
    assert plain["sites"]["y"]["num_data"] == 40 and plain["sites"]["y"]["kind"] == "real"
    assert plain["sites"]["y"]["rmse"] == report.rmse._asdict()
    assert plain["log_density"]["standard_error"] == report.log_density.standard_error
    lines = str(report).splitlines()
    assert lines[0].split() == ["site", "score", "value", "std.", "error"]
    assert len(lines) == 2 + len(report["y"].scores) and "all sites" not in lines[1]
    assert str(report.rmse).startswith(f"{report.rmse.value:.4g} +- ")
    assert "+-" not in str(type(report.rmse)(1.0))
    with pytest.raises(AttributeError, match="no score 'accuracy'; there are"):
        report.accuracy  # noqa: B018


def test_data_that_no_draw_explains_are_told():
    x, y = torch.zeros(4), torch.tensor([0.5, 0.5, 0.5, 7.0])
    model = _observing(lambda w, x: dist.Uniform(x, 1.0, validate_args=False))
    report = evaluate(model, gaussian_guide, x, y, num_samples=2)
    assert report.log_density.value == -math.inf and math.isnan(report.log_density.standard_error)
    assert report.notes == ("1 data have density 0 at every draw",)


def test_inputs_that_are_not_finite_are_told_with_their_densities():
    x = torch.tensor([0.5, math.inf, 0.5, 1.0])
    model = _observing(lambda w, x: dist.Normal(w * x, 1.0))
    report = evaluate(model, gaussian_guide, x, torch.zeros(4), num_samples=2)
    assert report.log_density.value == -math.inf
    assert any("not finite, the first at (1,)" in note for note in report.notes)


# ---- what is refused


def test_nothing_observed():
    x = torch.randn(40)
    with pytest.raises(SiteError, match="observes nothing with these arguments"):
        evaluate(line, gaussian_guide, x, num_samples=2)


def test_observed_by_factor():
    def model(x, y, both):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.factor("likelihood", -((y - w * x) ** 2))
            if both:
                pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    x = torch.randn(5)
    with pytest.raises(SiteError, match=r"by pyro.factor alone \('likelihood'\)"):
        evaluate(model, gaussian_guide, x, x, False, num_samples=2)
    report = evaluate(model, gaussian_guide, x, x, True, num_samples=2)
    assert report.notes == (
        "pyro.factor sites hold no data and count for nothing here: 'likelihood'",
    )


@pytest.mark.parametrize("batch_size", [None, 32])
@pytest.mark.parametrize(
    "wrong", [lambda y: y[:-1], lambda y: y[:1], lambda y: y[:, None]], ids=["few", "one", "column"]
)
def test_rows_that_do_not_match(wrong, batch_size):
    x = torch.randn(40)
    with pytest.raises(ShapeError, match="site 'y' observes a tensor of shape"):
        evaluate(line, gaussian_guide, x, wrong(x), num_samples=2, batch_size=batch_size)


def test_an_event_that_does_not_match():
    x = torch.randn(5)
    model = _observing(lambda w, x: dist.Normal(x[:, None], torch.ones(2)).to_event(1))
    with pytest.raises(
        ShapeError, match=r"shape \(5, 3\), and its distribution has shape \(5, 2\)"
    ):
        evaluate(model, gaussian_guide, x, torch.zeros(5, 3), num_samples=2)


def test_supports_that_are_not_told_or_not_known():
    class Untold(dist.Poisson):
        support = property(lambda self: (_ for _ in ()).throw(NotImplementedError()))

    class Letters(dist.constraints.Constraint):
        is_discrete = True

    class Things(dist.Poisson):
        support = Letters()

    x = torch.zeros(4)
    for kind, message in ((Untold, "does not tell its support"), (Things, "neither counts nor")):
        model = _observing(lambda w, x, kind=kind: kind(x + 1.0, validate_args=False))
        with pytest.raises(SiteError, match=message):
            evaluate(model, gaussian_guide, x, x, num_samples=2)


def test_all_masked():
    model = _observing(lambda w, x: dist.Normal(x, 1.0).mask(False))
    x = torch.zeros(4)
    with pytest.raises(SiteError, match="all observations are masked"):
        evaluate(model, gaussian_guide, x, x, num_samples=2)


def test_bad_arguments():
    x = torch.zeros(4)
    for option in ({"num_samples": 0}, {"batch_size": 0}, {"seed": -1}):
        with pytest.raises(ArgumentError, match=next(iter(option))):
            evaluate(line, gaussian_guide, x, x, **option)
    with pytest.raises(SiteError, match="none of which the model samples"):
        evaluate(line, lambda *_: pyro.sample("other", dist.Normal(0.0, 1.0)), x, x, num_samples=1)


# ---- rows among other dimensions


@pytest.mark.parametrize("rows_first", [False, True])
def test_few_rows_beside_a_plate_of_as_many(rows_first):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        columns = pyro.plate("columns", 10, dim=-1 if rows_first else -2)
        with columns, pyro.plate("rows", len(x), dim=-2 if rows_first else -1):
            mean = w * x[:, None] if rows_first else w * x
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y if rows_first else y.T)

    x = torch.linspace(-1.0, 1.0, 10)
    y = 3.0 * torch.randn(10, 1) + 0.1 * torch.randn(10, 10)  # rows differ, columns hardly
    report = evaluate(model, fixed(0.3), x, y, num_samples=1)
    by_row = dist.Normal(0.3 * x[:, None], 1.0).log_prob(y).mean(1)
    assert report.log_density.standard_error == pytest.approx(stats.sem(by_row.numpy()), rel=1e-4)


@pytest.mark.parametrize("count", [4, 40])
def test_rows_in_different_dimensions_of_sites_without_plates(count):
    def model(x, a, b):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("a", dist.Normal(w * x, 1.0), obs=a)
        pyro.sample("b", dist.Normal(w * x[:, None], torch.ones(3)), obs=b)

    x, a, b = torch.randn(count), torch.randn(count), torch.randn(count, 3)
    report = evaluate(model, fixed(0.3), x, a, b, num_samples=1)
    logs = dist.Normal(0.3 * x, 1.0).log_prob(a)
    logs = logs + dist.Normal(0.3 * x[:, None], 1.0).log_prob(b).sum(1)
    torch.testing.assert_close(report.rows["log_density"], logs.double())
    assert report["a"].num_data == report["b"].num_data == count
    assert report.log_density.standard_error == pytest.approx(stats.sem(logs.numpy()), rel=1e-4)


@pytest.mark.parametrize("count", [7, 40])
def test_rows_that_are_one_event_are_told(count):
    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(w * x, 0.5).to_event(1), obs=y)

    x = torch.randn(count)
    report = evaluate(model, gaussian_guide, x, x, num_samples=2)
    assert report["y"].num_data == 1 and math.isnan(report.log_density.standard_error)
    (note,) = report.notes
    assert "rows of site 'y' are one event" in note and "pyro.plate(name, len(x))" in note


def test_events_within_rows_are_not_rows():
    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(w * x, 0.5).to_event(1), obs=y)

    x = torch.randn(6, 6)
    report = evaluate(model, gaussian_guide, x, x, num_samples=2)
    assert report["y"].num_data == 6 and report.notes == ()


# ---- guides of a part of the model


def _two_latents(x, y):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    w2 = pyro.sample("w2", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(w * x + w2, 0.5), obs=y)


@pytest.mark.parametrize("count", [5, 40])
def test_latents_that_the_guide_does_not_draw_are_named_once(count):
    def partial(*_):
        pyro.sample("w", dist.Normal(0.0, 0.1))
        pyro.sample("other", dist.Normal(0.0, 0.1))

    x = torch.randn(count)
    with pytest.warns(UserWarning, match=r"does not draw \['w2'\].*draws \['other'\]") as told:
        evaluate(_two_latents, partial, x, x, num_samples=3, batch_size=32)
    assert len(told) == 1 and told[0].filename == __file__
    with pytest.warns(UserWarning, match=r"learned of them\. Expected a draw") as told:
        evaluate(_two_latents, gaussian_guide, x, x, num_samples=3)
    assert len(told) == 1


def test_a_guide_leaves_out_what_is_enumerated_or_computed():
    def model(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.deterministic("twice", 2.0 * w)
        with pyro.plate("data", len(x)):
            kind = pyro.sample("kind", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
            pyro.sample("y", dist.Normal(w * x + kind, 0.5), obs=y)

    x = torch.randn(5)
    evaluate(model, gaussian_guide, x, x, num_samples=2)  # a warning would be an error


@pytest.mark.long
@pytest.mark.parametrize("count", [10, 40])
def test_observations_that_have_their_rows_last(count):
    """A plate in front has as many entries, so that observations are cut along that."""

    def model(x, y, size):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("columns", count, dim=-2), pyro.plate("rows", size or len(x), dim=-1):
            pyro.sample("y", dist.Normal(w * x, 1.0), obs=y)

    x = torch.linspace(-1.0, 1.0, count)
    y = 3.0 * torch.randn(count) + 0.1 * torch.randn(count, count)
    report = evaluate(model, fixed(0.3), x, y, None, num_samples=1)
    by_row = dist.Normal(0.3 * x, 1.0).log_prob(y).mean(0)
    assert report.log_density.standard_error == pytest.approx(stats.sem(by_row.numpy()), rel=1e-4)
    assert report.notes == ()
    (note,) = evaluate(model, fixed(0.3), x, y, count, num_samples=1).notes
    assert "in dimensions [-2, -1]" in note and "-2 was taken" in note


@pytest.mark.long
def test_a_mask_that_follows_latents():
    """A datum counts that some draw does not mask, as in log_predictive_density."""
    t, y = torch.arange(40.0), torch.randn(40)

    def model(t, y=None):
        until = pyro.sample("until", dist.Normal(20.0, 10.0))
        with pyro.plate("data", len(t)), poutine.mask(mask=t < until):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    def guide(t, y=None):
        pyro.sample("until", dist.Normal(20.0, 6.0))

    for seed in range(3):
        report = evaluate(model, guide, t, y, num_samples=50, seed=seed)
        draws = posterior_draws_of(guide, t, y, 50, seed)
        counted = t < draws.max()
        masked = (t >= draws[:, None]).double()
        log_prob = dist.Normal(0.0, 1.0).log_prob(y).double()
        density = ((1 - masked) * log_prob).exp().mean(0).log()[counted]
        assert torch.allclose(report.rows["log_density"], density, atol=1e-6)
        assert torch.allclose(report.sites["y"].rows["squared_error"], y[counted].double().square())
        assert any("follows latents" in note for note in report.notes)


def posterior_draws_of(guide, t, y, num_samples, seed):
    """The draws that evaluate makes with this seed, as the model meets them."""
    met = []

    def model(t, y=None):
        met.append(float(pyro.sample("until", dist.Normal(20.0, 10.0))))
        with pyro.plate("data", len(t)):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=y)

    evaluate(model, guide, t, y, num_samples=num_samples, seed=seed, batch_size=64)
    return torch.tensor(met[-num_samples:])


def test_a_mixture_of_vectors_of_classes_against_a_sum():
    y = torch.bernoulli(torch.full((8, 3), 0.4))
    logits = torch.tensor([[-1.0, 0.0, 2.0], [1.0, 0.3, -0.5]])
    weights = torch.tensor([0.3, 0.7])

    def model(y=None):
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        mixture = dist.MixtureSameFamily(
            dist.Categorical(weights), dist.Bernoulli(logits=logits + shift).to_event(1)
        )
        with pyro.plate("data", 8):
            pyro.sample("y", mixture, obs=y)

    def guide(y=None):
        pyro.sample("shift", dist.Delta(torch.tensor(0.5)))

    rows = evaluate(model, guide, y, num_samples=3).sites["y"].rows
    yes = (weights[:, None] * (logits + 0.5).sigmoid()).sum(0).double()
    brier = (yes - y).square().mean(-1)
    assert torch.allclose(rows["brier"], brier, atol=1e-6)
    right = ((yes > 0.5) == y.bool()).double().mean(-1)
    assert torch.allclose(rows["accuracy"], right)
    nll = -dist.Bernoulli(yes).log_prob(y.double()).mean(-1)
    assert torch.allclose(rows["nll"], nll, atol=1e-6)


@pytest.mark.long
def test_the_mean_of_directions_is_that_of_draws():
    """Pyro's mean of a projected normal is a direction; the mean vector is shorter."""
    centre = torch.tensor([0.7, 0.0])
    y = dist.ProjectedNormal(centre).sample((300,))

    def model(y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 300):
            pyro.sample("y", dist.ProjectedNormal(w), obs=y)

    def guide(y=None):
        pyro.sample("w", dist.Delta(centre).to_event(1))

    rows = evaluate(model, guide, y, num_samples=100, seed=0).sites["y"].rows
    mean = dist.ProjectedNormal(centre).sample((50_000,)).mean(0)
    expected = (y - mean).square().mean()
    assert float(rows["squared_error"].mean()) == pytest.approx(float(expected), abs=0.02)


@pytest.mark.long
def test_observations_that_follow_latents_are_scored_by_density_alone():
    x, y = torch.linspace(-1.0, 1.0, 30), torch.randn(30)

    def residuals(x, y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(0.0, 0.5), obs=y - a * x)

    def plain(x, y):
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(a * x, 0.5), obs=y)

    def guide(x, y):
        pyro.sample("a", dist.Normal(1.0, 0.5))

    of_residuals = evaluate(residuals, guide, x, y, num_samples=50, seed=0)
    expected = evaluate(plain, guide, x, y, num_samples=50, seed=0)
    assert of_residuals.log_density.value == pytest.approx(expected.log_density.value, abs=1e-5)
    assert any("follows latents" in note for note in of_residuals.notes)
    assert not {"rmse", "crps"} & of_residuals.sites["y"].scores.keys()
    assert not any("follows latents" in note for note in expected.notes)


@pytest.mark.parametrize("fn", [dist.Cauchy, lambda at, by: dist.StudentT(torch.ones(()), at, by)])
def test_what_has_no_mean_has_no_rmse_and_a_note(fn):
    def model(y):
        at = pyro.sample("at", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", fn(at, 1.0), obs=y)

    y = torch.randn(5)
    guide = HyperNetworkGuide(model, init_from=None).setup(y)
    report = evaluate(model, guide, y, num_samples=5)
    assert math.isnan(report.rmse.value) and math.isfinite(report.mae.value)
    assert sum("5 data of 'y' have no predictive mean" in note for note in report.notes) == 1


def test_an_infinite_mean_is_told():
    def model(y):
        at = pyro.sample("at", dist.LogNormal(0.0, 0.1))
        with pyro.plate("rows", len(y)):
            pyro.sample("y", dist.InverseGamma(torch.tensor(0.8), at), obs=y)

    y = torch.rand(5) + 0.1
    guide = HyperNetworkGuide(model, init_from=None).setup(y)
    report = evaluate(model, guide, y, num_samples=5)
    assert math.isinf(report.rmse.value) and math.isfinite(report.mae.value)
    assert sum("5 data of 'y' have an infinite predictive mean" in n for n in report.notes) == 1


@pytest.mark.parametrize("score", [evaluate, log_predictive_density])
def test_infinite_observations_are_refused_unless_masked(score):
    def model(y, known):
        at = pyro.sample("at", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)), pyro.poutine.mask(mask=known):
            pyro.sample("y", dist.Normal(at, 1.0), obs=y)

    y, known = torch.tensor([0.0, math.inf, 1.0]), torch.tensor([True, False, True])
    guide = HyperNetworkGuide(model, init_from=None).setup(y.clamp(max=1.0), known)
    score(model, guide, y, known, num_samples=5)
    with pytest.raises(NonFiniteError, match="'y' observes infinite values.* mask them"):
        score(model, guide, y, torch.ones(3, dtype=torch.bool), num_samples=5)
