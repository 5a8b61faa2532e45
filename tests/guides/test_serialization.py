"""Structures of samplers as plain values, and states that do not fit."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyro_implicit import HyperNetworkGuide
from pyro_implicit.exceptions import StateError
from pyro_implicit.generators import Generator, MLPGenerator, ResidualGenerator
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.guides.sampler import Sampler
from pyro_implicit.guides.serialization import sampler_from_state, sampler_state

FACTORS = {"none": None, "diagonal": torch.ones(3), "full": torch.eye(3)}


def model():
    pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.sample("b", dist.Normal(torch.zeros(2), 1.0).to_event(1))


class Cubic(Generator):
    """A generator of the user's own, which no state can describe."""

    def __init__(self, output_dim):
        super().__init__((output_dim,), output_dim)
        self.factor = nn.Parameter(torch.ones(output_dim))

    def forward(self, z):
        return self.factor * (z + z**3)


@pytest.mark.parametrize("kind", FACTORS)
@pytest.mark.parametrize("learn_scale", [False, "scalar", "diagonal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "make", [lambda: MLPGenerator(2, 3, (4,), activation="sin"), lambda: ResidualGenerator(3, 5)]
)
def test_a_sampler_is_rebuilt_with_its_structure(kind, learn_scale, dtype, make):
    sampler = Sampler(make(), Preconditioner(torch.zeros(3), FACTORS[kind]), 0.1, learn_scale)
    sampler.to(dtype)
    state = sampler_state(sampler)
    other = sampler_from_state(state, lambda _: None)
    assert sampler_state(other) == state
    other.load_state_dict(sampler.state_dict())
    torch.manual_seed(0)
    expected = sampler.distribution().sample((2,))
    torch.manual_seed(0)
    assert torch.equal(other.distribution().sample((2,)), expected)


@pytest.mark.parametrize(
    "option",
    [
        Cubic,
        lambda n: Cubic(n),
        lambda n: nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, n)),
        Cubic(3),
    ],
)
def test_a_generator_of_the_users_own_is_made_again_from_the_same_option(option):
    guide = HyperNetworkGuide(model, generator=option, scale=0.1).setup()
    state = guide.state_dict()
    other = HyperNetworkGuide(model, generator=option, scale=0.1)
    other.load_state_dict(state)
    draws = []
    for each in (guide, other):
        pyro.set_rng_seed(1)
        draws.append(each.sample(2)["b"])
    assert torch.equal(*draws)
    with pytest.raises(StateError, match="saved with a generator of your own"):
        HyperNetworkGuide.from_state_dict(state)


def test_a_plain_module_without_a_linear_layer_is_loaded_with_its_latent_dim():
    options = {"generator": lambda n: nn.PReLU(), "noise_dim": 3, "scale": 0.1}
    guide = HyperNetworkGuide(model, **options).setup()
    other = HyperNetworkGuide(model, **options)
    other.load_state_dict(guide.state_dict())
    assert other.samplers[0].generator.noise_shape == (3,)


def test_a_generator_module_is_part_of_the_guide_once():
    module = Cubic(3)
    guide = HyperNetworkGuide(model, generator=module, scale=0.1)
    assert not guide.state_dict(keep_vars=True).keys() - {"_extra_state"}
    guide.setup()
    names = [
        name for name, p in guide.named_parameters(remove_duplicate=False) if p is module.factor
    ]
    assert names == ["_samplers.0.generator.factor"]


def test_states_that_are_none():
    guide = HyperNetworkGuide(model)
    for state in (None, {}, {"version": 99}):
        with pytest.raises(StateError, match="not a state of HyperNetworkGuide that this version"):
            guide.set_extra_state(state)


class OtherGuide(HyperNetworkGuide):
    """Another class of guide."""


def test_states_of_others():
    state = HyperNetworkGuide(model).setup().state_dict()
    with pytest.raises(
        StateError, match="saved by a HyperNetworkGuide; this guide is a OtherGuide"
    ):
        OtherGuide.from_state_dict(state)

    def renamed():
        pyro.sample("c", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    with pytest.raises(StateError, match=r"the state has sites \['a', 'b'\]; .* has \['c'\]"):
        HyperNetworkGuide(renamed).setup().load_state_dict(state)


def test_a_guide_without_a_model_draws_but_cannot_be_built():
    state = HyperNetworkGuide(model).setup().state_dict()
    guide = HyperNetworkGuide.from_state_dict(state)
    assert guide.sample(2)["b"].shape == (2, 2)
    with pytest.raises(StateError, match="has no model"):
        guide.setup()
    empty = HyperNetworkGuide.from_state_dict(HyperNetworkGuide(model).state_dict())
    with pytest.raises(StateError, match="not built yet"):
        empty.sample(1)


def test_saved_samples_do_not_need_the_support_to_be_known():
    class Odd(dist.Normal):
        support = type("Strange", (dist.constraints.Constraint,), {"event_dim": 0})()

    torch.distributions.biject_to.register(type(Odd.support))(
        lambda _: torch.distributions.transforms.ExpTransform()
    )

    def odd():
        pyro.sample("z", Odd(torch.tensor(0.0), torch.tensor(1.0), validate_args=False))

    guide = HyperNetworkGuide(odd, init_loc_fn=lambda site: torch.tensor(1.0)).setup()
    state = guide.state_dict()
    with pytest.raises(StateError, match="support of site 'z'.*cannot be stored by value"):
        HyperNetworkGuide.from_state_dict(state)
    other = HyperNetworkGuide(odd, init_loc_fn=lambda site: torch.tensor(1.0))
    other.setup()  # as the message says
    other.load_state_dict(state)


@pytest.mark.parametrize("state", [None, {}, {"a": 1}, [1]], ids=repr)
def test_what_is_no_state_makes_no_guide(state):
    with pytest.raises(StateError, match="^not a state of HyperNetworkGuide: "):
        HyperNetworkGuide.from_state_dict(state)
