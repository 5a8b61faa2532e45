"""Guides of matrix-multiplication generators: their layout, start, training and state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import SVI, Predictive
from pyro.infer.autoguide import AutoMultivariateNormal
from torch import Tensor, nn

from benchmarks.networks import LeNet, WideResNet
from pyro_implicit import BayesianModule, CMMNNGuide, LinearisedELBO, MMNNGuide, predict
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.generators import CMMNN, MMNN

Guide = type[MMNNGuide] | type[CMMNNGuide]
both = pytest.mark.parametrize("kind", [MMNNGuide, CMMNNGuide])


def _classifier(net: nn.Module) -> Callable[..., Any]:
    bayesian = BayesianModule(net, prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        logits = pyro.deterministic("logits", bayesian(x), event_dim=1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Categorical(logits=logits), obs=y)

    return model


def _regression(net: nn.Module) -> Callable[..., Any]:
    bayesian = BayesianModule(net, prior=dist.Normal(0.0, 1.0))

    def model(x: Tensor, y: Tensor | None = None) -> Tensor:
        mean = bayesian(x).squeeze(-1)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", dist.Normal(mean, 0.2), obs=y)

    return model


def _tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 1))


def _images() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 1, 28, 28), torch.arange(2)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _deep(layers: int = 20, width: int = 64) -> nn.Module:
    hidden = [[nn.Linear(width, width), nn.ReLU()] for _ in range(layers)]
    return nn.Sequential(*[layer for pair in hidden for layer in pair], nn.Linear(width, 10))


# ---- layout


@pytest.mark.parametrize(("hidden", "count"), [(2, 612_450), (1, 362_450)])
def test_the_papers_guides_for_lenet(hidden: int, count: int) -> None:
    guide = MMNNGuide(
        _classifier(LeNet()),
        noise_shape=(65, 65),
        hidden_shapes=[(250, 250)] * hidden,
        output_shape=(350, 127),
    )
    guide.setup(*_images())
    assert guide.latent_dim == 44_426
    assert _count(guide) == count


@both
def test_default_is_two_parameters_per_latent(kind: Guide) -> None:
    guide = kind(_classifier(LeNet())).setup(*_images())
    assert _count(guide) / 44_426 == pytest.approx(2, rel=0.07)
    assert _count(kind(_classifier(LeNet()), budget=3.0).setup(*_images())) > (2.8 * 44_426)


def test_factorised_guide_has_a_generator_for_each_site() -> None:
    guide = MMNNGuide(_classifier(LeNet()), factorized=True).setup(*_images())
    sizes = [sampler.generator.output_dim for sampler in guide.samplers]
    assert sizes == [parameter.numel() for parameter in LeNet().parameters()]
    assert all(isinstance(sampler.generator, MMNN) for sampler in guide.samplers)
    names = [name for name in poutine.trace(guide).get_trace(*_images()).nodes]
    assert sum(name.endswith("_noise") for name in names) == len(sizes)


def test_groups_are_layers() -> None:
    guide = CMMNNGuide(_classifier(LeNet())).setup(*_images())
    generator = guide.samplers[0].generator
    assert isinstance(generator, CMMNN)
    assert generator.group_sizes == [156, 2416, 30_840, 10_164, 850]


def test_sites_without_a_common_layer_are_groups_of_their_own() -> None:
    def model() -> None:
        for name in ("a", "b", "c.x", "c.y", "d.x", "c.z", "e", "f.g.x", "f.g.y", "f.x"):
            pyro.sample(name, dist.Normal(torch.zeros(2), 1.0).to_event(1))

    guide = CMMNNGuide(model).setup()
    assert guide.samplers[0].generator.group_sizes == [2, 2, 4, 2, 2, 2, 4, 2]
    assert {name: tuple(value.shape) for name, value in guide().items()} == {
        site.name: (2,) for site in guide.sites
    }


def test_long_layers_have_several_branches_of_one_size() -> None:
    guide = CMMNNGuide(_classifier(LeNet()), branch_size=4_000).setup(*_images())
    generator = guide.samplers[0].generator
    assert generator.group_sizes == [156, 2416, *[3_855] * 8, *[3_388] * 3, 850]
    assert len(generator.branches) == 14
    with torch.device("meta"):
        sizes = [parameter.numel() for parameter in WideResNet(28, 10).parameters()]
    assert max(sizes) > 2**18  # the default splits the layers of the largest network


# ---- start


@both
@pytest.mark.parametrize(
    ("net", "shape"),
    [(LeNet, (1, 28, 28)), (_deep, (64,)), (lambda: WideResNet(28, 1), (3, 16, 16))],
)
def test_first_draws_are_a_fresh_network(
    kind: Guide, net: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    x = torch.randn(32, *shape)
    model = _classifier(net())
    guide = kind(model).setup(x, torch.zeros(32))
    draws = predict(model, guide, x, num_samples=4, sites=["logits"])["logits"]
    assert draws.isfinite().all()
    assert 0.1 < draws.std() < 5
    assert 0.01 < draws.std(0).mean() < 2  # draws differ, and not wildly


@both
def test_noise_of_the_first_draws_is_relative_to_the_fan_in(kind: Guide) -> None:
    guide = kind(_classifier(_deep(2)), init_scale=0.2, scale=0.05).setup(
        torch.randn(2, 64), torch.arange(2)
    )
    draws = guide.sample(100)
    for site in guide.sites:
        unit = 1 / 8 if site.name.endswith("weight") else 1.0
        spread = draws[site.name].var(0).mean().sqrt() / unit
        assert spread == pytest.approx(math.hypot(0.2, 0.05), rel=0.35)


@both
def test_start_may_be_the_values_of_the_module(kind: Guide) -> None:
    net = LeNet()
    bayesian = BayesianModule(net, prior=dist.Normal(0.0, 1.0))
    guide = kind(bayesian, init_loc_fn=bayesian.init_to_module).setup(_images()[0])
    loc = guide.samplers[0].preconditioner.loc
    torch.testing.assert_close(loc, torch.cat([p.detach().flatten() for p in net.parameters()]))


@both
def test_start_as_a_gaussian_is_whitened(kind: Guide) -> None:
    x = torch.linspace(-1, 1, 30)[:, None]
    model = _regression(_tiny())
    correlated = AutoMultivariateNormal(model)
    correlated(x, x[:, 0])
    guide = kind(model, init_from=correlated, scale=1e-3).setup(x, x[:, 0])
    (sampler,) = guide.samplers
    assert sampler.preconditioner.kind == "full"
    with torch.no_grad():
        z = torch.randn(500, *sampler.generator.noise_shape)
        assert sampler.generator(z).square().mean().sqrt() == pytest.approx(1.0, abs=0.35)


# ---- training


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "vectorised"),
    [
        (MMNNGuide, False),
        (CMMNNGuide, True),
        (lambda model, **options: MMNNGuide(model, factorized=True, **options), True),
    ],
)
def test_a_tiny_network_learns(make: Callable[..., Any], vectorised: bool) -> None:
    x = torch.linspace(-1, 1, 40)[:, None]
    y = torch.sin(3 * x[:, 0])
    model = _regression(_tiny())
    guide = make(model, noise_shape=(4, 4), budget=20.0)
    elbo = LinearisedELBO(2, vectorize_particles=vectorised, max_plate_nesting=1)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 4e-2}), elbo)
    losses = [svi.step(x, y) for _ in range(50)]
    assert sum(losses[-10:]) < 0.6 * sum(losses[:10])
    draws = Predictive(model, guide=guide, num_samples=50, parallel=True)(x)["y"]
    assert (draws.mean(0) - y).square().mean() < 0.25


@both
def test_every_parameter_gets_a_gradient(kind: Guide) -> None:
    x = torch.linspace(-1, 1, 20)[:, None]
    model = _regression(_tiny())
    guide = kind(model, noise_shape=(3, 3), learn_scale="diagonal").setup(x, x[:, 0])
    LinearisedELBO(2).loss_and_grads(model, guide, x, x[:, 0])
    for name, parameter in guide.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@both
@pytest.mark.parametrize("latents", [1, 2, 5, 9])
def test_few_latents_have_noise_for_every_direction(kind: Guide, latents: int) -> None:
    """Of the tangents of the generator, which with 1 x 1 noise would be one."""

    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(latents), 1.0).to_event(1))

    generator = kind(model).setup().samplers[0].generator.double()
    z = torch.randn(1, *generator.noise_shape, dtype=torch.float64)
    with torch.no_grad():
        jacobian = generator.jacobian(z).reshape(latents, -1)
    assert torch.linalg.matrix_rank(jacobian) == latents


@pytest.mark.slow
@both
def test_few_latents_keep_the_width_of_their_posterior(kind: Guide) -> None:
    """The covariance of a correlated Gaussian of 5 latents, whose directions all count."""
    torch.manual_seed(0)
    root = torch.randn(5, 5) / 2
    precision = torch.eye(5) + root @ root.mT

    def model() -> None:
        pyro.sample("w", dist.MultivariateNormal(torch.zeros(5), precision_matrix=precision))

    guide = kind(model, init_loc_fn=lambda site: torch.zeros(5)).setup()
    elbo = LinearisedELBO(8, vectorize_particles=True)
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.03, "lrd": 0.99}), elbo)
    for _ in range(300):
        svi.step()
    covariance = guide.sample(5000)["w"].mT.cov()
    volume = 0.5 * (torch.logdet(covariance) + torch.logdet(precision)) / 5
    assert abs(volume) < 0.15  # mean of the log-ratio of deviations; with 1 x 1 noise it is -3


# ---- state


@pytest.mark.parametrize(
    "make",
    [
        lambda model: MMNNGuide(model, hidden_shapes=[(9, 8), (7, 6)], activation="tanh"),
        lambda model: MMNNGuide(model, factorized=True, budget=3.0),
        lambda model: CMMNNGuide(model, branch_size=7, noise_shape=(2, 3)),
        lambda model: CMMNNGuide(model, trunk_shapes=[(4, 9)], learn_scale="scalar"),
    ],
)
def test_a_state_alone_makes_the_same_guide(make: Callable[..., Any]) -> None:
    x = torch.linspace(-1, 1, 5)[:, None]
    guide = make(_regression(_tiny())).setup(x, x[:, 0])
    again = type(guide).from_state_dict(guide.state_dict())
    draws = []
    for one in (guide, again):
        pyro.set_rng_seed(3)
        draws.append(one.sample(4))
    for name, value in draws[0].items():
        assert torch.equal(value, draws[1][name])


# ---- errors


@both
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"init_scale": 0.0}, "init_scale=0.0; expected a finite number > 0"),
        ({"budget": 1.0}, "budget=1.0; expected a finite number > 1"),
        ({"activation": "cosh"}, "activation 'cosh' is unknown"),
    ],
)
def test_bad_options_are_refused(kind: Guide, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        kind(_regression(_tiny()), **options)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(ArgumentError, match="with factorized=True leave it out"):
        MMNNGuide(_regression(_tiny()), output_shape=(3, 3), factorized=True)
    with pytest.raises(ArgumentError, match=r"MMNNGuide\(model, factorized=True\)"):
        CMMNNGuide(_regression(_tiny()), factorized=True)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_a_bad_branch_size_is_refused(size: Any) -> None:
    with pytest.raises(ArgumentError, match="branch_size=.*; expected an integer >= 1"):
        CMMNNGuide(_regression(_tiny()), branch_size=size)
