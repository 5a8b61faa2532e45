"""Generators that are random, or whose draws depend on each other, are refused by name."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pyro_implicit import (
    AdversarialELBO,
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    ImplicitDistribution,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    PosteriorPredictiveLoss,
    SemiImplicitELBO,
    SingularValueELBO,
)
from pyro_implicit.exceptions import ArgumentError, LayerError, ShapeError
from pyro_implicit.generators import MLPGenerator, ModuleGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.cmmnn import CMMNN
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.generators.mmnn import MMNN
from pyro_implicit.generators.noise_alone import check_function_of_noise, refuse_batch_statistics
from pyro_implicit.generators.residual import ResidualGenerator

M = 3
TWICE = [LinearisedELBO, LanczosELBO, SingularValueELBO, SemiImplicitELBO]
DRAWS = [KernelDensityRatioELBO, AdversarialELBO, PosteriorPredictiveLoss]


def model() -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(M), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(w, 1.0).to_event(1), obs=torch.ones(M))


def with_layer(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), layer, nn.Tanh(), nn.Linear(8, M))


def guide_of(layer: nn.Module) -> HyperNetworkGuide:
    return HyperNetworkGuide(model, generator=with_layer(layer), scale=0.1).setup()


class Noisy(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return F.dropout(z, 0.5)


class Centred(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z - z.mean(0)


def refused(objective: Any, guide: Any, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        objective.loss_and_grads(model, guide)


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("kind", TWICE)
def test_dropout_is_refused_where_a_generator_is_evaluated_again(
    kind: Any, vectorised: bool
) -> None:
    message = (
        r"layer 'module.1' \(Dropout\) of the generator is random: .* build the generator without "
        r"it .* call .eval\(\) on the guide; .* KernelDensityRatioELBO"
    )
    refused(kind(2, vectorize_particles=vectorised), guide_of(nn.Dropout(0.5)), message)


@pytest.mark.filterwarnings("ignore:implicit site")
@pytest.mark.parametrize("kind", TWICE + DRAWS)
def test_dropout_is_served_in_evaluation_mode_and_by_draws(kind: Any) -> None:
    guide = guide_of(nn.Dropout(0.5))
    if kind in TWICE:
        guide.eval()
    pyro.set_rng_seed(0)
    kind(2).loss_and_grads(model, guide)
    assert all(p.grad is None or p.grad.isfinite().all() for p in guide.parameters())


@pytest.mark.long
def test_the_entropy_in_evaluation_mode_is_that_of_the_network_without_it() -> None:
    guide = guide_of(nn.Dropout(0.5)).eval()
    plain = guide_of(nn.Identity())
    plain.load_state_dict(guide.state_dict())
    values = []
    for each in (guide, plain):
        pyro.set_rng_seed(0)
        objective = LanczosELBO(5, num_steps=3, num_probes=3)
        values.append(objective.terms(model, each)["entropy"].item())
    assert values[0] == pytest.approx(values[1])


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout1d(0.2),
        nn.AlphaDropout(0.1),
        nn.RReLU(),
        nn.LSTM(2, 2, num_layers=2, dropout=0.3),
        nn.MultiheadAttention(4, 2, dropout=0.1),
    ],
)
def test_random_layers_of_torch_are_named(layer: nn.Module) -> None:
    generator = ModuleGenerator(with_layer(layer), (4,), M)
    with pytest.raises(LayerError, match=rf"layer 'module.1' \({type(layer).__name__}\)"):
        check_function_of_noise(generator, torch.zeros(4))


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.LSTM(2, 2), nn.RReLU(0.2, 0.2), nn.Tanh()])
def test_layers_that_only_could_be_random_are_not(layer: nn.Module) -> None:
    generator = MLPGenerator(4, M)
    generator.other = layer
    check_function_of_noise(generator, torch.zeros(4))


@pytest.mark.parametrize("kind", TWICE)
def test_what_is_random_without_such_a_layer_is_found_by_a_trial(kind: Any) -> None:
    refused(kind(), guide_of(Noisy()), "something in the Sequential of the generator is random")


@pytest.mark.parametrize("kind", TWICE)
def test_draws_that_depend_on_each_other_are_found_by_a_trial(kind: Any) -> None:
    refused(kind(), guide_of(Centred()), "Sequential gives another draw for a noise if there are")


def test_a_trial_is_made_once_in_each_mode_and_draws_no_random_number() -> None:
    calls = []

    class Counted(Generator):
        def forward(self, z: Tensor) -> Tensor:
            calls.append(z.shape)
            return z

    generator = Counted((2,), 2)
    state = torch.get_rng_state()
    for _ in range(3):
        check_function_of_noise(generator, torch.zeros(2))
    assert len(calls) == 5 and torch.equal(state, torch.get_rng_state())
    generator.eval()
    check_function_of_noise(generator, torch.zeros(2))
    check_function_of_noise(generator, torch.zeros(2))
    assert len(calls) == 10


def test_a_trial_is_of_what_stays_not_of_what_wraps_it() -> None:
    inner = MLPGenerator(5, M)
    for rows in (4, 7):
        check_function_of_noise(Conditioned(inner, torch.zeros(rows, 2)), torch.zeros(rows, 3))
    noisy = ModuleGenerator(with_layer(Noisy()), (4,), M)
    with pytest.raises(LayerError, match="something in the Sequential"):
        check_function_of_noise(Conditioned(noisy, torch.zeros(4, 2)), torch.zeros(4, 2))


# ---- batch normalisation


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("kind", TWICE + DRAWS)
def test_batch_normalisation_is_refused_by_every_objective(kind: Any, vectorised: bool) -> None:
    message = r"layer 'module.1' \(BatchNorm1d\) of the generator normalises by the draws .*eval\("
    guide = guide_of(nn.BatchNorm1d(8))
    before = {name: value.clone() for name, value in guide.named_buffers() if "module.1" in name}
    assert len(before) == 3
    refused(kind(2, vectorize_particles=vectorised), guide, message)
    after = dict(guide.named_buffers())
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_running_statistics_serve_in_evaluation_mode() -> None:
    guide = guide_of(nn.BatchNorm1d(8)).eval()
    for kind in (LinearisedELBO, LanczosELBO):
        for vectorised in (False, True):
            kind(2, vectorize_particles=vectorised).loss_and_grads(model, guide)
    generator = ModuleGenerator(with_layer(nn.BatchNorm1d(8, track_running_stats=False)), (4,), M)
    with pytest.raises(LayerError, match="BatchNorm1d"):
        refuse_batch_statistics(generator.eval())


def test_layers_that_look_at_one_draw_are_served() -> None:
    LanczosELBO(2).loss_and_grads(model, guide_of(nn.LayerNorm(8)))


# ---- noise of another shape


GENERATORS: dict[str, Any] = {
    "mlp": lambda: MLPGenerator(3, 2, (4,)),
    "residual": lambda: ResidualGenerator(3, 2),
    "mmnn": lambda: MMNN(6, noise_shape=(2, 3)),
    "cmmnn": lambda: CMMNN([3, 3], noise_shape=(2, 3)),
    "module": lambda: ModuleGenerator(nn.Linear(3, 2), (3,), 2),
    "conditioned": lambda: Conditioned(MLPGenerator(4, 2, (4,)), torch.zeros(1)),
}


@pytest.mark.parametrize("method", ["forward", "jacobian", "linearise", "half_log_det"])
@pytest.mark.parametrize("name", GENERATORS)
def test_noise_of_another_shape_is_told(name: str, method: str) -> None:
    generator = GENERATORS[name]()
    call = generator if method == "forward" else getattr(generator, method)
    args = (0.1,) if method == "half_log_det" else ()
    for shape in ((5, 7), (7,), ()):
        with pytest.raises(ShapeError, match=r"takes noise of shape \(\.\.\., .*3\); found"):
            call(torch.zeros(shape), *args)


@pytest.mark.parametrize("noise_dim", [3, 7])
def test_a_module_that_takes_another_width_is_told_when_it_is_given(noise_dim: int) -> None:
    guide = HyperNetworkGuide(model, generator=with_layer(nn.Identity()), noise_dim=noise_dim)
    with pytest.raises(ShapeError, match=rf"takes \(n, 4\), .* \(n, {noise_dim}\) .*noise_dim"):
        guide.setup()


def test_a_conditional_guide_tells_of_its_context() -> None:
    def rows(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            pyro.sample("w", dist.Normal(torch.zeros(M), 1.0).to_event(1))

    guide = ConditionalHyperNetworkGuide(rows, generator=with_layer(nn.Identity()), noise_dim=4)
    with pytest.raises(ShapeError, match=r"\(n, 6\) \(with the context at the end"):
        guide.setup(torch.zeros(5, 2))


def test_a_module_of_another_kind_is_told_by_what_it_said() -> None:
    guide = HyperNetworkGuide(model, generator=lambda m: nn.Conv2d(2, m, 3), noise_dim=4)
    with pytest.raises(ShapeError, match=r"Conv2d fails on noises of shape \(2, 4\).*ModuleGenera"):
        guide.setup()


def test_a_module_generator_of_another_width_is_told_at_the_draw() -> None:
    fn = ImplicitDistribution(ModuleGenerator(nn.Linear(4, 2), (3,), 2), scale=0.1)
    with pytest.raises(ShapeError, match=r"Linear takes \(n, 4\).*given noises of shape \(n, 3\)"):
        fn.sample()
    inner = nn.Sequential(nn.Linear(3, 2), nn.Unflatten(1, (5, 5)))
    with pytest.raises(RuntimeError):  # its own mistake is left as it is
        ModuleGenerator(inner, (3,), 2)(torch.zeros(2, 3))


class _SecondRowAtRandom(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        out = z.repeat(1, 2)
        return torch.cat([out[:1], out[1:] + torch.randn_like(out[1:])])


def test_of_small_generators_both_draws_are_tried() -> None:
    generator = ModuleGenerator(_SecondRowAtRandom(), (2,), 4)
    with pytest.raises(LayerError, match="of the generator is random"):
        check_function_of_noise(generator, torch.zeros(2))


# ---- layers that calls change


def test_running_statistics_of_a_draw_are_refused_in_training_alone() -> None:
    def layer(keeps: bool) -> nn.Module:
        norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=keeps)
        return nn.Sequential(nn.Unflatten(1, (2, 4)), norm, nn.Flatten(1))

    for objective in (*TWICE, *DRAWS[:2]):
        with pytest.raises(LayerError, match=r"'module\.1\.1' \(InstanceNorm1d\).*track_running_s"):
            objective(1).loss(model, guide_of(layer(True)))
    guide = guide_of(layer(True)).eval()
    assert LinearisedELBO(1).loss(model, guide) < float("inf")
    assert LinearisedELBO(1).loss(model, guide_of(layer(False))) < float("inf")


class _Moving(nn.Module):
    """Another function after each call, in training."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, z: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return z * (1 + self.by * self.calls)


def test_a_generator_that_calls_change_is_refused() -> None:
    moving = ModuleGenerator(nn.Sequential(nn.Linear(4, M), _Moving(0.1)), (4,), M)
    with pytest.raises(LayerError, match=r"changes its buffers module\.1\.calls.*\.eval\(\)"):
        check_function_of_noise(moving, torch.zeros(4))
    assert moving.module[1].calls == 0
    check_function_of_noise(moving.eval(), torch.zeros(4))
    counting = ModuleGenerator(nn.Sequential(nn.Linear(4, M), _Moving(0.0)), (4,), M)
    check_function_of_noise(counting, torch.zeros(4))  # which changes no draw
    assert counting.module[1].calls == 0


def test_spectral_normalisation_in_double_precision_is_refused_in_training() -> None:
    torch.manual_seed(0)
    linear = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 8))
    net = nn.Sequential(linear, nn.Tanh(), nn.Linear(8, M)).double()
    generator = ModuleGenerator(net, (4,), M)
    with pytest.raises(LayerError, match="changes its buffers.*spectral normalisation"):
        check_function_of_noise(generator, torch.zeros(4))


def test_a_module_in_evaluation_mode_stays_there() -> None:
    net = with_layer(nn.Dropout(0.5)).eval()
    guide = HyperNetworkGuide(model, generator=net, noise_dim=4, scale=0.1).setup()
    assert not net.training and LinearisedELBO(1).loss(model, guide) < float("inf")
    later = HyperNetworkGuide(model, generator=with_layer(nn.Identity()), noise_dim=4).eval()
    assert not any(part.training for part in later.setup().modules())


# ---- what a module returns


class _Returns(nn.Module):
    def __init__(self, made: Any) -> None:
        super().__init__()
        self.linear, self.made = nn.Linear(4, M), made

    def forward(self, z: Tensor) -> Any:
        return self.made(self.linear(z))


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (lambda out: (out, out), r"\(tensor"),
        (lambda out: {"draws": out}, "draws"),
        (lambda out: out.to(torch.complex64), "complex64"),
        (lambda out: out.long(), "int64"),
    ],
)
def test_anything_but_a_tensor_of_real_numbers_is_refused(made: Any, found: str) -> None:
    guide = HyperNetworkGuide(model, generator=_Returns(made), noise_dim=4)
    with pytest.raises(ArgumentError, match=f"(?s)generator _Returns returned .*{found}.*one tens"):
        guide.setup()


@pytest.mark.parametrize(
    "module", [nn.MultiheadAttention(4, 2), nn.BatchNorm3d(4), nn.InstanceNorm2d(4)]
)
def test_a_module_that_takes_something_else_is_told_by_what_it_said(module: nn.Module) -> None:
    guide = HyperNetworkGuide(model, generator=module, noise_dim=4)
    with pytest.raises(ShapeError, match=r"fails on noises of shape \(2, 4\)"):
        guide.setup()


def test_an_empty_assertion_of_a_module_is_named() -> None:
    class Asserts(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            raise AssertionError

    guide = HyperNetworkGuide(model, generator=Asserts(), noise_dim=4)
    with pytest.raises(ShapeError, match=r"Asserts fails.*AssertionError\. It must take"):
        guide.setup()
