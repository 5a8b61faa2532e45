"""What obs_mask hides is a replicate: evidence and posterior are those of what is seen."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from pyro.infer import SVI
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, refine
from pyro_implicit.handlers.log_joint import LogJoint
from pyro_implicit.handlers.masks.replicates import Replicates

N = 6
Y = torch.linspace(-1.0, 2.0, N)


def model(y: Tensor, seen: Any, outer: Any = True) -> Tensor:
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    with pyro.plate("data", N), poutine.mask(mask=outer):
        return pyro.sample("y", dist.Normal(mean, 0.5), obs=y, obs_mask=seen)


flags = st.lists(st.booleans(), min_size=N, max_size=N).map(torch.tensor)


def _density(program: Any, mean: Tensor, hidden: Tensor, *args: Any) -> Tensor:
    values = {"mean": mean, "y_unobserved": hidden}
    latent = poutine.replay(Replicates()(program), trace=_trace_of(values))
    return poutine.trace(latent).get_trace(*args).log_prob_sum()


def _trace_of(values: dict[str, Tensor]) -> Any:
    def program() -> None:
        for name, value in values.items():
            pyro.sample(name, dist.Delta(value, event_dim=value.dim()))

    return poutine.trace(program).get_trace()


@given(seen=flags, outer=flags, mean=st.floats(-3, 3))
def test_hidden_values_have_their_prior_and_masks_around_stay(
    seen: Tensor, outer: Tensor, mean: float
) -> None:
    at, hidden = torch.tensor(mean), torch.linspace(-3.0, 3.0, N)
    expected = dist.Normal(0.0, 2.0).log_prob(at)
    normal = dist.Normal(at, 0.5)
    # what is seen by the data, and each hidden value, whether it is read or not, by its prior
    expected = expected + (normal.log_prob(Y) * (seen & outer)).sum()
    expected = expected + (normal.log_prob(hidden) * outer).sum()
    assert torch.allclose(_density(model, at, hidden, Y, seen, outer), expected, atol=1e-4)


def test_a_mask_by_a_flag() -> None:
    at, hidden = torch.tensor(0.3), torch.zeros(N)
    for seen in (True, False):
        got = _density(model, at, hidden, Y, torch.tensor(seen))
        parts = dist.Normal(at, 0.5).log_prob(Y).sum() * seen, dist.Normal(at, 0.5).log_prob(hidden)
        expected = dist.Normal(0.0, 2.0).log_prob(at) + parts[0] + parts[1].sum()
        assert torch.allclose(got, expected)


def test_given_values_and_discrete_ones_are_left_alone() -> None:
    seen = torch.arange(N) % 2 == 0
    held = poutine.condition(model, data={"y_unobserved": torch.zeros(N)})
    node: Any = poutine.trace(Replicates()(held)).get_trace(Y, seen).nodes["y_unobserved"]
    assert torch.equal(node["mask"], ~seen)

    def counts() -> None:
        with pyro.plate("data", N):
            pyro.sample("y", dist.Bernoulli(0.5), obs=torch.ones(N), obs_mask=seen)

    node = poutine.trace(Replicates()(counts)).get_trace().nodes["y_unobserved"]
    assert torch.equal(node["mask"], ~seen)

    def named() -> None:  # a latent of that name that obs_mask did not make
        with poutine.mask(mask=torch.tensor(False)):
            pyro.sample("z_unobserved", dist.Normal(0.0, 1.0))

    node = poutine.trace(Replicates()(named)).get_trace().nodes["z_unobserved"]
    assert not node["mask"]


@pytest.mark.parametrize("seen", [torch.ones(N).bool(), torch.tensor(False)])
def test_masks_of_other_shapes_are_no_pair(seen: Tensor) -> None:
    def by_hand() -> None:
        with pyro.plate("data", N), poutine.mask(mask=seen):
            pyro.sample("y_observed", dist.Normal(0.0, 1.0), obs=Y)
        with poutine.mask(mask=torch.zeros(3).bool()), pyro.plate("others", 3):
            pyro.sample("y_unobserved", dist.Normal(0.0, 1.0))

    node: Any = poutine.trace(Replicates()(by_hand)).get_trace().nodes["y_unobserved"]
    assert not node["mask"].any()


def test_what_nobody_draws_counts_nowhere() -> None:
    at, seen = torch.tensor(0.3), torch.arange(N) % 2 == 0
    held = poutine.condition(Replicates({"mean"})(model), data={"mean": at})
    found = poutine.trace(held).get_trace(Y, seen).log_prob_sum()
    expected = dist.Normal(0.0, 2.0).log_prob(at) + dist.Normal(at, 0.5).log_prob(Y)[seen].sum()
    assert torch.allclose(found, expected)


@pytest.mark.filterwarnings("ignore:Found vars in model but not guide")
def test_a_guide_that_leaves_them_out_has_the_same_bound() -> None:
    guide = HyperNetworkGuide(poutine.block(model, hide=["y_unobserved"]), init_from=None)
    guide(Y, SEEN)
    objective = LinearisedELBO(num_particles=20)

    def masked(y: Tensor, seen: Tensor) -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
        with pyro.plate("data", N), poutine.mask(mask=seen):
            pyro.sample("y", dist.Normal(mean, 0.5), obs=y)

    values = [objective.loss(one, guide, Y, SEEN) for _ in range(20) for one in (model, masked)]
    gap = torch.tensor(values[::2]).mean() - torch.tensor(values[1::2]).mean()
    spread = torch.tensor(values).std() / 20**0.5
    assert abs(gap) < 5 * spread


SEEN = torch.tensor([True, True, False, True, False, True])
#: conjugate: of the four that are seen
VARIANCE = 1 / (1 / 4 + 4 / 0.25)
MEAN = VARIANCE * float(Y[SEEN].sum()) / 0.25


@pytest.mark.long
def test_a_loop_of_pyro_finds_the_posterior_and_the_evidence() -> None:
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(model)
    objective = LinearisedELBO(num_particles=16, vectorize_particles="vmap")
    svi = SVI(model, guide, pyro.optim.ClippedAdam({"lr": 0.005, "lrd": 0.997}), objective)
    for _ in range(600):
        svi.step(Y, SEEN)
    draws = guide.quantiles([0.1587, 0.5, 0.8413], Y, SEEN)["mean"]
    assert abs(float(draws[1]) - MEAN) < 0.15 * VARIANCE**0.5
    assert abs(float(draws[2] - draws[0]) / 2 / VARIANCE**0.5 - 1) < 0.1
    many = LinearisedELBO(num_particles=2000, vectorize_particles="vmap")
    exact = torch.distributions.MultivariateNormal(
        torch.zeros(4), 4.0 * torch.ones(4, 4) + 0.25 * torch.eye(4)
    ).log_prob(Y[SEEN])
    assert abs(many.loss(model, guide, Y, SEEN) + float(exact)) < 0.05


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_chains_find_the_posterior() -> None:
    chains = refine(
        model, 8, Y, SEEN, num_chains=8, num_steps=2000, kernel="hmc", seed=0, progress=False
    )
    draws = chains.unconstrained.double().flatten(0, -2)[:, 0]
    assert abs(float(draws.mean()) - MEAN) < 0.15 * VARIANCE**0.5
    assert abs(float(draws.std()) / VARIANCE**0.5 - 1) < 0.15


def test_the_joint_of_diagnostics_is_the_same() -> None:
    guide = HyperNetworkGuide(model)
    guide(Y, SEEN)
    u = torch.randn(1 + N)
    joint = LogJoint(model, guide.sites, (Y, SEEN), {})
    values, correction = joint.values(u)
    expected = _density(model, values["mean"], values["y_unobserved"], Y, SEEN) + correction
    assert torch.allclose(joint(u), expected)
