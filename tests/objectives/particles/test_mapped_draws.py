"""Draws mapped by vmap are those of a plate of particles, of models that no plate takes."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import SVI, config_enumerate
from pyro.ops.indexing import Vindex
from pyro.optim import Adam
from torch import Tensor, nn

from pyro_implicit import (
    BayesianModule,
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    LanczosELBO,
    LinearisedELBO,
    fit,
)
from pyro_implicit.exceptions import ArgumentError, NonFiniteError, ShapeError, SiteError
from pyro_implicit.objectives.checks.looped_watch import LoopedWatch
from pyro_implicit.objectives.particles.mapped_draws import DrawApart, MappedDraws
from pyro_implicit.training.recorded import RecordedObjective

Model = Callable[..., Any]
X, Y = torch.randn(12, 3), torch.randn(12)


def _regression(rowwise: Callable[[Tensor, Tensor], Tensor]) -> Model:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        s = pyro.sample("s", dist.LogNormal(0.0, 0.5))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(rowwise(x, w), s), obs=y)

    return model


def _groups(lookup: Callable[[Tensor, Tensor], Tensor]) -> Model:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        tau = pyro.sample("tau", dist.HalfNormal(1.0))
        with pyro.plate("groups", 4):
            level = pyro.sample("level", dist.Normal(0.0, tau))
        group = torch.arange(len(x)) % 4
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(lookup(level, group), 1.0), obs=y)

    return model


def _mixture(lookup: Callable[[Tensor, Tensor], Tensor]) -> Model:
    @config_enumerate
    def model(x: Tensor, y: Tensor | None = None) -> None:
        p = pyro.sample("p", dist.Dirichlet(torch.ones(2)))
        centre = pyro.sample("centre", dist.Normal(torch.tensor([-1.0, 1.0]), 1.0).to_event(1))
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Categorical(p))
            pyro.sample("y", dist.Normal(lookup(centre, z), 1.0), obs=y)

    return model


#: as one writes a model for one draw, and for a plate of particles
PAIRS: dict[str, tuple[Model, Model]] = {
    "matrix product": (_regression(lambda x, w: x @ w), _regression(lambda x, w: (x * w).sum(-1))),
    "entry": (
        _regression(lambda x, w: w[0] + w[1] * x[:, 0]),
        _regression(lambda x, w: w[..., 0] + w[..., 1] * x[:, 0]),
    ),
    "sum over entries": (
        _regression(lambda x, w: x[:, 0] * w.softmax(0)[1] + w.cumsum(0).norm()),
        _regression(lambda x, w: x[:, 0] * w.softmax(-1)[..., 1] + w.cumsum(-1).norm(dim=-1)),
    ),
    "rows by number": (_groups(lambda w, i: w[i]), _groups(lambda w, i: w[..., i])),
    "enumerated": (_mixture(lambda w, z: w[z]), _mixture(lambda w, z: Vindex(w)[..., z])),
}


def _evaluated(way: Any, model: Model, guide: Any, count: int) -> tuple[dict[str, Tensor], Any]:
    """Terms and gradients with given random numbers."""
    objective = LinearisedELBO(count, vectorize_particles=way, watch_folds=0)
    objective.terms(model, guide, X, Y)  # finds the plates, with numbers of its own
    guide.zero_grad()
    torch.manual_seed(7)
    terms = objective.terms(model, guide, X, Y)
    torch.manual_seed(7)
    objective.loss_and_grads(model, guide, X, Y)
    return terms, [None if p.grad is None else p.grad.clone() for p in guide.parameters()]


@pytest.mark.long
@pytest.mark.parametrize("name", PAIRS)
@settings(deadline=None, max_examples=4)
@given(st.integers(2, 9), st.sampled_from([None, "perceptron"]))
def test_they_are_those_of_a_plate(name: str, count: int, kind: str | None) -> None:
    pyro.clear_param_store()
    for_one, for_many = PAIRS[name]
    options = {} if kind is None else {"hidden_dims": (8,), "noise_dim": 2, "scale": 0.1}
    guide = HyperNetworkGuide(for_one, init_from=None, **options).setup(X, Y)
    mapped, gradients = _evaluated("vmap", for_one, guide, count)
    vectorised, expected = _evaluated(True, for_many, guide, count)
    for term, value in vectorised.items():
        torch.testing.assert_close(mapped[term], value, rtol=1e-4, atol=1e-4)
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_a_network_and_minibatches() -> None:
    net = BayesianModule(
        nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), dist.Normal(0.0, 1.0)
    )

    def model(x: Tensor, y: Tensor | None = None) -> None:
        f = net(x).squeeze(-1)
        with pyro.plate("data", 36, subsample_size=len(x)), pyro.poutine.scale(scale=0.5):
            pyro.sample("y", dist.Normal(f, 1.0), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    mapped, _ = _evaluated("vmap", model, guide, 5)
    vectorised, _ = _evaluated(True, model, guide, 5)
    for term, value in vectorised.items():
        torch.testing.assert_close(mapped[term], value, rtol=1e-4, atol=1e-4)


def test_latents_of_rows() -> None:
    def model(y: Tensor) -> None:
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("y", dist.Normal(z[..., 0] + z[..., 1] ** 2, 0.5), obs=y)

    guide = ConditionalHyperNetworkGuide(model, init_from=None).setup(Y)
    terms = {}
    for way in (True, "vmap"):
        objective = LinearisedELBO(6, vectorize_particles=way, watch_folds=0)
        objective.terms(model, guide, Y)
        torch.manual_seed(3)
        terms[way] = objective.terms(model, guide, Y)
    for term, value in terms[True].items():
        torch.testing.assert_close(terms["vmap"][term], value, rtol=1e-4, atol=1e-4)


def test_random_numbers_differ_from_draw_to_draw_and_are_those_of_a_seed() -> None:
    model = PAIRS["matrix product"][0]
    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    objective = LinearisedELBO(4, vectorize_particles="vmap")
    losses = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        losses.append(objective.loss(model, guide, X, Y))
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.long
def test_steps_of_svi_and_a_store_that_is_cleared() -> None:
    model = PAIRS["matrix product"][0]
    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    objective = LinearisedELBO(16, vectorize_particles="vmap")
    svi = SVI(model, guide, Adam({"lr": 0.02}), objective)
    losses = [svi.step(X, Y) for _ in range(60)]
    assert sum(losses[-10:]) < sum(losses[:10])
    pyro.clear_param_store()
    assert math.isfinite(svi.step(X, Y))


@pytest.mark.long
def test_steps_are_recorded_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    # whatever else runs
    monkeypatch.setattr("pyro_implicit.training.recorded._MAX_RELATIVE_STEP_TIME", 1e9)
    model = PAIRS["matrix product"][0]
    losses = {}
    for recorded in (False, True):
        pyro.clear_param_store()
        torch.manual_seed(0)
        guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
        objective: Any = LinearisedELBO(32, vectorize_particles="vmap")
        if recorded:
            objective = RecordedObjective(objective, hints=False)
        svi = SVI(model, guide, Adam({"lr": 0.01}), objective)
        losses[recorded] = [svi.step(X, Y) for _ in range(12)]
        if recorded:
            assert objective.is_recorded, objective.reason
    assert losses[False] == losses[True]


def test_fit_maps_what_no_plate_takes() -> None:
    model = PAIRS["matrix product"][0]
    guide = HyperNetworkGuide(model, init_from=None)
    result = fit(model, guide, X, Y, num_steps=5, progress=False, seed=0)
    assert result.objective.vectorize_particles == "vmap" and result.objective.num_particles == 32
    assert not any("one after the other" in text for text in result.warnings)


def _branches(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    mean = x[:, 0] if w > 0 else x[:, 1]
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean + w, 1.0), obs=y)


@pytest.mark.long
def test_a_branch_on_a_value_is_refused_and_fit_loops() -> None:
    guide = HyperNetworkGuide(_branches, init_from=None)
    objective = LinearisedELBO(4, vectorize_particles="vmap")
    with pytest.raises(SiteError, match="vmap cannot run it .*Write vectorize_particles=False"):
        objective.loss(_branches, guide, X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fit(_branches, guide, X, Y, num_steps=3, progress=False, seed=0)
    assert result.objective.vectorize_particles is False
    assert any("one after the other" in text for text in result.warnings)


def test_errors_of_the_model_itself_are_its_own() -> None:
    def fails(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))
        if not armed:
            return
        raise KeyError("of the model")

    armed: list[int] = []
    guide = HyperNetworkGuide(fails, init_from=None).setup(X, Y)
    objective = LinearisedELBO(4, vectorize_particles="vmap")
    objective.loss(fails, guide, X, Y)
    armed.append(1)
    with pytest.raises(KeyError, match="of the model"):
        objective.loss(fails, guide, X, Y)


def test_clear_errors_stay_as_they_are() -> None:
    """A latent in the guide that the model does not have is told by the plain run."""

    def smaller(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))

    guide = HyperNetworkGuide(PAIRS["entry"][0], init_from=None).setup(X, Y)
    with pytest.raises(ShapeError, match="of another model"):
        LinearisedELBO(4, vectorize_particles="vmap").loss(smaller, guide, X, Y)


def test_terms_that_are_not_finite() -> None:
    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        pyro.factor("cliff", (w * math.inf).sum())

    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    objective = LinearisedELBO(4, vectorize_particles="vmap")
    with warnings.catch_warnings(), pytest.raises(NonFiniteError, match="'cliff' of the model"):
        warnings.simplefilter("ignore")
        objective.loss(model, guide, X, Y)
    with pyro.validation_enabled(False):
        assert not math.isfinite(objective.loss(model, guide, X, Y))


def test_terms_that_are_finite_when_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = PAIRS["matrix product"][0]
    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    bad = {"log_prior": torch.tensor(math.nan)}
    monkeypatch.setattr(MappedDraws, "__call__", lambda *_: bad)
    with pytest.raises(NonFiniteError, match="log_prior not finite at some of the draws"):
        LinearisedELBO(4, vectorize_particles="vmap").loss(model, guide, X, Y)


@pytest.mark.parametrize("where", ["value", "parameter"])
def test_a_bad_draw_of_the_first_look_is_no_error(where: str) -> None:
    calls = []

    def one() -> dict[str, Tensor]:
        calls.append(1)
        if len(calls) == 1:
            if where == "value":
                raise NonFiniteError("a bad draw")
            raise ValueError("Expected parameter loc to satisfy Real(), found: tensor(nan)")
        return {"term": torch.randn(())}

    assert MappedDraws()(one, 3, _branches, _branches)["term"].shape == ()
    calls[:] = [1]
    with pytest.raises(ValueError, match="another"):

        def other() -> dict[str, Tensor]:
            raise ValueError("another")

        MappedDraws()(other, 3, _branches, _branches)


def test_what_cannot_be_mapped_is_refused() -> None:
    with pytest.raises(ArgumentError, match="vectorize_particles='vmap'; expected True or False"):
        LanczosELBO(4, vectorize_particles="vmap")
    with pytest.raises(ArgumentError, match="expected True, False or 'vmap'"):
        LinearisedELBO(4, vectorize_particles="map")
    for more in ({"num_entropy_particles": 2}, {"likelihood": "per_datum"}):
        with pytest.raises(ArgumentError, match="maps one draw over all"):
            LinearisedELBO(4, vectorize_particles="vmap", **more)
    model = PAIRS["matrix product"][0]
    guide = HyperNetworkGuide(model, init_from=None, hidden_dims=(8,), noise_dim=4).setup(X, Y)
    objective = LinearisedELBO(4, vectorize_particles="vmap")
    with pytest.raises(ArgumentError, match=r"may fold.*Write watch_folds=0"):
        objective.loss(model, guide, X, Y)


def test_one_draw_is_not_mapped() -> None:
    model = PAIRS["matrix product"][0]
    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    objective = LinearisedELBO(1, vectorize_particles="vmap")
    assert not objective.is_mapped and math.isfinite(objective.loss(model, guide, X, Y))


def test_copies() -> None:
    model = PAIRS["matrix product"][0]
    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    objective = LinearisedELBO(3, vectorize_particles="vmap")
    objective.loss(model, guide, X, Y)
    for other in (copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        assert other.is_mapped and repr(other) == repr(objective)
        torch.manual_seed(0)
        value = other.loss(model, guide, X, Y)
        torch.manual_seed(0)
        assert value == objective.loss(model, guide, X, Y)


@pytest.mark.parametrize(
    "fn",
    [
        dist.Normal(torch.tensor([1.0, -1.0]), 2.0),
        dist.Normal(torch.zeros(2, 3), 2.0).to_event(1),
        dist.LogNormal(torch.tensor([0.5, 1.0]), 0.3).to_event(1),
        dist.HalfNormal(torch.ones(2)),
        dist.MultivariateNormal(torch.zeros(2), torch.tensor([[2.0, 0.5], [0.5, 1.0]])),
        dist.MultivariateNormal(
            torch.randn(4, 2), scale_tril=torch.tensor([[1.0, 0.0], [0.5, 2.0]])
        ),
        dist.LowRankMultivariateNormal(
            torch.ones(3), torch.randn(3, 2), torch.tensor([1.0, 2.0, 3.0])
        ),
        dist.LowRankMultivariateNormal(torch.zeros(4, 3), torch.randn(4, 3, 1), torch.ones(4, 3)),
        dist.Gamma(torch.ones(2), 1.0),
    ],
)
def test_explicit_sites_are_drawn_as_ever(fn: Any) -> None:
    """The values are those of the same seed, drawn by us or by the distribution."""

    def model() -> Tensor:
        return pyro.sample("x", fn)

    torch.manual_seed(5)
    expected = model()
    torch.manual_seed(5)
    with DrawApart():
        torch.testing.assert_close(model(), expected)


@pytest.mark.long
def test_a_loop_is_told_of_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "pyro_implicit.objectives.checks.looped_watch._MIN_SECONDS_BEFORE_TRIAL", 0.0
    )
    monkeypatch.setattr("pyro_implicit.objectives.checks.looped_watch._MIN_STEPS_BEFORE_TRIAL", 1)
    said: list[str] = []
    monkeypatch.setattr(
        "pyro_implicit.objectives.checks.looped_watch.hint", lambda key, text: said.append(text)
    )
    model = PAIRS["matrix product"][0]
    guide = HyperNetworkGuide(model, init_from=None).setup(X, Y)
    objective = LinearisedELBO(64)
    LoopedWatch()(1.0, objective, model, guide, (X, Y), {})
    assert len(said) == 1 and said[0].endswith("Write vectorize_particles='vmap'.")
    LoopedWatch()(1.0, objective, _branches, HyperNetworkGuide(_branches), (X, Y), {})
    assert len(said) == 1


def test_a_parameter_that_leaves_its_domain_is_found_within_a_hundred_steps() -> None:
    beyond = [False]

    def model() -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        scale = torch.where(torch.tensor(beyond[0]), -1.0, 1.0) + 0 * w
        pyro.sample("y", dist.Normal(w, scale), obs=torch.tensor(0.0))

    guide = HyperNetworkGuide(model, init_from=None).setup()
    objective = LinearisedELBO(4, vectorize_particles="vmap", watch_folds=0)
    objective.loss_and_grads(model, guide)
    beyond[0] = True
    with pytest.raises(ValueError, match="Expected parameter scale"):
        for _ in range(100):
            objective.loss_and_grads(model, guide)


@pytest.mark.long
def test_draws_without_a_density_are_found_where_steps_are_recorded() -> None:
    def model(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        shift = dist.transforms.AffineTransform(1.0 + w[0], 1.0)  # by place: mapped, not in a plate
        with pyro.plate("rows", 1):
            law = dist.TransformedDistribution(dist.Exponential(1.0), [shift])
            pyro.sample("y", law, obs=y)

    guide = HyperNetworkGuide(model)
    with pytest.raises(ArgumentError, match="'y' is outside of the support of Exponential"):
        fit(model, guide, torch.tensor([3.0]), num_steps=1000, seed=0, progress=False)
