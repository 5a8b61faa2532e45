"""SingularValueELBO: a bound when converged, told when not, and blind to all directions but one."""

from __future__ import annotations

import copy
import gc
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro.infer import SVI
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, ImplicitDistribution, LinearisedELBO
from pyro_implicit.exceptions import ArgumentError, GuideError, StateError
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.conditioned import Conditioned
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.lanczos import LanczosELBO
from pyro_implicit.objectives.singular_value import SingularValueELBO
from pyro_implicit.ops.linearisation import DenseLinearisation, Linearisation
from tests.ops.dense import whitened, with_singular_values

seeds = st.integers(0, 2**20)


class Linear(Generator):
    """``matrix @ z``."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__((matrix.shape[1],), matrix.shape[0])
        self.weight = nn.Parameter(matrix.clone())

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.weight.mT

    def linearise(self, z: Tensor) -> Linearisation:
        return DenseLinearisation(self(z), [self.weight], [])


def site_of(generator: Generator, scale: float | Tensor, batch: Any = (3,), **options: Any) -> Any:
    fn = ImplicitDistribution(generator, scale=scale, **options)
    dtype = next(generator.parameters()).dtype
    fn = fn.given(torch.randn(*batch, *generator.noise_shape, dtype=dtype))
    return ImplicitSite("theta", fn, fn.rsample(), ("theta",))


def formula(jacobian: Tensor, scale: float | Tensor) -> Tensor:
    """The bound and the entropy's constants, from all singular values of a matrix."""
    m, d = jacobian.shape[-2:]
    square = torch.linalg.svdvals(whitened(jacobian, scale))[..., -1].square()
    constant = 0.5 * m * (1 + math.log(2 * math.pi))
    if not isinstance(scale, Tensor) and scale == 0:
        return 0.5 * min(m, d) * square.log() + constant
    sigma = torch.as_tensor(scale, dtype=torch.float64).expand(m)
    return 0.5 * min(m, d) * (1 + square).log() + sigma.log().sum() + constant


# ---- a bound


@pytest.mark.long
@settings(max_examples=30)
@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([0.01, 0.1, 1.0, "diagonal"]),
    st.sampled_from([(), (3,), (2, 1)]),
    seeds,
)
def test_converged_value_is_the_formula_and_below_the_exact_one(
    m: int, d: int, scale: Any, batch: tuple[int, ...], seed: int
) -> None:
    torch.manual_seed(seed)
    generator = MLPGenerator(d, m, (8,)).double()
    if scale == "diagonal":
        scale = 0.05 + torch.rand(m, dtype=torch.float64)
    site = site_of(generator, scale, batch)
    objective = SingularValueELBO()
    value = objective.estimate(site)
    assert value.shape == batch and objective.is_certified
    expected = formula(generator.jacobian(site.distribution.noise), scale)
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    assert (value <= LinearisedELBO().estimate(site) + 1e-6).all()


@pytest.mark.parametrize("shape", [(8, 5), (5, 8), (5, 5)])
@pytest.mark.parametrize("scale", [0.0, 0.1])
def test_equals_the_exact_entropy_where_singular_values_coincide(
    shape: tuple[int, int], scale: float
) -> None:
    if scale == 0 and shape[1] < shape[0]:
        scale = 1e-3
    matrix = with_singular_values(torch.full((5,), 0.7), *shape)
    site = site_of(Linear(matrix), scale)
    objective = SingularValueELBO(num_iterations=1)
    exact = LinearisedELBO().estimate(site)
    torch.testing.assert_close(objective.estimate(site), exact, rtol=1e-7, atol=1e-6)
    assert objective.is_certified


@pytest.mark.parametrize(("m", "d"), [(3, 3), (3, 5)])
def test_without_output_noise(m: int, d: int) -> None:
    site = site_of(MLPGenerator(d, m, (6,), skip=True).double(), 0.0)
    value = SingularValueELBO().estimate(site)
    expected = formula(site.distribution.generator.jacobian(site.distribution.noise), 0.0)
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
    assert (value <= LinearisedELBO().estimate(site)).all()


def test_preconditioner_and_other_noise_count_as_in_the_exact_objective() -> None:
    base = dist.Normal(torch.zeros(2).double(), 3.0).to_event(1)
    whitening = Preconditioner(torch.zeros(4).double(), torch.full((4,), 2.0).double())
    matrix = with_singular_values(torch.ones(2), 4, 2)
    site = site_of(Linear(matrix), 0.1, base_dist=base, preconditioner=whitening)
    torch.testing.assert_close(SingularValueELBO().estimate(site), LinearisedELBO().estimate(site))


def test_other_noise_with_more_dimensions_than_outputs_is_refused() -> None:
    base = dist.Normal(torch.zeros(4), 3.0).to_event(1)
    with pytest.raises(GuideError, match="'theta' has 4 noise dimensions for 3 outputs"):
        SingularValueELBO().estimate(site_of(MLPGenerator(4, 3), 0.1, base_dist=base))


@pytest.mark.parametrize(("m", "d"), [(7, 4), (4, 7)])
@pytest.mark.parametrize("diagonal", [False, True])
def test_gradient_is_that_of_the_formula(m: int, d: int, diagonal: bool) -> None:
    matrix = with_singular_values(torch.tensor([2.0, 1.5, 1.0, 0.4]), m, d)
    generator = Linear(matrix)
    sigma = torch.full((m,) if diagonal else (), 0.3, dtype=torch.float64, requires_grad=True)
    value = SingularValueELBO().estimate(site_of(generator, sigma, ()))
    wrt = [generator.weight, sigma]
    ours = torch.autograd.grad(value, wrt)
    jac = generator.weight
    white = jac / (sigma[:, None] if diagonal else sigma)
    square = torch.linalg.svdvals(white)[-1].square()
    exact = 2.0 * (1 + square).log() + sigma.log().expand(m).sum()
    for mine, theirs in zip(ours, torch.autograd.grad(exact, wrt), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def _train(model: Any, guide: Any, objective: Any, steps: int, rate: float = 0.02) -> None:
    optimiser = pyro.optim.ExponentialLR(
        {
            "optimizer": torch.optim.Adam,
            "optim_args": {"lr": rate},
            "gamma": 0.01 ** (1 / steps),
        }
    )
    svi = SVI(model, guide, optimiser, objective)
    for _ in range(steps):
        svi.step()
        optimiser.step()


def _normal(covariance: Tensor) -> Callable[[], None]:
    def model() -> None:
        loc = torch.zeros(len(covariance), dtype=covariance.dtype)
        pyro.sample("theta", dist.MultivariateNormal(loc, covariance))

    return model


@pytest.mark.long
def test_trained_generators_keep_the_order_of_the_objectives() -> None:
    covariance = torch.diag(torch.tensor([1.0, 0.3, 0.1, 0.03, 0.01]))
    model = _normal(covariance)
    guide = HyperNetworkGuide(model, hidden_dims=(10,), noise_dim=4, scale=0.03).setup()
    _train(model, guide, LinearisedELBO(8, vectorize_particles=True), steps=200)
    site = site_of(guide.samplers[0].generator.double(), 0.03, (20,))  # type: ignore[union-attr]
    exact = LinearisedELBO().estimate(site)
    objective = SingularValueELBO()
    value = objective.estimate(site)
    assert objective.is_certified
    assert (value < exact - 1).all()
    upper = LanczosELBO(num_steps=4, num_probes=4).estimate(site)
    torch.testing.assert_close(upper, exact, rtol=1e-6, atol=1e-5)


# ---- what it forgets


VARIANCES = torch.tensor([4.0, 1.0, 0.25], dtype=torch.float64)
HARMONIC = 1 / (1 / VARIANCES).mean()


def _exact_value(matrix: Tensor) -> Tensor:
    """The objective of a linear generator without output noise; the prior in closed form."""
    prior = -0.5 * ((matrix @ matrix.mT).diagonal() / VARIANCES).sum()
    prior = prior - 0.5 * (2 * math.pi * VARIANCES).log().sum()
    return prior + SingularValueELBO().estimate(site_of(Linear(matrix), 0.0, ()))


@pytest.mark.long
@settings(max_examples=25)
@given(seeds, st.floats(0.01, 3.0))
def test_no_linear_generator_is_better_than_the_isotropic_one(seed: int, size: float) -> None:
    torch.manual_seed(seed)
    best = _exact_value(HARMONIC.sqrt() * torch.eye(3, dtype=torch.float64))
    turned, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    assert _exact_value(HARMONIC.sqrt() * turned).item() == pytest.approx(best.item(), abs=1e-6)
    other = HARMONIC.sqrt() * turned + size * torch.randn(3, 3, dtype=torch.float64)
    assert _exact_value(other) <= best + 1e-6
    assert _exact_value(VARIANCES.sqrt().diag()) < best - 0.5  # the truth itself


@pytest.mark.slow
def test_training_a_linear_generator_ends_isotropic_where_the_exact_objective_does_not() -> None:
    model = _normal(torch.diag(VARIANCES))
    found = {}
    for kind in (SingularValueELBO, LinearisedELBO):
        generator = Linear(0.5 * torch.eye(3) + 0.05 * torch.randn(3, 3)).double()
        guide = HyperNetworkGuide(model, generator=generator, scale=0.0).double().setup()
        _train(model, guide, kind(32, vectorize_particles=True, max_plate_nesting=0), steps=500)
        found[kind] = torch.linalg.svdvals(generator.weight.detach()).square()
    torch.testing.assert_close(
        found[SingularValueELBO], HARMONIC.expand(3), rtol=0.15, atol=0, check_dtype=False
    )
    torch.testing.assert_close(found[LinearisedELBO], VARIANCES, rtol=0.15, atol=0)


def test_docstring_tells_the_weaknesses() -> None:
    text = " ".join((SingularValueELBO.__doc__ or "").split())
    for told in ("**isotropic**", "harmonic mean", "Stopped early it is no bound"):
        assert told in text


# ---- early stopping


def ill_conditioned(m: int = 40, d: int = 30) -> Linear:
    return Linear(with_singular_values(torch.logspace(0, -2, d), m, d))


def test_stopped_early_it_may_exceed_what_it_bounds_and_says_so() -> None:
    site = site_of(ill_conditioned(), 0.01)
    objective = SingularValueELBO(num_iterations=0)
    message = "'theta': LOBPCG stopped after 0 iterations.*not certified as a bound.*LanczosELBO"
    with pytest.warns(UserWarning, match=message):
        value = objective.estimate(site)
    assert (value > LinearisedELBO().estimate(site)).all()
    assert not objective.is_certified
    report = objective.last_report["theta"]
    assert report.residual > 0.1 and report.num_iterations == 0 and not report.is_certified
    objective.estimate(site)  # warns once: a second warning would be an error


def gapped() -> Linear:
    """One singular value far below the others, which LOBPCG finds soon."""
    values = torch.cat([torch.linspace(1, 0.6, 99), torch.tensor([0.3])])
    return Linear(with_singular_values(values, 120, 100))


def test_converged_it_says_so_and_stops() -> None:
    generator = gapped()
    objective = SingularValueELBO(num_iterations=80)
    assert not objective.is_certified and objective.last_report == {}
    value = objective.estimate(site_of(generator, 0.01))
    report = objective.last_report["theta"]
    assert objective.is_certified and report.is_certified
    assert report.residual <= objective.tolerance and report.num_iterations < 40
    assert report.smallest == pytest.approx(30, rel=1e-3)
    torch.testing.assert_close(value, formula(generator.weight, 0.01).expand(3), rtol=0, atol=0.05)
    assert (value < LinearisedELBO().estimate(site_of(generator, 0.01))).all()


def test_small_problems_are_exact_and_certified() -> None:
    generator = Linear(with_singular_values(torch.logspace(0, -3, 11), 30, 11))
    objective = SingularValueELBO()
    value = objective.estimate(site_of(generator, 0.01))
    assert objective.is_certified and objective.last_report["theta"].num_iterations == 10
    torch.testing.assert_close(value, formula(generator.weight, 0.01).expand(3))


def test_zero_tolerance_never_stops_and_never_certifies() -> None:
    objective = SingularValueELBO(num_iterations=80, tolerance=0.0)
    with pyro.validation_enabled(False):
        objective.estimate(site_of(gapped(), 0.01))
    report = objective.last_report["theta"]
    assert report.num_iterations == 80 and report.residual < 1e-6 and not report.is_certified


def test_without_validation_nothing_is_read_and_nothing_warned() -> None:
    objective = SingularValueELBO(num_iterations=1)
    with pyro.validation_enabled(False):
        objective.estimate(site_of(ill_conditioned(), 0.01))
    assert not objective.is_certified


def test_nan_is_not_certified() -> None:
    generator = ill_conditioned()
    site = site_of(generator, 0.1)
    with torch.no_grad():
        generator.weight[0, 0] = math.nan
    objective = SingularValueELBO()
    with pytest.warns(UserWarning, match="residual of nan"):
        assert objective.estimate(site).isnan().all()
    assert not objective.is_certified


# ---- warm start


@pytest.mark.filterwarnings("ignore:implicit site")
def test_a_warm_start_goes_on_where_the_last_call_ended() -> None:
    generator = ill_conditioned()
    site = site_of(generator, 0.01)
    warm, cold = (SingularValueELBO(num_iterations=3, warm_start=w) for w in (True, False))
    warm_values, cold_values = (
        torch.stack([o.estimate(site).detach() for _ in range(15)]) for o in (warm, cold)
    )
    assert (warm_values[1:] < warm_values[:-1] + 1e-9).all()
    assert (warm_values[-1] < cold_values.min(0).values - 10).all()
    assert len(cold._vectors) == 0


@pytest.mark.filterwarnings("ignore:implicit site")
def test_vectors_that_do_not_fit_are_left_alone() -> None:
    objective = SingularValueELBO(num_iterations=1)
    generator = ill_conditioned()
    objective.estimate(site_of(generator, 0.01, (3,)))
    assert objective.estimate(site_of(generator, 0.01, (5,))).shape == (5,)  # more draws
    generator.float()
    assert objective.estimate(site_of(generator, 0.01, (5,))).dtype == torch.float32
    other = ill_conditioned(12, 9)
    assert objective.estimate(site_of(other, 0.01, (5,))).isfinite().all()  # another model


@pytest.mark.filterwarnings("ignore:implicit site")
def test_vectors_that_are_not_finite_are_replaced() -> None:
    generator = ill_conditioned()
    site, weight = site_of(generator, 0.01), generator.weight.detach().clone()
    objective = SingularValueELBO()
    with torch.no_grad():
        generator.weight[0, 0] = math.nan
        assert objective.estimate(site).isnan().all()
        generator.weight.copy_(weight)
    assert objective.estimate(site).isfinite().all()


@pytest.mark.filterwarnings("ignore:implicit site")
def test_the_same_random_numbers_are_drawn_warm_or_cold() -> None:
    site = site_of(ill_conditioned(), 0.01)
    states = []
    for warm_start in (True, False):
        objective = SingularValueELBO(num_iterations=1, warm_start=warm_start)
        torch.manual_seed(0)
        for _ in range(3):
            objective.estimate(site)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.filterwarnings("ignore:implicit site")
def test_nothing_is_kept_of_a_generator_that_is_gone() -> None:
    objective = SingularValueELBO(num_iterations=1)
    site = site_of(ill_conditioned(), 0.01)
    objective.estimate(site)
    assert len(objective._vectors) == 1
    del site
    gc.collect()
    assert len(objective._vectors) == 0


def _run(objective: SingularValueELBO, generator: Any, count: int) -> list[Tensor]:
    return [objective.estimate(site_of(generator, 0.01)).detach() for _ in range(count)]


@pytest.mark.filterwarnings("ignore:implicit site")
def test_a_state_brings_back_the_vectors_bit_by_bit(tmp_path: Any) -> None:
    generator = ill_conditioned()
    whole = SingularValueELBO(num_iterations=2)
    torch.manual_seed(1)
    _run(whole, generator, 3)
    random = torch.get_rng_state()
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    expected = _run(whole, generator, 3)

    again, other = SingularValueELBO(num_iterations=2), ill_conditioned()
    other.load_state_dict(generator.state_dict())
    _run(again, other, 1)  # what it has learned by then is forgotten
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    torch.set_rng_state(random)
    found = _run(again, other, 3)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(again.state_dict()["vectors"][0], whole.state_dict()["vectors"][0])


@pytest.mark.parametrize("state", [{}, {"vectors": None}, {"vectors": [1.0]}, {"turns": []}])
def test_another_state_is_refused(state: dict[str, Any]) -> None:
    objective = SingularValueELBO()
    with pytest.raises(StateError, match="not a state of SingularValueELBO: found .*expected"):
        objective.load_state_dict(state)
    assert objective.state_dict() == {"vectors": []}


@pytest.mark.filterwarnings("ignore:implicit site")
def test_conditional_guides_begin_at_random_vectors_as_their_rows_change() -> None:
    objective = SingularValueELBO(num_iterations=1)
    generator = Conditioned(MLPGenerator(7, 6, (5,), skip=True), torch.randn(4, 1))
    noise = torch.randn(2, 4, 6)
    fn = ImplicitDistribution(generator, noise, scale=0.1)
    objective.estimate(ImplicitSite("theta", fn, fn.rsample(), ("theta",)))
    assert objective.state_dict() == {"vectors": []}


# ---- in training


def _regression() -> Callable[[], None]:
    x = torch.linspace(-1, 1, 6)

    def model() -> None:
        scale = pyro.sample("scale", dist.LogNormal(torch.zeros(()), 0.5))
        w = pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))
        mean = (w[..., None, :] * torch.stack([x**0, x, x**2], -1)).sum(-1)
        mean = mean.reshape(-1, 6) if mean.dim() > 1 else mean
        with pyro.plate("data", 6):
            pyro.sample("y", dist.Normal(mean, scale), obs=torch.sin(3 * x))

    return model


GUIDES: dict[str, Callable[..., HyperNetworkGuide]] = {
    "default": partial(HyperNetworkGuide, hidden_dims=(5,)),
    "few noises": partial(
        HyperNetworkGuide, hidden_dims=(5,), noise_dim=2, learn_scale="scalar", scale=0.1
    ),
    "many noises": partial(HyperNetworkGuide, hidden_dims=(9,), noise_dim=7, scale=0.1),
    "factorised": partial(
        HyperNetworkGuide, hidden_dims=(5,), factorized=True, learn_scale="diagonal", scale=0.1
    ),
    "laplace": partial(HyperNetworkGuide, hidden_dims=(5,), init_from="laplace"),
    "module": partial(
        HyperNetworkGuide,
        generator=nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)),
        scale=0.1,
    ),
}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:implicit site")
@pytest.mark.parametrize(
    ("name", "vectorised"),
    [
        pytest.param(name, vectorised, marks=[] if i % 2 == vectorised else pytest.mark.slow)
        for i, name in enumerate(GUIDES)
        for vectorised in (False, True)
    ],
)
def test_trains_every_kind_of_guide_and_stays_below_the_exact_objective(
    name: str, vectorised: bool
) -> None:
    model = _regression()
    guide = GUIDES[name](model).setup()
    options: dict[str, Any] = {"vectorize_particles": vectorised, "max_plate_nesting": 1}
    objective = SingularValueELBO(4, **options)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.02}), objective)
    assert all(math.isfinite(svi.step()) for _ in range(10))
    bound = SingularValueELBO(1, max_plate_nesting=1)
    for seed in range(3):
        pyro.set_rng_seed(seed)
        value = bound.loss(model, guide)
        pyro.set_rng_seed(seed)
        if not guide.factorized:  # whose later noise comes after a random start
            assert value >= LinearisedELBO(1, max_plate_nesting=1).loss(model, guide) - 1e-3


def test_loss_differentiable_loss_and_loss_and_grads_agree() -> None:
    model = _regression()
    guide = GUIDES["default"](model).double().setup().double()
    objective = SingularValueELBO(2)
    values = []
    for method in (objective.loss, objective.differentiable_loss, objective.loss_and_grads):
        pyro.set_rng_seed(1)
        value = method(model, guide)
        values.append(value.item() if isinstance(value, Tensor) else value)
    assert values == pytest.approx([values[0]] * 3, rel=1e-6)


def test_autocast_does_not_reach_the_estimate() -> None:
    site = site_of(MLPGenerator(6, 9, (8,)), 0.1)
    for count in (4, 10):  # the iteration, the decomposition
        values = []
        for enabled in (False, True):
            torch.manual_seed(0)
            objective = SingularValueELBO(num_iterations=count)
            autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)
            with autocast, pyro.validation_enabled(False):
                values.append(objective.estimate(site))
        assert values[0].dtype == values[1].dtype == torch.float32
        torch.testing.assert_close(values[1], values[0], rtol=1e-4, atol=1e-4)


def test_settings_and_repr_tell_all_arguments() -> None:
    arguments: dict[str, Any] = {"num_iterations": 3, "tolerance": 0.1, "warm_start": False}
    objective = SingularValueELBO(2, num_entropy_particles=1, **arguments)
    assert arguments.items() <= objective.settings.items()
    assert eval(repr(objective)).settings == objective.settings


@pytest.mark.parametrize("how", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_have_the_settings_and_no_memory(how: Callable[[Any], Any]) -> None:
    objective = SingularValueELBO(num_iterations=50)
    site = site_of(Linear(torch.eye(3).double()), 0.1)
    objective.estimate(site)
    other = how(objective)
    assert other.settings == objective.settings
    assert other.last_report == {} and objective.is_certified
    other.estimate(site)
    assert other.is_certified


@pytest.mark.parametrize("value", [-1, 1.5, True, "2"])
def test_iterations_are_checked(value: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"num_iterations={value!r}; expected an integer >= 0"):
        SingularValueELBO(num_iterations=value)


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan])
def test_tolerance_is_checked(value: float) -> None:
    with pytest.raises(
        ArgumentError, match=rf"tolerance={value!r}; expected a finite number >= 0 and < 1"
    ):
        SingularValueELBO(tolerance=value)
