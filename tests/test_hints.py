"""Hints at slow settings: each where it belongs, once, and silenceable."""

from __future__ import annotations

import pickle
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI

from pyro_implicit import HyperNetworkGuide, LanczosELBO, LinearisedELBO, _hints
from pyro_implicit._hints import hint
from pyro_implicit.exceptions import PerformanceHint
from pyro_implicit.generators import MLPGenerator, ResidualGenerator
from pyro_implicit.objectives.checks import looped_watch


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch):
    monkeypatch.setattr(_hints, "_shown_hints", set())


@pytest.fixture
def heard():
    """The hints of a test, in words."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("error")
        warnings.simplefilter("always", PerformanceHint)
        yield found


def texts(found):
    return [str(one.message) for one in found]


def test_once_for_each_topic(heard):
    for topic in ("a", "a", "b", "a"):
        hint(topic, f"about {topic}.")
    assert len(heard) == 2 and texts(heard)[0].startswith("Performance hint: about a. (Said once;")


def test_a_filter_silences_all(recwarn):
    warnings.simplefilter("ignore", PerformanceHint)
    hint("a", "about a.")
    assert not recwarn.list


def vectorisable(num_latents=2):
    def model():
        with pyro.plate("latents", num_latents):
            pyro.sample("w", dist.Normal(0.0, 1.0))

    return model


def scalar_only():
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    if w[0] > 0:  # of all draws at once nobody can say that
        pyro.sample("x", dist.Normal(w[0], 1.0), obs=torch.tensor(0.5))


def train(model, objective, num_steps=1, **options):
    options = options or {"hidden_dims": (2,)}
    guide = HyperNetworkGuide(model, init_from=None, **options)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), objective)
    for _ in range(num_steps):
        svi.step()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(looped_watch, "_MIN_SECONDS_BEFORE_TRIAL", 0.0)
    monkeypatch.setattr(looped_watch, "_MIN_STEPS_BEFORE_TRIAL", 3)


@pytest.mark.long
def test_draws_that_could_be_made_at_once(heard, impatient):
    objective = LinearisedELBO(num_particles=20)
    train(vectorisable(), objective, 2)
    assert not heard
    model, guide = trained()
    before = torch.get_rng_state()
    objective._looped(0.0, objective, model, guide, (), {})
    assert torch.equal(torch.get_rng_state(), before)
    (text,) = texts(heard)
    assert "LinearisedELBO makes its 20 draws one after the other" in text
    assert "Write vectorize_particles=True." in text
    assert objective.vectorize_particles is False and objective._looped.done


def trained():
    model = vectorisable()
    return model, HyperNetworkGuide(model, init_from=None, hidden_dims=(2,)).setup()


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "objective"),
    [
        (scalar_only, LinearisedELBO(num_particles=20)),
        (vectorisable(), LinearisedELBO(num_particles=20, vectorize_particles=True)),
        (vectorisable(), LinearisedELBO()),
    ],
    ids=["a model that does not take it", "vectorised already", "one draw"],
)
def test_draws_that_are_left_alone(heard, impatient, model, objective):
    train(model, objective, 4)
    assert not heard


@pytest.mark.long
def test_the_trial_does_not_change_training(impatient):
    found = []
    for patience in (0.0, 1e9):
        looped_watch._MIN_SECONDS_BEFORE_TRIAL = patience
        pyro.set_rng_seed(0)
        pyro.clear_param_store()
        model = vectorisable()
        guide = HyperNetworkGuide(model, init_from=None, hidden_dims=(2,))
        svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-2}), LinearisedELBO(num_particles=3))
        found.append([svi.step() for _ in range(6)])
    assert found[0] == found[1]


def test_no_trial_before_its_time(heard, monkeypatch):
    monkeypatch.setattr(looped_watch, "_timed", None)
    objective = LinearisedELBO(num_particles=5)
    train(vectorisable(), objective, 3)
    assert objective._looped.steps == 3 and not objective._looped.done
    assert pickle.loads(pickle.dumps(objective))._looped.steps == 3


def test_as_many_noises_as_latents(heard):
    train(vectorisable(300), LinearisedELBO(), 2, noise_dim=300, hidden_dims=(2,))
    (text,) = texts(heard)
    assert "implicit site '_HyperNetworkGuide_latent' has 300 latents and 300 noises" in text
    assert "ResidualGenerator" in text


def test_an_exact_determinant_of_a_large_jacobian(heard, monkeypatch):
    monkeypatch.setattr("pyro_implicit.objectives.exact_determinant._MAX_ENTRIES_OF_JACOBIAN", 50)
    train(vectorisable(20), LinearisedELBO(), 2, noise_dim=3, hidden_dims=(2,), scale=0.1)
    (text,) = texts(heard)
    assert "20 latents and 3 noises" in text and "LanczosELBO, which fit chooses" in text


@pytest.mark.parametrize(
    ("objective", "options"),
    [
        (LanczosELBO(), {"noise_dim": 300, "hidden_dims": (2,), "scale": 0.1}),
        (LinearisedELBO(), {"generator": lambda n: ResidualGenerator(n, 2)}),
        (LinearisedELBO(), {"generator": lambda n: MLPGenerator(5, n, (2,)), "scale": 0.1}),
    ],
    ids=["no determinant", "one by structure", "few noises"],
)
def test_sizes_that_are_fine(heard, objective, options):
    train(vectorisable(300), objective, 2, **options)
    assert not heard


def test_the_default_guide_of_many_latents(heard, monkeypatch):
    monkeypatch.setattr("pyro_implicit.guides.hypernetwork._MAX_LATENTS_WITHOUT_HINT", 1099)
    HyperNetworkGuide(vectorisable(1100), init_from=None, hidden_dims=(4,)).setup()
    assert not heard
    HyperNetworkGuide(vectorisable(1100), init_from=None).setup()
    (text,) = texts(heard)
    assert "default generator of 1100 latents has more than 110000 parameters. MMNNGuide" in text
