"""Programs that several tests of objectives share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.poutine.messenger import Messenger
from torch import Tensor

from pyro_implicit import ImplicitDistribution
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.generators import MLPGenerator, ResidualGenerator


@pytest.fixture
def double() -> Iterator[None]:
    """float64 as default for one test (name it by ``usefixtures``)."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Given(Messenger):
    """Gives sites the values of one draw after the other, or of all of them if vectorised."""

    def __init__(self, draws: dict[str, Tensor], nesting: int | None = None) -> None:
        super().__init__()
        self.draws, self.nesting, self.index = draws, nesting, -1

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.index += 1
            with self:
                return fn(*args, **kwargs)

        return wrapped

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] not in self.draws:
            return
        value = self.draws[msg["name"]]
        if self.nesting is None:
            msg["value"] = value[self.index]
        else:
            batch = value.dim() - 1 - msg["fn"].event_dim
            ones = (1,) * (self.nesting - batch)
            msg["value"] = value.reshape(value.shape[:1] + ones + value.shape[1:])
            shape = msg["value"].shape[: msg["value"].dim() - msg["fn"].event_dim]
            msg["fn"] = msg["fn"].expand(shape)  # a plate leaves alone what is done
        msg["done"] = True


class Mixed(pyro.nn.PyroModule):
    """A global implicit site, an explicit one, and an implicit site in a plate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = MLPGenerator(2, 3, (4,))
        self.local = ResidualGenerator(1, 2)
        self.loc = pyro.nn.PyroParam(torch.tensor(0.3))

    def forward(self, rows: Tensor | None = None) -> None:
        pyro.module("first", self.first)
        pyro.module("local", self.local)
        sample_implicit("w", ImplicitDistribution(self.first, scale=0.3))
        pyro.sample("c", dist.LogNormal(self.loc, 0.5))
        with pyro.plate("data", 5, subsample=rows):
            sample_implicit("z", ImplicitDistribution(self.local))


X = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)
Y = torch.tensor([0.1, -0.4, 0.8, 1.5, -0.2], dtype=torch.float64)
MASK = torch.tensor([True, True, False, True, True])


def mixed_model(rows: Tensor | None = None) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    c = pyro.sample("c", dist.LogNormal(0.0, 1.0))
    with pyro.plate("data", 5, subsample=rows) as shown:
        z = pyro.sample("z", dist.Normal(torch.zeros(1), 2.0).to_event(1))
        mean = (w * X[shown]).sum(-1) + z[..., 0]
        pyro.sample("y", dist.Normal(mean, c), obs=Y[shown])
        with poutine.mask(mask=MASK[shown]), poutine.scale(scale=0.5):
            pyro.sample("v", dist.StudentT(4.0, mean, 1.0), obs=Y[shown] + 1)


def mixed_draws(count: int) -> dict[str, Tensor]:
    return {
        "w_noise": torch.randn(count, 2),
        "w": torch.randn(count, 3),
        "c": torch.rand(count) + 0.5,
        "z_noise": torch.randn(count, 5, 1),
        "z": torch.randn(count, 5, 1),
    }


@pytest.fixture
def mixed(double: None) -> SimpleNamespace:
    """
    A model and a guide with every kind of site: ``model``, ``guide``, ``draws(count)`` for all
    sites of the guide, and ``given(draws, nesting)``, which wraps a guide so that it uses them.
    """
    return SimpleNamespace(
        model=mixed_model, guide=Mixed(), draws=mixed_draws, given=Given, x=X, y=Y, mask=MASK
    )


@pytest.fixture
def parts() -> Callable[..., dict[str, float]]:
    """The terms of an objective as numbers."""

    def read(objective: Any, model: Any, guide: Any, *args: Any) -> dict[str, float]:
        terms = objective.terms(model, guide, *args)
        return {name: value.item() for name, value in terms.items()}

    return read
