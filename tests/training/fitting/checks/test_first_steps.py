"""What the first step of a fit shows, and what would have been lost or forgotten without a word."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pyro
import pyro.contrib.gp as gp
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_implicit import EnsembleGuide, HyperNetworkGuide, fit, posterior_draws, refine
from pyro_implicit.exceptions import ArgumentError, ShapeError, SiteError, StateError
from pyro_implicit.training import FitResult

fit_module = sys.modules["pyro_implicit.training.fitting.fit"]
X = torch.tensor([0.5, -1.0, 2.0, 1.5])
SCALE = dist.LogNormal(0.0, 0.5)


def of_two(x: Tensor) -> None:
    """A mean and a deviation of normal data."""
    mean, scale = pyro.sample("mean", dist.Normal(0.0, 1.0)), pyro.sample("scale", SCALE)
    with pyro.plate("data", len(X), subsample_size=len(x)):
        pyro.sample("x", dist.Normal(mean, scale), obs=x)


@pytest.mark.parametrize("way", ["plain", "a module that is the model", "known", "frozen"])
def test_networks_that_nobody_trains_are_told(way: str) -> None:
    net = nn.Linear(2, 1).requires_grad_(way != "frozen")
    x = torch.randn(12, 2)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> None:
            run = pyro.module("net", net) if way == "known" else self.net
            shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(run(x)[..., 0] + shift, 1.0), obs=x.sum(-1))

    own = Model()
    model: Any = own if way.startswith("a module") else own.forward
    result = quietly(model, x)
    told = [text for text in result.warnings if "are not trained" in text]
    assert len(told) == (way in ("plain", "a module that is the model"))
    if told:
        assert "weight of Linear, bias of Linear" in told[0] and "pyro.module('net'" in told[0]


def quietly(model: Any, *args: Any, **options: Any) -> FitResult:
    """A short fit of a bare guide, whose warnings are in the result alone."""
    guide = options.pop("guide", None) or HyperNetworkGuide(model, init_from=None)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        return fit(model, guide, *args, **{"num_steps": 3, "progress": False, **options})


def test_a_guide_without_a_trainable_parameter_is_told() -> None:
    guide = HyperNetworkGuide(of_two, init_from=None).setup(X)
    guide.requires_grad_(False)
    result = quietly(of_two, X, guide=guide)
    assert any("no parameter is trained" in text for text in result.warnings)


@pytest.mark.long
@pytest.mark.parametrize("how", ["plates", "vmap"])
def test_latents_that_the_guide_leaves_out_are_told(how: str) -> None:
    def model(x: Tensor) -> None:
        mean, scale = pyro.sample("mean", dist.Normal(0.0, 1.0)), pyro.sample("scale", SCALE)
        if how == "vmap":
            mean = mean * torch.ones(len(x))
        with pyro.plate("data", len(x)):
            pyro.sample("x", dist.Normal(mean, scale), obs=x)

    def hidden(x: Tensor) -> None:
        poutine.block(model, hide=["scale"])(x)

    guide = HyperNetworkGuide(poutine.block(model, hide=["scale"]), init_from=None)
    result = quietly(model, X, guide=guide)
    (told,) = (text for text in result.warnings if "guide does not draw" in text)
    assert "'scale'" in told and "nothing is learned of them" in told
    again = quietly(hidden, X, guide=guide)
    assert not any("guide does not draw" in text for text in again.warnings)


def test_within_inference_mode_nothing_is_trained() -> None:
    with torch.inference_mode():
        with pytest.raises(StateError, match=r"fit was called within torch.inference_mode\(\)"):
            fit(of_two, HyperNetworkGuide(of_two), X, progress=False)
        with pytest.raises(StateError, match="HyperNetworkGuide.setup was called within"):
            HyperNetworkGuide(of_two).setup(X)
        with pytest.raises(StateError, match="refine was called within torch.inference_mode"):
            refine(of_two, 2, X)


def test_ctrl_c_in_the_last_looks_keeps_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(fit_module, "_found", interrupted)
    result = quietly(of_two, X)
    assert result.num_steps == 3
    assert any("looks after the last step were interrupted" in one for one in result.warnings)


def test_a_validation_that_cannot_be_scored_is_found_at_once() -> None:
    taken: list[int] = []

    def counted(x: Tensor) -> None:
        taken.append(1)
        of_two(x)

    with pytest.raises(ArgumentError, match=r"called without arguments, and takes some .*lambda:"):
        fit(of_two, HyperNetworkGuide(of_two), X, validation=lambda guide: 0.0, progress=False)
    guide = HyperNetworkGuide(counted, init_from=None)
    with pytest.raises(ShapeError, match=r"\(3, 2\)"):
        fit(counted, guide, X, validation=(torch.zeros(3, 2),), num_steps=1000, progress=False)
    assert len(taken) < 50


def test_a_later_batch_without_its_columns_is_told() -> None:
    def linear(x: Tensor, y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 12, subsample_size=len(x)):
            pyro.sample("y", dist.Normal((x * w[..., None, :]).sum(-1), 1.0), obs=y)

    x, y = torch.randn(6, 2), torch.randn(6)
    result = quietly(linear, batches=[(x, y), (x[:, :1], y)])
    assert any("torch takes one column for as many" in text for text in result.warnings)


def test_a_batch_without_observations_is_told() -> None:
    """A first one without them is refused before any step."""

    def model(x: Tensor, y: Any = None) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 8, subsample_size=len(x)):
            pyro.sample("y", dist.Normal(mean * x, 1.0), obs=y)

    batches = [(X, X), (X + 1.0, None)]
    guide = HyperNetworkGuide(model, init_from=None).setup(X, X)
    result = quietly(model, batches=batches, guide=guide)
    assert sum("argument 1 is None in some of the batches" in one for one in result.warnings) == 1


def of_batches(x: Tensor, y: Any = None) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
    with pyro.plate("data", 8, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(mean * x, 1.0), obs=y)


@pytest.mark.parametrize("later", [X[:, None], X[:1]])
def test_later_batches_of_other_shapes_are_looked_at(later: Tensor) -> None:
    guide = HyperNetworkGuide(of_batches, init_from=None).setup(X, X)
    with pytest.raises(ShapeError, match="site 'y' observes a tensor of shape"):
        fit(of_batches, guide, batches=[(X, X), (X, later)], num_steps=3, progress=False)


@pytest.mark.long
def test_a_batch_with_fewer_arguments_is_told() -> None:
    guide = HyperNetworkGuide(of_batches, init_from=None).setup(X, X)
    result = quietly(of_batches, batches=[(X, X), (X,)], guide=guide)
    told = "the model observes nothing in some of the batches"
    assert sum(told in one for one in result.warnings) == 1
    result = quietly(of_batches, batches=[(X, X), {"x": X, "y": X}], guide=guide)
    assert not any(told in one for one in result.warnings)


@pytest.mark.long
def test_batches_without_labels_that_observe_their_inputs_are_not_told() -> None:
    def half_labelled(x: Tensor, y: Any = None) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 8, subsample_size=len(x)):
            pyro.sample("x", dist.Normal(mean, 1.0), obs=x)
            if y is not None:
                pyro.sample("y", dist.Normal(mean * x, 1.0), obs=y)

    guide = HyperNetworkGuide(half_labelled, init_from=None).setup(X, X)
    for later in ((X,), {"x": X}):
        result = quietly(half_labelled, batches=[(X, X), later], guide=guide)
        assert not any("batch" in one for one in result.warnings)


def test_what_a_kernel_of_pyro_keeps_for_its_own_guide_is_no_forgotten_network() -> None:
    kernel = gp.kernels.RBF(1)
    kernel.variance = pyro.nn.PyroSample(dist.LogNormal(0.0, 1.0))
    process = gp.models.GPRegression(X[:, None], X, kernel)
    kernel.lengthscale = pyro.nn.PyroParam(torch.tensor(1.0), dist.constraints.positive)
    result = quietly(process.model, guide=HyperNetworkGuide(process.model, init_from=None))
    assert not any("variance_map" in one for one in result.warnings)


def test_fit_records_gradients_where_nobody_else_does() -> None:
    with torch.no_grad():
        guide = HyperNetworkGuide(of_batches, init_from=None).setup(X, X)
        before = [one.clone() for one in guide.parameters()]
        quietly(of_batches, X, X, guide=guide)
    assert not all(torch.equal(a, b) for a, b in zip(before, guide.parameters(), strict=True))


@pytest.mark.parametrize("how", [poutine.condition, poutine.do])
def test_handlers_around_the_guide_are_refused(how: Any) -> None:
    guide = HyperNetworkGuide(of_batches, init_from=None).setup(X, X)
    calls = (
        lambda: fit(of_batches, guide, X, X, num_steps=2, progress=False),
        lambda: refine(of_batches, 2, X, X, num_steps=2, progress=False),
    )
    with how(data={"mean": torch.tensor(0.0)}):
        for call in calls:
            with pytest.raises(SiteError, match="Hold them in the model alone"):
                call()
        with pytest.raises(SiteError, match="Call it outside of that"):
            posterior_draws(guide, 2)


def test_an_ensemble_is_fitted_one_by_one() -> None:
    guide = HyperNetworkGuide(of_batches, init_from=None).setup(X, X)
    with pytest.raises(ArgumentError, match="ensemble of 1, whose members are fitted by"):
        fit(of_batches, EnsembleGuide([guide]), X, X, num_steps=2, progress=False)


def test_data_that_reach_the_guide_by_parameters_of_the_model_are_not_missed() -> None:
    """As those of ``pyro.contrib.gp``: inducing values are parameters of model and guide."""

    def loc() -> Tensor:
        found = pyro.param("loc", torch.zeros(2))
        assert isinstance(found, Tensor)
        return found

    def model(y: Tensor) -> None:
        pyro.sample("u", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(loc().sum(), 1.0), obs=y)

    def guide(y: Tensor) -> None:
        pyro.sample("u", dist.Normal(loc(), 1.0).to_event(1))

    def alone(y: Tensor) -> None:
        other = pyro.param("other", torch.zeros(2))
        pyro.sample("u", dist.Normal(other, 1.0).to_event(1))

    y = torch.ones(5)
    for one, is_told in ((guide, False), (alone, True)):
        pyro.clear_param_store()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = fit(model, one, y, objective=Trace_ELBO(), num_steps=2, progress=False)
        assert any("no observation has a density" in text for text in result.warnings) == is_told


def test_what_a_pyro_module_does_not_read_is_no_network_that_nobody_trains() -> None:
    class Model(PyroModule):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.tensor(0.0))

        def forward(self, x: Tensor) -> None:
            shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
            with pyro.plate("data", len(x)):
                pyro.sample("y", dist.Normal(shift, 1.0), obs=x.sum(-1))

    result = quietly(Model(), torch.randn(6, 2))
    assert not any("not trained" in text for text in result.warnings)
