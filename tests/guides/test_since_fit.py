"""A fit that moves what an earlier guide's predictions rest on is told, and nothing else is."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from pyro.infer.autoguide import AutoDiagonalNormal, AutoGuideList, AutoNormal
from pyro.optim import ClippedAdam
from torch import Tensor, nn

from pyro_implicit import (
    EnsembleGuide,
    HyperNetworkGuide,
    LinearisedELBO,
    evaluate,
    fit,
    log_predictive_density,
    posterior_draws,
    predict,
    refine,
)
from pyro_implicit.bayesian import BayesianModule
from pyro_implicit.guides.since_fit import moved_since_fit
from pyro_implicit.inference import prior_from

X = torch.linspace(-1, 1, 12)[:, None]
Y = X.sin()[:, 0]
CHAINS: Any = {"num_steps": 40, "num_warmup": 20, "progress": False, "seed": 0}
TOLD = "are not what they were when the fit of this guide ended"


class WithNetwork:
    """A network of a BatchNorm layer that normalises what comes in."""

    def __init__(self) -> None:
        inner = nn.Sequential(nn.BatchNorm1d(1, affine=False), nn.Linear(1, 1))
        self.net = BayesianModule(inner, dist.Normal(0.0, 1.0))

    def __call__(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        mean = self.net(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, 0.1), obs=y)


def with_parameter(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    scale = pyro.param("scale", torch.tensor(0.5), constraint=dist.constraints.positive)
    with pyro.plate("data", len(x)):
        return pyro.sample("y", dist.Normal(w * x[:, 0], scale), obs=y)


def fitted(model: Any, kind: type = HyperNetworkGuide, x: Tensor = X) -> Any:
    guide = kind(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(model, guide, x, Y, num_steps=5, progress=False)
    return guide


@pytest.mark.long
@pytest.mark.parametrize("kind", [HyperNetworkGuide, AutoNormal])
@pytest.mark.parametrize("model", [WithNetwork(), with_parameter], ids=["statistics", "parameter"])
def test_a_second_fit_of_the_same_model_is_told_by_the_first_guide(model: Any, kind: type) -> None:
    first = fitted(model, kind)
    if kind is AutoNormal:  # it would take the parameters of the first
        kind = AutoDiagonalNormal
    second = fitted(model, kind, 3 * X + 5)
    for call in (predict, evaluate):
        with pytest.warns(UserWarning, match=TOLD):
            call(model, first, X, *([Y] if call is evaluate else []), num_samples=4)
    with pytest.warns(UserWarning, match=TOLD):
        log_predictive_density(model, first, X, Y, num_samples=4)
    predict(model, second, X, num_samples=4)  # a warning would be an error


@pytest.mark.long
def test_the_statistics_that_moved_are_named() -> None:
    model = WithNetwork()
    first = fitted(model)
    assert moved_since_fit(first) == []
    fitted(model, x=3 * X + 5)
    (told,) = moved_since_fit(first)
    assert "module.0.running_mean of BayesianModule" in told and "running_var" in told
    pyro.clear_param_store()
    fitted(with_parameter)
    assert len(moved_since_fit(first)) == 1


@pytest.mark.long
def test_many_that_moved_are_counted() -> None:
    model = WithNetwork()
    model.net = BayesianModule(
        nn.Sequential(*(nn.BatchNorm1d(1) for _ in range(3)), nn.Linear(1, 1)), dist.Normal(0.0, 1)
    )
    first = fitted(model)
    fitted(model, x=3 * X + 5)
    assert " and 2 more of the model" in moved_since_fit(first)[0]


@pytest.mark.long
def test_a_cleared_store_has_parameters_of_another_fit() -> None:
    first = fitted(with_parameter)
    pyro.clear_param_store()
    fitted(with_parameter, x=3 * X + 5)
    assert "scale of the model" in moved_since_fit(first)[0]


@pytest.mark.long
def test_networks_of_their_own_are_left_alone() -> None:
    model = WithNetwork()
    first = fitted(model)
    other = copy.deepcopy(model)
    fitted(other, x=3 * X + 5)
    assert moved_since_fit(first) == []
    predict(model, first, X, num_samples=4)


@pytest.mark.long
def test_predictions_move_nothing() -> None:
    model = WithNetwork()
    guide = fitted(model)
    for _ in range(2):
        predict(model, guide, X, num_samples=3)
        evaluate(model, guide, X, Y, num_samples=3)
    assert moved_since_fit(guide) == []


def test_a_guide_that_was_trained_on_knows_nothing() -> None:
    """Whoever goes on with SVI moves the model's parameters along with the guide's."""
    guide = fitted(with_parameter)
    SVI(with_parameter, guide, ClippedAdam({"lr": 0.01}), LinearisedELBO(2)).step(X, Y)
    assert moved_since_fit(guide) == []


def test_what_a_run_moves_by_itself_tells_nothing() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls: Tensor = self.calls + 1
            return x[:, 0]

    count = Counting()

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        mean = w * count(x)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, 0.1), obs=y)

    guide = fitted(model)
    predict(model, guide, X, num_samples=3)
    assert moved_since_fit(guide) == []


@pytest.mark.long
def test_a_new_fit_of_the_same_guide_forgets_the_last_one() -> None:
    model = WithNetwork()
    guide = fitted(model)
    fitted(model, x=3 * X + 5)
    assert moved_since_fit(guide)
    fit(model, guide, X, Y, num_steps=3, progress=False)
    assert moved_since_fit(guide) == []


@pytest.mark.long
def test_a_guide_that_has_taken_the_parameters_of_another_one_is_told() -> None:
    """Pyro's do, by their names in its store."""
    first = fitted(with_parameter, AutoNormal)
    pyro.clear_param_store()
    fitted(with_parameter, AutoNormal, 3 * X + 5)
    for _ in range(2):
        with pytest.warns(UserWarning, match="draws are of that one's posterior"):
            predict(with_parameter, first, X, num_samples=4)


@pytest.mark.long
def test_two_guides_of_a_class_in_turns_on_a_cleared_store_keep_what_they_have() -> None:
    """Of models whose parameters are those of modules, which a cleared store leaves alone."""
    model = WithNetwork()
    model.net.eval()
    first = fitted(model, AutoNormal)
    before = [value.detach().clone() for value in first.parameters()]
    pyro.clear_param_store()
    second = fitted(model, AutoNormal, 3 * X + 5)
    for guide in (first, second, first):
        pyro.clear_param_store()
        predict(model, guide, X, num_samples=4)
    for value, then in zip(first.parameters(), before, strict=True):
        assert torch.equal(value, then)


@pytest.mark.long
def test_an_ensemble_tells_what_its_guides_would() -> None:
    first = fitted(with_parameter, AutoNormal)
    pyro.clear_param_store()
    second = fitted(with_parameter, AutoNormal, 3 * X + 5)
    posterior_draws(second, 4, X, Y)
    with pytest.warns(UserWarning, match="draws are of that one's posterior") as told:
        predict(with_parameter, EnsembleGuide([second, EnsembleGuide([first])]), X, num_samples=4)
    assert len(told) == 1
    model = WithNetwork()
    guides = [fitted(model), fitted(model, x=3 * X + 5)]
    for call in (predict, evaluate):
        with pytest.warns(UserWarning, match=TOLD):
            call(model, EnsembleGuide(guides), X, *([Y] if call is evaluate else []), num_samples=4)
    assert moved_since_fit(EnsembleGuide(guides[1:])) == []


@pytest.mark.long
def test_a_list_of_guides_that_was_fitted_as_one_is_looked_at_as_one() -> None:
    parts = AutoGuideList(with_parameter)
    parts.append(AutoNormal(with_parameter))
    assert moved_since_fit(parts) == []
    fitted(with_parameter, lambda _: parts)
    assert moved_since_fit(parts) == []
    fitted(with_parameter, x=3 * X + 5)
    assert len(moved_since_fit(parts)) == 1


@pytest.mark.long
def test_draws_of_the_parameters_of_another_guide_are_told() -> None:
    first = fitted(with_parameter, AutoNormal)
    posterior_draws(first, 4, X, Y)  # a warning would be an error
    prior_from(first, X, Y)
    pyro.clear_param_store()
    fitted(with_parameter, AutoNormal, 3 * X + 5)
    with pytest.warns(UserWarning, match="draws are of that one's posterior") as told:
        posterior_draws(first, 4, X, Y)
    with pytest.warns(UserWarning, match="draws are of that one's posterior") as of_prior:
        prior_from(first, X, Y)
    for one in (told, of_prior):
        assert len(one) == 1 and one[0].filename == __file__


@pytest.mark.long
def test_chains_tell_what_moved_since_they_were_run() -> None:
    chains = refine(with_parameter, 2, X, Y, kernel="hmc", **CHAINS)
    predict(with_parameter, chains, X, num_samples=4)
    chains.run(10, progress=False)
    fitted(with_parameter, x=3 * X + 5)
    for one in (chains, chains.split()[1]):
        with pytest.warns(UserWarning, match="not what they were when these chains were run"):
            predict(with_parameter, one, X, num_samples=4)
    with pytest.warns(UserWarning, match="or run them anew") as told:
        chains.run(10, progress=False)
    assert told[0].filename == __file__


@pytest.mark.long
def test_functions_as_guides_and_networks_that_are_gone_are_not_remembered() -> None:
    assert moved_since_fit(lambda: None) == []
    model = WithNetwork()
    guide = fitted(model)
    del model
    assert moved_since_fit(guide) == []


def test_two_networks_of_one_class_are_told_apart() -> None:
    """Only the second one moves, and has the names of the first."""
    first, second = nn.BatchNorm1d(1, affine=False), nn.BatchNorm1d(1, affine=False)

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w * (first(x) + second(x))[:, 0], 0.5), obs=y)

    guide = fitted(model)
    first.running_mean += 1.0
    with pytest.warns(UserWarning, match=r"^running_mean of BatchNorm1d of the model"):
        predict(model, guide, X, num_samples=2)
    first.running_mean -= 1.0
    second.running_mean += 1.0
    with pytest.warns(UserWarning, match=r"^running_mean of BatchNorm1d 2 of the model"):
        predict(model, guide, X, num_samples=2)


@pytest.mark.long
def test_parameters_that_are_its_own_are_no_other_guides() -> None:
    """Other objects with its own values: assigned from a state, or read into Pyro's store."""
    model = WithNetwork()
    guide = fitted(model)
    guide.load_state_dict(guide.state_dict(), assign=True)
    predict(model, guide, X, num_samples=2)
    pyro.clear_param_store()
    mean_field = fitted(with_parameter, AutoNormal)
    state = pyro.get_param_store().get_state()
    pyro.clear_param_store()
    pyro.get_param_store().set_state(state)
    predict(with_parameter, mean_field, X, num_samples=2)
