"""Priors of very many weights: the same numbers in less memory, and the memory of a whole step."""

from __future__ import annotations

import weakref
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from pyro_implicit import CMMNNGuide, HyperNetworkGuide, LanczosELBO, LinearisedELBO
from pyro_implicit.bayesian import BayesianModule
from pyro_implicit.objectives.particles import large_normal
from pyro_implicit.objectives.particles.large_normal import is_large_normal, log_density_of_large

MANY = large_normal._MIN_NUMBERS_OF_LARGE_SITE
SCALES = dist.LogNormal(0.0, 0.3)


def site(fn: Any, value: Tensor | None = None) -> dict[str, Any]:
    return {"fn": fn, "value": fn.sample() if value is None else value}


@pytest.mark.parametrize("event_dim", [0, 1, 2])
def test_densities_are_those_of_the_distribution(event_dim: int) -> None:
    fn = dist.Normal(0.5, 2.0).expand([4, MANY // 4]).to_event(event_dim)
    node = site(fn)
    assert is_large_normal(node)
    found = log_density_of_large(fn, node["value"])
    torch.testing.assert_close(found, fn.log_prob(node["value"]), rtol=1e-5, atol=1e-3)
    several = node["value"].expand(2, 4, MANY // 4) + torch.tensor([0.0, 1.0])[:, None, None]
    found = log_density_of_large(fn, several)
    torch.testing.assert_close(found, fn.log_prob(several), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(
    "node",
    [
        site(dist.Normal(0.0, 1.0).expand([MANY - 1])),
        site(dist.Laplace(0.0, 1.0).expand([MANY])),
        site(dist.Normal(torch.zeros((), requires_grad=True), 1.0).expand([MANY])),
        site(dist.Normal(0.0, 1.0).expand([MANY]), torch.zeros(MANY, dtype=torch.bfloat16)),
        site(dist.Normal(0.0, 1.0).expand([MANY]), torch.zeros(MANY, dtype=torch.float64)),
        site(dist.Normal(torch.zeros(2, 1), 1.0).expand([2, MANY]), torch.zeros(MANY)),
        site(dist.Normal(0.0, 1.0).expand([MANY]).mask(False)),
    ],
    ids=["few", "other", "learned", "half", "another type", "fewer rows", "masked"],
)
def test_others_are_left_to_their_distribution(node: Any) -> None:
    assert not is_large_normal(node)


def problem(width: int) -> tuple[Any, Any, tuple[Tensor, Tensor]]:
    x, y = torch.randn(4, width), torch.randn(4, 1)
    inner = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))
    net = BayesianModule(inner, dist.Normal(0.0, 0.1))

    def model(x: Tensor, y: Tensor) -> None:
        mean = net(x)
        with pyro.plate("rows", len(x), dim=-1):
            pyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)

    return model, CMMNNGuide(model, init_from=None).setup(x, y), (x, y)


@pytest.mark.parametrize("vectorised", [True, False])
def test_an_objective_has_the_same_value_and_gradients(
    vectorised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, guide, data = problem(20)
    elbo = LanczosELBO(2, vectorize_particles=vectorised, max_plate_nesting=1)
    found = []
    for least in (MANY, 1):
        monkeypatch.setattr(large_normal, "_MIN_NUMBERS_OF_LARGE_SITE", least)
        torch.manual_seed(1)
        guide.zero_grad()
        loss = elbo.differentiable_loss(model, guide, *data)
        loss.backward()
        found.append([loss.detach(), *(p.grad.clone() for p in guide.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("vectorised", [True, "vmap", False])
def test_latents_of_the_prior_keep_their_gradients(
    vectorised: bool | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under vmap a latent says that it has none."""

    def model() -> None:
        loc, scale = pyro.sample("loc", dist.Normal(0.0, 1.0)), pyro.sample("scale", SCALES)
        with pyro.plate("all", 5):
            pyro.sample("w", dist.Normal(loc, scale))

    torch.manual_seed(0)
    guide = HyperNetworkGuide(model, init_from=None).setup()
    elbo = LinearisedELBO(3, vectorize_particles=vectorised, max_plate_nesting=1)
    found = []
    for least in (MANY, 1):
        monkeypatch.setattr(large_normal, "_MIN_NUMBERS_OF_LARGE_SITE", least)
        torch.manual_seed(1)
        guide.zero_grad()
        elbo.differentiable_loss(model, guide).backward()
        found.append([p.grad.clone() for p in guide.parameters() if p.grad is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


class Living(TorchDispatchMode):
    """Bytes of large tensors that live at once."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.now, self.peak = least, 0, 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(one, Tensor):
                self._meet(one.untyped_storage())
        return found

    def _meet(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if size < self.least or key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@pytest.mark.long
def test_a_step_of_many_latents_takes_few_times_their_memory() -> None:
    """Weights of the model and the guide among them: 8.7 numbers a latent, 11.7 before."""
    torch.manual_seed(0)
    model, guide, data = problem(1600)
    elbo = LanczosELBO(max_plate_nesting=1)
    with pyro.validation_enabled(False):
        elbo.differentiable_loss(model, guide, *data).backward()
        guide.zero_grad()
        with Living(guide.latent_dim // 20) as living:
            elbo.differentiable_loss(model, guide, *data).backward()
    assert living.peak < 9 * 4 * guide.latent_dim
