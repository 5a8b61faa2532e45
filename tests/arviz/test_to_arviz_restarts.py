"""to_arviz of several guides: a dimension of restarts, never fake chains."""

from __future__ import annotations

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

from pyro_implicit.arviz import groups as _groups
from pyro_implicit.arviz.compatibility import import_arviz, loo_by_datum
from pyro_implicit.arviz.to_arviz import to_arviz
from pyro_implicit.exceptions import ArgumentError
from pyro_implicit.guides.hypernetwork import HyperNetworkGuide

X, Y = torch.randn(7, 2), torch.randn(7)
GUIDE_GROUPS = ("posterior", "posterior_predictive", "log_likelihood")


def model(x, y=None):
    w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    mean = pyro.deterministic("mean", x @ w)
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def point(value):
    def guide(x, y=None):
        pyro.sample("w", dist.Delta(torch.full((2,), float(value))).to_event(1))

    return guide


@pytest.mark.parametrize("batch_size", [None, 3])
def test_each_restart_has_its_own_numbers(batch_size):
    guides = [point(1), point(2), point(3)]
    data = to_arviz(model, guides, X, Y, num_samples=4, batch_size=batch_size)
    assert data["posterior"]["w"].dims == ("chain", "draw", "restart", "w_dim_0")
    assert data["log_likelihood"]["y"].dims == ("chain", "draw", "restart", "data")
    assert data["posterior"].coords["restart"].values.tolist() == [0, 1, 2]
    assert data["posterior"].sizes["chain"] == 1
    assert data.attrs["num_restarts"] == 3
    for r, guide in enumerate(guides):
        alone = to_arviz(model, guide, X, Y, num_samples=4)
        for group in ("posterior", "log_likelihood"):
            for name, value in alone[group].data_vars.items():
                found = data[group][name].values[:, :, r]
                np.testing.assert_allclose(found, value.values, rtol=1e-5)
    for group in ("prior", "prior_predictive", "observed_data", "constant_data"):
        assert "restart" not in data[group].dims


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [None, 3])
def test_joint_sites_and_masks_of_each_restart_by_hand(batch_size):
    covariance = torch.tensor([[1.0, 0.9], [0.9, 1.0]])
    mask = X[:, 0] > -0.5

    def program(x, y=None, keep=None):
        w = pyro.sample("w", dist.MultivariateNormal(torch.zeros(2), covariance))
        s = pyro.sample("s", dist.LogNormal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            with pyro.poutine.mask(mask=keep):
                pyro.sample("y", dist.Normal(x @ w, s), obs=y)
            pyro.sample(
                "z", dist.Normal((x @ w)[:, None], s).expand([len(x), 2]).to_event(1), obs=x
            )

    drawn = {0.0: set(), 2.0: set()}

    def restart(loc):
        def guide(x, y=None, keep=None):
            joint = dist.MultivariateNormal(torch.full((2,), loc), 0.01 * covariance)
            drawn[loc].add(tuple(pyro.sample("w", joint).tolist()))
            pyro.sample("s", dist.Delta(torch.tensor(1.0 + loc)))

        return guide

    data = to_arviz(
        program, [restart(0.0), restart(2.0)], X, Y, mask, num_samples=8, batch_size=batch_size
    )
    w, s = (torch.tensor(data["posterior"][name].values[0]) for name in ("w", "s"))
    assert w.shape == (8, 2, 2)
    for r, loc in enumerate((0.0, 2.0)):
        assert bool((s[:, r] == 1 + loc).all())
        pairs = {tuple(pair) for pair in w[:, r].tolist()}
        assert len(pairs) == 8 and pairs <= drawn[loc]  # each drawn by that guide, as a pair
    normal = dist.Normal(torch.einsum("nd,srd->srn", X, w).double(), s[..., None].double())
    found = torch.tensor(data["log_likelihood"]["y"].values[0])
    torch.testing.assert_close(found, normal.log_prob(Y) * mask, rtol=1e-5, atol=1e-5)
    both = sum(normal.log_prob(X[:, d]) for d in range(2))
    found = torch.tensor(data["log_likelihood"]["z"].values[0])
    torch.testing.assert_close(found, both, rtol=1e-5, atol=1e-5)


def test_one_guide_in_a_list_is_one_restart():
    data = to_arviz(model, (point(1),), X, Y, num_samples=2)
    assert data["posterior"]["w"].shape == (1, 2, 1, 2)
    assert "restart" not in to_arviz(model, point(1), X, Y, num_samples=2)["posterior"].dims


@pytest.mark.long
def test_loo_of_a_selected_restart_and_netcdf(tmp_path):
    pyro.set_rng_seed(0)  # importance weights of wide draws may have a tail that ArviZ warns of
    guides = [HyperNetworkGuide(model, init_scale=0.02).setup(X, Y) for _ in range(2)]
    coords = {"restart": ["first", "second"]}
    data = to_arviz(model, guides, X, Y, num_samples=200, coords=coords)
    one = data.sel(restart="second")
    assert one["posterior"]["w"].dims == ("chain", "draw", "w_dim_0")
    assert np.isfinite(loo_by_datum(one)).all()
    data.to_netcdf(tmp_path / "restarts.nc")
    read = import_arviz().from_netcdf(tmp_path / "restarts.nc")
    assert read["posterior"].coords["restart"].values.tolist() == ["first", "second"]


def test_the_size_counts_every_restart():
    needed = 5 * 7 * 8  # float64
    options = {"num_samples": 5, "groups": ("log_likelihood",), "max_bytes": needed}
    to_arviz(model, [point(1)], X, Y, **options)
    with pytest.raises(ArgumentError, match="more than the limit max_bytes"):
        to_arviz(model, [point(1), point(2)], X, Y, **options)


def test_more_than_the_machine_has_free(monkeypatch):
    monkeypatch.setattr(_groups, "free_memory", lambda: 100.0)
    with pytest.raises(ArgumentError, match="GiB of memory that the machine has free.*max_bytes=N"):
        to_arviz(model, point(1), X, Y, num_samples=5)
    to_arviz(model, point(1), X, Y, num_samples=5, max_bytes=None)


def test_guides_must_be_alike():
    def other_site(x, y=None):
        pyro.sample("v", dist.Normal(0.0, 1.0))

    with pytest.raises(ArgumentError, match=r"guide 1 differs from guide 0 in sites \['w'\]"):
        to_arviz(model, [point(1), other_site], X, Y, num_samples=2)


@pytest.mark.parametrize("guides", [[], ["guide"], [AutoNormal(model), None]])
def test_guides_are_checked(guides):
    with pytest.raises(ArgumentError, match="guide.*expected a guide"):
        to_arviz(model, guides, X, Y, num_samples=2)


def test_names_that_are_taken():
    def with_plate(y):
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        with pyro.plate("restart", len(y)):
            pyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    def with_site(y):
        pyro.sample("restart", dist.Normal(0.0, 1.0))

    data = to_arviz(with_plate, [AutoNormal(with_plate)], Y, num_samples=2)
    assert data["log_likelihood"]["y"].dims == ("chain", "draw", "restart", "restart_dim")
    with pytest.raises(ArgumentError, match="the model has a site of that name; rename the site"):
        to_arviz(with_site, [AutoNormal(with_site)], Y, num_samples=2)
