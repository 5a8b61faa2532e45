"""AdversarialELBO: what its critic learns, when, and where its parameters are."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from torch import Tensor, nn

from pyro_implicit import AdversarialELBO, HyperNetworkGuide, ImplicitDistribution
from pyro_implicit.distributions import sample_implicit
from pyro_implicit.exceptions import ArgumentError, ShapeError, StateError
from pyro_implicit.generators import ResidualGenerator
from pyro_implicit.generators.base import Generator
from pyro_implicit.objectives.critic import Critic

FAST: dict[str, Any] = {"num_samples": 20, "num_critic_steps": 2}


class Affine(Generator):
    """``mean + scale * z``, not learned."""

    full_rank = True

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__((len(mean),), len(mean))
        self.mean, self.scale = nn.Parameter(mean), scale

    def forward(self, z: Tensor) -> Tensor:
        return self.mean + self.scale * z


def model() -> None:
    pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))


def guide_of(generator: Generator, name: str = "w") -> Any:
    def guide() -> None:
        pyro.module(name, generator)
        sample_implicit(name, ImplicitDistribution(generator))

    return guide


class Counting(torch.optim.SGD):
    """Counts its steps."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        Counting.steps += 1
        return super().step(closure)


def counting(parameters: Any) -> Counting:
    Counting.steps = 0
    return Counting(parameters, lr=0.1)


# ---- the value


@pytest.mark.slow
def test_the_critic_reaches_the_divergence_of_known_gaussians() -> None:
    mean, scale = torch.tensor([0.5, -0.5]), torch.tensor([0.5, 0.7])
    exact = (0.5 * (mean**2 + scale**2 - 1) - scale.log()).sum().item()
    guide = guide_of(Affine(mean, scale))
    objective = AdversarialELBO(
        2, contrast="prior", vectorize_particles=True, max_plate_nesting=0, num_critic_steps=10
    )
    assert objective.loss(model, guide) == 0  # a new critic cannot tell
    for _ in range(60):
        objective.differentiable_loss(model, guide)
    values = [objective.loss(model, guide) for _ in range(20)]
    assert sum(values) / 20 == pytest.approx(exact, abs=0.4)
    loss = torch.stack([objective.differentiable_loss(model, guide) for _ in range(30)]).mean()
    (generator,) = [p for n, p in pyro.get_param_store().items() if n.endswith("mean")]
    (gradient,) = torch.autograd.grad(loss, generator)
    torch.testing.assert_close(gradient, mean, rtol=0, atol=0.35)
    assert 0.55 < objective.critic_accuracy["w"] < 0.95


@pytest.mark.long
def test_adaptive_contrast_of_a_gaussian_leaves_the_critic_nothing_to_tell() -> None:
    mean, scale = torch.tensor([3.0, -5.0]), torch.tensor([0.1, 0.2])
    exact = (0.5 * (mean**2 + scale**2 - 1) - scale.log()).sum().item()
    objective = AdversarialELBO(50, vectorize_particles=True, max_plate_nesting=0)
    guide = guide_of(Affine(mean, scale))
    values = [objective.differentiable_loss(model, guide).item() for _ in range(40)]
    assert sum(values[10:]) / 30 == pytest.approx(exact, abs=0.25)
    assert objective.critic_accuracy["w"] == pytest.approx(0.5, abs=0.08)


# ---- when it learns


def test_steps_of_the_critic_are_counted_with_gradients_only() -> None:
    guide = guide_of(ResidualGenerator(2, 3))
    objective = AdversarialELBO(critic_optim=counting, num_samples=20, num_critic_steps=3)
    objective.loss(model, guide)
    assert Counting.steps == 0 and isinstance(objective._optims[0], Counting)
    for count, evaluate in enumerate(
        (objective.differentiable_loss, objective.loss_and_grads, objective.terms), start=1
    ):
        evaluate(model, guide)
        assert Counting.steps == 3 * count
    svi = SVI(model, guide, pyro.optim.Adam({}), objective)
    svi.step()
    assert Counting.steps == 12
    svi.evaluate_loss()
    with torch.no_grad():
        objective.differentiable_loss(model, guide)
    assert Counting.steps == 12


def test_the_loss_has_no_gradient_for_the_critic_and_one_for_the_guide() -> None:
    generator = ResidualGenerator(2, 3)
    objective = AdversarialELBO(**FAST)
    objective.differentiable_loss(model, guide_of(generator))
    loss = objective.differentiable_loss(model, guide_of(generator))
    critic = list(objective.critics["w"].parameters())
    found = torch.autograd.grad(loss, critic, allow_unused=True, retain_graph=True)
    assert found == (None,) * len(critic)
    loss.backward()
    assert all(p.grad is None for p in critic) and all(p.requires_grad for p in critic)
    assert all(p.grad is not None for p in generator.parameters())


def test_a_plain_torch_loop_shows_the_critic_from_the_first_evaluation_on() -> None:
    guide = HyperNetworkGuide(model, hidden_dims=(3,)).setup()
    objective = AdversarialELBO(**FAST)
    module = objective(model, guide)
    mine = {name for name, _ in module.named_parameters()}
    module().backward()
    shown = {name for name, _ in module.named_parameters()}
    critic = {f"critics.0.{name}" for name, _ in Critic(2).named_parameters()}
    assert shown - mine == critic <= set(module.state_dict())
    before = [p.detach().clone() for p in objective._critics.parameters()]
    torch.optim.Adam(module.parameters(), lr=1.0).step()  # has nothing for the critic
    for old, now in zip(before, objective._critics.parameters(), strict=True):
        assert torch.equal(old, now)
    saved = copy.deepcopy(module.state_dict())
    other = AdversarialELBO(**FAST)
    again = other(model, HyperNetworkGuide(model, hidden_dims=(3,)).setup())
    again()
    again.load_state_dict(saved)
    for name, value in module.named_parameters():
        assert torch.equal(value, dict(again.named_parameters())[name])


def test_two_losses_can_be_added_before_they_are_differentiated() -> None:
    generator = ResidualGenerator(2, 3)
    objective = AdversarialELBO(**FAST)
    losses = [objective.differentiable_loss(model, guide_of(generator)) for _ in range(3)]
    sum(losses).backward()  # type: ignore[union-attr]
    assert all(p.grad.isfinite().all() for p in generator.parameters())  # type: ignore[union-attr]


# ---- critics of the user's


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("column", [False, True])
def test_a_critic_and_an_optimiser_of_the_users(module: bool, column: bool) -> None:
    sizes = []

    def make(m: int) -> nn.Module:
        sizes.append(m)
        layers = [nn.Linear(m, 4), nn.Tanh(), nn.Linear(4, 1)]
        return nn.Sequential(*layers, *([] if column else [nn.Flatten(0)]))

    given = make(2) if module else make
    objective = AdversarialELBO(critic=given, critic_optim=counting, **FAST)
    assert objective.settings["critic"] == ("Sequential" if module else "make")
    assert objective.critics == {} and objective.critic_accuracy == {}
    guide = guide_of(ResidualGenerator(2, 3))
    before = {}
    for step in range(3):
        loss = objective.loss_and_grads(model, guide)
        assert math.isfinite(loss)
        now = [p.detach().clone() for p in objective.critics["w"].parameters()]
        assert not step or not any(torch.equal(a, b) for a, b in zip(before, now, strict=True))
        before = now
    assert sizes == [2]
    assert (objective.critics["w"] is given) == module
    assert Counting.steps == 6


def test_the_default_critic_follows_the_dtype_of_the_draws() -> None:
    def wide() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2).double(), 1.0).to_event(1))

    objective = AdversarialELBO(**FAST)
    loss = objective.differentiable_loss(wide, guide_of(ResidualGenerator(2, 3).double()))
    assert loss.dtype == torch.float64
    assert {p.dtype for p in objective.critics["w"].parameters()} == {torch.float64}


def two() -> None:
    pyro.sample("a", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.sample("b", dist.Normal(torch.zeros(3), 1.0).to_event(1))


def two_guide() -> Any:
    first, second = guide_of(ResidualGenerator(2, 3), "a"), guide_of(ResidualGenerator(3, 3), "b")

    def guide() -> None:
        first()
        second()

    return guide


def test_each_implicit_site_has_its_own_critic() -> None:
    objective = AdversarialELBO(**FAST)
    objective.loss_and_grads(two, two_guide())
    sizes = {name: critic.quadratic.in_features for name, critic in objective.critics.items()}  # type: ignore[union-attr]
    assert sizes == {"a": 4, "b": 6}
    assert objective.critic_accuracy.keys() == {"a", "b"}


def test_one_critic_module_for_two_sites_is_refused() -> None:
    objective = AdversarialELBO(critic=Critic(2), **FAST)
    with pytest.raises(ArgumentError, match="one critic module, and implicit sites 'a' and 'b'"):
        objective.loss(two, two_guide())


@pytest.mark.parametrize("out", [2, 0])
def test_a_critic_of_another_shape_is_refused(out: int) -> None:
    critic = nn.Linear(2, 2) if out else nn.Flatten(0)
    objective = AdversarialELBO(
        critic=lambda m: critic, critic_optim=lambda p: Counting([torch.zeros(1)]), **FAST
    )
    message = r"critic (Linear|Flatten) returned shape \(.*\) for draws of shape \(20, 2\)"
    for evaluate in (objective.loss, objective.loss_and_grads):
        with pytest.raises(ShapeError, match=message):
            evaluate(model, guide_of(ResidualGenerator(2, 3)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"critic": lambda m: None}, r"critic\(m\) is None; expected a network"),
        ({"critic_optim": lambda p: None}, r"critic_optim\(parameters\) is None; expected a torch"),
    ],
)
def test_what_makes_no_network_or_optimiser_is_refused(
    options: dict[str, Any], message: str
) -> None:
    objective = AdversarialELBO(**FAST, **options)
    guide = guide_of(Affine(torch.zeros(2), torch.ones(2)))
    for _ in range(2):  # the first leaves no half of a critic behind
        with pytest.raises(ArgumentError, match=message):
            objective.loss_and_grads(model, guide)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_critic_steps": 0}, "num_critic_steps=0; expected an integer >= 1"),
        ({"critic": "mlp"}, "critic is a str; expected a function"),
        ({"critic_optim": 0.1}, "critic_optim is a float; expected a function"),
    ],
)
def test_other_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AdversarialELBO(**options)


# ---- saturation


@pytest.mark.long
def test_a_critic_that_tells_everything_warns_once() -> None:
    guide = guide_of(Affine(torch.full((2,), 50.0), torch.tensor(0.1)))
    options: dict[str, Any] = {
        "contrast": "prior",
        "num_critic_steps": 2,
        "vectorize_particles": True,
        "max_plate_nesting": 0,
    }
    objective = AdversarialELBO(2, **options)
    with pytest.warns(
        UserWarning, match=r"'w': the critic tells 9.*saturated.*contrast='adaptive'"
    ):
        for _ in range(40):
            objective.differentiable_loss(model, guide)
    assert objective.critic_accuracy["w"] > 0.95
    objective.differentiable_loss(model, guide)  # warnings are errors here
    with pyro.validation_enabled(False):
        other = AdversarialELBO(2, **options)
        for _ in range(40):
            other.differentiable_loss(model, guide)
    assert other.critic_accuracy["w"] > 0.95


def test_with_adaptive_contrast_the_warning_names_another_remedy() -> None:
    objective = AdversarialELBO(critic=lambda m: nn.Linear(m, 1), **FAST)
    with pytest.warns(UserWarning, match=r"'w': the critic tells 9.* Use covariance='full'"):
        for _ in range(60):
            objective._record("w", torch.tensor(1.0))


# ---- saving


def test_the_state_goes_on_where_training_stopped() -> None:
    generator = ResidualGenerator(2, 3)
    guide = guide_of(generator)
    first, second = AdversarialELBO(**FAST), AdversarialELBO(**FAST)
    for _ in range(4):
        first.differentiable_loss(model, guide)
    state = pickle.loads(pickle.dumps(first.state_dict()))
    second.loss(model, guide)
    second.load_state_dict(state)
    assert second.critic_accuracy == first.critic_accuracy
    values = []
    for objective in (first, second):
        pyro.set_rng_seed(0)
        values.append([objective.differentiable_loss(model, guide).item() for _ in range(3)])
    assert values[0] == values[1]  # Adam's moments included


def test_a_state_is_a_copy() -> None:
    guide = guide_of(ResidualGenerator(2, 3))
    objective = AdversarialELBO(**FAST)
    objective.differentiable_loss(model, guide)
    state = copy.deepcopy(objective.state_dict())
    objective.differentiable_loss(model, guide)
    before = objective.state_dict()["critics"][0]["quadratic.weight"].clone()
    objective.load_state_dict(state)
    assert not torch.equal(before, objective.state_dict()["critics"][0]["quadratic.weight"])


def test_a_state_for_other_sites_is_refused() -> None:
    objective = AdversarialELBO(**FAST)
    objective.loss(model, guide_of(ResidualGenerator(2, 3)))
    with pytest.raises(StateError, match=r"sites \['w'\]; this objective for \[\]\. Evaluate"):
        AdversarialELBO(**FAST).load_state_dict(objective.state_dict())
    with pytest.raises(StateError, match=r"critics for sites None"):
        objective.load_state_dict({})


def test_a_state_with_another_critic_is_refused_as_a_whole() -> None:
    objective = AdversarialELBO(**FAST)
    objective.differentiable_loss(model, guide_of(ResidualGenerator(2, 3)))
    state = copy.deepcopy(objective.state_dict())
    before = copy.deepcopy(state["critics"][0])
    state["critics"][0] = {name: 2 * value for name, value in state["critics"][0].items()}
    state["critics"][0]["quadratic.weight"] = torch.zeros(7)
    with pytest.raises(StateError, match=r"the critic of site 'w' was saved with .*Make the obj"):
        objective.load_state_dict(state)
    for name, value in objective.state_dict()["critics"][0].items():
        assert torch.equal(value, before[name])
    assert list(objective.critic_optims) == list(objective.critics) == ["w"]


@pytest.mark.parametrize("how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_trains_its_own_critic(how: Any) -> None:
    guide = guide_of(ResidualGenerator(2, 3))
    objective = AdversarialELBO(**FAST)
    objective.differentiable_loss(model, guide)
    other = how(objective)
    before = copy.deepcopy(objective.state_dict()["critics"])
    own = other.state_dict()["critics"][0]["quadratic.weight"].clone()
    other.differentiable_loss(model, guide)
    assert not torch.equal(own, other.state_dict()["critics"][0]["quadratic.weight"])
    for name, value in before[0].items():
        assert torch.equal(value, objective.state_dict()["critics"][0][name])


# ---- a posterior


@pytest.mark.slow  # the default run has test_known_posterior.py
@pytest.mark.parametrize("contrast", ["adaptive", "prior"])
def test_a_correlated_posterior(contrast: str) -> None:
    x = torch.tensor([[1.0, 0.9], [0.8, 1.0], [0.3, -0.2]])
    y = torch.tensor([1.5, 1.2, 0.4])

    def conjugate() -> None:
        theta = pyro.sample("theta", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("data", 3):
            mean = (theta[..., None, :] * x).sum(-1).reshape(-1, 3)
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    covariance = torch.linalg.inv(torch.eye(2) + x.mT @ x)
    exact = dist.MultivariateNormal(covariance @ x.mT @ y, covariance)
    guide = HyperNetworkGuide(conjugate, hidden_dims=(5,), init_scale=0.5).setup()
    objective = AdversarialELBO(
        16,
        contrast=contrast,
        vectorize_particles=True,
        max_plate_nesting=1,
        num_critic_steps=3 if contrast == "adaptive" else 8,
    )
    optimiser = torch.optim.Adam(guide.parameters(), lr=0.02)
    steps = 250 if contrast == "adaptive" else 400
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = 0.02 * (1 - step / steps)
        optimiser.zero_grad()
        objective.differentiable_loss(conjugate, guide).backward()
        optimiser.step()
    draws = guide.sample(20_000)["theta"]
    q = dist.MultivariateNormal(draws.mean(0), draws.mT.cov())
    assert torch.distributions.kl_divergence(q, exact).item() < 0.05


def test_a_critic_does_not_serve_another_guide() -> None:
    objective = AdversarialELBO(2, **FAST)
    objective.loss(model, guide_of(Affine(torch.zeros(2), torch.ones(2))))
    wide = guide_of(Affine(torch.zeros(2).double(), torch.ones(2).double()))
    with pytest.raises(StateError, match=r"made for 2 entries in torch.float32 .* torch.float64"):
        objective.loss(model, wide)

    def three() -> None:
        pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))

    with pytest.raises(StateError, match="made for 2 entries .* found 3"):
        objective.loss(three, guide_of(Affine(torch.zeros(3), torch.ones(3))))
