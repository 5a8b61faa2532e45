"""LanczosELBO: where it equals the exact objective, which side it is on, and when it is lazy."""

from __future__ import annotations

import copy
import gc
import json
import math
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from torch import Tensor, nn

from pyro_implicit import (
    ConditionalHyperNetworkGuide,
    HyperNetworkGuide,
    ImplicitDistribution,
    LinearisedELBO,
)
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import ArgumentError, GuideError, StateError
from pyro_implicit.generators import MLPGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.generators.preconditioner import Preconditioner
from pyro_implicit.objectives.implicit_site import ImplicitSite
from pyro_implicit.objectives.lanczos import LanczosELBO
from pyro_implicit.ops.linearisation import DenseLinearisation, Linearisation
from pyro_implicit.ops.logdet import half_log_det

DIM = 4
X = torch.linspace(-1, 1, 6, dtype=torch.float64)


def model(x: Tensor = X) -> None:
    """Two sites with four entries, on two levels."""
    scale = pyro.sample("scale", dist.LogNormal(x.new_zeros(()), 0.5))
    w = pyro.sample("w", dist.Normal(x.new_zeros(3), 1.0).to_event(1))
    mean = (w[..., None, :] * torch.stack([x**0, x, x**2], -1)).sum(-1)
    if mean.dim() > 1:
        mean = mean.reshape(-1, len(x))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, scale), obs=torch.sin(3 * x))


GUIDES: dict[str, Callable[..., HyperNetworkGuide]] = {
    "default": partial(HyperNetworkGuide, hidden_dims=(5,), scale=0.1),
    "no output noise": partial(HyperNetworkGuide, hidden_dims=(5,)),
    "few noises": partial(HyperNetworkGuide, hidden_dims=(5,), noise_dim=2, scale=0.1),
    "many noises": partial(HyperNetworkGuide, hidden_dims=(9,), noise_dim=7, scale=0.1),
    "learned scale": partial(
        HyperNetworkGuide, hidden_dims=(5,), noise_dim=2, learn_scale="scalar", scale=0.1
    ),
    "learned scales": partial(
        HyperNetworkGuide, hidden_dims=(5,), learn_scale="diagonal", scale=0.1
    ),
    "factorised": partial(
        HyperNetworkGuide, hidden_dims=(5,), factorized=True, learn_scale="diagonal", scale=0.1
    ),
    "laplace": partial(HyperNetworkGuide, hidden_dims=(5,), init_from="laplace", scale=0.1),
    "module": partial(
        HyperNetworkGuide,
        generator=nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, DIM)),
        scale=0.1,
    ),
}


def make_guide(name: str) -> HyperNetworkGuide:
    return GUIDES[name](model).double().setup(X).double()


class Linear(Generator):
    """``matrix @ z``: its entropy is the same at every noise."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__((matrix.shape[1],), matrix.shape[0])
        self.weight = nn.Parameter(matrix.clone())

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.weight.mT

    def linearise(self, z: Tensor) -> Linearisation:
        return DenseLinearisation(self(z), [self.weight], [])


def linear_guide(matrix: Tensor, sigma: float | Tensor = 0.1) -> tuple[Any, Linear]:
    """A guide over ``theta`` with that generator."""
    generator = Linear(matrix)

    def guide() -> None:
        pyro.module("generator", generator)
        sample_implicit("theta", ImplicitDistribution(generator, scale=sigma))

    return guide, generator


def normal_model(m: int) -> Callable[[], None]:
    def model() -> None:
        pyro.sample("theta", dist.Normal(torch.zeros(m).double(), 1.0).to_event(1))

    return model


def value_and_gradients(objective: Any, guide: Any) -> tuple[float, list[Tensor]]:
    pyro.set_rng_seed(0)
    guide.zero_grad()
    loss = objective.loss_and_grads(model, guide, X)
    return loss, [p.grad.clone() for p in guide.parameters()]


# ---- reduction to the exact objective


@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("name", GUIDES)
def test_all_steps_and_all_directions_are_the_exact_objective(name: str, vectorised: bool) -> None:
    guide = make_guide(name)
    # the same noise for both: one draws no probes, so all draws come first
    options: dict[str, Any] = {"num_particles": 1, "max_plate_nesting": 1}
    if vectorised:
        options = {"num_particles": 3, "vectorize_particles": True, "max_plate_nesting": 1}
    exact, expected = value_and_gradients(LinearisedELBO(**options), guide)
    objective = LanczosELBO(num_steps=7, num_probes=DIM * 3, **options)  # 4, 3, 2, 1 dimensions
    found, gradients = value_and_gradients(objective, guide)
    assert found == pytest.approx(exact, abs=1e-6)
    for mine, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{"likelihood": "per_datum"}, {"kl_weight": 0.3}])
def test_options_of_the_base_mean_what_they_mean_there(options: dict[str, Any]) -> None:
    guide = make_guide("few noises")
    options = options | {"num_particles": 4, "vectorize_particles": True, "max_plate_nesting": 1}
    exact, _ = value_and_gradients(LinearisedELBO(num_entropy_particles=2, **options), guide)
    objective = LanczosELBO(num_steps=2, num_probes=2, num_entropy_particles=2, **options)
    assert value_and_gradients(objective, guide)[0] == pytest.approx(exact, abs=1e-6)


@pytest.mark.parametrize("name", ["default", "no output noise", "factorised", "laplace"])
def test_loss_differentiable_loss_terms_and_loss_and_grads_agree(name: str) -> None:
    guide = make_guide(name)
    objective = LanczosELBO(2, num_steps=2)
    values = []
    for method in (objective.loss, objective.differentiable_loss, objective.loss_and_grads):
        pyro.set_rng_seed(1)
        value = method(model, guide, X)
        values.append(value.item() if isinstance(value, Tensor) else value)
    pyro.set_rng_seed(1)
    values.append(-sum(t.item() for t in objective.terms(model, guide, X).values()))
    assert values == pytest.approx([values[0]] * 4, rel=1e-9)


def test_noise_that_is_not_standard_normal() -> None:
    base = dist.Normal(torch.zeros(2).double(), 3.0).to_event(1)
    generator = MLPGenerator(2, 5).double()
    fn = ImplicitDistribution(
        generator,
        base_dist=base,
        scale=0.1,
        preconditioner=Preconditioner(torch.zeros(5).double(), torch.full((5,), 2.0).double()),
    )
    site = ImplicitSite("w", fn.given(base.sample((3,))), torch.zeros(3, 5).double(), ("w",))
    exact = LinearisedELBO().estimate(site)
    found = LanczosELBO(num_steps=2, num_probes=2).estimate(site)
    torch.testing.assert_close(found, exact, rtol=1e-7, atol=1e-7)


def test_such_noise_with_more_dimensions_than_outputs_is_refused() -> None:
    base = dist.Normal(torch.zeros(4), 3.0).to_event(1)
    fn = ImplicitDistribution(MLPGenerator(4, 3), base_dist=base, scale=0.1)
    site = ImplicitSite("w", fn.given(base.sample((3,))), torch.zeros(3, 3), ("w",))
    with pytest.raises(GuideError, match="'w' has 4 noise dimensions for 3 outputs"):
        LanczosELBO().estimate(site)


# ---- both sides


def test_rules_differ_in_the_value_and_share_the_gradient() -> None:
    guide = make_guide("few noises")
    found = {
        rule: value_and_gradients(LanczosELBO(num_steps=1, rule=rule, max_plate_nesting=1), guide)
        for rule in ("gauss", "radau", "average")
    }
    losses = {rule: loss for rule, (loss, _) in found.items()}
    assert losses["gauss"] < losses["average"] < losses["radau"]
    middle = (losses["gauss"] + losses["radau"]) / 2
    assert losses["average"] == pytest.approx(middle, rel=1e-9)
    for rule in ("radau", "average"):
        for mine, gauss in zip(found[rule][1], found["gauss"][1], strict=True):
            assert torch.equal(mine, gauss)


@pytest.mark.long
@pytest.mark.parametrize("shape", [(12, 8), (8, 12)])
def test_report_encloses_the_exact_value(shape: tuple[int, int]) -> None:
    matrix = torch.randn(*shape).double() * torch.logspace(0, -1, shape[1]).double()
    guide, _ = linear_guide(matrix)
    objective = LanczosELBO(num_steps=3, num_probes=200, probes="rademacher")
    assert objective.last_report == {}
    objective.loss(normal_model(shape[0]), guide)
    report = objective.last_report["theta"]
    exact = half_log_det(matrix, 0.1).item()
    assert report.radau - 3 * report.standard_error < exact
    assert exact < report.gauss + 3 * report.standard_error
    assert 0 < report.gauss - report.radau < 10
    values = []
    for _ in range(30):
        objective.loss(normal_model(shape[0]), guide)
        values.append(objective.last_report["theta"].gauss)
    spread = torch.tensor(values).std().item()
    assert 0.6 < spread / report.standard_error < 1.6  # it is what it says


def test_report_of_one_probe_knows_no_error_and_of_no_noise_no_lower_side() -> None:
    guide, _ = linear_guide(torch.eye(3).double(), sigma=0.0)
    objective = LanczosELBO()
    objective.loss(normal_model(3), guide)
    report = objective.last_report["theta"]
    assert report.gauss == pytest.approx(0.0, abs=1e-9)
    assert report.radau == -math.inf and math.isnan(report.standard_error)


@pytest.mark.long
def test_report_counts_the_preconditioner_and_averages_over_draws() -> None:
    guide = make_guide("laplace")
    objective = LanczosELBO(5, num_steps=4, num_probes=4, vectorize_particles=True)
    objective.loss(model, guide, X)
    (report,) = objective.last_report.values()
    sampler: Any = guide.samplers[0]
    values = sampler.distribution().given(torch.randn(2000, 4).double()).half_log_det()
    assert abs(report.gauss - values.mean().item()) < 5 * values.std().item() / math.sqrt(5)
    assert report.radau == pytest.approx(report.gauss, abs=1e-6)


@pytest.mark.parametrize("rule", ["radau", "average"])
def test_the_lower_side_needs_output_noise(rule: str) -> None:
    guide = make_guide("no output noise")
    with pytest.raises(ArgumentError, match=f"scale=0.*rule='{rule}' needs.*rule='gauss'"):
        LanczosELBO(rule=rule).loss(model, guide, X)


# ---- lazy entropy


def entropies(objective: LanczosELBO, guide: Any, model: Any, count: int) -> list[float]:
    """Minus the losses of training steps; the prior's weight is 0, so only entropy is in them."""
    return [-objective.differentiable_loss(model, guide).item() for _ in range(count)]


@pytest.mark.parametrize("every", [1, 2, 3])
def test_lazy_weights_and_their_mean(every: int) -> None:
    matrix = torch.randn(4, 3).double()
    guide, layer = linear_guide(matrix)
    eager = LanczosELBO(num_steps=3, num_probes=3, prior_weight=0.0)
    lazy = LanczosELBO(num_steps=3, num_probes=3, prior_weight=0.0, entropy_every=every)
    target = entropies(eager, guide, normal_model(4), 1)[0]
    constant = target - half_log_det(matrix, 0.1).item()
    found = entropies(lazy, guide, normal_model(4), 2 * every)
    expected = [constant + every * (target - constant)] + [constant] * (every - 1)
    assert found == pytest.approx(expected * 2, abs=1e-6)
    assert sum(found) / len(found) == pytest.approx(target, abs=1e-6)

    eager.loss_and_grads(normal_model(4), guide)
    exact = layer.weight.grad
    layer.weight.grad = None
    for _ in range(every):
        lazy.loss_and_grads(normal_model(4), guide)
    torch.testing.assert_close(layer.weight.grad / every, exact, rtol=1e-5, atol=1e-7)


def test_evaluations_have_the_whole_entropy_and_take_no_turn() -> None:
    guide, _ = linear_guide(torch.randn(4, 3).double())
    toy = normal_model(4)
    objective = LanczosELBO(num_steps=3, num_probes=3, prior_weight=0.0, entropy_every=3)
    whole = -objective.loss(toy, guide)
    training = []
    for _ in range(6):
        training += entropies(objective, guide, toy, 1)
        assert -objective.loss(toy, guide) == pytest.approx(whole, abs=1e-6)
        terms = objective.terms(toy, guide)
        assert terms["entropy"].item() == pytest.approx(whole, abs=1e-6)
        assert terms["entropy"].requires_grad
        with torch.no_grad():
            value = objective.differentiable_loss(toy, guide).item()
        assert -value == pytest.approx(whole, abs=1e-6)
    assert training[1] == training[2] == training[4] == training[5] != training[0]
    assert sum(training) / 6 == pytest.approx(whole, abs=1e-6)


@pytest.mark.parametrize("vectorised", [False, True])
def test_particles_and_sites_of_a_step_share_its_turn(vectorised: bool) -> None:
    guide = make_guide("factorised")
    calls = []
    objective = LanczosELBO(3, vectorize_particles=vectorised, entropy_every=2, max_plate_nesting=1)
    original = objective._weight

    def spy(site: ImplicitSite) -> int:
        calls.append(original(site))
        return calls[-1]

    objective._weight = spy  # type: ignore[method-assign]
    for _ in range(4):
        objective.loss_and_grads(model, guide, X)
    per_step = len(calls) // 4
    assert per_step == (2 if vectorised else 6)
    assert calls == ([2] * per_step + [0] * per_step) * 2


def test_models_trained_in_turns_do_not_take_each_others() -> None:
    first, _ = linear_guide(torch.eye(4).double())
    second, _ = linear_guide(2 * torch.eye(4).double())
    objective = LanczosELBO(num_steps=4, num_probes=4, prior_weight=0.0, entropy_every=2)
    whole = [-objective.loss(normal_model(4), guide) for guide in (first, second)]
    totals = [0.0, 0.0]
    for _ in range(4):
        for index, guide in enumerate((first, second)):
            totals[index] += entropies(objective, guide, normal_model(4), 1)[0] / 4
    assert totals == pytest.approx(whole, abs=1e-6)


def test_a_step_without_its_turn_makes_no_products(monkeypatch: pytest.MonkeyPatch) -> None:
    guide = make_guide("few noises")
    calls = []
    for name in ("jvp", "vjp"):
        original = getattr(DenseLinearisation, name)
        monkeypatch.setattr(
            DenseLinearisation, name, lambda self, v, f=original: calls.append(1) or f(self, v)
        )
    objective = LanczosELBO(entropy_every=3)
    made = []
    for _ in range(6):
        calls.clear()
        objective.loss_and_grads(model, guide, X)
        made.append(len(calls))
    assert made[0] > 0 and made == [made[0], 0, 0, made[0], 0, 0]


@pytest.mark.parametrize("vectorised", [False, True])
def test_the_generator_is_run_once_for_a_draw_and_its_derivative(
    monkeypatch: pytest.MonkeyPatch, vectorised: bool
) -> None:
    guide = make_guide("few noises")
    runs: dict[str, int] = {"forward": 0, "linearise": 0}

    def counted(name: str) -> Any:
        original = getattr(MLPGenerator, name)

        def method(self: Any, z: Tensor) -> Any:
            runs[name] += 1
            return original(self, z)

        return method

    objective = LanczosELBO(4, vectorize_particles=vectorised)
    objective.loss(model, guide, X)  # the first call tries the generator out
    for name in runs:
        monkeypatch.setattr(MLPGenerator, name, counted(name))
    objective.loss_and_grads(model, guide, X)
    assert runs == {"forward": 0, "linearise": 1 if vectorised else 4}


@pytest.mark.parametrize("pre", [False, True])
def test_forward_hooks_of_a_generator_are_called_at_every_draw(pre: bool) -> None:
    guide = make_guide("few noises")
    generator, calls = guide.samplers[0].generator, []
    register = generator.register_forward_pre_hook if pre else generator.register_forward_hook
    objective = LanczosELBO(3)
    objective.loss(model, guide, X)  # the first call tries the generator out
    register(lambda *_: calls.append(1))
    objective.loss(model, guide, X)
    assert len(calls) == 3


def test_a_kept_derivative_changes_no_number() -> None:
    class Anew(LanczosELBO):
        linearises = False

    found = []
    for kind in (LanczosELBO, Anew):
        pyro.set_rng_seed(0)
        guide = make_guide("few noises")
        loss = kind(3, num_probes=2).loss_and_grads(model, guide, X)
        found.append((loss, [p.grad for p in guide.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-9, atol=1e-12)


def test_an_error_in_a_step_leaves_evaluations_whole() -> None:
    guide, _ = linear_guide(torch.randn(4, 3).double())
    objective = LanczosELBO(num_steps=3, num_probes=3, prior_weight=0.0, entropy_every=3)
    whole = objective.loss(normal_model(4), guide)
    entropies(objective, guide, normal_model(4), 1)

    def broken() -> None:
        raise KeyError("a mistake of the user's")

    with pytest.raises(KeyError):
        objective.loss_and_grads(broken, guide)
    assert objective.loss(normal_model(4), guide) == pytest.approx(whole, abs=1e-6)
    assert objective.terms(normal_model(4), guide)["entropy"].item() == pytest.approx(-whole)


def test_a_state_brings_back_whose_turn_it_is() -> None:
    """Of a run with another objective and another guide, as after a restart."""
    guides = [linear_guide(torch.eye(4).double())[0] for _ in range(2)]
    options = {"num_steps": 4, "num_probes": 4, "prior_weight": 0.0, "entropy_every": 3}
    before, after = LanczosELBO(**options), LanczosELBO(**options)
    expected = entropies(before, guides[0], normal_model(4), 7)
    again = LanczosELBO(**options)
    entropies(again, guides[0], normal_model(4), 4)
    state = json.loads(json.dumps(again.state_dict()))
    assert state == {"turns": [3]}
    after.load_state_dict(state)
    assert after.state_dict() == state
    found = entropies(after, guides[1], normal_model(4), 3)
    assert [value == 0 for value in found] == [value == 0 for value in expected[4:]]


@pytest.mark.parametrize("state", [{}, {"turns": ["a"]}, {"turns": [1], "sites": []}])
def test_another_state_is_refused(state: dict[str, Any]) -> None:
    objective = LanczosELBO()
    with pytest.raises(StateError, match="not a state of LanczosELBO: found .*expected"):
        objective.load_state_dict(state)
    assert objective.state_dict() == {"turns": []}


def test_nothing_is_kept_of_a_generator_that_is_gone() -> None:
    guide, layer = linear_guide(torch.eye(3).double())
    objective = LanczosELBO(entropy_every=2)
    objective.loss_and_grads(normal_model(3), guide)
    assert len(objective._step_counts) == 1
    pyro.clear_param_store()
    del guide, layer
    gc.collect()
    assert len(objective._step_counts) == 0


# ---- whose turn it is, for generators that are wrapped or made in each call


def _row_model(x: Tensor, y: Tensor) -> None:
    with pyro.plate("data", 8, subsample_size=len(x)):
        w = pyro.sample("w", dist.Normal(x.new_zeros(2), 1.0).to_event(1))
        v = pyro.sample("v", dist.Normal(x.new_zeros(()), 1.0))
        pyro.sample("y", dist.Normal((w * x).sum(-1) + v, 0.5), obs=y)


ROWS = torch.randn(8, 2), torch.randn(8)


def _conditional(**options: Any) -> ConditionalHyperNetworkGuide:
    guide = ConditionalHyperNetworkGuide(_row_model, hidden_dims=(4,), noise_dim=3, **options)
    guide.setup(*ROWS)
    return guide


def _are_estimated(
    objective: LanczosELBO, guide: Any, model: Any, count: int, *args: Any
) -> list[bool]:
    """Of training steps: whether the log-determinant was estimated."""
    found = []
    for _ in range(count):
        objective._last = {}
        objective.loss_and_grads(model, guide, *args)
        found.append(bool(objective._last))
    return found


@pytest.mark.long
@pytest.mark.parametrize("factorized", [False, True])
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_conditional_guide_is_counted_although_it_wraps_its_generator(
    vectorised: bool, factorized: bool
) -> None:
    guide = _conditional(factorized=factorized)
    lazy = LanczosELBO(2, vectorize_particles=vectorised, entropy_every=3)
    assert _are_estimated(lazy, guide, _row_model, 6, *ROWS) == [True, False, False] * 2
    clone = copy.deepcopy(guide)  # a guide of its own
    assert _are_estimated(lazy, clone, _row_model, 2, *ROWS) == [True, False]
    assert _are_estimated(lazy, guide, _row_model, 2, *ROWS) == [True, False]
    rows = tuple(part[:3] for part in ROWS)  # another minibatch
    assert _are_estimated(lazy, guide, _row_model, 2, *rows) == [False, True]


def test_lazy_entropy_of_a_conditional_guide_has_the_right_mean() -> None:
    guide = _conditional().double()
    rows = tuple(part.double() for part in ROWS)
    options: dict[str, Any] = {"num_particles": 40, "num_steps": 3, "num_probes": 3}
    eager = LanczosELBO(vectorize_particles=True, **options)
    lazy = LanczosELBO(vectorize_particles=True, entropy_every=4, **options)
    whole = eager.terms(_row_model, guide, *rows)["entropy"].item()
    found = []
    for _ in range(8):
        lazy.differentiable_loss(_row_model, guide, *rows)
        found.append(lazy.last_terms["entropy"].item())
    assert sum(found) / 8 == pytest.approx(whole, rel=0.1)


def test_a_state_is_taken_up_by_a_conditional_guide() -> None:
    before, after = LanczosELBO(entropy_every=3), LanczosELBO(entropy_every=3)
    guide = _conditional(factorized=True)
    _are_estimated(before, guide, _row_model, 2, *ROWS)
    assert before.state_dict() == {"turns": [1, 1]}
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    other = _conditional(factorized=True)
    assert _are_estimated(after, other, _row_model, 3, *ROWS) == [False, True, False]
    # loaded in mid-training, as Lightning does after its warm-up
    after.load_state_dict({"turns": [2, 2]})
    assert _are_estimated(after, other, _row_model, 2, *ROWS) == [True, False]


def test_a_generator_made_anew_in_each_call_is_counted_by_its_guide() -> None:
    weight = nn.Parameter(torch.randn(3, 3).double())

    class Given(Generator):
        def forward(self, z: Tensor) -> Tensor:
            return z @ weight.mT

    def guide() -> None:
        fn = ImplicitDistribution(Given((3,), 3), base_dist=_standard(3), scale=0.1)
        sample_implicit("theta", fn)

    lazy = LanczosELBO(entropy_every=2)
    assert _are_estimated(lazy, guide, normal_model(3), 4) == [True, False] * 2


def _standard(d: int) -> Any:
    return dist.Normal(torch.zeros(d).double(), 1.0).to_event(1)


def test_a_guide_made_anew_for_each_step_is_counted_by_its_generator() -> None:
    _, generator = linear_guide(torch.eye(3).double())
    lazy, found = LanczosELBO(entropy_every=2), []
    for _ in range(4):
        fn = ImplicitDistribution(generator, scale=0.1)
        found += _are_estimated(
            lazy, lambda fn=fn: sample_implicit("theta", fn), normal_model(3), 1
        )
    assert found == [True, False] * 2


def test_guides_that_share_a_generator_have_turns_of_their_own() -> None:
    _, generator = linear_guide(torch.eye(3).double())

    class Guide:
        def draw(self) -> None:  # bound methods, which nobody keeps
            sample_implicit("theta", ImplicitDistribution(generator, scale=0.1))

    guides, lazy = (Guide(), Guide()), LanczosELBO(entropy_every=2)
    found: list[list[bool]] = [[], []]
    for _ in range(4):
        for index, guide in enumerate(guides):
            found[index] += _are_estimated(lazy, guide.draw, normal_model(3), 1)
    assert found == [[True, False] * 2] * 2


def test_turns_are_told_and_counted_for_those_who_record_steps() -> None:
    guide, model = _conditional(factorized=True), _row_model
    eager, lazy = LanczosELBO(), LanczosELBO(entropy_every=3)
    assert eager.estimates_next(guide) == (True,) and lazy.estimates_next(guide) == ()
    assert _are_estimated(lazy, guide, model, 2, *ROWS) == [True, False]
    assert lazy.estimates_next(guide) == (False,)
    with lazy.uncounted(guide) as met:
        assert _are_estimated(lazy, guide, model, 2, *ROWS) == [False, True]
    assert len(met) == 2 and lazy.estimates_next(guide) == (False,)
    lazy.count_step(guide, met)
    assert lazy.estimates_next(guide) == (True,)
    lazy.count_step(guide, met[:1])  # and not the other site
    assert lazy.estimates_next(guide) == (False, True)
    assert lazy.state_dict() == {"turns": [3, 2]}
    lazy.load_state_dict(lazy.state_dict())
    assert lazy.estimates_next(guide) == ()  # the next step will tell whose the numbers are


# ---- the rest


@pytest.mark.parametrize(
    "learn_scale", [pytest.param("scalar", marks=pytest.mark.slow), "diagonal"]
)
@pytest.mark.slow  # the default run has test_known_posterior.py
def test_training_finds_a_gaussian(learn_scale: str) -> None:
    deviations = torch.tensor([0.1, 0.5, 2.0])

    def target() -> None:
        pyro.sample("theta", dist.Normal(torch.ones(3), deviations).to_event(1))

    guide = HyperNetworkGuide(target, hidden_dims=(5,), scale=0.05, learn_scale=learn_scale)
    guide.setup()
    steps = 500
    optimiser = pyro.optim.ExponentialLR(
        {
            "optimizer": torch.optim.Adam,
            "optim_args": {"lr": 0.03},
            "gamma": 0.01 ** (1 / steps),
        }
    )
    objective = LanczosELBO(16, vectorize_particles=True, num_steps=3)
    svi = SVI(target, guide, optimiser, objective)
    for _ in range(steps):
        svi.step()
        optimiser.step()
    draws = guide.sample(20_000)["theta"]
    torch.testing.assert_close(draws.std(0), deviations, rtol=0.1, atol=0)
    torch.testing.assert_close((draws.mean(0) - 1) / deviations, torch.zeros(3), rtol=0, atol=0.15)


def test_autocast_does_not_reach_the_estimate() -> None:
    fn = ImplicitDistribution(MLPGenerator(20, 30, (25,)), scale=0.01)
    site = ImplicitSite("w", fn.given(torch.randn(3, 20)), torch.zeros(3, 30), ("w",))
    objective = LanczosELBO(num_steps=20, num_probes=20)
    plain = objective.estimate(site)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = objective.estimate(site)
    assert plain.dtype == under.dtype == torch.float32
    torch.testing.assert_close(under, plain, rtol=1e-4, atol=1e-4)


def test_a_generator_that_has_diverged_gives_nan() -> None:
    guide = make_guide("few noises")
    generator: Any = guide.samplers[0].generator
    fn = guide.samplers[0].distribution()  # type: ignore[operator,union-attr]
    with torch.no_grad():
        generator.stored_weight_out[0, 0] = math.nan
    site = ImplicitSite("w", fn.given(torch.randn(3, 2).double()), torch.zeros(3, DIM), ("w",))
    assert LanczosELBO().estimate(site).isnan().all()  # and not an error of the eigensolver


def test_settings_and_repr_tell_all_arguments() -> None:
    arguments = {
        "num_steps": 3,
        "num_probes": 2,
        "rule": "radau",
        "entropy_every": 4,
        "probes": "rademacher",
    }
    objective = LanczosELBO(2, num_entropy_particles=1, **arguments)
    assert arguments.items() <= objective.settings.items()
    assert objective.settings["num_entropy_particles"] == 1
    again = eval(repr(objective))
    assert again.settings == objective.settings


@pytest.mark.parametrize("how", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))])
def test_copies_have_the_settings_and_no_memory(how: Callable[[Any], Any]) -> None:
    guide = make_guide("few noises")
    objective = LanczosELBO(num_probes=2, entropy_every=2)
    objective.loss_and_grads(model, guide, X)
    other = how(objective)
    assert other.settings == objective.settings
    assert other.last_report == {} and len(objective.last_report) == 1
    other.loss_and_grads(model, guide, X)  # begins with its own first turn
    assert len(other.last_report) == 1


@pytest.mark.parametrize("name", ["num_steps", "num_probes", "entropy_every"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_counts_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"{name}={value!r}; expected an integer >= 1"):
        LanczosELBO(**{name: value})


@pytest.mark.parametrize(
    ("name", "message"),
    [("rule", "'gauss', 'radau' or 'average'"), ("probes", "'orthogonal' or 'rademacher'")],
)
def test_names_are_checked(name: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{name}='other'; expected {message}\."):
        LanczosELBO(**{name: "other"})
