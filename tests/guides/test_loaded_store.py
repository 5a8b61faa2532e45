"""Values that were loaded into Pyro's parameter store are taken over, or said to be lost."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from torch import Tensor, nn

from pyro_implicit import (
    BayesianModule,
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    LinearisedELBO,
    MMNNGuide,
)

X, Y = torch.randn(6, 2), torch.randn(6)
NETWORK = BayesianModule(nn.Linear(2, 1), prior=dist.Normal(0.0, 1.0), local=True)


def shared(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal((x * w).sum(-1), 1.0), obs=y)


def by_row(x: Tensor, y: Tensor | None = None) -> None:
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(NETWORK(x).squeeze(-1), 1.0), obs=y)


def _context(x: Tensor, y: Tensor | None = None) -> Tensor:
    return x


GUIDES: dict[str, tuple[Any, Callable[[], Any]]] = {
    "default": (shared, lambda: HyperNetworkGuide(shared, init_from=None)),
    "perceptron": (shared, lambda: HyperNetworkGuide(shared, init_from=None, hidden_dims=(4,))),
    "matrices": (shared, lambda: MMNNGuide(shared, init_from=None)),
    "conditional": (
        by_row,
        lambda: ConditionalHyperNetworkGuide(by_row, context=_context, hidden_dims=(4,)),
    ),
}


def _trained(kind: str, path: Path) -> tuple[Any, dict[str, Tensor]]:
    """A guide after two steps, its store in a file, and its draws."""
    model, make = GUIDES[kind]
    guide = make()
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.1}), LinearisedELBO(num_particles=2))
    for _ in range(2):
        svi.step(X, Y)
    pyro.get_param_store().save(str(path))
    return guide, _draws(guide)


def _draws(guide: Any) -> dict[str, Tensor]:
    pyro.set_rng_seed(1)
    drawn: dict[str, Tensor] = guide.sample(3, X, Y)
    return drawn


def _load(path: Path) -> None:
    pyro.clear_param_store()
    pyro.get_param_store().load(str(path))


@pytest.mark.parametrize("through", ["call", "sample"])
@pytest.mark.parametrize("kind", GUIDES)
def test_a_new_guide_says_that_the_store_is_not_all_of_it(
    kind: str, through: str, tmp_path: Path
) -> None:
    _trained(kind, tmp_path / "store.pt")
    _load(tmp_path / "store.pt")
    guide = GUIDES[kind][1]()
    match = r"other values of '\w+Guide\.samplers.* not taken over.*from_state_dict\(load_state"
    with pytest.warns(UserWarning, match=match):
        guide(X, Y) if through == "call" else _draws(guide.setup(X, Y))
    guide(X, Y)  # is said once


@pytest.mark.parametrize("kind", GUIDES)
def test_a_guide_of_a_saved_state_agrees_with_the_store(kind: str, tmp_path: Path) -> None:
    guide, draws = _trained(kind, tmp_path / "store.pt")
    state = guide.state_dict()
    _load(tmp_path / "store.pt")
    loaded = GUIDES[kind][1]()
    loaded.load_state_dict(state)
    loaded(X, Y)
    for name, value in _draws(loaded).items():
        assert torch.equal(value, draws[name])


@pytest.mark.parametrize("cleared", [True, False])
@pytest.mark.parametrize("through", ["call", "sample"])
@pytest.mark.parametrize("kind", GUIDES)
def test_a_guide_goes_back_to_its_own_values(
    kind: str, through: str, cleared: bool, tmp_path: Path
) -> None:
    guide, draws = _trained(kind, tmp_path / "store.pt")
    with torch.no_grad():
        for parameter in guide.parameters():
            parameter.add_(0.5)
    if cleared:
        pyro.clear_param_store()
    pyro.get_param_store().load(str(tmp_path / "store.pt"))
    if through == "call":
        guide(X, Y)
    for name, value in _draws(guide).items():
        assert torch.equal(value, draws[name])


def test_a_guide_that_follows_another_is_not_troubled() -> None:
    for make in (GUIDES["default"][1], GUIDES["perceptron"][1]):
        make()(X, Y)


def _partly_random() -> BayesianModule:
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    return BayesianModule(network, prior={r"2\..*": dist.Normal(0.0, 1.0)}, name="net")


def test_a_network_takes_its_parameters_from_the_store(tmp_path: Path) -> None:
    first, second = _partly_random(), _partly_random()
    first(X)
    pyro.get_param_store().save(str(tmp_path / "store.pt"))
    _load(tmp_path / "store.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second(X)
    assert torch.equal(first.module[0].weight, second.module[0].weight)
    assert pyro.get_param_store()._params["net.0.weight"] is second.module[0].weight


def test_a_network_of_other_shapes_says_so(tmp_path: Path) -> None:
    _partly_random()(X)
    pyro.get_param_store().save(str(tmp_path / "store.pt"))
    _load(tmp_path / "store.pt")
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    other = BayesianModule(network, prior={r"2\..*": dist.Normal(0.0, 1.0)}, name="net")
    with pytest.warns(UserWarning, match="'net.0.weight' and 1 more, .* their shapes are others"):
        other(X)
