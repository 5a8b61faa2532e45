"""HyperNetworkGuide: its defaults, its options, and what it refuses."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from stochman import nnj
from torch import nn

from pyro_implicit import (
    BayesianModule,
    CMMNNGuide,
    HyperNetworkGuide,
    LinearisedELBO,
    MixtureDensityGuide,
    MMNNGuide,
)
from pyro_implicit.exceptions import ArgumentError, ShapeError
from pyro_implicit.generators import (
    CMMNN,
    MMNN,
    AutoregressiveGenerator,
    MLPGenerator,
    ModuleGenerator,
    ResidualGenerator,
)


def make(size):
    def model():
        pyro.sample("w", dist.Normal(torch.zeros(size), 1.0).to_event(1))
        pyro.sample("s", dist.LogNormal(0.0, 1.0))

    return model


def generator_of(guide):
    return guide.samplers[0].generator


@pytest.mark.long
def test_small_models_get_a_generator_that_cannot_fold():
    guide = HyperNetworkGuide(make(255)).setup()
    assert isinstance(generator_of(guide), AutoregressiveGenerator)
    assert guide.is_bijective and guide.samplers[0].scale == 0.0
    draws = guide.sample(2000)
    assert 0.4 < float(draws["w"].std(0).mean()) < 0.65  # the initial scale


@pytest.mark.parametrize(
    "options",
    [
        {"noise_dim": 5},
        {"hidden_dims": (40, 40)},
        {"activation": "tanh"},
        {"scale": 0.1},
        {"scale": 0.1, "learn_scale": "scalar"},
    ],
)
def test_whoever_asks_for_a_perceptron_gets_one(options):
    guide = HyperNetworkGuide(make(4), **options).setup()
    assert isinstance(generator_of(guide), MLPGenerator)


def test_small_perceptrons_have_as_many_noises_as_latents_and_no_output_noise():
    guide = HyperNetworkGuide(make(4), hidden_dims=(40, 40)).setup()
    generator = generator_of(guide)
    assert isinstance(generator, MLPGenerator)
    assert (generator.noise_dim, generator.output_dim) == (5, 5)
    assert generator.full_rank
    assert guide.samplers[0].scale == 0.0


def test_large_models_get_a_hundred_noises_and_output_noise():
    guide = HyperNetworkGuide(make(1100)).setup()
    generator = generator_of(guide)
    assert (generator.noise_dim, generator.output_dim, generator.hidden_dims) == (100, 1101, (100,))
    assert not generator.full_rank
    assert guide.samplers[0].scale == 0.01


def test_large_models_that_start_as_a_gaussian_have_it_as_learned_output_noise():
    fitted = pyro.infer.autoguide.AutoNormal(make(1100))
    fitted()
    guide = HyperNetworkGuide(make(1100), init_from=fitted).setup()
    sampler = guide.samplers[0]
    assert sampler.raw_scale.shape == (1101,)
    assert sampler.preconditioner.shift.shape == (1101,)
    draws = sampler.generator(torch.randn(2000, 100))
    total = (draws.var(0) + sampler.scale.square()).sqrt()
    assert torch.allclose(total.mean(), torch.ones(()), atol=0.01)
    assert draws.std() < 0.15
    own = HyperNetworkGuide(make(1100), init_from=fitted, hidden_dims=(5,)).setup()
    assert generator_of(own).hidden_dims == (5,)


@pytest.mark.parametrize(
    ("num_inputs", "kind"), [(30, AutoregressiveGenerator), (60, MLPGenerator)]
)
def test_networks_of_more_than_256_latents_have_perceptrons(num_inputs, kind):
    net = BayesianModule(
        torch.nn.Sequential(torch.nn.Linear(num_inputs, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)),
        dist.Normal(0.0, 1.0),
    )

    def network(x):
        mean = net(x).squeeze(-1)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.zeros(len(x)))

    guide = HyperNetworkGuide(network, init_from=None).setup(torch.randn(3, num_inputs))
    assert isinstance(generator_of(guide), kind)


@pytest.mark.parametrize(("size", "kind"), [(1023, AutoregressiveGenerator), (1024, MLPGenerator)])
def test_other_models_have_them_above_1024(size, kind):
    assert isinstance(generator_of(HyperNetworkGuide(make(size)).setup()), kind)


def test_options_reach_the_network():
    guide = HyperNetworkGuide(make(2), noise_dim=7, hidden_dims=(5, 6), activation="sin").setup()
    generator = generator_of(guide)
    assert (generator.noise_dim, generator.hidden_dims, generator.activation) == (7, (5, 6), "sin")


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, 0.0),
        ({"noise_dim": 1}, 0.01),
        ({"scale": 0.3}, 0.3),
        ({"scale": 0}, 0.0),
        ({"learn_scale": "scalar"}, 0.01),
        ({"learn_scale": "diagonal", "scale": 0.2}, 0.2),
        ({"generator": ResidualGenerator}, 0.0),
        ({"generator": ResidualGenerator, "learn_scale": "scalar"}, 0.01),
        ({"generator": nn.Linear(3, 3)}, 0.01),
    ],
)
def test_the_output_noise_that_a_generator_needs(options, expected):
    scale = HyperNetworkGuide(make(2), **options).setup().samplers[0].scale
    torch.testing.assert_close(torch.as_tensor(scale).detach().mean(), torch.tensor(expected))


@pytest.mark.parametrize("factorized", [False, True])
@pytest.mark.parametrize("size", [3, 300])
def test_first_draws_have_the_asked_deviation_around_the_asked_location(size, factorized):
    guide = HyperNetworkGuide(
        make(size),
        init_scale=0.2,
        factorized=factorized,
        init_loc_fn=lambda site: torch.full(site["fn"].shape(), 3.0),
    ).setup()
    draws = guide.sample(3000)
    u = torch.cat([draws["w"], draws["s"].log()[:, None]], -1)
    centre = torch.tensor([3.0] * size + [3.0]).log() * torch.tensor([0.0] * size + [1.0])
    centre[:size] = 3.0
    assert (u.mean(0) - centre).abs().max() < 0.05
    assert ((u.std(0) / 0.2 - 1).abs() < 0.25).all()


def test_factorised_guides_have_a_generator_per_site_and_independent_draws():
    guide = HyperNetworkGuide(make(3), factorized=True).setup()
    assert [s.generator.output_dim for s in guide.samplers] == [3, 1]
    assert len({id(s.generator) for s in guide.samplers}) == 2
    draws = guide.sample(4000)
    joint = torch.cat([draws["w"], draws["s"].log()[:, None]], -1)
    assert joint.mT.corrcoef()[3, :3].abs().max() < 0.08
    own = HyperNetworkGuide(make(3), factorized=True, generator=ResidualGenerator).setup()
    assert all(isinstance(s.generator, ResidualGenerator) for s in own.samplers)


GENERATORS = {
    "a class": ResidualGenerator,
    "a function": lambda n: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, n)),
    "a generator": MLPGenerator(2, 3, (4,)),
    "a module": nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 3)),
    "layers of StochMan": nnj.Sequential(nnj.Linear(2, 5), nnj.Tanh(), nnj.Linear(5, 3)),
    "a wrapped module": ModuleGenerator(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), (2, 2), 3),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_any_generator_trains(name):
    guide = HyperNetworkGuide(make(2), generator=GENERATORS[name], scale=0.1).setup()
    loss = LinearisedELBO(num_particles=3, vectorize_particles=True).differentiable_loss(
        guide.model, guide
    )
    gradients = torch.autograd.grad(loss, list(guide.parameters()))
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in gradients)
    assert guide.sample(5)["w"].shape == (5, 2)


def test_a_generator_of_the_wrong_size():
    for option in (MLPGenerator(2, 7), ResidualGenerator(7)):
        with pytest.raises(ShapeError, match="output_dim=7, but the guide's latents have 3"):
            HyperNetworkGuide(make(2), generator=option).setup()
    with pytest.raises(ShapeError, match=r"Linear returned shape \(2, 7\).*expected \(2, 3\)"):
        HyperNetworkGuide(make(2), generator=nn.Linear(2, 7)).setup()
    with pytest.raises(ArgumentError, match="generator=7 cannot be called; expected a Generator"):
        HyperNetworkGuide(make(2), generator=7).setup()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"generator": ResidualGenerator, "hidden_dims": (4,)}, "generator replaces hidden_dims"),
        ({"generator": nn.Linear(2, 3), "factorized": True}, "needs one generator per site"),
        ({"noise_dim": 0}, "noise_dim=0; expected an integer >= 1"),
        ({"init_scale": 0.0}, "init_scale=0.0; expected a finite number > 0"),
        ({"init_scale": float("nan")}, "init_scale=nan; expected a finite number > 0"),
        ({"activation": "tahn"}, "activation 'tahn' is unknown; expected one of .*'tanh'"),
        ({"scale": -0.1}, "scale=-0.1; expected a finite number >= 0"),
        ({"learn_scale": True}, "learn_scale=True; expected None, False, 'scalar'"),
        ({"learn_scale": "scalar", "scale": 0.0}, "a learned scale cannot start at 0"),
        (
            {"init_from": "map"},
            "init_from='map'; expected 'auto', None, 'mean-field', 'laplace', 'hessian', 'ggn' or "
            "'full-rank'",
        ),
    ],
)
def test_bad_options_are_refused_at_once(options, message):
    with pytest.raises(ArgumentError, match=message):
        HyperNetworkGuide(make(2), **options)


def test_an_empty_network_is_refused():
    with pytest.raises(ArgumentError, match=r"hidden_dims=\(\); expected a non-empty sequence"):
        HyperNetworkGuide(make(2), hidden_dims=()).setup()


def test_residual_generator_by_class_starts_at_init_scale() -> None:
    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(50), 1.0).to_event(1))

    guide = HyperNetworkGuide(model, generator=ResidualGenerator, init_scale=0.02).setup()
    assert guide.sample(2000)["w"].std(0).mean().item() == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("init_scale", [0.5, 1e-3, 1e-6])
@pytest.mark.parametrize("kind", [HyperNetworkGuide, MMNNGuide])
def test_output_noise_of_the_default_does_not_drown_a_small_init_scale(kind, init_scale):
    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(1100), 1.0).to_event(1))

    guide = kind(model, init_scale=init_scale, init_from=None).setup()
    deviation = guide.sample(2000)["w"].double().var(0).mean().sqrt().item()
    assert deviation == pytest.approx(init_scale, rel=0.35)
    assert guide.samplers[0].distribution().scale == pytest.approx(min(0.01, 0.1 * init_scale))


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("init_from", [None, "laplace"])
def test_init_scale_is_that_of_the_first_draws_of_any_generator(name, init_from):
    def normal():
        pyro.sample("w", dist.Normal(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])).to_event(1))

    options = {"init_loc_fn": lambda site: torch.full((3,), 2.0), "scale": 1e-4}
    guide = HyperNetworkGuide(
        normal, generator=GENERATORS[name], init_scale=0.2, init_from=init_from, **options
    ).setup()
    draws = guide.sample(4000)["w"]
    expected = torch.tensor([0.2] * 3 if init_from is None else [1.0, 2.0, 3.0])
    torch.testing.assert_close(draws.std(0), expected, rtol=0.1, atol=0)
    centre = torch.full((3,), 2.0) if init_from is None else torch.zeros(3)
    assert ((draws.mean(0) - centre).abs() < 0.1 * expected).all()
    bare = HyperNetworkGuide(normal, generator=GENERATORS["a generator"]).setup()
    assert generator_of(bare) is GENERATORS["a generator"]  # left as it is unless asked for


def test_a_rescaled_generator_is_saved_and_trained():
    option = lambda n: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, n))  # noqa: E731
    guide = HyperNetworkGuide(make(2), generator=option, init_scale=0.3, scale=0.1).setup()
    again = HyperNetworkGuide(make(2), generator=option, scale=0.1)
    again.load_state_dict(guide.state_dict())
    packaged = HyperNetworkGuide(make(2), generator=MLPGenerator(2, 3, (4,)), init_scale=0.3)
    pairs = [
        (guide, again),
        (packaged.setup(), HyperNetworkGuide.from_state_dict(packaged.state_dict())),
    ]
    for one, other in pairs:
        draws = []
        for each in (one, other):
            torch.manual_seed(0)
            draws.append(each.sample(5)["w"])
        assert torch.equal(*draws)
    loss = LinearisedELBO(2, vectorize_particles=True).differentiable_loss(guide.model, guide)
    gradients = torch.autograd.grad(loss, list(guide.parameters()))
    assert all(g.isfinite().all() and g.abs().max() > 0 for g in gradients)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "3", True])
@pytest.mark.parametrize("kind", [HyperNetworkGuide, MMNNGuide, CMMNNGuide, MixtureDensityGuide])
def test_an_init_scale_that_is_none_is_refused_by_every_guide(kind, value):
    with pytest.raises(ArgumentError, match="init_scale=.*; expected a finite number > 0"):
        kind(make(2), init_scale=value)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "3", True])
@pytest.mark.parametrize(
    "kind",
    [
        lambda init_scale: MLPGenerator(2, 3, init_scale=init_scale),
        lambda init_scale: ResidualGenerator(3, init_scale=init_scale),
        lambda init_scale: MMNN(3, init_scale=init_scale),
        lambda init_scale: CMMNN([3], init_scale=init_scale),
    ],
)
def test_an_init_scale_that_is_none_is_refused_by_every_generator(kind, value):
    with pytest.raises(ArgumentError, match="init_scale=.*; expected a finite number > 0"):
        kind(value)


@pytest.mark.parametrize("factorized", [True, "layer"])
def test_parts_of_a_network_are_a_networks(factorized):
    layers = [torch.nn.Linear(20, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1)]
    net = BayesianModule(torch.nn.Sequential(*layers), dist.Normal(0.0, 1.0))

    def network(x):
        mean = net(x).squeeze(-1)
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=torch.zeros(len(x)))

    guide = HyperNetworkGuide(network, init_from=None, factorized=factorized)
    guide.setup(torch.randn(3, 20))
    for sampler in guide.samplers:
        large = sampler.generator.output_dim > 256
        assert isinstance(sampler.generator, MLPGenerator if large else AutoregressiveGenerator)
