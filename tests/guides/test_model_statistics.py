"""Running statistics that a saved guide does not hold: told where the model has others."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from pyro.optim import ClippedAdam
from torch import Tensor, nn

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    LinearisedELBO,
    evaluate,
    fit,
    log_predictive_density,
    posterior_draws,
    predict,
    refine,
    to_arviz,
)
from pyro_implicit.bayesian import BayesianModule
from pyro_implicit.exceptions import StateError

X = torch.linspace(-1, 2, 12)[:, None]
Y = X.sin()[:, 0]
TOLD = r"running_mean of BayesianModule.*running_var.* when the guide was saved.*net.state_dict"


class Model:
    """A network of a BatchNorm layer, new with each instance."""

    def __init__(self) -> None:
        inner = nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1))
        self.net = BayesianModule(inner, dist.Normal(0.0, 1.0))

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        mean = self.net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, 0.1), obs=y)


def fitted(model: Any) -> HyperNetworkGuide:
    guide = HyperNetworkGuide(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(model, guide, X, Y, num_steps=5, progress=False)
    return guide


@pytest.fixture(scope="module")
def saved() -> tuple[dict[str, Any], dict[str, Any]]:
    model = Model()
    guide = fitted(model)
    return guide.state_dict(), copy.deepcopy(model.net.state_dict())


CALLS: dict[str, Any] = {
    "predict": lambda m, g: predict(m, g, X, num_samples=4),
    "predict, parallel": lambda m, g: predict(m, g, X, num_samples=4, parallel=True),
    "evaluate": lambda m, g: evaluate(m, g, X, Y, num_samples=4),
    "density": lambda m, g: log_predictive_density(m, g, X, Y, num_samples=4),
    "to_arviz": lambda m, g: to_arviz(m, g, X, Y, num_samples=4),
    "refine": lambda m, g: refine(m, g, X, Y, num_chains=2, num_steps=0, progress=False),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_model_without_its_statistics_is_told(name: str, saved: Any) -> None:
    state, net_state = saved
    guide = HyperNetworkGuide.from_state_dict(state)
    for _ in range(2):
        with pytest.warns(UserWarning, match=TOLD) as told:
            CALLS[name](Model(), guide)
        assert told[0].filename == __file__
    model = Model()
    model.net.load_state_dict(net_state)
    CALLS[name](model, guide)  # a warning would be an error
    assert not nn.modules.module._global_forward_pre_hooks


@pytest.mark.long
def test_a_fit_that_goes_on_tells_at_its_beginning(saved: Any) -> None:
    guide = HyperNetworkGuide.from_state_dict(saved[0])
    result = fit(Model(), guide, X, Y, num_steps=5, progress=False)
    assert any("when the guide was saved" in text for text in result.warnings)
    model = Model()
    model.net.load_state_dict(saved[1])
    guide = HyperNetworkGuide.from_state_dict(saved[0])
    result = fit(model, guide, X, Y, num_steps=5, progress=False)
    assert not any("when the guide was saved" in text for text in result.warnings)
    predict(model, guide, X, num_samples=4)  # the fit has moved them: all is right


@pytest.mark.long
def test_a_pickled_guide_knows_them_too() -> None:
    model = Model()
    guide = pickle.loads(pickle.dumps(fitted(model)))
    predict(model, copy.deepcopy(guide), X, num_samples=4)
    with pytest.warns(UserWarning, match=TOLD):
        predict(Model(), guide, X, num_samples=4)


def test_a_state_of_a_loaded_guide_is_that_of_the_saved_one(saved: Any) -> None:
    guide = HyperNetworkGuide.from_state_dict(saved[0])
    again = guide.state_dict()["_extra_state"]["first_call"]["statistics"]
    assert again == saved[0]["_extra_state"]["first_call"]["statistics"] and len(again) == 2


@pytest.mark.long
def test_a_conditional_guide_knows_them() -> None:
    bn = nn.BatchNorm1d(1, affine=False)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + bn(x)[:, 0], 1.0), obs=y)

    guide = ConditionalHyperNetworkGuide(model).setup(X, Y)
    other = ConditionalHyperNetworkGuide.from_state_dict(guide.state_dict())
    predict(model, other, X, Y, num_samples=2)
    other = ConditionalHyperNetworkGuide.from_state_dict(guide.state_dict())
    bn.running_mean.fill_(3.0)
    with pytest.warns(UserWarning, match="running_mean of BatchNorm1d"):
        predict(model, other, X, Y, num_samples=2)


def test_draws_alone_need_no_network(saved: Any) -> None:
    guide = HyperNetworkGuide.from_state_dict(saved[0])
    posterior_draws(guide, 3)


@pytest.mark.long
def test_a_damaged_state_is_refused(saved: Any) -> None:
    for damage in (3, {"a": [1, 2]}, None):
        state = copy.deepcopy(saved[0])
        state["_extra_state"]["first_call"]["statistics"] = damage
        with pytest.raises(StateError, match="statistics"):
            HyperNetworkGuide.from_state_dict(state)


@pytest.mark.long
def test_a_copy_is_saved_with_the_statistics_of_its_own_fit() -> None:
    """A copy knows the networks of the original no more than a loaded guide does."""
    model, other = Model(), Model()
    guide = fitted(model)
    clone = copy.deepcopy(guide)
    predict(model, clone, X, num_samples=2)
    with pytest.warns(UserWarning, match=TOLD):
        predict(other, copy.deepcopy(guide), X, num_samples=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(other, clone, 2 * X + 3, Y, num_steps=5, progress=False)
    loaded = HyperNetworkGuide.from_state_dict(clone.state_dict())
    predict(other, loaded, X, num_samples=2)
    loaded = HyperNetworkGuide.from_state_dict(clone.state_dict())
    with pytest.warns(UserWarning, match=TOLD):
        predict(model, loaded, X, num_samples=2)


@pytest.mark.long
def test_a_guide_is_saved_with_the_model_that_it_was_fitted_to() -> None:
    model, other = Model(), Model()
    guide = HyperNetworkGuide(model)
    guide(X, Y)
    fit(other, guide, X + 3, Y, num_steps=5, progress=False)
    predict(other, HyperNetworkGuide.from_state_dict(guide.state_dict()), X, num_samples=2)


@pytest.mark.long
@pytest.mark.parametrize("how", ["loaded", "copied", "pickled"])
def test_a_guide_that_is_trained_on_by_other_means_knows_nothing(how: str) -> None:
    """Statistics move with the guide, as they should."""
    model = Model()
    guide = fitted(model)
    if how == "loaded":
        guide = HyperNetworkGuide.from_state_dict(guide.state_dict())
    else:
        guide = copy.deepcopy(guide) if how == "copied" else pickle.loads(pickle.dumps(guide))
    guide._model = (model,)
    svi = SVI(model, guide, ClippedAdam({"lr": 0.01}), LinearisedELBO(num_particles=2))
    for _ in range(3):
        svi.step(X + 5, Y)
    predict(model, guide, X, num_samples=2)
    loaded = HyperNetworkGuide.from_state_dict(guide.state_dict())
    predict(model, loaded, X, num_samples=2)


def two_layers() -> tuple[Any, nn.BatchNorm1d, nn.BatchNorm1d]:
    first, second = nn.BatchNorm1d(1, affine=False), nn.BatchNorm1d(1, affine=False)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        if y is not None:
            first(x)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * second(x)[:, 0], 0.5), obs=y)

    return model, first, second


@pytest.mark.long
@pytest.mark.parametrize("which", [0, 1])
def test_two_networks_of_one_class_are_told_apart(which: int) -> None:
    model, *layers = two_layers()
    first, second = layers
    first.running_mean.fill_(2.0)
    second.running_mean.fill_(-1.0)
    guide = fitted(model)
    state = guide.state_dict()
    known = state["_extra_state"]["first_call"]["statistics"]
    assert {name.partition(" of ")[2] for name in known} == {"BatchNorm1d", "BatchNorm1d 2"}
    log_predictive_density(model, HyperNetworkGuide.from_state_dict(state), X, Y, num_samples=2)
    layers[which].running_mean.fill_(7.0)
    name = "running_mean of BatchNorm1d" + (" 2" if which else "")
    with pytest.warns(UserWarning, match=f"^{name} of the model"):
        guide = HyperNetworkGuide.from_state_dict(state)
        log_predictive_density(model, guide, X, Y, num_samples=2)


@pytest.mark.long
def test_a_call_that_meets_fewer_networks_than_the_fit_is_told_what_it_can_be() -> None:
    """Predictions call the second layer alone, which is one of those that were saved, or none."""
    model, first, second = two_layers()
    first.running_mean.fill_(2.0)
    state = fitted(model).state_dict()
    predict(model, HyperNetworkGuide.from_state_dict(state), X, num_samples=2)
    second.running_mean.fill_(7.0)
    with pytest.warns(UserWarning, match="^running_mean of BatchNorm1d of the model"):
        predict(model, HyperNetworkGuide.from_state_dict(state), X, num_samples=2)


def test_a_state_that_a_set_up_guide_takes_brings_its_statistics(saved: Any) -> None:
    state, net_state = saved
    model = Model()
    guide = HyperNetworkGuide(model)
    guide(X, Y)
    guide.load_state_dict(state)
    with pytest.warns(UserWarning, match=TOLD):
        predict(model, guide, X, num_samples=2)
    model.net.load_state_dict(net_state)
    predict(model, guide, X, num_samples=2)


def test_an_exception_that_is_kept_leaves_no_hook(saved: Any) -> None:
    guide = HyperNetworkGuide.from_state_dict(saved[0])
    kept = None
    try:
        predict(lambda x: 1 / 0, guide, X, num_samples=2)
    except Exception as error:
        kept = error
    assert kept is not None
    assert not nn.modules.module._global_forward_pre_hooks


@pytest.mark.long
def test_networks_that_other_threads_call_are_not_the_models(saved: Any) -> None:
    state, net_state = saved
    model, other = Model(), nn.Sequential(nn.BatchNorm1d(1, affine=False))
    model.net.load_state_dict(net_state)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            other(X)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        guide = HyperNetworkGuide.from_state_dict(state)
        predict(model, guide, X, num_samples=8)
    finally:
        stop.set()
        thread.join()
    known = guide.state_dict()["_extra_state"]["first_call"]["statistics"]
    assert known.keys() == state["_extra_state"]["first_call"]["statistics"].keys()


@pytest.mark.long
def test_a_guide_that_was_loaded_within_a_larger_module_and_trained_is_not_told(saved: Any) -> None:
    """As a checkpoint of Lightning is, from which training goes on."""
    state, net_state = saved
    both = nn.ModuleList([Model().net, HyperNetworkGuide.from_state_dict(state)])
    both[0].load_state_dict(net_state)
    whole = copy.deepcopy(both.state_dict())
    model = Model()
    again = nn.ModuleList([model.net, HyperNetworkGuide(model)])
    again[1](X, Y)
    again.load_state_dict(whole)
    svi = SVI(model, again[1], ClippedAdam({"lr": 0.01}), LinearisedELBO(num_particles=2))
    for _ in range(5):
        svi.step(X + 5, Y)
    predict(model, again[1], X, num_samples=2)
