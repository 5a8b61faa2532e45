"""The checks for guides, objectives and generators of others pass what works, and name faults."""

from __future__ import annotations

from functools import partial
from typing import Any

import pyro
import pytest
import torch
from stochman import nnj
from torch import Tensor, nn

from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.generators import (
    CMMNN,
    MMNN,
    Generator,
    MLPGenerator,
    NnjGenerator,
    ResidualGenerator,
)
from pyro_implicit.testing import MODELS, check_generator, check_guide, check_objective
from pyro_implicit.testing.objective import GUIDES

SMALL = {"regression": MODELS["regression"]}
ONE = {"HyperNetworkGuide": GUIDES["HyperNetworkGuide"]}


GENERATORS = {
    "perceptron": partial(MLPGenerator, 2, 3, (4,)),
    "with skip": partial(MLPGenerator, 2, 3, (4,), skip=True),
    "residual": partial(ResidualGenerator, 3),
    "matrices": partial(MMNN, 5, noise_shape=(2, 2)),
    "branches": partial(CMMNN, [3, 2], noise_shape=(2, 2)),
    "StochMan": lambda: NnjGenerator(nnj.Sequential(nnj.Linear(2, 4), nnj.Tanh()), (2,), 4),
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_a_good_generator_passes_and_stays_as_it_is(make: Any) -> None:
    generator = make()
    before = {name: value.clone() for name, value in generator.state_dict().items()}
    state = torch.get_rng_state()
    check_generator(generator)
    assert torch.equal(state, torch.get_rng_state())
    assert generator.training
    for name, value in generator.state_dict().items():
        assert torch.equal(value, before[name])


class Folds(Generator):
    """A false claim, with an inverse of one branch."""

    full_rank = is_bijective = True

    def __init__(self) -> None:
        super().__init__((2,), 2)

    def forward(self, z: Tensor) -> Tensor:
        return z.square() + 0.1 * z

    def inverse(self, x: Tensor) -> Tensor:
        return (x + 0.0025).sqrt() - 0.05


def test_a_false_claim_to_be_bijective_is_refuted() -> None:
    with pytest.raises(AssertionError, match="the determinant changes its sign: it folds"):
        check_generator(Folds())


class Bent(Generator):
    """``a z`` with one thing wrong at a time."""

    def __init__(self, fault: str = "") -> None:
        super().__init__((2,), 2)
        self.a, self.fault = nn.Parameter(torch.ones(())), fault

    def forward(self, z: Tensor) -> Tensor:
        if self.fault == "shape":
            return (self.a * z).sum(-1, keepdim=True)
        if self.fault == "rows" and z.dim() > 1 and len(z) > 3:
            return self.a * z - z.mean(0)
        return self.a * z

    def jacobian(self, z: Tensor) -> Tensor:
        return super().jacobian(z) * (2.0 if self.fault == "jacobian" else 1.0)

    def half_log_det(self, z: Tensor, scale: float | Tensor = 0.0) -> Tensor:
        return super().half_log_det(z, scale) + (1.0 if self.fault == "half_log_det" else 0.0)

    def config(self) -> dict[str, Any] | None:
        return {"type": "Bent" if self.fault != "config" else "Straight"}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shape", r"^Bent: draws at noise \(2,\) have shape \(1,\), not \(2,\)"),
        ("rows", "^Bent: draws made together against draws made one by one"),
        ("jacobian", "^Bent: jacobian against automatic differentiation"),
        ("half_log_det", "^Bent: half_log_det with scale=0.1"),
        ("config", "^Bent: config says type 'Straight', which names None"),
    ],
)
def test_a_bad_generator_is_told_what_is_wrong(fault: str, message: str) -> None:
    check_generator(Bent())
    with pytest.raises(AssertionError, match=message):
        check_generator(Bent(fault))


@pytest.mark.long
def test_a_good_guide_passes() -> None:
    check_guide(partial(HyperNetworkGuide, hidden_dims=(4,)))
    assert not pyro.get_param_store().keys()


class Constant(HyperNetworkGuide):
    """Always draws the same."""

    def sample(self, num_samples: int, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        draws = super().sample(num_samples)
        return {name: value[:1].expand_as(value) for name, value in draws.items()}


class Renamed(HyperNetworkGuide):
    """Leaves a site out of what a call returns."""

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return dict(list(super().forward(*args, **kwargs).items())[1:])


class Eager(HyperNetworkGuide):
    """Runs the model when it is loaded."""

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        found = super().load_state_dict(*args, **options)
        self.model(torch.zeros(1, 2))
        return found


@pytest.mark.parametrize(
    ("guide", "message"),
    [
        (Constant, "on model 'regression': two draws of 'scale' are the same"),
        (Renamed, "on model 'regression': a call draws {'w'.*expected {'scale'"),
        (Eager, "on model 'regression': .*loading a guide calls the model"),
    ],
)
def test_a_bad_guide_is_told_what_is_wrong(guide: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_guide(partial(guide, hidden_dims=(4,)), models=SMALL)


@pytest.mark.long
def test_a_good_objective_passes() -> None:
    check_objective(partial(LinearisedELBO, 2), guides=ONE)


class Bad(LinearisedELBO):
    """One thing wrong at a time."""

    def __init__(self, fault: str) -> None:
        super().__init__(2)
        self.fault = fault

    def terms_of(self, batch: Any) -> Any:
        found = dict(super().terms_of(batch))
        if self.fault == "gradient":
            return {name: 0.0 * value for name, value in found.items()}
        if self.fault == "value" and not torch.is_grad_enabled():
            return found | {"extra": found["log_prior"].new_ones(())}
        if self.fault == "minibatch":
            found["log_likelihood"] = found["log_likelihood"] ** 2
        return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "gradient",
            "guide 'HyperNetworkGuide' on model 'regression': .* has a zero gradient",
        ),
        ("value", "differentiable_loss gives .* with gradients and .* without"),
        ("minibatch", "mean over minibatches of loss, gradient"),
    ],
)
def test_a_bad_objective_is_told_what_is_wrong(fault: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_objective(partial(Bad, fault), guides=ONE, models=SMALL)
    if fault == "minibatch":
        check_objective(partial(Bad, fault), guides=ONE, models=SMALL, minibatches=False)


class Idle(HyperNetworkGuide):
    """Has a parameter that its draws do not depend on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.idle = nn.Parameter(torch.zeros(()))


def test_a_parameter_without_a_gradient_is_named() -> None:
    guides = {"idle": partial(Idle, hidden_dims=(4,), scale=0.1)}
    with pytest.raises(AssertionError, match="guide 'idle' on .*: idle has no gradient"):
        check_objective(partial(LinearisedELBO, 2), guides=guides, models=SMALL)
