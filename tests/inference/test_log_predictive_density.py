"""The score for validation."""

from __future__ import annotations

import math
import warnings

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoDelta, init_to_value
from torch import nn

from pyro_implicit import HyperNetworkGuide, evaluate
from pyro_implicit import log_predictive_density as of_seed
from pyro_implicit.exceptions import ArgumentError, SiteError
from tests.contract.registry import MODELS

X = torch.tensor([-1.0, 0.5, 2.0])
Y = torch.tensor([0.0, 1.0, -1.0])


def model(x, y=None, size=300):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", size, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(w * x, 0.5), obs=y)


def log_predictive_density(model, guide, *args, num_samples, **kwargs):
    return of_seed(model, guide, *args, num_samples=num_samples, seed=7, **kwargs)


def alternating(values):
    """A guide whose draws are these, in turns."""
    turns = iter(values)
    return lambda *_, **__: pyro.sample("w", dist.Delta(torch.tensor(next(turns))))


def density(w):
    return dist.Normal(w * X, 0.5).log_prob(Y)


def test_one_point_is_the_likelihood_without_the_minibatch_scale():
    guide = AutoDelta(model, init_loc_fn=init_to_value(values={"w": torch.tensor(0.3)}))
    found = log_predictive_density(model, guide, X, Y, num_samples=4)
    torch.testing.assert_close(found, density(0.3))


def test_several_draws_are_the_log_of_their_mean_density():
    draws = [0.0, 1.0, -0.5]
    found = log_predictive_density(model, alternating(draws), X, Y, num_samples=3)
    expected = torch.stack([density(w) for w in draws]).exp().mean(0).log()
    torch.testing.assert_close(found, expected)


@pytest.mark.long
def test_the_gaussian_predictive_in_closed_form():
    """w ~ N(0.2, 0.3^2), by a linear generator: y ~ N(0.2 x, (0.3 x)^2 + 0.5^2)."""

    def guide(*_, **__):
        return pyro.sample("w", dist.Normal(0.2, 0.3))

    y = 0.5 * X
    found = log_predictive_density(model, guide, X, y, num_samples=300)
    expected = dist.Normal(0.2 * X, ((0.3 * X) ** 2 + 0.25).sqrt()).log_prob(y)
    torch.testing.assert_close(found, expected, atol=0.1, rtol=0)


def test_sites_in_the_same_plate_are_one_datum_and_others_are_not():
    def two(x, y):
        pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(x)):
            pyro.sample("a", dist.Normal(x, 1.0), obs=y)
            pyro.sample("b", dist.Normal(x, 2.0), obs=y)
        pyro.sample("c", dist.Normal(0.0, 1.0), obs=torch.tensor(0.5))

    found = log_predictive_density(two, alternating([0.0]), X, Y, num_samples=1)
    rows = dist.Normal(X, 1.0).log_prob(Y) + dist.Normal(X, 2.0).log_prob(Y)
    last = torch.tensor([-0.5 * 0.25 - 0.5 * math.log(2 * math.pi)])
    torch.testing.assert_close(found, torch.cat([rows, last]))


@pytest.mark.parametrize("case", MODELS.values(), ids=MODELS)
def test_every_model(case):
    model = case.make()
    guide = HyperNetworkGuide(model, hidden_dims=(4,)).setup(*case.data())
    found = log_predictive_density(model, guide, *case.data(), num_samples=2)
    assert found.shape == (6,)
    assert found.isfinite().all()


def test_batches_of_a_seed_have_the_same_draws_and_leave_random_numbers_alone():
    """Also where the model's plate draws a subsample, as it does for a part of the rows."""

    def guide(*_, **__):
        return pyro.sample("w", dist.Normal(0.2, 0.3))

    before = torch.get_rng_state()
    whole = log_predictive_density(model, guide, X, Y, num_samples=3, size=3)
    parts = [
        log_predictive_density(model, guide, X[rows], Y[rows], num_samples=3)
        for rows in (slice(0, 2), slice(2, 3))
    ]
    torch.testing.assert_close(torch.cat(parts), whole)
    assert torch.equal(torch.get_rng_state(), before)


def test_errors():
    with pytest.raises(SiteError, match="observes nothing with these arguments"):
        log_predictive_density(model, alternating([0.0]), X, num_samples=1)
    with pytest.raises(ArgumentError, match="num_samples=0; expected an integer >= 1"):
        log_predictive_density(model, alternating([0.0]), X, Y, num_samples=0)
    with pytest.raises(ArgumentError, match="seed=-1; expected an integer"):
        of_seed(model, alternating([0.0]), X, Y, num_samples=1, seed=-1)


def test_a_guide_of_another_model_is_refused_as_by_evaluate():
    def other(x, y=None):
        pyro.sample("other", dist.Normal(0.0, 1.0))
        return model(x, y)

    def elsewhere(x, y=None):
        pyro.sample("else", dist.Normal(0.0, 1.0))

    for score in (log_predictive_density, evaluate):
        with pytest.raises(SiteError, match=r"draws \['else'\], none of which the model samples"):
            score(other, elsewhere, X, Y, num_samples=2)


def test_without_a_seed_torch_draws_one():
    def guide(*_, **__):
        return pyro.sample("w", dist.Normal(0.2, 0.3))

    found = []
    for seed in (0, 0, 1):
        pyro.set_rng_seed(seed)
        found.append(of_seed(model, guide, X, Y, num_samples=2))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def masked(x, y, mask, inside=False):
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("data", len(x)):
        fn = dist.Normal(w * x, 0.5)
        if inside:
            pyro.sample("y", fn.mask(mask), obs=y)
        else:
            with poutine.mask(mask=mask):
                pyro.sample("y", fn, obs=y)


MASK = torch.tensor([True, False, True])


@pytest.mark.parametrize("inside", [False, True])
def test_masked_data_are_left_out_as_evaluate_does(inside):
    draws = [0.3, -0.2]
    found = log_predictive_density(
        masked, alternating(draws), X, Y, MASK, inside=inside, num_samples=2
    )
    expected = torch.stack([density(w) for w in draws]).exp().mean(0).log()[MASK]
    torch.testing.assert_close(found, expected)
    report = evaluate(masked, alternating(draws), X, Y, MASK, inside=inside, num_samples=2)
    torch.testing.assert_close(report.rows["log_density"].float(), expected)


def test_a_mask_that_follows_the_draws_keeps_what_any_of_them_keeps():
    def above(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)), poutine.mask(mask=y > w):
            pyro.sample("y", dist.Normal(w * x, 0.5), obs=y)

    draws = [0.3, -0.2]
    found = log_predictive_density(above, alternating(draws), X, Y, num_samples=2)
    told = [torch.where(w < Y, density(w), torch.zeros(3)) for w in draws]
    expected = torch.stack(told).exp().mean(0).log()[torch.tensor([True, True, False])]
    torch.testing.assert_close(found, expected)


def test_a_datum_of_which_a_part_is_masked_keeps_the_rest():
    def two(x, y, mask):
        masked(x, y, mask)
        with pyro.plate("data", len(x)):
            pyro.sample("z", dist.Normal(0.0, 1.0), obs=y)

    found = log_predictive_density(two, alternating([0.3]), X, Y, MASK, num_samples=1)
    other = dist.Normal(0.0, 1.0).log_prob(Y)
    torch.testing.assert_close(found, other + torch.where(MASK, density(0.3), 0.0))


def test_entries_outside_of_plates_are_masked_one_by_one():
    def vectors(y, mask):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 3, dim=-2), poutine.mask(mask=mask):
            pyro.sample("y", dist.Normal(w, torch.ones(3, 2)), obs=y)

    y, mask = torch.arange(6.0).reshape(3, 2), torch.ones(3, 2, dtype=torch.bool)
    mask[0, 1], mask[1] = False, False
    found = log_predictive_density(vectors, alternating([0.3]), y, mask, num_samples=1)
    expected = torch.where(mask, dist.Normal(0.3, 1.0).log_prob(y), 0.0).sum(-1)[[0, 2]]
    torch.testing.assert_close(found, expected)


def test_masked_data_beside_a_sum_over_a_discrete_latent_are_left_out():
    def mixture(y, mask):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", 3):
            z = pyro.sample("z", dist.Bernoulli(0.3), infer={"enumerate": "parallel"})
            with poutine.mask(mask=mask):
                pyro.sample("y", dist.Normal(w + z, 0.5), obs=y)

    found = log_predictive_density(mixture, alternating([0.2]), Y, MASK, num_samples=1)
    both = [
        math.log(p) + dist.Normal(0.2 + z, 0.5).log_prob(Y) for z, p in ((0.0, 0.7), (1.0, 0.3))
    ]
    torch.testing.assert_close(found, torch.logaddexp(*both)[MASK])


def test_nothing_but_masked_data():
    with pytest.raises(SiteError, match="all observations are masked"):
        log_predictive_density(masked, alternating([0.3]), X, Y, ~X.isfinite(), num_samples=1)


def test_neighbouring_seeds_share_no_draw():
    """With the sum of seed and counter they would share all but one."""

    def drawn(run, seed):
        seen = []

        def guide(*_, **__):
            seen.append(float(pyro.sample("w", dist.Normal(0.0, 1.0))))

        run(model, guide, X, Y, num_samples=5, seed=seed)
        return set(seen[:5])  # what follows is looked at, and not scored

    for run in (of_seed, evaluate):
        assert drawn(run, 0) == drawn(run, 0)
        assert not drawn(run, 0) & drawn(run, 1)


def test_dropout_is_told_once_for_all_draws():
    network = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5))

    def noisy(x, y=None):
        model(network(x[:, None])[:, 0].detach(), y)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log_predictive_density(noisy, alternating([0.3] * 5), X, Y, num_samples=5)
    assert sum("random layers" in str(one.message) for one in caught) == 1


@pytest.mark.long
def test_latents_may_turn_the_order_of_data_and_not_what_they_are():
    y = torch.cat([torch.randn(20), 3.0 + torch.randn(20)])

    def model(y, is_same=True):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        parts = {"d": y[:20], "e": y[20:]}
        for name in ("d", "e") if z > 0.5 else ("e", "d")[: 2 if is_same else 1]:
            with pyro.plate(name, 20):
                pyro.sample(f"y_{name}", dist.Normal(z, 1.0), obs=parts[name])

    def guide(y, is_same=True):
        pyro.sample("z", dist.Normal(0.5, 1.0))

    density = of_seed(model, guide, y, num_samples=2000, seed=0)
    z = 0.5 + torch.randn(20_000, 1)
    exact = dist.Normal(z, 1.0).log_prob(y).logsumexp(0) - math.log(20_000)
    either = torch.cat([exact[20:], exact[:20]])  # by the order of the first draw
    assert min(float((density - one).abs().mean()) for one in (exact, either)) < 0.1
    with pytest.raises(SiteError, match=r"other data at one draw.*in plates \[\['"):
        of_seed(model, guide, y, is_same=False, num_samples=50, seed=0)
