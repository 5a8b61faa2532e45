"""Models with discrete latents to be summed out, written for vectorised draws as well."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from pyro.infer import config_enumerate
from pyro.ops.indexing import Vindex
from torch import Tensor

Y = torch.tensor([-1.0, 0.5, 2.0, 0.1, -0.7])
ROWS = torch.tensor([[-1.0, 0.5, 2.0, 0.3], [0.1, -0.7, 1.1, 0.9], [0.0, 1.5, -2.0, 0.2]])
WORDS = torch.tensor([[0, 1, 2, 2], [1, 1, 0, 3], [3, 2, 1, 0]])


def _globals(num: int) -> tuple[Tensor, Tensor]:
    weights = pyro.sample("weights", dist.Dirichlet(torch.full((num,), 2.0)))
    return weights, pyro.sample("locs", dist.Normal(torch.zeros(num), 1.0).to_event(1))


@config_enumerate
def mixture(mask: Any = None) -> None:
    weights, locs = _globals(3)
    with pyro.plate("data", 5), poutine.mask(mask=True if mask is None else mask):
        z = pyro.sample("z", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(Vindex(locs)[..., z], 0.5), obs=Y)


def masked_mixture() -> None:
    mixture(torch.tensor([True, False, True, True, False]))


@config_enumerate
def minibatch() -> None:
    weights, locs = _globals(2)
    with pyro.plate("data", 20, subsample_size=5):
        z = pyro.sample("z", dist.Bernoulli(weights[..., 0])).long()
        pyro.sample("y", dist.Normal(Vindex(locs)[..., z], 0.5), obs=Y)


@config_enumerate
def choice_for_all() -> None:
    weights, locs = _globals(2)
    z = pyro.sample("z", dist.Categorical(weights))
    with pyro.plate("data", 5):
        pyro.sample("y", dist.Normal(Vindex(locs)[..., z], 0.5), obs=Y)


@config_enumerate
def nested() -> None:
    weights, locs = _globals(2)
    with pyro.plate("outer", 3, dim=-2):
        kind = pyro.sample("kind", dist.Categorical(weights))
        with pyro.plate("inner", 4, dim=-1):
            turned = pyro.sample("turned", dist.Bernoulli(0.2 + 0.3 * kind.float()))
            loc = Vindex(locs)[..., kind] * (1.0 - 2.0 * turned)
            pyro.sample("y", dist.Normal(loc, 0.7), obs=ROWS)


@config_enumerate
def chain() -> None:
    stay, locs = _globals(2)
    lengths = torch.tensor([4, 2, 3])
    with pyro.plate("sequences", 3):
        x: Any = 0
        for t in pyro.markov(range(4)):
            with poutine.mask(mask=t < lengths):
                p = torch.where(torch.as_tensor(x) == 0, 0.1 + 0.0 * stay[..., 0], stay[..., 0])
                x = pyro.sample(f"x_{t}", dist.Bernoulli(p)).long()
                pyro.sample(f"y_{t}", dist.Normal(Vindex(locs)[..., x], 0.6), obs=ROWS[:, t])


@config_enumerate
def membership() -> None:
    words = pyro.sample("words", dist.Dirichlet(torch.full((2, 4), 1.5)).to_event(1))
    with pyro.plate("documents", 3, dim=-1):
        share = pyro.sample("share", dist.Dirichlet(torch.ones(2)))
        with pyro.plate("places", 4, dim=-2):
            z = pyro.sample("z", dist.Categorical(share))
            pyro.sample("word", dist.Categorical(Vindex(words)[..., z, :]), obs=WORDS.T)


@config_enumerate
def prior_of_a_choice() -> None:
    z = pyro.sample("z", dist.Categorical(torch.tensor([0.2, 0.3, 0.5])))
    w = pyro.sample("w", dist.Normal(z.float(), 1.0 + z))
    with pyro.plate("data", 5):
        pyro.sample("y", dist.Normal(w, 1.0), obs=Y)


@config_enumerate
def two_scales() -> None:
    """A choice for all beside one for each row of a minibatch, which Pyro refuses."""
    weights, locs = _globals(2)
    a = pyro.sample("a", dist.Categorical(weights))
    pyro.sample("first", dist.Normal(Vindex(locs)[..., a], 0.5), obs=torch.tensor(0.3))
    with pyro.plate("data", 20, subsample_size=5):
        z = pyro.sample("z", dist.Categorical(weights))
        pyro.sample("y", dist.Normal(Vindex(locs)[..., z], 0.5), obs=Y)


MODELS = {
    "mixture": mixture,
    "masked mixture": masked_mixture,
    "minibatch": minibatch,
    "choice for all": choice_for_all,
    "nested": nested,
    "chain": chain,
    "membership": membership,
    "prior of a choice": prior_of_a_choice,
}
