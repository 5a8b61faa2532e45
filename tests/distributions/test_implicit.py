"""Draws, shapes and errors of implicit distributions, and hand-written guides made of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import (
    SVI,
    JitTrace_ELBO,
    RenyiELBO,
    Trace_ELBO,
    TraceEnum_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
)
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, ImplicitDistribution, LinearisedELBO
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import ArgumentError, DensityError, GuideError, ShapeError
from pyro_implicit.generators import Generator, MLPGenerator, ResidualGenerator
from pyro_implicit.generators.preconditioner import Preconditioner


class Affine(Generator):
    """``A z + b``."""

    def __init__(self, matrix: Tensor, shift: Tensor | float = 0.0) -> None:
        super().__init__(matrix.shape[-1:], matrix.shape[0])
        self.matrix = torch.nn.Parameter(matrix)
        self.shift = torch.nn.Parameter(torch.as_tensor(shift).expand(matrix.shape[0]).clone())

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.matrix.mT + self.shift


def _mixture(modes: Tensor, scale: float = 0.5) -> dist.MixtureSameFamily:
    """Equal weights; ``modes`` of shape (count, d)."""
    weights = dist.Categorical(torch.ones(len(modes), dtype=modes.dtype))
    return dist.MixtureSameFamily(weights, dist.Normal(modes, scale).to_event(1))


# ---- draws


@pytest.mark.parametrize("d", [1, 2, 4])
@pytest.mark.parametrize("noise", [0.0, 0.3, "diagonal"])
@pytest.mark.parametrize("whitened", [False, True])
def test_draws_have_the_moments_of_the_linear_map(d: int, noise: Any, whitened: bool) -> None:
    m, count = 2, 40_000
    generator = Affine(torch.randn(m, d), torch.tensor([1.0, -2.0]))
    scale = torch.tensor([0.2, 0.5]) if noise == "diagonal" else noise
    factor = torch.tensor([[2.0, 0.0], [-1.0, 0.5]])
    preconditioner = Preconditioner(torch.tensor([5.0, 0.0]), factor) if whitened else None
    fn = ImplicitDistribution(generator, scale=scale, preconditioner=preconditioner)
    with torch.no_grad():
        draws = fn.sample((count,))
        mean = generator.shift.clone()
        sigma = torch.as_tensor(scale).expand(m)
        covariance = generator.matrix @ generator.matrix.mT + torch.diag(sigma**2)
        if preconditioner is not None:
            mean, covariance = preconditioner(mean), factor @ covariance @ factor.mT
    spread = covariance.diagonal().sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * spread / math.sqrt(count)).all()
    # the standard error of a covariance entry is at most sqrt(2 / n) times the two deviations
    error = (draws.mT.cov() - covariance).abs() / (spread[:, None] * spread)
    assert (error < 5 * math.sqrt(2 / count)).all()


def test_draws_are_differentiable_in_generator_scale_and_noise() -> None:
    generator = ResidualGenerator(3, 4)
    sigma = torch.tensor(0.5, requires_grad=True)
    z = torch.randn(6, 3, requires_grad=True)
    pyro.set_rng_seed(0)
    draws = ImplicitDistribution(generator, z, scale=sigma).rsample()
    pyro.set_rng_seed(0)
    by_hand = generator(z) + sigma * torch.randn(6, 3)
    torch.testing.assert_close(draws, by_hand)
    wrt = [*generator.parameters(), sigma, z]
    weights = torch.randn(6, 3)
    found = torch.autograd.grad((draws * weights).sum(), wrt)
    expected = torch.autograd.grad((by_hand * weights).sum(), wrt)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine.abs().sum() > 0


def test_sample_keeps_no_graph() -> None:
    assert not ImplicitDistribution(MLPGenerator(2, 3), scale=0.1).sample((4,)).requires_grad


def test_draws_at_one_fixed_noise_scatter_by_the_output_noise() -> None:
    generator, z = Affine(torch.eye(2)), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    draws = ImplicitDistribution(generator, z, scale=0.1).sample((5000,))
    assert draws.shape == (5000, 2, 2)
    torch.testing.assert_close(draws.mean(0), z, atol=0.01, rtol=0)
    torch.testing.assert_close(draws.std(0), torch.full((2, 2), 0.1), atol=0.01, rtol=0)


def test_noise_follows_the_dtype_of_the_generator() -> None:
    fn = ImplicitDistribution(MLPGenerator(2, 3).double(), scale=0.1)
    assert fn.sample((2,)).dtype == torch.float64


def test_a_generator_without_parameters_can_be_drawn_from() -> None:
    class Doubled(Generator):
        def forward(self, z: Tensor) -> Tensor:
            return 2 * z

    assert ImplicitDistribution(Doubled((3,), 3)).sample((5,)).shape == (5, 3)


# ---- shapes


def test_shapes_and_expand() -> None:
    fn = ImplicitDistribution(MLPGenerator(2, 3), scale=0.1)
    assert (fn.batch_shape, fn.event_shape, fn.has_rsample) == ((), (3,), True)
    wide = fn.expand((4, 5))
    assert (wide.batch_shape, wide.event_shape) == ((4, 5), (3,))
    assert wide.rsample().shape == (4, 5, 3)
    assert wide.rsample((2,)).shape == (2, 4, 5, 3)
    assert len(wide.sample().reshape(-1, 3).unique(dim=0)) == 20  # each cell has its own noise


def test_expand_at_fixed_noise_shares_the_noise_but_not_the_output_noise() -> None:
    z = torch.randn(5, 2)
    fn = ImplicitDistribution(MLPGenerator(2, 3)).given(z)
    assert fn.batch_shape == (5,)
    wide = fn.expand((4, 5))
    assert wide.batch_shape == (4, 5) and wide.noise is not None
    torch.testing.assert_close(wide.sample(), fn.sample().expand(4, 5, 3))
    noisy = ImplicitDistribution(MLPGenerator(2, 3), z, scale=0.1).expand((4, 5)).sample()
    assert len(noisy.reshape(-1, 3).unique(dim=0)) == 20


def test_shaped_noise() -> None:
    class Summed(Generator):
        def forward(self, z: Tensor) -> Tensor:
            return z.sum(-1)

    fn = ImplicitDistribution(Summed((3, 2), 3)).expand((4,))
    assert fn.sample((5,)).shape == (5, 4, 3)
    assert fn.given(torch.zeros(4, 3, 2)).half_log_det().shape == (4,)


@pytest.mark.parametrize("size", [1, 4])
def test_plates_expand_noise_and_latent(size: int) -> None:
    def program() -> Tensor:
        fn = ImplicitDistribution(MLPGenerator(2, 3), scale=0.1)
        with pyro.plate("outer", size, dim=-2), pyro.plate("inner", 5, dim=-1):
            return sample_implicit("w", fn)

    trace = poutine.trace(program).get_trace()
    assert trace.nodes["w_noise"]["value"].shape == (size, 5, 2)
    assert trace.nodes["w"]["value"].shape == (size, 5, 3)
    assert trace.nodes["w"]["fn"].half_log_det().shape == (size, 5)
    assert len(trace.nodes["w"]["value"].reshape(-1, 3).unique(dim=0)) == 5 * size


# ---- entropy


def test_half_log_det_counts_the_preconditioner() -> None:
    matrix = torch.randn(3, 3, dtype=torch.float64)
    factor = torch.randn(3, 3, dtype=torch.float64)
    preconditioner = Preconditioner(torch.zeros(3, dtype=torch.float64), factor)
    z = torch.randn(4, 3, dtype=torch.float64)
    fn = ImplicitDistribution(Affine(matrix), z, scale=0.2, preconditioner=preconditioner)
    covariance = factor @ (matrix @ matrix.mT + 0.04 * torch.eye(3)) @ factor.mT
    expected = 0.5 * torch.linalg.slogdet(covariance).logabsdet
    torch.testing.assert_close(fn.half_log_det().detach(), expected.expand(4))


def test_base_entropy_of_the_standard_normal_is_a_constant() -> None:
    fn = ImplicitDistribution(MLPGenerator(4, 3))
    assert fn.base_entropy() == pytest.approx(2 * (1 + math.log(2 * math.pi)))
    assert fn.expand((3,)).given(torch.randn(3, 4)).base_entropy() == fn.base_entropy()


def test_base_entropy_of_another_base_is_estimated_at_the_noise() -> None:
    base = _mixture(torch.tensor([[-3.0, 0.0], [3.0, 0.0]]))
    z = base.sample((7,))
    fn = ImplicitDistribution(MLPGenerator(2, 3), z, base_dist=base)
    torch.testing.assert_close(fn.base_entropy(), -base.log_prob(z))


def test_a_base_that_is_learned_never_counts_as_the_standard_normal() -> None:
    scale = torch.ones(2, requires_grad=True)  # starts as a standard normal
    base = dist.Normal(torch.zeros(2), scale).to_event(1)
    entropy = ImplicitDistribution(
        Affine(torch.eye(2)), base.rsample(), base_dist=base
    ).base_entropy()
    assert isinstance(entropy, Tensor)
    # d/dscale of -log N(scale * eps | 0, scale^2) is that of log scale
    torch.testing.assert_close(torch.autograd.grad(entropy, scale)[0], torch.ones(2))


def test_mixture_base_gives_the_entropy_of_the_mixture() -> None:
    modes = torch.tensor([[-2.0], [2.0]], dtype=torch.float64)
    base = _mixture(modes, 0.7)
    grid = torch.linspace(-15, 15, 20_001, dtype=torch.float64)
    density = base.log_prob(grid[:, None])
    exact = -torch.trapezoid(density.exp() * density, grid) + math.log(3.0)  # theta = 3 z + 1
    generator = Affine(torch.tensor([[3.0]], dtype=torch.float64), 1.0)
    fn = ImplicitDistribution(generator, base_dist=base)

    def guide() -> None:
        with pyro.plate("many", 20_000):
            sample_implicit("w", fn)

    def model() -> None:
        with pyro.plate("many", 20_000):
            pyro.sample("w", dist.Normal(torch.zeros(1).double(), 5.0).to_event(1))

    with torch.no_grad():
        entropy = LinearisedELBO().terms(model, guide)["entropy"] / 20_000
    assert entropy.item() == pytest.approx(exact.item(), abs=0.03)


def test_mixture_base_can_be_drawn_from_without_a_trace() -> None:
    base = _mixture(torch.tensor([[-5.0], [5.0]]))
    draws = ImplicitDistribution(Affine(torch.eye(1)), base_dist=base).sample((1000,))
    assert draws.shape == (1000, 1)
    assert 0.4 < (draws > 0).double().mean() < 0.6 and draws.abs().mean() > 4


# ---- guides written by hand

DATA = torch.tensor([1.0, -1.0, 2.0, 0.5])
NOISE = 0.5


def _hand_model() -> None:
    a = pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    b = pyro.sample("b", dist.Normal(torch.zeros(1), 1.0).to_event(1))
    c = pyro.sample("c", dist.Normal(0.0, 1.0))
    mean = torch.cat([a, b, c[..., None]], -1)
    pyro.sample("y", dist.Normal(mean, NOISE).to_event(1), obs=DATA)


class _HandGuide(pyro.nn.PyroModule):
    """Two implicit sites and one with a density."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Affine(torch.eye(2))
        self.second = MLPGenerator(3, 1, (4,), activation="identity")
        self.loc = pyro.nn.PyroParam(torch.tensor(0.0))
        self.scale = pyro.nn.PyroParam(torch.tensor(1.0), constraint=dist.constraints.positive)

    def forward(self) -> None:
        for name, generator in (("a", self.first), ("b", self.second)):
            pyro.module(name, generator)
            sample_implicit(name, ImplicitDistribution(generator, scale=0.01))
        pyro.sample("c", dist.Normal(self.loc, self.scale))


@pytest.mark.long
def test_hand_written_guide_reaches_the_exact_posterior() -> None:
    guide = _HandGuide()
    optimiser = pyro.optim.ExponentialLR(
        {"optimizer": torch.optim.Adam, "optim_args": {"lr": 0.1}, "gamma": 0.97}
    )
    objective = LinearisedELBO(num_particles=64, vectorize_particles=True, max_plate_nesting=0)
    svi = SVI(_hand_model, guide, optimiser, objective)
    for _ in range(150):
        svi.step()
        optimiser.step()
    shrink = 1 / (1 + NOISE**2)  # of the prior's unit variance, for every entry alike
    spread = NOISE * math.sqrt(shrink)
    with torch.no_grad(), pyro.plate("draws", 20_000):
        trace = poutine.trace(guide).get_trace()
    values = torch.cat([trace.nodes[n]["value"].reshape(20_000, -1) for n in "abc"], -1)
    torch.testing.assert_close(values.mean(0), shrink * DATA, atol=0.05 * spread, rtol=0)
    torch.testing.assert_close(values.std(0), torch.full((4,), spread), rtol=0.05, atol=0)
    variance = 1 + NOISE**2
    evidence = -0.5 * (DATA**2 / variance + math.log(2 * math.pi * variance)).sum().item()
    many = LinearisedELBO(num_particles=20_000, vectorize_particles=True, max_plate_nesting=0)
    assert -many.loss(_hand_model, guide) == pytest.approx(evidence, abs=0.05)


def test_replaying_a_trace_replays_the_noise() -> None:
    guide = _HandGuide()
    trace = poutine.trace(guide).get_trace()
    again = poutine.trace(poutine.replay(guide, trace=trace)).get_trace()
    for name in ("a_noise", "a", "b_noise", "b", "c"):
        torch.testing.assert_close(again.nodes[name]["value"], trace.nodes[name]["value"])
    torch.testing.assert_close(again.nodes["a"]["fn"].noise, trace.nodes["a_noise"]["value"])
    # only the noise fixed: the latent is drawn anew, near the same place
    fixed = poutine.condition(guide, data={"a_noise": trace.nodes["a_noise"]["value"]})
    near = poutine.trace(fixed).get_trace().nodes["a"]["value"]
    assert 0 < (near - trace.nodes["a"]["value"]).abs().max() < 0.1


def test_auxiliary_sites_are_marked_as_such() -> None:
    def program() -> None:
        sample_implicit("own", ImplicitDistribution(MLPGenerator(2, 3)))
        sample_implicit(
            "flat", ImplicitDistribution(MLPGenerator(2, 3)), latents=("u", "v"), auxiliary=True
        )

    nodes = poutine.trace(program).get_trace().nodes
    assert nodes["own_noise"]["infer"]["is_auxiliary"]
    assert "is_auxiliary" not in nodes["own"]["infer"]
    assert nodes["own"]["infer"]["implicit_latents"] == ("own",)
    assert nodes["flat"]["infer"]["is_auxiliary"]
    assert nodes["flat"]["infer"]["implicit_latents"] == ("u", "v")
    assert nodes["flat"]["infer"]["implicit_noise"] == "flat_noise"


# ---- errors


@pytest.mark.parametrize(
    "objective",
    [
        Trace_ELBO(),
        Trace_ELBO(num_particles=3, vectorize_particles=True, max_plate_nesting=0),
        TraceMeanField_ELBO(),
        TraceGraph_ELBO(),
        TraceEnum_ELBO(max_plate_nesting=0),
        RenyiELBO(num_particles=2),
    ],
    ids=lambda objective: type(objective).__name__,
)
@pytest.mark.parametrize(
    "guide", [_HandGuide, lambda: HyperNetworkGuide(_hand_model, hidden_dims=(4,))]
)
def test_objectives_that_need_a_density_refuse_and_never_train(
    objective: Any, guide: Callable[[], Any]
) -> None:
    made = guide()
    poutine.trace(made).get_trace()  # builds it
    before = [p.detach().clone() for p in made.parameters()]
    svi = SVI(_hand_model, made, pyro.optim.Adam({"lr": 0.1}), objective)
    for _ in range(2):
        with pytest.raises(
            DensityError, match=r"cannot train it.*LinearisedELBO\(\).*without hidden_dims"
        ):
            svi.step()
    with pytest.raises(DensityError):
        svi.evaluate_loss()
    for parameter, start in zip(made.parameters(), before, strict=True):
        torch.testing.assert_close(parameter, start, rtol=0, atol=0)


def test_log_prob_raises_with_and_without_noise() -> None:
    fn = ImplicitDistribution(MLPGenerator(2, 3))
    for distribution in (fn, fn.given(torch.zeros(2))):
        with pytest.raises(DensityError, match="its density cannot be evaluated"):
            distribution.log_prob(torch.zeros(3))


def test_half_log_det_needs_a_noise() -> None:
    with pytest.raises(ArgumentError, match=r"no noise is fixed: write distribution.given\(z\)"):
        ImplicitDistribution(MLPGenerator(2, 3)).half_log_det()


def test_the_density_of_the_noise() -> None:
    with pytest.raises(ArgumentError, match=r"no noise is fixed: write .*\.noise_log_prob\(\)"):
        ImplicitDistribution(MLPGenerator(2, 3)).noise_log_prob()
    z = torch.randn(4, 5, 2)
    wide = dist.Normal(torch.zeros(2), 3.0).to_event(1)
    for base in (None, wide):
        fn = ImplicitDistribution(MLPGenerator(2, 3), base_dist=base).given(z)
        torch.testing.assert_close(fn.noise_log_prob(), fn.base_dist.log_prob(z))


def test_a_linearisation_needs_a_noise_of_real_numbers() -> None:
    fn = ImplicitDistribution(MLPGenerator(2, 3))
    with pytest.raises(ArgumentError, match=r"no noise is fixed: write .*\.linearisation\(\)"):
        fn.linearisation()
    with pytest.raises(ArgumentError, match="noise is of type torch.int64; expected real numbers"):
        fn.given(torch.zeros(2, dtype=torch.int64))


def test_half_log_det_without_volume_is_refused() -> None:
    fn = ImplicitDistribution(MLPGenerator(2, 3)).given(torch.zeros(2))
    with pytest.raises(ArgumentError, match="scale=0 with 2 noise dimensions for 3 outputs"):
        fn.half_log_det()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"scale": -0.1}, ArgumentError, "scale=-0.1"),
        ({"scale": torch.ones(2)}, ShapeError, r"scale has shape \(2,\); expected \(\) or \(3,\)"),
        (
            {"base_dist": dist.Normal(torch.zeros(2), 1.0)},
            ShapeError,
            r"base_dist has event_shape \(\); expected .* \(2,\). Did you forget .to_event\(1\)",
        ),
        (
            {"base_dist": dist.Normal(torch.zeros(3), 1.0).to_event(1)},
            ShapeError,
            r"base_dist has event_shape \(3,\); expected .* \(2,\)",
        ),
        (
            {"noise": torch.zeros(4, 3)},
            ShapeError,
            r"noise has shape \(4, 3\); expected \(..., 2\)",
        ),
        ({"noise": torch.zeros(())}, ShapeError, r"noise has shape \(\); expected \(..., 2\)"),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ImplicitDistribution(MLPGenerator(2, 3), **options)


def test_a_generator_that_returns_another_shape_is_told() -> None:
    class Wrong(Generator):
        def forward(self, z: Tensor) -> Tensor:
            return z

    fn = ImplicitDistribution(Wrong((2,), 3))
    with pytest.raises(ShapeError, match=r"Wrong returned shape \(4, 2\).*expected \(4, 3\)"):
        fn.sample((4,))


@pytest.mark.parametrize(
    "fn",
    [
        dist.Normal(0.0, 1.0),
        ImplicitDistribution(MLPGenerator(2, 3)).given(torch.zeros(2)),
        MLPGenerator(2, 3),
    ],
    ids=["normal", "fixed noise", "generator"],
)
def test_sample_implicit_refuses_anything_else(fn: Any) -> None:
    with pytest.raises(ArgumentError, match=r"site 'w': sample_implicit expects an ImplicitDist"):
        sample_implicit("w", fn)


@pytest.mark.parametrize("fixed", [False, True])
def test_pyro_sample_in_place_of_sample_implicit_is_told(fixed: bool) -> None:
    def model() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    def guide() -> None:
        fn = ImplicitDistribution(MLPGenerator(2, 3), scale=0.1)
        pyro.sample("w", fn.given(torch.zeros(2)) if fixed else fn)

    with pytest.raises(GuideError, match=r"'w' was drawn without a site.*sample_implicit\('w', "):
        LinearisedELBO().loss(model, guide)


def test_the_density_given_the_noise_is_that_of_a_gaussian() -> None:
    fn = ImplicitDistribution(MLPGenerator(2, 3), scale=0.3).given(torch.randn(4, 2))
    value = torch.randn(5, 1, 3)
    expected = dist.Normal(fn.mean, 0.3).log_prob(value).sum(-1)
    torch.testing.assert_close(fn.conditional_log_prob(value), expected)


def test_the_density_given_the_noise_needs_noise_a_scale_and_a_value() -> None:
    value, free = torch.zeros(3), ImplicitDistribution(MLPGenerator(2, 3), scale=0.3)
    sharp = ImplicitDistribution(MLPGenerator(2, 3)).given(torch.zeros(2))
    for fn, found in ((free, "no noise is fixed"), (sharp, "scale=0")):
        with pytest.raises(ArgumentError, match=rf"^{found}: there is no Gaussian to evaluate"):
            fn.conditional_log_prob(value)
    fn = free.given(torch.zeros(2))
    with pytest.raises(ShapeError, match=r"value of shape \(2,\); expected \(\.\.\., 3\)"):
        fn.conditional_log_prob(torch.zeros(2))
    with pytest.raises(ArgumentError, match="value is None; expected a tensor"):
        fn.conditional_log_prob(None)  # type: ignore[arg-type]


def test_a_jitted_objective_of_pyro_has_the_loss_of_the_other() -> None:
    """Sizes are tensors where it traces the guide."""
    y = torch.randn(6)

    def model() -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", 6):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup()
    losses = []
    for kind in (Trace_ELBO, JitTrace_ELBO):
        objective = kind(4, vectorize_particles=True, max_plate_nesting=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch.jit, which is deprecated, and of its tracing
            objective.loss_and_grads(model, guide)
        pyro.set_rng_seed(0)
        losses.append(objective.loss_and_grads(model, guide))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
