"""predict: coherent draws for all rows, the same for every batch size, and no trace."""

from __future__ import annotations

import gc
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer.autoguide import AutoGuideList, AutoMultivariateNormal, AutoNormal
from pyro.poutine import Trace
from scipy import stats
from torch import Tensor, nn

from pyro_implicit import BayesianModule, HyperNetworkGuide, evaluate, predict
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError
from pyro_implicit.handlers.rows import row_coupling

ROWS = 75


@pytest.fixture(autouse=True)
def however_few_rows(monkeypatch):
    """Batches are as small as they are asked for, though there is nothing to save by that here."""
    monkeypatch.setattr(row_coupling, "_MAX_NUMBERS_OF_SMALL_RUN", 0)


X = torch.linspace(-1, 1, 2 * ROWS).sin().reshape(ROWS, 2)


def seeded(*args, seed=0, **kwargs):
    pyro.set_rng_seed(seed)
    return predict(*args, **kwargs)


def mixture(f):
    weights = torch.stack([f.sigmoid(), 1 - f.sigmoid()], -1)
    return dist.MixtureSameFamily(
        dist.Categorical(weights), dist.Normal(torch.stack([f, -f], -1), 0.1)
    )


LIKELIHOODS = {
    "Normal": lambda f: dist.Normal(f, 0.3),
    "StudentT": lambda f: dist.StudentT(3.0, f, 0.3),
    "Gamma": lambda f: dist.Gamma(0.7, f.exp()),  # by rejection
    "Bernoulli": lambda f: dist.Bernoulli(logits=f),
    "Categorical": lambda f: dist.Categorical(logits=torch.stack([f, -f, 0 * f], -1)),
    "two outputs": lambda f: dist.Normal(torch.stack([f, -f], -1), 0.3).to_event(1),
    "multivariate": lambda f: dist.MultivariateNormal(torch.stack([f, -f], -1), torch.eye(2)),
    "Multinomial": lambda f: dist.Multinomial(5, logits=torch.stack([f, -f, 0 * f], -1)),
    "mixture": mixture,  # neither this nor the next can be cut by rows
    "transformed": lambda f: dist.TransformedDistribution(
        dist.Normal(f, 0.3), [dist.transforms.ExpTransform()]
    ),
}


def make(likelihood, plate=True):
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))
        f = pyro.deterministic("f", w * x[:, 0] + x[:, 1])
        if not plate:
            return pyro.sample("y", likelihood(f).to_event(1), obs=y)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", likelihood(f), obs=y)

    return model


def fitted(model, *args):
    latent = poutine.block(model, hide=["y"])
    return HyperNetworkGuide(latent, hidden_dims=(4,), init_scale=0.5).setup(*args)


@pytest.mark.long
@pytest.mark.parametrize("name", LIKELIHOODS)
@settings(max_examples=3)
@given(batch_size=st.integers(1, 90), parallel=st.booleans())
def test_the_same_answer_for_every_batch_size(name, batch_size, parallel):
    model = make(LIKELIHOODS[name])
    guide = fitted(model, X)
    options = {"num_samples": 3, "parallel": parallel}
    whole = seeded(model, guide, X, **options)["y"]
    parts = seeded(model, guide, X, batch_size=batch_size, **options)["y"]
    assert whole.shape[:2] == (3, ROWS)
    torch.testing.assert_close(parts, whole)


def test_rows_without_a_plate():
    model = make(LIKELIHOODS["Normal"], plate=False)
    guide = fitted(model, X)
    whole = seeded(model, guide, X, num_samples=3)["y"]
    parts = seeded(model, guide, X, num_samples=3, batch_size=32)["y"]
    torch.testing.assert_close(parts, whole)
    noise = parts - seeded(model, guide, X, num_samples=3, sites=["f"])["f"]
    assert not torch.allclose(noise[:, :32], noise[:, 32:64])


def test_noise_jointly_drawn_for_all_rows_of_a_batch():
    def joint(x):
        w = pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))
        return pyro.sample("y", dist.MultivariateNormal(w * x[:, 0], torch.eye(len(x))))

    guide = fitted(joint, X)
    draws = seeded(joint, guide, X, num_samples=3, batch_size=32)["y"]
    assert draws.shape == (3, ROWS)
    assert not torch.equal(draws[:, :32], draws[:, 32:64])


@pytest.mark.parametrize("name", ["Normal", "Categorical"])
def test_parallel_and_sequential_agree(name):
    model = make(LIKELIHOODS[name])
    guide = fitted(model, X)
    options = {"num_samples": 150, "sites": ["f", "w", "y"]}
    one = seeded(model, guide, X[:2], **options)
    many = seeded(model, guide, X[:2], parallel=True, **options)
    assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in many.items()}
    torch.testing.assert_close(one["w"], many["w"])
    torch.testing.assert_close(one["f"], many["f"])
    for row in range(2):
        assert stats.ks_2samp(one["y"][:, row], many["y"][:, row]).pvalue > 1e-4


def test_noise_has_the_law_of_the_likelihood_and_differs_between_rows_and_draws():
    model = make(LIKELIHOODS["Normal"])
    draws = seeded(model, fitted(model, X), X, num_samples=60, sites=["f", "y"])
    noise = (draws["y"] - draws["f"]) / 0.3
    assert stats.kstest(noise.reshape(-1), "norm").pvalue > 1e-4
    assert noise.unique().numel() > 0.99 * noise.numel()


def test_a_draw_is_one_function_of_the_inputs():
    net = BayesianModule(
        torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)),
        prior=dist.Normal(0.0, 1.0),
    )

    def model(x):
        f = pyro.deterministic("f", net(x).squeeze(-1))
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 0.1))

    guide = fitted(model, X)
    twice = torch.cat([X[:40], X[:40]])
    for parallel in (False, True):
        f = seeded(
            model, guide, twice, num_samples=4, batch_size=32, sites=["f"], parallel=parallel
        )
        torch.testing.assert_close(f["f"][:, :40], f["f"][:, 40:])
        assert f["f"].std(0).min() > 0


def count_traces():
    return sum(type(thing) is Trace for thing in gc.get_objects())


@pytest.mark.parametrize("parallel", [False, True])
def test_no_trace_is_made_or_kept(monkeypatch, parallel):
    model = make(LIKELIHOODS["Gamma"])
    guide = fitted(model, X)
    made = []
    init = Trace.__init__
    monkeypatch.setattr(Trace, "__init__", lambda self, *a, **k: (made.append(1), init(self))[1])
    gc.collect()
    alive = count_traces()
    draws = predict(model, guide, X, num_samples=5, batch_size=32, parallel=parallel)
    assert not made
    assert count_traces() == alive
    assert not draws["y"].requires_grad


@pytest.mark.long
@pytest.mark.parametrize("parallel", [False, True])
def test_local_latents_stay_with_their_rows(parallel):
    def model(x, y=None, idx=None, size=ROWS):
        with pyro.plate("data", size, subsample_size=len(x), subsample=idx):
            z = pyro.sample("z", dist.Normal(10 * x[:, 0], 1.0))
            pyro.deterministic("shifted", z + x[:, 1])
            return pyro.sample("y", dist.Normal(z, 0.1), obs=y)

    guide = fitted(model, X)
    options = {"num_samples": 3, "sites": ["z", "shifted", "y"], "parallel": parallel}
    whole = seeded(model, guide, X, **options)
    pyro.set_rng_seed(0)
    torch.testing.assert_close(whole["z"], guide.sample(3)["z"])
    torch.testing.assert_close(whole["shifted"], whole["z"] + X[:, 1])
    for batch_size in (1, 64):
        parts = seeded(model, guide, X, batch_size=batch_size, **options)
        torch.testing.assert_close(parts, whole)
    order = torch.randperm(ROWS)
    for rows in (order, order[:50], order[:7]):  # rows named by their indices
        for batch_size in (32, None):
            some = seeded(model, guide, X[rows], idx=rows, batch_size=batch_size, **options)
            torch.testing.assert_close(some["z"], whole["z"][:, rows])
            torch.testing.assert_close(some["shifted"], whole["shifted"][:, rows])


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("size", [ROWS, 50])
def test_what_a_guide_drew_on_the_arguments_is_in_their_order(parallel, size):
    order = torch.randperm(ROWS)[:size]
    loc = 10 * X[:, 0]

    def model(x, idx):
        with pyro.plate("data", ROWS, subsample=idx):
            return pyro.sample("z", dist.Normal(0.0, 1.0))

    def guide(x, idx):
        with pyro.plate("data", ROWS, subsample=idx):
            pyro.sample("z", dist.Normal(loc[idx], 1e-3))

    for batch_size in (None, 32):
        options = {"num_samples": 3, "sites": ["z"], "parallel": parallel}
        z = seeded(model, guide, X[order], order, batch_size=batch_size, **options)["z"]
        torch.testing.assert_close(z, loc[order].expand(3, size), atol=0.01, rtol=0.0)


def test_local_latents_in_a_plate_of_the_size_of_the_batch():
    def model(x):
        with pyro.plate("data", len(x)):
            return pyro.sample("z", dist.Normal(10 * x[:, 0], 1.0))

    guide = fitted(model, X)
    whole = seeded(model, guide, X, num_samples=3, sites=["z"])["z"]
    parts = seeded(model, guide, X, num_samples=3, sites=["z"], batch_size=32)["z"]
    pyro.set_rng_seed(0)
    torch.testing.assert_close(whole, guide.sample(3)["z"])
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("rows", [64, 75, 32, 10])
def test_sizes_that_happen_to_be_equal(rows, parallel):
    outputs = 32 if rows > 40 else rows

    def model(x):
        w = pyro.sample("w", dist.Normal(torch.zeros(outputs), 1.0).to_event(1))
        if w.dim() > 1:
            w = w.reshape(-1, 1, outputs)
        pyro.deterministic("squares", w.squeeze(-2) ** 2 if w.dim() > 2 else w**2)
        f = pyro.deterministic("f", x[:, :1] * w)
        with pyro.plate("outputs", outputs, dim=-1), pyro.plate("data", len(x), dim=-2):
            return pyro.sample("y", dist.Normal(f, 0.1))

    guide = fitted(model, X[:rows])
    options = {"num_samples": 3, "parallel": parallel, "sites": ["squares", "f", "y"]}
    whole = seeded(model, guide, X[:rows], **options)
    parts = seeded(model, guide, X[:rows], batch_size=32, **options)
    assert whole["y"].shape == whole["f"].shape == (3, rows, outputs)
    assert whole["squares"].shape == (3, outputs)
    torch.testing.assert_close(parts, whole)


@pytest.mark.parametrize("parallel", [False, True])
def test_groups_as_many_as_a_batch_has_rows_are_not_cut(parallel):
    def model(x):
        with pyro.plate("groups", 64, dim=-1):
            level = pyro.sample("level", dist.Normal(torch.zeros(64), 1.0))
        f = pyro.deterministic("f", level.mean(-1, keepdim=True) * x[:, 0])
        with pyro.plate("data", len(x), dim=-1):
            return pyro.sample("y", dist.Normal(f, 0.1))

    guide = fitted(model, X[:64])
    options = {"num_samples": 3, "parallel": parallel, "sites": ["level", "f", "y"]}
    whole = seeded(model, guide, X[:64], **options)
    parts = seeded(model, guide, X[:64], batch_size=32, **options)
    assert whole["level"].shape == whole["y"].shape == (3, 64)
    torch.testing.assert_close(parts, whole)


def test_one_row_has_the_same_shape_in_parallel():
    model = make(LIKELIHOODS["two outputs"])
    guide = fitted(model, X)
    options = {"num_samples": 4, "sites": ["f", "y", "w"]}
    one = predict(model, guide, X[:1], **options)
    many = predict(model, guide, X[:1], parallel=True, **options)
    assert {k: v.shape for k, v in one.items()} == {k: v.shape for k, v in many.items()}
    assert one["f"].shape == (4, 1)


@pytest.mark.parametrize("rows", [6, ROWS])
def test_observations_are_ignored(rows):
    model = make(LIKELIHOODS["Normal"])
    x, y = X[:rows], torch.full((rows,), 100.0)
    guide = fitted(model, x, y)
    fresh = seeded(model, guide, x, num_samples=3)["y"]
    for call in (
        lambda: seeded(model, guide, x, y, num_samples=3),
        lambda: seeded(model, guide, x, y=y, num_samples=3, batch_size=32),
        lambda: seeded(poutine.condition(model, {"y": y}), guide, x, num_samples=3),
    ):
        torch.testing.assert_close(call()["y"], fresh)


def test_draws_that_every_batch_shares():
    def model(x):
        w = pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))
        hidden = pyro.sample("hidden", dist.Normal(torch.zeros(()), 1.0))  # not in the guide
        constant = pyro.deterministic("constant", torch.tensor(2.0))
        f = pyro.deterministic("f", w + hidden * constant + 0 * x[:, 0])
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(f, 0.1))

    guide = fitted(poutine.block(model, expose=["w"]), X)
    for parallel in (False, True):
        draws = predict(
            model,
            guide,
            X,
            num_samples=3,
            batch_size=32,
            sites=["hidden", "constant", "f"],
            parallel=parallel,
        )
        assert draws["hidden"].shape == draws["constant"].shape == (3,)
        assert draws["hidden"].unique().numel() == 3
        assert draws["constant"].tolist() == [2.0] * 3
        torch.testing.assert_close(draws["f"], draws["f"][:, :1].expand(3, ROWS))


def test_sites_of_a_plate_are_cut_whatever_their_event():
    def model(x):
        w = pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("data", len(x)):
            inside = pyro.deterministic("inside", torch.stack([w * x[:, 0], x[:, 1]], -1))
            pyro.factor("penalty", -inside.sum(-1))
            return pyro.sample("y", dist.Normal(inside, 0.1).to_event(1))

    guide = fitted(poutine.block(model, expose=["w"]), X)
    whole = seeded(model, guide, X, num_samples=3, sites=["inside", "y"])
    parts = seeded(model, guide, X, num_samples=3, sites=["inside", "y"], batch_size=32)
    torch.testing.assert_close(parts, whole)
    assert whole["inside"].shape == (3, ROWS, 2)
    assert predict(model, guide, X, num_samples=3, batch_size=32).keys() == {"y"}


def test_the_random_state_advances_alike_for_every_batch_size():
    model = make(LIKELIHOODS["Normal"])
    guide = fitted(model, X)
    after = []
    for options in ({}, {"batch_size": 32}, {"batch_size": 64, "parallel": True}):
        seeded(model, guide, X, num_samples=3, **options)
        after.append(torch.rand(3))
    assert torch.equal(after[0], after[1]) and torch.equal(after[0], after[2])
    pyro.set_rng_seed(0)
    first, second = (predict(model, guide, X, num_samples=3)["y"] for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first, seeded(model, guide, X, num_samples=3, seed=1)["y"])


def test_more_draws_than_one_pass_takes():
    model = make(LIKELIHOODS["Normal"])
    guide = fitted(model, X)
    draws = seeded(model, guide, X, num_samples=130, sites=["w", "f", "y"], parallel=True)
    assert draws["w"].shape == (130,)
    torch.testing.assert_close(draws["f"], draws["w"][:, None] * X[:, 0] + X[:, 1])
    assert (draws["y"] - draws["f"]).unique().numel() > 0.99 * 130 * ROWS


def two_part_guide(model):
    guide = AutoGuideList(model)
    guide.append(HyperNetworkGuide(poutine.block(model, expose=["w"])))
    guide.append(AutoNormal(poutine.block(model, expose=["scale"])))
    return guide


@pytest.mark.parametrize("kind", [AutoNormal, AutoMultivariateNormal, two_part_guide])
def test_any_guide(kind):
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        scale = pyro.sample("scale", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", ROWS, subsample_size=len(x)):
            return pyro.sample("y", dist.Normal(x @ w, scale), obs=y)

    guide = kind(poutine.block(model, hide=["y"]))
    guide(X)
    whole = seeded(model, guide, X, num_samples=3)
    assert whole.keys() == {"y"}
    torch.testing.assert_close(seeded(model, guide, X, num_samples=3, batch_size=32), whole)


def test_more_rows_than_the_training_plate_has():
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("data", 10, subsample_size=len(x)):
            return pyro.sample("y", dist.Normal(w * x[:, 0], 0.1), obs=y)

    guide = fitted(model, X[:10])
    assert predict(model, guide, X, num_samples=2)["y"].shape == (2, ROWS)
    assert predict(model, guide, X, num_samples=2, batch_size=32)["y"].shape == (2, ROWS)


def test_a_model_that_only_takes_all_rows_gets_them_unless_told_otherwise():
    def model(x):
        w = pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))
        with pyro.plate("data", ROWS):
            return pyro.sample("y", dist.Normal(w * x[:, 0], 0.1))

    guide = fitted(model, X)
    assert predict(model, guide, X, num_samples=2)["y"].shape == (2, ROWS)
    assert predict(model, guide, X, num_samples=2, parallel=True)["y"].shape == (2, ROWS)
    with pytest.raises(ShapeError, match="plate 'data' has .* rows and site 'y' in it has 32"):
        predict(model, guide, X, num_samples=2, batch_size=32)


def test_a_model_without_arguments():
    def model():
        w = pyro.sample("w", dist.Normal(torch.zeros(()), 1.0))
        return pyro.sample("y", dist.Normal(w, 0.1))

    guide = fitted(model)
    for parallel in (False, True):
        draws = predict(model, guide, num_samples=50, parallel=parallel)["y"]
        assert draws.shape == (50,)
        assert draws.unique().numel() == 50


def test_what_cannot_be_predicted():
    model = make(LIKELIHOODS["Normal"])
    guide = fitted(model, X)
    with pytest.raises(ArgumentError, match="num_samples=0; expected an integer >= 1"):
        predict(model, guide, X, num_samples=0)
    with pytest.raises(ArgumentError, match="batch_size=-1; expected an integer >= 1"):
        predict(model, guide, X, num_samples=2, batch_size=-1)
    with pytest.raises(
        SiteError, match=r"sites \['g'\] are not in the model; it has \['f', 'w', 'y'\]"
    ):
        predict(model, guide, X, num_samples=2, sites=["f", "g"])
    with pytest.raises(ShapeError, match=r"of shape \(0, 2\), has no rows"):
        predict(model, guide, X[:0], num_samples=2)


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("batch_size", [None, 32])
@pytest.mark.parametrize("parallel", [False, True])
def test_latents_of_other_rows_are_refused(rows, batch_size, parallel):
    def model(x, y=None):
        with pyro.plate("data", len(x)):
            level = pyro.sample("level", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(level + x, 1.0), obs=y)

    x = torch.zeros(70)
    guide = HyperNetworkGuide(model).setup(x, x)
    options = {"num_samples": 2, "batch_size": batch_size, "parallel": parallel}
    assert predict(model, guide, x, **options)["y"].shape == (2, 70)
    with pytest.raises(ShapeError, match="70 rows in plate 'data', which has .* in this call"):
        predict(model, guide, x[:rows], **options)


def test_a_guide_of_another_model_is_refused():
    def program(name):
        def model(x, y=None):
            slope = pyro.sample(name, dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                return pyro.sample("y", dist.Normal(slope * x[:, 0], 1.0), obs=y)

        return model

    guide = AutoNormal(program("w"))
    guide(X, X[:, 0])
    predict(program("w"), guide, X, num_samples=2)
    message = r"the guide draws \['w'\], none of which the model samples"
    with pytest.raises(SiteError, match=message):
        predict(program("slope"), guide, X, num_samples=2)


_LIKELIHOODS: dict[str, Any] = {
    "normal": lambda mean: dist.Normal(mean, 0.1),
    "log-normal": lambda mean: dist.LogNormal(mean, 0.1),
    "yes or no": lambda mean: dist.Bernoulli(logits=mean),
    "classes": lambda mean: dist.Categorical(logits=torch.stack([mean, -mean, 0 * mean], -1)),
    "event": lambda mean: dist.Normal(mean[..., None].expand(*mean.shape, 2), 0.1).to_event(1),
    "masked": lambda mean: dist.Normal(mean, 0.1).mask(mean > 0),
    "counts": lambda mean: dist.Poisson(mean.exp()),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", _LIKELIHOODS)
@pytest.mark.parametrize("parallel", [False, True])
def test_noise_does_not_depend_on_batches(kind: str, parallel: bool) -> None:
    """Of distributions drawn in blocks of many rows, and of one cut into rows."""
    x = torch.randn(2500, 3)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with pyro.plate("outputs", 2, dim=-2), pyro.plate("data", len(x)):
            pyro.sample("y", _LIKELIHOODS[kind]((x * w).sum(-1)), obs=y)

    guide = AutoNormal(pyro.poutine.block(model, expose=["w"]))
    guide(x)
    found = []
    for batch_size in (None, 2048, 700, 32):
        pyro.set_rng_seed(0)
        options: dict[str, Any] = {"num_samples": 2, "batch_size": batch_size, "parallel": parallel}
        found.append(predict(model, guide, x, **options)["y"])
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("batch_size", [20, 40])
def test_a_network_over_all_rows_gets_them_at_once_and_that_is_told(batch_size):
    """A graph network fails on some of its nodes alone; it once ended in an error about columns."""
    links, x, y = torch.eye(60).roll(1, 0), torch.randn(60, 4), torch.randint(3, (60,))

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x, links):
            return links @ self.layer(x)

    net = BayesianModule(Graph(), prior=dist.Normal(0.0, 1.0))

    def model(x, links, y=None):
        logits = net(x, links)
        with pyro.plate("nodes", len(x)):
            pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup(x, links, y)
    whole = seeded(model, guide, x, links, num_samples=3)["y"]
    text = "does not run on some of its 60 rows alone.*whatever batch_size.*32x60"
    with pytest.warns(UserWarning, match=text):
        parts = seeded(model, guide, x, links, num_samples=3, batch_size=batch_size)["y"]
    assert torch.equal(parts, whole)
    expected = evaluate(model, guide, x, links, y, num_samples=3, seed=0).scores
    with pytest.warns(UserWarning, match=text):
        report = evaluate(model, guide, x, links, y, num_samples=3, seed=0, batch_size=batch_size)
    assert report.scores == expected
    with pytest.raises(ShapeError, match="60 rows|32x60|cannot be multiplied"):
        predict(model, guide, x, links[:, :50], num_samples=3, batch_size=batch_size)


@pytest.mark.parametrize("use", [predict, evaluate])
def test_tensors_in_a_dictionary_are_not_cut_and_that_is_told(use):
    def of_dict(data):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", ROWS):
            pyro.sample("y", dist.Normal(slope * data["x"], 1.0), obs=data.get("y"))

    data = {"x": X[:, 0], "y": X[:, 1]}
    guide = HyperNetworkGuide(of_dict, init_from=None).setup(data)
    with pytest.warns(UserWarning, match="batch_size does nothing here: no argument is a"):
        use(of_dict, guide, data, num_samples=2, batch_size=32)


NO_SAMPLES = torch.Size()


class OwnNormal(dist.Normal):
    """As distributions of GPyTorch draw: they ask for a ``torch.Size``."""

    def rsample(self, sample_shape=NO_SAMPLES):
        sample_shape.numel()
        return super().rsample(sample_shape)


def test_distributions_are_asked_for_draws_as_torch_asks() -> None:
    def model(x, y=None):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", OwnNormal(w * x, 1.0), obs=y)

    guide, x = AutoNormal(model), torch.ones(6)
    guide(x, x)
    assert predict(model, guide, x, num_samples=3)["y"].shape == (3, 6)
    assert evaluate(model, guide, x, x, num_samples=3)["y"].num_data == 6
