"""Rows that look at discrete latents of other rows are refused, and none that look at their own."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer import SVI, config_enumerate
from pyro.infer.autoguide import AutoNormal
from pyro.ops.indexing import Vindex
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, fit, refine
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.enumeration import listed_rows
from pyro_implicit.handlers.enumeration.discrete_latents import run_summed_out
from pyro_implicit.handlers.enumeration.listed_rows import CoupledRowsError, check_listed_rows
from tests.handlers.enumerable_models import MODELS

Y = torch.tensor([0.3, 1.9, -0.4, 0.1, 2.2])
PROBS = torch.tensor(
    [0.3, 0.6, 0.9, 0.2, 0.5]
)  # other ones by row: else an order is as good as any

COUPLED: dict[str, Callable[[Tensor], Tensor]] = {
    "the row before": lambda z: z.roll(1, -1),
    "the last row": lambda z: z[..., -1:],
    "all rows so far": lambda z: z.cumsum(-1),
    "their number": lambda z: z.sum(-1, keepdim=True),
    "their mean": lambda z: z.mean(),
    "the largest": lambda z: z - z.amax(-1, keepdim=True),
    "backwards": lambda z: z.flip(-1),
}
APART: dict[str, Callable[[Tensor], Tensor]] = {
    "itself": lambda z: z,
    "a function": lambda z: (2.0 * z).cos(),
    "a look-up": lambda z: Vindex(torch.tensor([0.5, -1.0]))[z.long()],
    "the number of the row": lambda z: z * torch.arange(len(Y)),
    "nothing": lambda z: torch.zeros(()),
}


def of(mean: Callable[[Tensor], Tensor], scale: float = 1.0) -> Callable[..., None]:
    @config_enumerate
    def model(y: Tensor = Y) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Bernoulli(PROBS))
            pyro.sample("y", dist.Normal(m + mean(z), scale), obs=y)

    return model


def judge(model: Any, *args: Any) -> None:
    check_listed_rows(model, args, {}, {"m": torch.tensor(0.4)}, None)


def summed(model: Any) -> float:
    """The log-density of the data as enumeration has it."""
    total = []
    values = {"m": torch.tensor(0.4)}
    run_summed_out(model, (), {}, lambda site: total.append(site["log_prob_sum"]), values=values)
    prior = dist.Normal(0.0, 1.0).log_prob(values["m"])
    return float(sum(total) - prior)


def by_all_values(mean: Callable[[Tensor], Tensor]) -> float:
    """The same as the sum over all values of all rows."""
    terms = []
    for values in itertools.product([0.0, 1.0], repeat=len(Y)):
        z = torch.tensor(values)
        likelihood = dist.Normal(0.4 + mean(z), 1.0).log_prob(Y)
        prior = dist.Bernoulli(PROBS).log_prob(z)
        terms.append((likelihood.expand(len(Y)) + prior).sum())
    return float(torch.stack(terms).logsumexp(0))


@pytest.mark.parametrize("name", COUPLED)
def test_what_is_refused_is_summed_wrongly(name: str) -> None:
    mean = COUPLED[name]
    assert not math.isclose(summed(of(mean)), by_all_values(mean), abs_tol=1e-2)
    with pytest.raises(
        CoupledRowsError, match=r"site 'y' of the model depends on 'z' of other rows"
    ):
        judge(of(mean))


@pytest.mark.parametrize("name", APART)
def test_what_is_not_is_summed_rightly(name: str) -> None:
    mean = APART[name]
    assert math.isclose(summed(of(mean)), by_all_values(mean), abs_tol=1e-4)
    judge(of(mean))


@given(order=st.permutations(range(len(Y))))
@settings(max_examples=25, deadline=None)
def test_rows_in_any_order_but_their_own(order: list[int]) -> None:
    model = of(lambda z: z.expand((*z.shape[:-1], len(Y)))[..., order])
    if order == sorted(order):
        judge(model)
        return
    with pytest.raises(CoupledRowsError):
        judge(model)


@pytest.mark.parametrize("name", MODELS)
def test_models_that_are_right_pass_and_are_judged(name: str) -> None:
    pyro.set_rng_seed(0)
    model = MODELS[name]
    trace = poutine.trace(model).get_trace()
    free = [trace.nodes[name] for name in trace.stochastic_nodes]
    values = {x["name"]: x["value"] for x in free if not x["infer"].get("enumerate")}
    given = poutine.condition(model, data=values)
    assert list(listed_rows._coupled(given, (), {}, None)) == []


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("name", ["the row before", "itself"])
def test_values_that_were_expanded(name: str, expand: bool) -> None:
    def model() -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(Y)):
            z = pyro.sample("z", dist.Bernoulli(PROBS))
            mean = COUPLED.get(name, APART.get(name))(z)
            pyro.sample("y", dist.Normal(m + mean, 1.0), obs=Y)

    listed = config_enumerate(model, expand=expand)
    if name == "itself":
        judge(listed)
        return
    with pytest.raises(CoupledRowsError):
        judge(listed)


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("history", [1, 2])
def test_steps_that_look_further_back_than_the_history(history: int, rows: int | None) -> None:
    """Dimensions of values are used again: the density is that of another step's value."""

    @config_enumerate
    def model() -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("chains", rows) if rows else nullcontext():
            before: Any = [torch.tensor(0.0)] * 2
            for step in pyro.markov(range(5), history=history):
                x = pyro.sample(f"x{step}", dist.Bernoulli(0.3 + 0.4 * before[-1]))
                pyro.sample(f"y{step}", dist.Normal(m + before[-2] - x, 1.0), obs=Y[step])
                before.append(x)

    if history == 2:
        judge(model)
        return
    with pytest.raises(
        CoupledRowsError, match=r"site 'y\d' .*history=2 where a step looks two back"
    ):
        judge(model)


def test_a_prior_that_depends_on_another_rows_value() -> None:
    @config_enumerate
    def model() -> None:
        with pyro.plate("rows", len(Y)):
            z = pyro.sample("z", dist.Bernoulli(0.7))
            t = pyro.sample("t", dist.Bernoulli(0.2 + 0.6 * z.roll(1, -1)))
            pyro.sample("y", dist.Normal(t, 1.0), obs=Y)

    with pytest.raises(CoupledRowsError, match=r"site 't' of the model depends on 'z'"):
        judge(model)


def test_a_model_that_draws_numbers_of_its_own_is_not_judged() -> None:
    judge(of(lambda z: z + torch.randn(())))
    judge(of(lambda z: torch.nn.functional.dropout(z.roll(1, -1) + 1.0)))


def test_rows_with_values_of_their_own_are_not_judged() -> None:
    class ByRow(dist.Bernoulli):
        """0 or 10 times the number of the row."""

        def enumerate_support(self, expand: bool = True) -> Tensor:
            return super().enumerate_support(expand=True) * 10 * torch.arange(len(Y))

        def log_prob(self, value: Tensor) -> Tensor:
            return super().log_prob((value > 0).float())

        def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
            return ByRow(self.probs.expand(batch_shape), validate_args=False)

    @config_enumerate
    def model() -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(Y)):
            z = pyro.sample("z", ByRow(PROBS, validate_args=False))
            pyro.sample("y", dist.Normal(m + z.roll(1, -1), 1.0), obs=Y)

    judge(model)


def test_half_precision_is_judged_less_closely() -> None:
    judge(of(lambda z: (0.5 * z.bfloat16()).float()))


def test_it_moves_no_random_numbers_and_no_parameters() -> None:
    pyro.set_rng_seed(0)
    before = torch.get_rng_state()
    judge(of(lambda z: z))
    assert torch.equal(before, torch.get_rng_state())
    assert not list(pyro.get_param_store())


# ---- who asks


@pytest.mark.parametrize("vectorised", [False, True, "vmap"])
def test_objectives_refuse_it_at_the_first_step_and_look_once(vectorised: Any) -> None:
    model = of(COUPLED["the row before"])
    guide = HyperNetworkGuide(model, init_from=None).setup()
    objective = LinearisedELBO(2, vectorize_particles=vectorised)
    for ask in (objective.loss, objective.loss_and_grads):
        with pytest.raises(SiteError, match=r"of other rows|mixes draws|depends on the latents"):
            ask(model, guide)

    calls = [0]

    def counted(z: Tensor) -> Tensor:
        calls[0] += 1
        return z

    good = of(counted)
    guide = HyperNetworkGuide(good, init_from=None).setup()
    objective = LinearisedELBO(2, vectorize_particles=vectorised, max_plate_nesting=1)
    objective.loss_and_grads(good, guide)
    calls[0] = 0
    for _ in range(3):
        objective.loss_and_grads(good, guide)
    assert calls[0] == 3 * (1 if vectorised else 2)


def test_batches_of_ever_other_sizes_are_not_all_looked_at() -> None:
    calls = [0]

    def counted(z: Tensor) -> Tensor:
        calls[0] += 1
        return z

    @config_enumerate
    def model(y: Tensor) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Bernoulli(0.7))
            pyro.sample("y", dist.Normal(m + counted(z), 1.0), obs=y)

    objective = LinearisedELBO(1, max_plate_nesting=1)
    guide = HyperNetworkGuide(model, init_from=None).setup(torch.ones(2))
    counts = []
    for size in range(2, 9):
        before = calls[0]
        objective.loss_and_grads(model, guide, torch.ones(size))
        counts.append(calls[0] - before)
    assert min(counts[:4]) > 3 and counts[4:] == [1, 1, 1]


def test_another_flag_is_looked_at_after_many_shapes() -> None:
    @config_enumerate
    def model(y: Tensor, rolls: bool = False) -> None:
        m = pyro.sample("m", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(y)):
            z = pyro.sample("z", dist.Bernoulli(0.7))
            pyro.sample("y", dist.Normal(m + (z.roll(1, -1) if rolls else z), 1.0), obs=y)

    objective = LinearisedELBO(1, max_plate_nesting=1)
    guide = HyperNetworkGuide(model, init_from=None).setup(torch.ones(2))
    for size in range(3, 9):
        objective.loss(model, guide, torch.ones(size))
    with pytest.raises(CoupledRowsError):
        objective.loss(model, guide, torch.ones(8), True)


def test_without_validation_nobody_looks() -> None:
    model = of(COUPLED["the row before"])
    guide = HyperNetworkGuide(model, init_from=None).setup()
    with pyro.validation_enabled(False):
        assert math.isfinite(LinearisedELBO(2).loss(model, guide))


def test_svi_refuses_it() -> None:
    model = of(COUPLED["their mean"])
    svi = SVI(
        model,
        HyperNetworkGuide(model, init_from=None),
        pyro.optim.Adam({"lr": 0.01}),
        LinearisedELBO(2),
    )
    with pytest.raises(SiteError, match="of other rows"):
        svi.step()


@pytest.mark.long
def test_fits_chains_and_pyros_own_objective_refuse_it() -> None:
    model = of(COUPLED["all rows so far"])
    with pytest.raises(SiteError, match="of other rows"):
        fit(model, HyperNetworkGuide(model), num_steps=5, progress=False)
    with pytest.raises(SiteError, match="of other rows"):
        refine(model, 2, num_steps=5, kernel="hmc", progress=False)
    guide = AutoNormal(poutine.block(model, expose=["m"]))
    with pytest.raises(SiteError, match="of other rows"):
        fit(model, guide, num_steps=2, progress=False)
