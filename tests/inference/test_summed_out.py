"""Scores and predictions of models whose discrete latents are summed out."""

from __future__ import annotations

import itertools
import math
from contextlib import nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import config_enumerate
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, evaluate, posterior_draws, predict, to_arviz
from pyro_implicit.exceptions import ShapeError, SiteError
from pyro_implicit.inference import log_predictive_density

X = torch.tensor([-1.0, 0.5, 2.0])


@config_enumerate
def mixture(y: Any = None) -> Any:
    p = pyro.sample("p", dist.Beta(2.0, 2.0))
    with pyro.plate("data", 3):
        z = pyro.sample("z", dist.Bernoulli(p))
        return pyro.sample("y", dist.Normal(4.0 * z, 0.5), obs=y)


@config_enumerate
def chain(y: Any = None) -> None:
    p = pyro.sample("p", dist.Beta(2.0, 2.0))
    z: Any = torch.tensor(0.0)
    for t in pyro.markov(range(2)):
        z = pyro.sample(f"z_{t}", dist.Bernoulli(0.1 + 0.8 * p * z))
        pyro.sample(f"y_{t}", dist.Normal(z, 1.0), obs=None if y is None else y[t])


@config_enumerate
def choice_for_all(y: Any = None) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    z = pyro.sample("z", dist.Bernoulli(0.3))
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(loc + z, 1.0), obs=y)


@config_enumerate
def within_one_sum(y: Any = None) -> None:
    z = pyro.sample("z", dist.Bernoulli(0.3))
    loc = pyro.sample("loc", dist.Normal(z, 1.0))
    with pyro.plate("data", 3):
        pyro.sample("y", dist.Normal(loc + z, 1.0), obs=y)


def at(name: str, value: Any) -> Any:
    def guide(*_: Any) -> None:
        value_now = torch.as_tensor(value)
        with pyro.plate("data", len(value_now)) if value_now.dim() else nullcontext():
            pyro.sample(name, dist.Delta(value_now))

    return guide


def density(y: Tensor, p: float) -> Tensor:
    zero, one = (dist.Normal(4.0 * z, 0.5).log_prob(y) for z in (0, 1))
    return torch.logaddexp(zero + math.log(1 - p), one + math.log(p))


def test_rows_of_a_mixture_are_scored_exactly() -> None:
    found = log_predictive_density(mixture, at("p", 0.3), X, num_samples=2)
    torch.testing.assert_close(found, density(X, 0.3))


def test_a_chain_is_one_datum() -> None:
    found = log_predictive_density(chain, at("p", 0.5), X, num_samples=1)
    total = torch.tensor(0.0)
    for a in (0.0, 1.0):
        for b in (0.0, 1.0):
            stays = 0.1 + 0.4 * a
            log_p = math.log(0.1 if a else 0.9) + math.log(stays if b else 1 - stays)
            log_p = log_p + dist.Normal(a, 1.0).log_prob(X[0]) + dist.Normal(b, 1.0).log_prob(X[1])
            total = total + log_p.exp()
    torch.testing.assert_close(found, total.log().reshape(1))


def test_a_prior_within_the_sum_is_refused() -> None:
    with pytest.raises(SiteError, match="the prior of loc depends on discrete latents"):
        log_predictive_density(within_one_sum, at("loc", 0.5), X, num_samples=1)
    found = log_predictive_density(choice_for_all, at("loc", 0.5), X, num_samples=1)
    rows = torch.stack([dist.Normal(0.5 + z, 1.0).log_prob(X).sum() for z in (0, 1)])
    expected = torch.logsumexp(rows + torch.tensor([0.7, 0.3]).log(), 0)
    torch.testing.assert_close(found, expected.reshape(1))


@pytest.mark.long
def test_predictions_draw_what_each_row_has_of_its_own() -> None:
    pyro.set_rng_seed(0)
    draws = predict(mixture, at("p", 0.25), num_samples=2000)["y"]
    assert abs(float((draws > 2.0).float().mean()) - 0.25) < 0.02  # 4 standard errors


def test_scores_have_exact_densities_and_say_what_the_others_are_of() -> None:
    report = evaluate(mixture, at("p", 0.3), X, num_samples=3, seed=0)
    torch.testing.assert_close(report.rows["log_density"], density(X, 0.3))
    torch.testing.assert_close(report["y"].rows["log_density"], density(X, 0.3))
    assert math.isclose(report["y"].log_density.value, density(X, 0.3).mean().item(), rel_tol=1e-5)
    (note,) = report.notes
    assert "log densities have the discrete latents 'z' summed out; other scores are of" in note


@config_enumerate
def chains(y: Tensor) -> None:
    loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
    with pyro.plate("sequences", len(y)):
        state: Any = None
        for time in pyro.markov(range(y.shape[1])):
            stays = 0.5 if state is None else torch.where(state == 0, 0.2, 0.9)
            state = pyro.sample(f"z_{time}", dist.Bernoulli(torch.as_tensor(stays)))
            pyro.sample(f"y_{time}", dist.Normal(loc + 2 * state, 1.0), obs=y[:, time])


@pytest.mark.long
def test_a_sequence_is_one_datum_whose_states_are_summed_out() -> None:
    y = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    report = evaluate(chains, at("loc", 0.3), y, num_samples=2, seed=0)
    total = torch.zeros(5)
    for states in itertools.product((0, 1), repeat=4):
        prior, before = 0.0, None
        for state in states:
            one = 0.5 if before is None else (0.2, 0.9)[before]
            prior, before = prior + math.log(one if state else 1 - one), state
        rows = dist.Normal(0.3 + 2 * torch.tensor(states), 1.0).log_prob(y).sum(1)
        total = total + (rows + prior).exp()
    torch.testing.assert_close(report.rows["log_density"], total.log())
    assert math.isclose(report.log_density.value, total.log().mean().item(), rel_tol=1e-5)
    assert report.rows["row"].tolist() == list(range(5))
    assert all("log_density" not in {**site.scores, **site.rows} for site in report.sites.values())
    assert "'z_0', 'z_1', 'z_2' and 1 more summed out" in report.notes[0]
    assert report.difference(report).value == 0
    moved = evaluate(chains, at("loc", 0.3), y + 1, num_samples=2, seed=0)
    with pytest.raises(ShapeError, match="5 of 5 have other observations"):
        report.difference(moved)


def test_data_that_a_sum_joins_across_rows_are_one() -> None:
    """A component for each group, and rows in it: the sum is over the rows of a group."""

    @config_enumerate
    def groups(y: Tensor) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 1.0))
        with pyro.plate("groups", 2, dim=-2):
            z = pyro.sample("z", dist.Bernoulli(0.3))
            with pyro.plate("rows", 3, dim=-1):
                pyro.sample("y", dist.Normal(loc + z, 1.0), obs=y)

    y = torch.arange(6.0).reshape(2, 3)
    report = evaluate(groups, at("loc", 0.5), y, num_samples=2, seed=0)
    rows = [dist.Normal(0.5 + z, 1.0).log_prob(y).sum(1) + math.log((0.7, 0.3)[z]) for z in (0, 1)]
    torch.testing.assert_close(report.rows["log_density"], torch.stack(rows).logsumexp(0))


def test_what_cannot_be_summed_out_is_said_to_be_noisy() -> None:
    @config_enumerate
    def inseparable(y: Tensor) -> None:
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(0.3))
            loc = pyro.sample("loc", dist.Normal(z, 1.0))
            pyro.sample("y", dist.Normal(loc + z, 1.0), obs=y)

    report = evaluate(inseparable, at("loc", torch.zeros(3)), torch.zeros(3), num_samples=2, seed=0)
    assert "'z' were drawn given the others" in report.notes[0]
    assert "They cannot be summed out: the prior of loc" in report.notes[0]


@pytest.mark.parametrize("call", [predict, evaluate])
def test_a_choice_for_all_data_is_not_drawn_from_its_prior(call: Any) -> None:
    args = (X,) if call is evaluate else ()
    with pytest.raises(SiteError, match="'z' is summed out and in no plate.*infer_discrete"):
        call(choice_for_all, at("loc", 0.0), *args, num_samples=3)


def test_groups_without_the_choice_are_exported() -> None:
    guide = HyperNetworkGuide(mixture, init_from=None).setup(X)
    data = to_arviz(mixture, guide, X, num_samples=3, groups=("posterior", "posterior_predictive"))
    assert set(data.posterior_predictive) == {"y", "z"}
    everything = HyperNetworkGuide(choice_for_all, init_from=None).setup(X)
    with pytest.raises(SiteError, match="'z' is summed out and in no plate"):
        to_arviz(choice_for_all, everything, X, num_samples=3, groups=["posterior_predictive"])
    with pytest.warns(UserWarning, match="posterior_predictive is left out: discrete latent 'z'"):
        data = to_arviz(choice_for_all, everything, X, num_samples=3)
    assert {"posterior", "log_likelihood", "prior_predictive"} <= set(data.groups())
    assert "posterior_predictive" not in data.groups()
    assert "'z'" in data.attrs["posterior_predictive_omitted"]
    to_arviz(choice_for_all, everything, X, num_samples=3, groups=["posterior"])
    assert posterior_draws(everything, 3)["loc"].shape == (3,)
    with pytest.raises(SiteError, match=r"works as it is: posterior_draws.*log_predictive_density"):
        predict(choice_for_all, everything, X, num_samples=3, sites=["loc"])


@pytest.mark.long
def test_of_many_sites_a_few_are_printed() -> None:
    y = torch.zeros(3, 12)
    text = str(evaluate(chains, at("loc", 0.3), y, num_samples=2, seed=0))
    assert "y_1 " in text and "y_2 " not in text
    assert "; 10 more sites: report['y_11'] has the scores of one, to_dict() all" in text
    assert "y_3" in str(evaluate(chains, at("loc", 0.3), y[:, :4], num_samples=2, seed=0))


def _of_rows_and_groups(x: Tensor, y: Any = None) -> None:
    """Rows come before groups, whose choices change nothing."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)
    with pyro.plate("groups", 3):
        z = pyro.sample("z", dist.Bernoulli(0.5))
        pyro.sample("s", dist.Normal(w + 0 * z, 1.0), obs=torch.tensor([0.0, 10.0, 20.0]))


def _of_several_to_a_row(x: Tensor, y: Any = None) -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x, 1.0), obs=y)
        with pyro.plate("times", 5, dim=-2):
            z = pyro.sample("z", dist.Bernoulli(0.5))
            pyro.sample("v", dist.Normal(x + 0 * z, 1.0), obs=x.square().expand(5, -1))


def _masked(x: Tensor, y: Any = None) -> None:
    pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("groups", 2):
        pyro.sample("s", dist.Normal(0.0, 1.0), obs=torch.tensor([0.0, 10.0]))
    with pyro.plate("rows", len(x)):
        with pyro.poutine.mask(mask=x > -0.5):
            z = pyro.sample("z", dist.Bernoulli(0.5))
            pyro.sample("y", dist.Normal(x + 0 * z, 1.0), obs=y)
        with pyro.poutine.mask(mask=x < 1.5):
            pyro.sample("v", dist.Normal(0.0, 1.0), obs=x)


@pytest.mark.parametrize("model", [_of_rows_and_groups, _of_several_to_a_row, _masked])
def test_densities_stay_with_their_rows(model: Any) -> None:
    """Choices that change nothing, drawn and summed out: the same densities of the same rows."""
    x = torch.linspace(-1.0, 2.0, 6)
    y = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 50.0])
    with pytest.warns(UserWarning, match=r"does not draw \['z'\]"):
        drawn = evaluate(model, at("w", 0.0), x, y, num_samples=2, seed=0)
    summed = evaluate(config_enumerate(model), at("w", 0.0), x, y, num_samples=2, seed=0)
    assert any("summed out" in note for note in summed.notes)
    assert summed.log_density == pytest.approx(drawn.log_density)
    for name in ("row", "fingerprint"):
        assert torch.equal(drawn.rows[name], summed.rows[name]), name
    found, expected = (one.rows["log_density"].double() for one in (summed, drawn))
    torch.testing.assert_close(found, expected)


def test_sequences_that_a_sum_joins_are_the_rows_that_they_were() -> None:
    """Each is one datum, of the sites of all its times; what has other plates stays by itself."""

    def model(x: Tensor) -> None:
        pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("sensors", 2):
            pyro.sample("s", dist.Normal(0.0, 1.0), obs=torch.tensor([0.0, 3.0]))
        with pyro.plate("rows", len(x)):
            z: Any = torch.tensor(0.0)
            for t in pyro.markov(range(2)):
                z = pyro.sample(f"z_{t}", dist.Bernoulli(0.2 + 0.6 * z))
                pyro.sample(f"y_{t}", dist.Normal(3.0 * z, 1.0), obs=x[:, t])

    x = torch.tensor([[0.0, 0.0], [3.0, 3.0], [0.0, 30.0]])
    found = evaluate(config_enumerate(model), at("w", 0.0), x, num_samples=1)
    ways = torch.stack(
        [
            dist.Bernoulli(0.2).log_prob(a)
            + dist.Bernoulli(0.2 + 0.6 * a).log_prob(b)
            + dist.Normal(3.0 * torch.stack([a, b]), 1.0).log_prob(x).sum(-1)
            for a in torch.tensor([0.0, 1.0])
            for b in torch.tensor([0.0, 1.0])
        ]
    ).logsumexp(0)
    order = found.rows["row"]
    assert (order < 0).tolist() == [True, True, False, False, False]
    assert order[2:].tolist() == [0, 1, 2]
    torch.testing.assert_close(found.rows["log_density"][2:].float(), ways)
    expected = dist.Normal(0.0, 1.0).log_prob(torch.tensor([0.0, 3.0]))
    torch.testing.assert_close(found.rows["log_density"][:2].float(), expected)


@pytest.mark.long
def test_standard_errors_are_those_of_rows_whether_choices_are_summed_out_or_drawn() -> None:
    """Of twenty data of a row that are alike, and a guide's advantage in them."""
    offset = 2.0 * torch.randn(40, generator=torch.Generator().manual_seed(0))

    def model(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(0.0, 1.0), obs=x)
            with pyro.plate("times", 20, dim=-2):
                z = pyro.sample("z", dist.Bernoulli(0.5))
                pyro.sample("v", dist.Normal(w + 0 * z, 1.0), obs=x.expand(20, -1))

    def scores(program: Any) -> Any:
        return [evaluate(program, at("w", w), offset, num_samples=1) for w in (0.0, 0.5)]

    with pytest.warns(UserWarning, match=r"does not draw \['z'\]"):
        drawn = scores(model)
    summed = scores(config_enumerate(model))
    for found, expected in zip(summed, drawn, strict=True):
        assert found.log_density == pytest.approx(expected.log_density, rel=1e-5)
    found, expected = summed[0].difference(summed[1]), drawn[0].difference(drawn[1])
    assert found == pytest.approx(expected, rel=1e-4)
    assert summed[0].difference(drawn[0])[0] == pytest.approx(0.0, abs=1e-5)
