"""A loss adds all of its gradients, and finite ones, or none."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI
from torch import Tensor, nn

from pyro_implicit import (
    AdversarialELBO,
    AlphaEnergy,
    HyperNetworkGuide,
    KernelDensityRatioELBO,
    LanczosELBO,
    LinearisedELBO,
    PosteriorPredictiveLoss,
    SemiImplicitELBO,
    SingularValueELBO,
)
from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.objectives import KPG, KSIVI
from pyro_implicit.objectives.gradients import OwnGradients, all_finite

Make = Callable[..., Any]
OBJECTIVES: dict[str, Make] = {
    "linearised": LinearisedELBO,
    "per_datum": lambda n, **o: LinearisedELBO(n, likelihood="per_datum", **o),
    "lanczos": LanczosELBO,
    "singular": lambda n, **o: SingularValueELBO(n, **o),
    "semi": lambda n, **o: SemiImplicitELBO(n, num_inner=3, **o),
    "kernel": lambda n, **o: KernelDensityRatioELBO(n, num_samples=20, **o),
    "kernel-prior": lambda n, **o: KernelDensityRatioELBO(n, num_samples=20, contrast="prior", **o),
    "critic": lambda n, **o: AdversarialELBO(n, num_samples=20, num_critic_steps=1, **o),
    "alpha": lambda n, **o: AlphaEnergy(n, alpha=0.5, **o),
    "predictive": PosteriorPredictiveLoss,
    "expected": lambda n, **o: PosteriorPredictiveLoss(n, form="expected", **o),
}


def broken(finite: bool = False) -> None:
    """A finite loss; its gradient is that of a square root at 0."""
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    root = (w[..., 0] * (1.0 if finite else 0.0)).square().sqrt()
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(w[..., 1] + root, 1.0), obs=torch.ones(3))


def flat(program: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in program.parameters()]


# ---- gradients that are not finite


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("vectorised", [False, True])
def test_a_step_with_a_gradient_that_is_not_finite_changes_nothing(
    name: str, vectorised: bool
) -> None:
    guide = HyperNetworkGuide(broken, scale=0.1).setup()
    objective = OBJECTIVES[name](2, vectorize_particles=vectorised)
    optim = pyro.optim.Adam({"lr": 0.01})
    svi = SVI(broken, guide, optim, objective)
    svi.step(finite=True)
    before, state = flat(guide), copy.deepcopy(optim.get_state())
    grads = [p.grad for p in guide.parameters()]
    kept = [None if g is None else g.clone() for g in grads]
    message = r"the loss is finite \(.*gradients are not: those of '_sampler.*torch\.where"
    with pytest.raises(NonFiniteError, match=message):
        svi.step()
    for mine, theirs in zip(flat(guide), before, strict=True):
        assert mine.equal(theirs)
    now: Any = optim.get_state()
    for parameter, old in state.items():
        for key, value in old["state"][0].items():
            assert torch.equal(now[parameter]["state"][0][key], value)
    for parameter, grad, copied in zip(guide.parameters(), grads, kept, strict=True):
        assert parameter.grad is grad
        assert grad is None or grad.equal(copied)
    assert math.isfinite(svi.step(finite=True))
    assert all(p.isfinite().all() for p in guide.parameters())


def test_without_validation_nobody_waits_for_the_device() -> None:
    guide = HyperNetworkGuide(broken, scale=0.1).setup()
    with pyro.validation_enabled(False):
        assert math.isfinite(LinearisedELBO(2).loss_and_grads(broken, guide))
    assert not all_finite([p.grad for p in guide.parameters() if p.grad is not None])


@pytest.mark.parametrize("latent", [False, True])
def test_a_site_is_named_that_is_to_blame_by_itself(latent: bool) -> None:
    def model() -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        nought = 0.0 * w[..., 0]  # Gamma(1, 1) has a density there, and no derivative
        fn = dist.Gamma(1.0, 1.0, validate_args=False)
        pyro.sample("odd", fn, obs=nought)
        pyro.sample("fine", dist.Normal(w[..., 1], 1.0), obs=torch.tensor(0.0))

    guide = HyperNetworkGuide(model).setup()
    message = r"log-density of site 'odd' of the model by itself\. No parameter"
    with pytest.raises(NonFiniteError, match=message):
        LinearisedELBO(2, vectorize_particles=latent).loss_and_grads(model, guide)
    with pytest.raises(NonFiniteError, match="Those of each log-density by itself are finite"):
        LinearisedELBO().loss_and_grads(broken, HyperNetworkGuide(broken).setup())


def test_parameters_outside_of_modules_are_named_too() -> None:
    weight = torch.zeros(3, requires_grad=True)

    def model() -> None:
        broken(finite=True)
        scale = pyro.param("scale", torch.tensor(1.0))
        pyro.factor("f", (scale - scale).sqrt() + (0.0 * weight).sum().sqrt())

    guide = HyperNetworkGuide(broken).setup()
    with pytest.raises(NonFiniteError, match=r"'scale'.*'a tensor of shape \(3,\)'|'a tensor.*'sc"):
        LinearisedELBO().loss_and_grads(model, guide)
    assert weight.grad is None


def test_many_parameters_are_told_by_number() -> None:
    guide = HyperNetworkGuide(broken, hidden_dims=(4, 4, 4)).setup()
    with pytest.raises(NonFiniteError, match=r"those of '[^']*', '[^']*', '[^']*' and \d+ more"):
        LinearisedELBO().loss_and_grads(broken, guide)


def test_large_gradients_are_finite() -> None:
    """Their norm need not be."""
    guide = HyperNetworkGuide(broken).setup()

    def steep() -> None:
        broken(finite=True)
        pyro.factor("f", 1e30 * pyro.param("far", torch.tensor(0.0)))

    assert math.isfinite(LinearisedELBO().loss_and_grads(steep, guide))
    gradients = torch.tensor([1e30, 1e30])
    assert not all_finite([gradients]) and gradients.isfinite().all()


def test_a_critic_is_left_as_it_was() -> None:
    class Rooted(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.linear = nn.Linear(size, 1)
            self.broken = False

        def forward(self, x: Tensor) -> Tensor:
            value: Tensor = self.linear(x)
            return value + (value * 0.0).square().sqrt() if self.broken else value

    guide = HyperNetworkGuide(broken, scale=0.1).setup()
    objective = AdversarialELBO(num_samples=20, num_critic_steps=1, critic=Rooted)
    objective.loss_and_grads(broken, guide, finite=True)
    (critic,), (optim,) = objective.critics.values(), objective.critic_optims.values()
    before, state = flat(critic), copy.deepcopy(optim.state_dict())
    critic.broken = True  # type: ignore[assignment]
    message = r"critic of implicit site '.*_latent'.*'linear\.weight', 'linear\.bias'.*left as"
    with pytest.raises(NonFiniteError, match=message):
        objective.loss_and_grads(broken, guide, finite=True)
    for mine, theirs in zip(flat(critic), before, strict=True):
        assert mine.equal(theirs)
    assert all(p.grad is None for p in critic.parameters())
    steps = [each["step"] for each in optim.state_dict()["state"].values()]
    assert steps == [each["step"] for each in state["state"].values()]
    with pyro.validation_enabled(False):
        objective.loss_and_grads(broken, guide, finite=True)


# ---- steps that fail half-way


@pytest.mark.parametrize("zeroed", [False, True])
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("way", ["raise", "value"])
def test_a_particle_that_fails_leaves_no_gradient_of_those_before(
    zeroed: bool, number: int, way: str
) -> None:
    runs, armed = itertools.count(), []

    def model() -> None:
        broken(finite=True)
        if armed and next(runs) == number:
            if way == "raise":
                raise RuntimeError("half-way")
            pyro.factor("f", torch.tensor(-math.inf))

    guide = HyperNetworkGuide(model).setup()
    armed.append(True)
    grads = []
    for parameter in guide.parameters():
        parameter.grad = torch.full_like(parameter, 7.0) if zeroed else None
        grads.append(parameter.grad)
    with pytest.raises((RuntimeError, NonFiniteError), match=r"half-way|'f' of the model"):
        LinearisedELBO(4).loss_and_grads(model, guide)
    for parameter, grad in zip(guide.parameters(), grads, strict=True):
        assert parameter.grad is grad
        assert grad is None or (grad == 7.0).all()


@pytest.mark.parametrize("vectorised", [False, True])
def test_gradients_are_added_to_those_that_are_there(vectorised: bool) -> None:
    guide = HyperNetworkGuide(broken).setup()
    objective = LinearisedELBO(3, vectorize_particles=vectorised, max_plate_nesting=1)

    def gradients(start: float | None) -> list[Tensor]:
        for parameter in guide.parameters():
            parameter.grad = None if start is None else torch.full_like(parameter, start)
        pyro.set_rng_seed(0)
        objective.loss_and_grads(broken, guide, True)
        return [p.grad.clone() for p in guide.parameters() if p.grad is not None]

    for plain, nought, more in zip(gradients(None), gradients(0.0), gradients(2.0), strict=True):
        assert plain.equal(nought)
        torch.testing.assert_close(more, plain + 2.0)


def test_gradients_of_every_kind_of_leaf() -> None:
    table = nn.Embedding(5, 2, sparse=True)
    dense = torch.ones(3, requires_grad=True)
    unused = torch.ones(3, requires_grad=True)
    rows = torch.tensor([1, 3])
    for _ in range(2):
        with OwnGradients() as gradients:
            gradients.backward(table(rows).sum() + dense.square().sum() + 0 * unused.detach().sum())
            gradients.backward(dense.sum())
            gradients.backward(dense[0] * 2)
            gradients.check_finite(0.0, [])
    assert dense.grad is not None and dense.grad.tolist() == [10.0, 6.0, 6.0]
    assert table.weight.grad is not None and table.weight.grad.is_sparse
    assert table.weight.grad.to_dense()[:, 0].tolist() == [0.0, 2.0, 0.0, 2.0, 0.0]
    assert unused.grad is None
    leaf = torch.tensor(2.0, requires_grad=True)
    with OwnGradients() as gradients:
        gradients.backward(leaf)  # a loss that is a leaf itself
    assert leaf.grad is not None and leaf.grad.item() == 1.0
    with pytest.raises(NonFiniteError, match=r"'a tensor of shape \(5, 2\)'"):
        with OwnGradients() as gradients:
            gradients.backward((table(rows) * 0.0).sqrt().sum())
            gradients.check_finite(0.0, [])
    assert table.weight.grad.to_dense()[1, 0] == 2.0
    assert all_finite([])


def test_a_second_derivative_that_torch_does_not_have_is_told_as_such() -> None:
    def model() -> None:
        x = pyro.sample("x", dist.Normal(0.0, 5.0))
        peaks = (-2.0 * (x - place).square() for place in (6.0, -6.0))
        pyro.factor("two", torch.logaddexp(*peaks))

    guide = HyperNetworkGuide(
        model, scale=0.1, init_from=None, init_loc_fn=lambda site: torch.tensor(6.0)
    ).setup()
    LinearisedELBO(2).loss_and_grads(model, guide)
    KPG(4).loss_and_grads(model, guide)  # which has the score as a number
    for vectorised in (False, True):
        objective = KSIVI(4, vectorize_particles=vectorised)
        with pytest.raises(NonFiniteError, match="gradients take second ones: torch's are NaN for"):
            objective.loss_and_grads(model, guide)
