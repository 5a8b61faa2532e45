"""The loops by hand give what the package gives, and goals are judged as the page says."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyro
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

from benchmarks.common import fixed_seed
from benchmarks.cost import _speed_network as of_network
from benchmarks.cost import _speed_predict as of_predict
from benchmarks.cost import _speed_schools as of_schools
from benchmarks.cost import speed
from benchmarks.cost._speed_bare import BareStep
from benchmarks.cost._speed_lenet import floor_loss as lenet_loss
from benchmarks.cost._speed_lenet import with_medium_products
from benchmarks.cost._speed_models import TARGETS, schools_data
from benchmarks.cost._speed_numpyro import chain_of_schools, has_numpyro
from benchmarks.cost._speed_steps import floor_loss
from benchmarks.cost._speed_timing import medians, row, rows_of
from benchmarks.shared.images import GUIDES, NETWORKS, NoEntropy, classifier
from pyro_implicit import HyperNetworkGuide, LinearisedELBO, predict, to_arviz


@pytest.mark.parametrize("name", TARGETS)
def test_the_floor_is_the_objective(name: str) -> None:
    with fixed_seed(0):
        target = TARGETS[name]()
        guide = HyperNetworkGuide(target.model, init_from=None).setup(*target.args)
        objective = LinearisedELBO(
            3, vectorize_particles=True, max_plate_nesting=1, path_gradient=False
        )
        pyro.set_rng_seed(1)
        expected = objective.differentiable_loss(target.model, guide, *target.args)
        params = list(guide.samplers[0].parameters())
        slopes = torch.autograd.grad(expected, params)
        for loss in (partial(floor_loss, target, guide, 3), BareStep(target, guide, 3).loss):
            pyro.set_rng_seed(1)
            found = loss()
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-3)
            found_slopes = torch.autograd.grad(found, params)
            torch.testing.assert_close(found_slopes, slopes, rtol=1e-3, atol=1e-3)


def test_the_floor_of_images_is_the_control() -> None:
    make, shape = NETWORKS["perceptron"]
    with fixed_seed(0):
        x, y, net = torch.rand(6, *shape), torch.arange(6), make()
        model, _ = classifier(make())
        guide = GUIDES["mmnn"](model).setup(x, y, torch.arange(6))
        pyro.set_rng_seed(1)
        expected = NoEntropy(1, max_plate_nesting=1).loss(model, guide, x, y, torch.arange(6))
        pyro.set_rng_seed(1)
        found = lenet_loss(guide, net, x, y).item()
    constant = 0.5 * guide.latent_dim * math.log(2 * math.pi)
    assert found + constant == pytest.approx(expected, rel=1e-4)


def test_the_precision_of_products_is_put_back() -> None:
    seen = []
    with_medium_products(lambda: seen.append(torch.get_float32_matmul_precision()))()
    assert seen == ["medium"]
    with pytest.raises(ZeroDivisionError):
        with_medium_products(lambda: 1 / 0)()
    assert torch.get_float32_matmul_precision() == "highest"


def test_predictions_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_predict, "NOISE", 1e-6)
    with fixed_seed(0):
        x = torch.randn(70, of_predict.NUM_FEATURES)
        model = of_predict.linear_model
        guide = HyperNetworkGuide(model, init_from=None).setup(x, x[:, 0])
        found = []
        for job in (
            lambda: of_predict.hand_linear(guide, x, 3, 32),
            lambda: predict(model, guide, x, num_samples=3, batch_size=32)["y"],
            lambda: predict(model, guide, x, num_samples=3, batch_size=32, parallel=True)["y"],
        ):
            pyro.set_rng_seed(1)
            found.append(job())
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-4)
    torch.testing.assert_close(found[0], found[2], rtol=0, atol=1e-4)


def test_logits_by_hand() -> None:
    make, shape = NETWORKS["perceptron"]
    with fixed_seed(0):
        x, net = torch.rand(40, *shape), make()
        model = of_predict.network_model(make())
        guide = GUIDES["mmnn"](model).setup(x, torch.zeros(40).long())
        found = []
        for job in (
            lambda: of_predict.hand_network(net, guide, x, 3, 32),
            lambda: of_predict.by_pyro(model, guide, x, 3, 32, "logits"),
            lambda: predict(model, guide, x, num_samples=3, sites=["logits"])["logits"],
        ):
            pyro.set_rng_seed(1)
            found.append(job())
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_log_likelihoods_by_hand() -> None:
    pytest.importorskip("arviz")
    with fixed_seed(0):
        x = torch.randn(20, of_predict.NUM_FEATURES)
        model = of_predict.linear_model
        guide = HyperNetworkGuide(model, init_from=None).setup(x, x[:, 0])
        data = to_arviz(model, guide, x, x[:, 0], num_samples=4, groups=of_predict.GROUPS)
        drawn = {"w": torch.from_numpy(data["posterior"]["w"].values[0])}
        same = SimpleNamespace(sample=lambda num_samples: drawn)
        new, scores = of_predict.hand_arviz(same, x, x[:, 0], 4)
    np.testing.assert_allclose(data["log_likelihood"]["y"].values[0], scores, rtol=1e-4, atol=1e-3)
    assert data["posterior_predictive"]["y"].values[0].shape == new.shape


def test_a_watch_notes_the_first_time_within_the_limits() -> None:
    args = TARGETS["eight schools"]().args
    with fixed_seed(0):
        guide = AutoNormal(of_schools.POSTERIOR.model, init_scale=0.5)
        guide(*args)
        with pyro.plate("draws", 20_000, dim=-2):
            draws = {k: v.squeeze(1).detach() for k, v in guide(*args).items()}
        moments = of_schools.POSTERIOR.moments(draws)
        watch = of_schools.Watch(guide, args, moments)
        assert watch() == 1.0 and watch() == 2.0
        assert watch.reached_ms is not None and watch.reached_ms <= watch.spent()
        elsewhere = {k: (mean + sd, sd) for k, (mean, sd) in moments.items()}
        watch = of_schools.Watch(guide, args, elsewhere)
        watch()
    assert watch.reached_ms is None
    assert watch.errors()[0] == pytest.approx(1, abs=0.1)


def test_without_reference_draws_the_schools_are_left_out(tmp_path: Path) -> None:
    (left_out,) = of_schools.schools({}, 1, 0, tmp_path)
    assert left_out["cpu_ms"] is None and left_out["note"].startswith("left out: there is no")


@pytest.mark.slow
def test_schools(tmp_path: Path) -> None:
    effects, errors = (value.numpy() for value in TARGETS["eight schools"]().args)
    names = ["mu", "tau", *(f"theta[{j}]" for j in range(1, 9))]
    rng = np.random.default_rng(0)
    arrays = {f"draws.{name}": rng.normal(size=(2, 50)) for name in names}
    (tmp_path / "posteriordb").mkdir()
    path = tmp_path / "posteriordb" / f"{of_schools.POSTERIOR.file}.npz"
    np.savez(path, **arrays, **{"data.y": effects, "data.sigma": errors})
    settings = {"fit_steps": 5, "chain": (2, 3), "numpyro_chains": ((2, 3),)}
    rows = list(of_schools.schools(settings, 1, 0, tmp_path))
    assert len(rows) == 5 + (2 if has_numpyro() else 1)  # before and once it is compiled
    assert rows[0]["goal"] == of_schools.GOAL_MS
    assert rows[1]["note"].startswith("5 steps (limit): means ")


def test_goals() -> None:
    ms = {"floor": 2.0, "fast": 2.2, "slow": 3.0}
    rows = list(rows_of("step", ms, {"fast": ("floor", 1.15), "slow": ("floor", 1.15)}))
    rows += [row("start", "m", 10.0, goal=20.0), row("until", "m", None, goal=20.0)]
    assert [speed.is_met(one) for one in rows] == [None, True, False, True, False]
    text = speed.table(rows)
    assert "| step  | fast   |    2.2 | floor       |  1.10 | 1.15  | yes |" in text
    assert "20 ms | no " in text


def test_jobs_are_taken_in_turns() -> None:
    seen = ""

    def job(name: str) -> None:
        nonlocal seen
        seen += name

    found = medians({"a": lambda: job("a"), "b": lambda: job("b")}, 2, warm_up=1)
    assert seen == "ababab" and set(found) == {"a", "b"}


# ---- peers


@pytest.mark.slow  # JAX, once it is loaded, warns of every fork of the process
def test_numpyro_has_the_model_of_pyro() -> None:
    pytest.importorskip("numpyro")
    from numpyro.infer.util import log_density

    from benchmarks.cost._speed_numpyro import _model

    y, sigma = schools_data()
    values = {"mu": 1.5, "tau": 2.5, "t": np.linspace(-1, 1, 8).astype(np.float32)}
    found, _ = log_density(_model(), (y.numpy(), sigma.numpy()), {}, values)
    with fixed_seed(0):
        latents = {name: torch.tensor(value) for name, value in values.items()}
        model = pyro.poutine.condition(of_schools.POSTERIOR.model, data=latents)
        expected = pyro.poutine.trace(model).get_trace(y, sigma).log_prob_sum()
    assert float(found) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow  # JAX, once it is loaded, warns of every fork of the process
def test_a_chain_of_numpyro_goes_on_from_what_was_compiled() -> None:
    pytest.importorskip("numpyro")
    found = list(chain_of_schools(schools_data(), (20, 30), 0))
    assert [what for what, *_ in found] == ["with compilation", "once compiled"]
    assert found[1][2] < 0.5 * found[0][2]
    assert all(draws["t"].shape == (30, 8) for _, draws, _ in found)
    assert not torch.equal(found[0][1]["mu"], found[1][1]["mu"])


def test_peers_that_are_not_installed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_schools, "has_numpyro", lambda: False)
    (line,) = of_schools._numpyro(schools_data(), {}, {}, 0)
    assert line["cpu_ms"] is None and "pip install numpyro" in line["note"]
    monkeypatch.setattr(of_network, "has_laplace", lambda: False)
    monkeypatch.setattr(of_network, "_by_fit", lambda name, *_: row("fit", name, 1.0))
    *_, line = of_network.network({}, 1, 0)
    assert line["cpu_ms"] is None and "pip install laplace-torch" in line["note"]


def test_the_score_of_a_gaussian_prediction() -> None:
    """A draw from the predictive is the mean's and the row's own, which are independent."""
    y = torch.tensor([0.3, -0.2])
    found = of_network.gaussian_score(torch.zeros(2), torch.full((2,), 0.09), y, 0.4)
    expected = torch.distributions.Normal(0.0, 0.5).log_prob(y).mean()
    assert found == pytest.approx(float(expected), rel=1e-6)
