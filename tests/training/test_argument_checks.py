"""Recorded steps refuse the arguments that the program refuses."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro.infer import SVI
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import PerformanceHint
from pyro_implicit.training import RecordedObjective
from pyro_implicit.training.argument_checks import ArgumentChecks
from pyro_implicit.training.step_call import StepCall

N = 4
COUNTS = torch.tensor([0.0, 1.0, 2.0, 3.0])
ROWS = torch.tensor([[1.0, 2.0, 0.0]] * N)
SHARES = torch.tensor([[0.2, 0.3, 0.5]] * N)

#: a likelihood of w, what is observed and one more argument; then arguments that are valid
LIKELIHOODS: dict[str, tuple[Any, Tensor, Tensor]] = {
    "binomial": (lambda w, a: dist.Binomial(a, logits=w + 0 * a), COUNTS, COUNTS + 1),
    "multinomial": (lambda w, a: dist.Multinomial(3, logits=w.unsqueeze(-1) * a), ROWS, ROWS),
    "pareto": (lambda w, a: dist.Pareto(a, w.exp()), COUNTS + 2, COUNTS + 1),
    "concentration": (lambda w, a: dist.Gamma(a, w.exp()), COUNTS + 1, COUNTS + 1),
    "made of an argument": (lambda w, a: dist.Normal(w, (a - 1).sqrt()), COUNTS, COUNTS + 2),
    "poisson": (lambda w, a: dist.Poisson((w * a).exp()), COUNTS, COUNTS),
    "yes or no": (lambda w, a: dist.Bernoulli(logits=w * a), COUNTS.clamp(max=1), COUNTS),
    "classes": (
        lambda w, a: dist.Categorical(logits=w.unsqueeze(-1) * a),
        COUNTS.clamp(max=2),
        ROWS,
    ),
    "shares": (lambda w, a: dist.Dirichlet(w.exp().unsqueeze(-1) + a), SHARES, ROWS),
    "uniform": (lambda w, a: dist.Uniform(-a - 1, a + w * 0), 0 * COUNTS, COUNTS + 1),
    "masked": (lambda w, a: dist.Poisson((w * a).exp()).mask(a > 0), COUNTS, COUNTS),
    "reals": (lambda w, a: dist.Normal(w * a, 1.0), COUNTS, COUNTS),
}


def make(name: str, derived: bool, num_rows: int = N) -> Any:
    likelihood = LIKELIHOODS[name][0]

    def model(y: Tensor, a: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", num_rows, subsample_size=N):  # it draws which rows these are
            pyro.sample("y", likelihood(w, a), obs=y * 1.0 if derived else y)

    return model


def refused(model: Any, guide: Any, *args: Tensor) -> bool:
    with pyro.validation_enabled(True):
        try:
            with torch.no_grad():
                LinearisedELBO(2, vectorize_particles=True).loss(model, guide, *args)
        except (ValueError, RuntimeError):
            return True
    return False


@pytest.mark.long
@given(
    name=st.sampled_from(sorted(LIKELIHOODS)),
    derived=st.booleans(),
    num_rows=st.sampled_from([N, 3 * N]),
    place=st.integers(0, N - 1),
    which=st.integers(0, 1),
    value=st.sampled_from([-1.0, -0.5, 0.5, 2.5, 7.0, 0.0, 1.0]),
)
def test_what_the_program_refuses_is_refused(
    name: str, derived: bool, num_rows: int, place: int, which: int, value: float
) -> None:
    model, known = make(name, derived, num_rows), list(LIKELIHOODS[name][1:])
    pyro.clear_param_store()
    guide = HyperNetworkGuide(model, init_from=None).setup(*known)
    checks = ArgumentChecks(StepCall(model, guide, tuple(known), {}))
    assert checks._graph is not None and not checks.refuse(known)
    other = [one.clone() for one in known]
    other[which][place] = value
    assert checks.refuse(other) == refused(model, guide, *other)
    assert not checks.refuse(known)


def test_what_was_looked_at_is_not_looked_at_again() -> None:
    model, known = make("poisson", False), list(LIKELIHOODS["poisson"][1:])
    guide = HyperNetworkGuide(model, init_from=None).setup(*known)
    checks = ArgumentChecks(StepCall(model, guide, tuple(known), {}))
    assert not checks.refuse(known)
    checks._graph = None
    assert not checks.refuse(known)
    known[0] += 1.0  # it was written into
    assert checks.refuse(known)
    checks.passed(known)
    assert not checks.refuse(known)
    assert checks.refuse([one.clone() for one in known])


def test_numbers_that_the_model_draws_are_left_alone() -> None:
    def model(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", N):
            pyro.sample("y", dist.Poisson((w + torch.rand(N)).exp() * (1 + y)), obs=y)

    guide = HyperNetworkGuide(model, init_from=None).setup(COUNTS)
    before = torch.get_rng_state()
    checks = ArgumentChecks(StepCall(model, guide, (COUNTS,), {}))
    assert checks.refuse([COUNTS])  # the program looks
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.long
@pytest.mark.parametrize("name", ["binomial", "concentration", "made of an argument"])
def test_a_replayed_step_ends_in_the_error_of_the_program(name: str, slow_program: None) -> None:
    model, (y, a) = make(name, True), LIKELIHOODS[name][1:]
    recorded = RecordedObjective(LinearisedELBO(2, vectorize_particles=True))
    svi = SVI(model, HyperNetworkGuide(model), pyro.optim.Adam({"lr": 1e-3}), recorded)
    with pyro.validation_enabled(True):
        for step in range(12):
            svi.step(y + 0 * step, a + 0.0)  # a new batch each time
        assert recorded.is_recorded
        with pytest.raises(
            ValueError, match=r"Expected (value|parameter)|invalid|within the support"
        ):
            svi.step(y + 0.0, a - 2.0)
        svi.step(y + 0.0, a + 0.0)
    assert recorded.is_recorded


def test_what_is_written_past_the_tensor_is_seen() -> None:
    """``.data`` and NumPy write without a new version."""
    model, (y, a) = make("poisson", False), [one.clone() for one in LIKELIHOODS["poisson"][1:]]
    guide = HyperNetworkGuide(model, init_from=None).setup(y, a)
    checks = ArgumentChecks(StepCall(model, guide, (y, a), {}))
    assert not checks.refuse([y, a])
    y.numpy()[:] += 0.5
    assert checks.refuse([y, a])
    y.data.sub_(0.5)
    assert not checks.refuse([y, a])


def steps_of_the_program(model: Any, num_steps: int) -> tuple[RecordedObjective, int]:
    """Trains on a new batch each time; how many of its steps were not replayed."""
    recorded, count = RecordedObjective(LinearisedELBO(2, vectorize_particles=True)), 0
    program = recorded._program

    def counted(call: StepCall) -> float:
        nonlocal count
        count += 1
        return program(call)

    recorded._program = counted  # type: ignore[method-assign]
    guide = HyperNetworkGuide(model, init_from=None)
    svi = SVI(model, guide, pyro.optim.Adam({"lr": 1e-3}), recorded)
    y, a = LIKELIHOODS["poisson"][1:]
    for _ in range(num_steps):
        svi.step(y + 0.0, a + 0.0)
    return recorded, count


@pytest.mark.parametrize("num_rows", [N, 3 * N])
def test_new_batches_of_a_plate_are_replayed(num_rows: int, slow_program: None) -> None:
    """The rows that a plate draws, and nobody looks at, once sent all of these to the program."""
    with pyro.validation_enabled(True):
        recorded, count = steps_of_the_program(make("poisson", False, num_rows), 40)
    assert recorded.is_recorded and count < 12


def test_checks_of_random_numbers_are_told(slow_program: None) -> None:
    def model(y: Tensor, a: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", N):
            pyro.sample("y", dist.Poisson((w * a + torch.rand(N)).exp()), obs=y)

    with pyro.validation_enabled(True):
        with pytest.warns(PerformanceHint, match="checks of each new batch .* cannot be recorded"):
            recorded, count = steps_of_the_program(model, 40)
        assert count == 40 and not recorded.is_recorded and "random numbers" in recorded.reason
    with pyro.validation_enabled(False):
        recorded, count = steps_of_the_program(model, 40)
    assert recorded.is_recorded and count < 12
