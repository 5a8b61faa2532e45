"""The log-likelihood in exports of models whose discrete latents are summed out."""

from __future__ import annotations

import math
from typing import Any

import arviz as az
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, to_arviz
from pyro_implicit.exceptions import ArgumentError, SiteError

LISTED = {"enumerate": "parallel"}
Y = torch.tensor([-1.2, 0.3, 1.4, 2.0, -0.7, 0.1, 3.0], dtype=torch.float64)


def _share() -> Tensor:
    return pyro.sample("share", dist.Beta(Y.new_tensor(2.0), Y.new_tensor(3.0)))


def mixture(y: Tensor) -> None:
    share = _share()
    with pyro.plate("data", len(Y), subsample_size=len(y)):
        z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
        pyro.sample("y", dist.Normal(2 * z, 0.5), obs=y)


def by_hand(y: Tensor) -> None:
    share = _share()
    weights = torch.stack([1 - share, share], -1)
    parts = dist.Normal(Y.new_tensor([0.0, 2.0]), 0.5)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.MixtureSameFamily(dist.Categorical(weights), parts), obs=y)


def twice(y: Tensor) -> None:
    """Two observations of each row, of one latent; and one that has none."""
    share = _share()
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
        pyro.sample("first", dist.Normal(2 * z, 0.5), obs=y)
        pyro.sample("second", dist.Normal(-z, 1.0), obs=y)
        pyro.sample("third", dist.Normal(share, 1.0), obs=y)


def chain(y: Tensor) -> None:
    share, z = _share(), Y.new_tensor(0.0)
    for t in pyro.markov(range(len(y))):
        z = pyro.sample(f"z_{t}", dist.Bernoulli(0.2 * share + 0.6 * z), infer=LISTED)
        pyro.sample(f"y_{t}", dist.Normal(2 * z, 0.5), obs=y[t])


def one_for_all(y: Tensor) -> None:
    z = pyro.sample("z", dist.Bernoulli(_share()), infer=LISTED)
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(2 * z, 0.5), obs=y)


def within(y: Tensor) -> None:
    z = pyro.sample("z", dist.Bernoulli(Y.new_tensor(0.3)), infer=LISTED)
    loc = pyro.sample("loc", dist.Normal(z, 1.0))
    with pyro.plate("data", len(y)):
        pyro.sample("y", dist.Normal(loc + z, 0.5), obs=y)


def _normal(loc: float, scale: float) -> Any:
    return dist.Normal(Y.new_tensor(loc), Y.new_tensor(scale))


def _exported(model: Any, y: Tensor = Y, **options: Any) -> Any:
    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(model, init_from=None).setup(y)
    options.setdefault("groups", ["posterior", "log_likelihood"])
    return to_arviz(model, guide, y, num_samples=3, **options)


def _terms(data: Any, y: Tensor, zero: float = 0.0, one: float = 2.0, scale: float = 0.5) -> Any:
    """Log-densities with a latent of 0 and of 1, and the logs of their probabilities."""
    share = data.posterior["share"].values[0][:, None]
    log_p = [_normal(loc, scale).log_prob(y).numpy() for loc in (zero, one)]
    return log_p[0] + np.log1p(-share), log_p[1] + np.log(share)


@pytest.mark.parametrize("batch_size", [None, 3, 1])
def test_of_a_mixture_it_is_the_closed_form(batch_size: int | None) -> None:
    data = _exported(mixture, batch_size=batch_size)
    found = data.log_likelihood["y"]
    np.testing.assert_allclose(found.values[0], np.logaddexp(*_terms(data, Y)), rtol=1e-12)
    assert found.dims == ("chain", "draw", "data") and found.dtype == np.float64


@pytest.mark.long
def test_leave_one_out_is_that_of_the_sum_by_hand() -> None:
    scores = []
    for model in (mixture, by_hand):
        shares = iter(torch.linspace(0.2, 0.6, 500, dtype=torch.float64))

        def guide(y: Tensor, shares: Any = shares) -> None:
            pyro.sample("share", dist.Delta(next(shares)))

        groups = ["posterior", "log_likelihood"]
        data = to_arviz(model, guide, Y, num_samples=200, groups=groups)
        scores.append(az.loo(data).elpd_loo)
    assert scores[0] == pytest.approx(scores[1], abs=1e-10)


def test_what_shares_a_latent_is_one_datum() -> None:
    data = _exported(twice)
    assert set(data.log_likelihood) == {"first, second", "third"}
    zero, one = _terms(data, Y)
    zero = zero + _normal(0.0, 1.0).log_prob(Y).numpy()
    one = one + _normal(-1.0, 1.0).log_prob(Y).numpy()
    found = data.log_likelihood["first, second"]
    np.testing.assert_allclose(found.values[0], np.logaddexp(zero, one), rtol=1e-12)
    assert found.dims == data.log_likelihood["third"].dims == ("chain", "draw", "data")


@pytest.mark.parametrize("length, name", [(3, "y_0, y_1, y_2"), (4, "y_0 to y_3")])
def test_a_sequence_is_one_datum_by_brute_force(length: int, name: str) -> None:
    y = Y[:length]
    data = _exported(chain, y)
    share = data.posterior["share"].values[0]
    total = np.full(3, -math.inf)
    for code in range(2**length):
        path = [code >> t & 1 for t in range(length)]
        log_p = np.zeros(3)
        for t, z in enumerate(path):
            p = 0.2 * share + 0.6 * (path[t - 1] if t else 0.0)
            log_p += np.log(p if z else 1 - p) + float(_normal(2.0 * z, 0.5).log_prob(y[t]))
        total = np.logaddexp(total, log_p)
    np.testing.assert_allclose(data.log_likelihood[name].values[0], total, rtol=1e-6)


def test_rows_that_share_one_choice_are_one_datum() -> None:
    data = _exported(one_for_all)
    expected = np.logaddexp(*(term for term in _summed(data)))
    np.testing.assert_allclose(data.log_likelihood["y"].values[0].squeeze(), expected, rtol=1e-12)
    with pytest.raises(ArgumentError, match="the rows of 'y' are one datum.*Leave batch_size out"):
        _exported(one_for_all, batch_size=3)


def _summed(data: Any) -> Any:
    share = data.posterior["share"].values[0]
    for loc, p in ((0.0, 1 - share), (2.0, share)):
        yield float(_normal(loc, 0.5).log_prob(Y).sum()) + np.log(p)


def test_a_latent_of_the_guide_within_the_sum_is_refused() -> None:
    with pytest.raises(SiteError, match="the prior of loc depends on discrete latents"):
        _exported(within)


def test_restarts_have_each_their_own() -> None:
    pyro.set_rng_seed(0)
    guides = [HyperNetworkGuide(mixture, init_from=None).setup(Y) for _ in range(2)]
    data = to_arviz(mixture, guides, Y, num_samples=3, groups=["posterior", "log_likelihood"])
    for r in range(2):
        share = data.posterior["share"].values[0, :, r][:, None]
        log_p = [_normal(loc, 0.5).log_prob(Y).numpy() for loc in (0.0, 2.0)]
        expected = np.logaddexp(log_p[0] + np.log1p(-share), log_p[1] + np.log(share))
        found = data.log_likelihood["y"].sel(restart=r).values[0]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("how", ["obs_mask", "poutine.mask"])
def test_masked_data_count_nothing(how: str) -> None:
    kept = torch.tensor([True, False, True, True, False, True, False])

    def model(y: Tensor) -> None:
        share = _share()
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
            if how == "obs_mask":
                pyro.sample("y", dist.Normal(2 * z, 0.5), obs=y, obs_mask=kept)
            else:
                with pyro.poutine.mask(mask=kept):
                    pyro.sample("y", dist.Normal(2 * z, 0.5), obs=y)

    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(mixture, init_from=None).setup(Y)  # draws the share alone
    data = to_arviz(model, guide, Y, num_samples=3, groups=["posterior", "log_likelihood"])
    found = data.log_likelihood["y_observed" if how == "obs_mask" else "y"].values[0]
    expected = np.where(kept.numpy(), np.logaddexp(*_terms(data, Y)), 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_site_in_the_sum_that_the_guide_does_not_draw_is_refused() -> None:
    def model(y: Tensor) -> None:
        share = _share()
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
            pyro.sample("y", dist.Normal(2 * z, 0.5), obs=y)
            pyro.sample("u", dist.Normal(2 * z, 0.5))

    pyro.set_rng_seed(0)
    guide = HyperNetworkGuide(mixture, init_from=None).setup(Y)
    with pytest.raises(SiteError, match=r"of y depends on \['u'\].*groups="):
        to_arviz(model, guide, Y, num_samples=3, groups=["posterior", "log_likelihood"])


@pytest.mark.filterwarnings("error")
def test_a_factor_within_the_sum_is_a_part_of_it() -> None:
    def model(y: Tensor) -> None:
        share = _share()
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
            pyro.factor("weight", 0.5 * z)
            pyro.sample("y", dist.Normal(2 * z, 0.5), obs=y)

    data = _exported(model)
    zero, one = _terms(data, Y)
    np.testing.assert_allclose(
        data.log_likelihood["y"].values[0], np.logaddexp(zero, one + 0.5), rtol=1e-12
    )


def test_two_variables_of_one_name_are_refused() -> None:
    def model(y: Tensor) -> None:
        share = _share()
        with pyro.plate("data", len(y)):
            z = pyro.sample("z", dist.Bernoulli(share), infer=LISTED)
            pyro.sample("a", dist.Normal(2 * z, 0.5), obs=y)
            pyro.sample("b", dist.Normal(2 * z, 0.5), obs=y)
            pyro.sample("a, b", dist.Normal(share, 0.5), obs=y)

    with pytest.raises(SiteError, match="two variables .* would be called 'a, b'"):
        _exported(model)
