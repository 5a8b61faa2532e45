"""Vectorised draws whose densities depend on each other are refused, not trained on."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI
from pyro.nn import PyroModule, PyroSample
from pyro.optim import Adam
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, PosteriorPredictiveLoss
from pyro_implicit.exceptions import ImplicitError, SiteError
from pyro_implicit.objectives.checks import coupling_check
from pyro_implicit.objectives.checks.argument_kind import kind_of

Model = Callable[[], None]
N = 6
X = torch.linspace(-1.0, 1.0, 2 * N).sin().reshape(N, 2)
Y = X.sum(-1) + 0.1


def of_vector(mean: Callable[[Tensor], Tensor]) -> Model:
    return lambda: observe(mean(vector()))


def of_scalar(mean: Callable[[Tensor], Tensor]) -> Model:
    return lambda: observe(mean(scalar()))


def vector() -> Tensor:
    value = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    assert isinstance(value, Tensor)
    return value


def scalar(name: str = "w") -> Tensor:
    value = pyro.sample(name, dist.Normal(0.0, 1.0))
    assert isinstance(value, Tensor)
    return value


def observe(mean: Tensor) -> None:
    with pyro.plate("data", N):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=Y)


MIXING = {
    "a sum over draws": of_vector(lambda w: w.sum() * X[:, 0]),
    "a mean of them": of_vector(lambda w: (X * w).sum(-1) - w.mean()),
    "softmax from the left": of_vector(lambda w: (X * w.softmax(0)).sum(-1)),
    "cumsum from the left": of_vector(lambda w: (X * w.cumsum(0)).sum(-1)),
    "a norm": of_vector(lambda w: (X * w / w.norm()).sum(-1)),
    "centred outputs": of_vector(lambda w: (X * w).sum(-1) - (X * w).sum(-1).mean()),
    "the first draw for all": of_vector(lambda w: (X * w.reshape(-1)[:2]).sum(-1)),
}


# right for one draw, and without an error if there are as many draws as rows


def draws_as_rows() -> None:
    observe((X[:, :1] * scalar()).squeeze(-1))


def draws_as_rows_of_an_event() -> None:
    pyro.sample("y", dist.Normal((X * vector()).sum(-1), 1.0).to_event(1), obs=Y)


def draws_as_rows_of_a_factor() -> None:
    pyro.factor("y", dist.Normal((X * vector()).sum(-1), 1.0).log_prob(Y).sum())


def rows_without_a_plate() -> None:
    pyro.sample("y", dist.Normal((X * vector()).sum(-1), 1.0), obs=Y)


BY_CHANCE = [draws_as_rows, draws_as_rows_of_an_event, draws_as_rows_of_a_factor]
RIGHT = {
    "a vector": of_vector(lambda w: (X * w).sum(-1)),
    "a scalar": of_scalar(lambda w: X[:, 0] * w),
    "a vector, event": lambda: _event((X * vector().unsqueeze(-2)).sum(-1)),
    "data for each draw": lambda: _event((X * vector().unsqueeze(-2)).sum(-1), expanded=True),
}


def _event(mean: Tensor, expanded: bool = False) -> None:
    data = Y.expand(mean.shape) if expanded else Y
    pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=data)


def step(model: Model, count: int = N, kind: Any = LinearisedELBO) -> float:
    guide = HyperNetworkGuide(model)
    objective = kind(num_particles=count, vectorize_particles=True)
    return SVI(model, guide, Adam({"lr": 1e-3}), objective).step()


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("count", [2, 3, N])
def test_a_model_that_mixes_draws_is_refused(name: str, count: int) -> None:
    with pytest.raises(SiteError, match="'y' .* depends on the latents of the others.*loop: vec"):
        step(MIXING[name], count)


@pytest.mark.parametrize("kind", [LinearisedELBO, PosteriorPredictiveLoss])
@pytest.mark.parametrize("model", BY_CHANCE)
def test_as_many_draws_as_rows_are_not_taken_for_the_rows(model: Model, kind: Any) -> None:
    with pytest.raises(SiteError, match="takes it for that of the rows"):
        step(model, N, kind)


def test_rows_in_place_of_the_draws_are_refused() -> None:
    with pytest.raises(SiteError, match="stand where the particles belong.*plate or .to_event"):
        step(rows_without_a_plate)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("count", [2, N])
def test_what_is_right_is_left_alone(name: str, count: int) -> None:
    assert isinstance(step(RIGHT[name], count), float)


def test_the_last_minibatch_may_have_as_many_rows_as_there_are_draws() -> None:
    def model(x: Tensor, y: Tensor) -> None:
        w = scalar()
        mean = x[:, 0] * (w if len(x) == 4 else w.unsqueeze(-1))
        pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    objective = LinearisedELBO(num_particles=4, vectorize_particles=True)
    svi = SVI(model, HyperNetworkGuide(model), Adam({"lr": 1e-3}), objective)
    svi.step(X, Y)
    svi.step(X[:5], Y[:5])
    with pytest.raises(SiteError, match="takes it for that of the rows"):
        svi.step(X[:4], Y[:4])


def test_a_model_is_checked_once_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a backward pass."""
    counts: list[int] = []

    def check(particle: Any, count: int) -> None:
        counts.append(count)

    monkeypatch.setattr(coupling_check, "check_particles_apart", check)
    model, objective = RIGHT["a vector"], LinearisedELBO(2, vectorize_particles=True)
    guide = HyperNetworkGuide(model)
    for _ in range(3):
        objective.differentiable_loss(model, guide)
    assert counts == [2]
    objective = pickle.loads(pickle.dumps(objective))
    objective.differentiable_loss(model, guide)
    assert counts == [2, 2]
    with pyro.validation_enabled(False):
        LinearisedELBO(2, vectorize_particles=True).differentiable_loss(model, guide)
    assert counts == [2, 2]


# ---- errors of torch that come of vectorisation


FAILING = {
    "matmul": of_vector(lambda w: X @ w),
    "an index from the left": of_vector(lambda w: w[0] * X[:, 0] + w[1] * X[:, 1]),
    "a view": of_vector(lambda w: (X * w.view(2)).sum(-1)),
    "a number": of_scalar(lambda w: X[:, 0] * w.item()),
    "a condition": of_scalar(lambda w: X[:, 0] if w > 0 else X[:, 1]),
    "rows against draws": draws_as_rows,
    "a stack": lambda: observe(X @ torch.stack([scalar("a"), scalar("b")])),
}


@pytest.mark.parametrize("name", FAILING)
def test_errors_of_vectorisation_say_so(name: str) -> None:
    with pytest.raises(SiteError, match=r"runs with one draw.*\(w \* x\).sum\(-1\).*loop") as info:
        step(FAILING[name], 4)
    assert info.value.__cause__ is not None
    assert not isinstance(info.value.__cause__, ImplicitError)


class OfLinear(PyroModule):
    """A classifier as Pyro's users write it: nothing in it can count dimensions from the right."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = PyroModule[nn.Linear](2, 3)
        self.linear.weight = PyroSample(dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
        self.linear.bias = PyroSample(dist.Normal(0.0, 1.0).expand([3]).to_event(1))

    def forward(self) -> None:
        logits = self.linear(X)
        with pyro.plate("data", N):
            pyro.sample("y", dist.Categorical(logits=logits), obs=(Y > 0).long())


def test_what_is_told_of_layers_works() -> None:
    model, options = OfLinear(), {"max_plate_nesting": 1}
    guide = HyperNetworkGuide(model).setup()
    with pytest.raises(SiteError, match='a LinearisedELBO maps it, vectorize_particles="vmap"'):
        LinearisedELBO(4, vectorize_particles=True, **options).loss(model, guide)
    found = [
        LinearisedELBO(100, vectorize_particles=how, **options).loss(model, guide)
        for how in ("vmap", False)
    ]
    assert found[0] == pytest.approx(found[1], abs=1.0)


def test_an_error_of_the_model_itself_is_left_alone() -> None:
    def model(broken: bool) -> None:
        if broken:
            raise ValueError("mine")
        scalar()

    guide = HyperNetworkGuide(model).setup(False)
    objective = LinearisedELBO(num_particles=2, vectorize_particles=True, max_plate_nesting=0)
    with pytest.raises(ValueError, match="mine") as info:
        objective.loss(model, guide, True)
    assert not isinstance(info.value, SiteError)


class OfRows:
    """A model that mixes draws or does not, as its object says."""

    def __init__(self, mixes: bool) -> None:
        self.mixes = mixes

    def model(self) -> None:
        value = vector()
        observe(value.mean() * X.sum(-1) if self.mixes else (X * value).sum(-1))


def test_the_method_of_another_object_is_another_model() -> None:
    objective = LinearisedELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1)
    apart, mixed = OfRows(False), OfRows(True)
    for _ in range(2):
        objective.loss(apart.model, HyperNetworkGuide(apart.model))
    with pytest.raises(SiteError):
        objective.loss(mixed.model, HyperNetworkGuide(mixed.model))


class Sometimes(torch.nn.Module):
    """Mixes draws where an option, a mode or an attribute says so."""

    def __init__(self) -> None:
        super().__init__()
        self.mixes = False

    def forward(self, mixes: bool = False) -> None:
        w = vector()
        mean = (X * w).sum(-1)
        if mixes or self.mixes or not self.training:
            mean = mean + w.sum()
        observe(mean)


@pytest.mark.parametrize("how", ["option", "mode", "attribute"])
def test_what_mixes_them_later_is_found(how: str) -> None:
    model = Sometimes()
    guide = HyperNetworkGuide(model, init_from=None).setup()
    objective = LinearisedELBO(4, vectorize_particles=True, max_plate_nesting=1)
    objective.loss_and_grads(model, guide)
    objective.loss_and_grads(model, guide)
    options = {"mixes": True} if how == "option" else {}
    model.train(how != "mode")
    model.mixes = how == "attribute"
    steps = 8 if how == "attribute" else 1  # nobody sees it before the tenth
    with pytest.raises(SiteError, match="depends on the latents of the other"):
        for _ in range(steps):
            objective.loss_and_grads(model, guide, **options)


def test_a_model_that_counts_its_calls_is_run_no_more_than_before() -> None:
    calls = [0]

    def model() -> None:
        calls[0] += 1
        mean = (X * vector()).sum(-1)
        with poutine.scale(scale=0.1 if calls[0] < 20 else 1.0):
            observe(mean)

    guide = HyperNetworkGuide(model, init_from=None).setup()
    objective = LinearisedELBO(4, vectorize_particles=True, max_plate_nesting=1)
    objective.loss_and_grads(model, guide)
    before = calls[0]
    for _ in range(120):
        objective.loss_and_grads(model, guide)
    assert calls[0] == before + 120


@pytest.mark.parametrize("values", ["abc", range(3), [0.1, 0.2, 0.3]])
def test_options_that_change_at_each_step_are_no_kinds(values: Any) -> None:
    assert len({kind_of(value) for value in values}) == 1
    assert len({kind_of(flag) for flag in (True, False, None)}) == 3


def test_checks_grow_rare() -> None:
    counts = [n for n in range(1, 5000) if coupling_check._is_power_of_ten(n)]
    assert counts == [1, 10, 100, 1000]
