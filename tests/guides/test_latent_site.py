"""What a guide reads off a site, and how it packs it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from pyro.distributions import constraints

from pyro_implicit import HyperNetworkGuide, LinearisedELBO
from pyro_implicit.exceptions import ShapeError, SiteError
from pyro_implicit.guides.latent_site import LatentSite, PlateFrame, pack


def read(model, name="z", allow_subsample=False):
    node = poutine.trace(model).get_trace().nodes[name]
    return LatentSite.from_trace(node, allow_subsample)


def test_a_scalar():
    site = read(lambda: pyro.sample("z", dist.LogNormal(0.0, 1.0)))
    assert site == LatentSite("z", torch.Size(), 0, constraints.positive, ())
    assert site.numel == 1


def test_plates_and_events():
    def model():
        with pyro.plate("a", 3, dim=-2), pyro.plate("b", 4, dim=-1):
            pyro.sample("z", dist.Dirichlet(torch.ones(5)))

    site = read(model)
    assert site.shape == (3, 4, 5)
    assert site.unconstrained_shape == (3, 4, 4)
    assert (site.event_dim, site.unconstrained_event_dim, site.numel) == (1, 1, 48)
    assert {f.name: (f.dim, f.size, f.full_size) for f in site.frames} == {
        "a": (-2, 3, 3),
        "b": (-1, 4, 4),
    }


def test_a_site_whose_unconstrained_event_has_fewer_dimensions():
    site = read(lambda: pyro.sample("z", dist.LKJCholesky(4, 1.0)))
    assert site.shape == (4, 4)
    assert site.unconstrained_shape == (6,)
    assert (site.event_dim, site.unconstrained_event_dim) == (2, 1)


def test_a_sequential_plate_is_no_frame():
    def model():
        for i in pyro.plate("steps", 2):
            pyro.sample(f"z{i}", dist.Normal(0.0, 1.0))

    assert read(model, "z1").frames == ()


def subsampled():
    with pyro.plate("data", 100, subsample_size=10):
        pyro.sample("z", dist.Normal(torch.zeros(2), 1.0).to_event(1).expand([10]))


def test_a_subsampled_plate_is_refused_or_shown_at_full_size():
    with pytest.raises(SiteError, match=r"'z' is local to plate 'data', which shows 10 of its 100"):
        read(subsampled)
    with pytest.raises(SiteError, match=r"create_plates.*hide=\['z'\]"):
        read(subsampled)
    assert read(subsampled, allow_subsample=True).shape == (100, 2)


def test_batch_dimensions_that_no_plate_declares_are_a_forgotten_to_event():
    with pytest.raises(
        ShapeError, match=r"'z' has batch_shape \(5,\).*Did you forget \.to_event\(1\)\?"
    ):
        read(lambda: pyro.sample("z", dist.Normal(torch.zeros(5), 1.0)))
    with pytest.raises(ShapeError, match=r"declares dimension -2\. .*\.to_event\(2\)"):
        read(lambda: pyro.sample("z", dist.Normal(torch.zeros(4, 1), 1.0)))

    def half():
        with pyro.plate("a", 5, dim=-1):
            pyro.sample("z", dist.Normal(torch.zeros(4, 5), 1.0))

    with pytest.raises(ShapeError, match=r"no plate declares dimension -2"):
        read(half)


def test_batch_dimensions_of_size_one_need_no_plate():
    assert read(lambda: pyro.sample("z", dist.Normal(torch.zeros(1), 1.0))).shape == (1,)


SITES = {
    "scalar": LatentSite("z", torch.Size(), 0, constraints.positive, ()),
    "vector": LatentSite("z", torch.Size([3]), 1, constraints.real_vector, ()),
    "simplex": LatentSite("z", torch.Size([3]), 1, constraints.simplex, ()),
    "plate": LatentSite(
        "z", torch.Size([4]), 0, constraints.unit_interval, (PlateFrame("p", -1, 4, 4),)
    ),
    "far plate": LatentSite(
        "z", torch.Size([4, 1]), 0, constraints.real, (PlateFrame("p", -2, 4, 4),)
    ),
    "plate of simplices": LatentSite(
        "z", torch.Size([4, 3]), 1, constraints.simplex, (PlateFrame("p", -1, 4, 4),)
    ),
    "matrix": LatentSite("z", torch.Size([3, 3]), 2, constraints.corr_cholesky, ()),
}


@pytest.mark.parametrize("name", SITES)
@given(particles=st.sampled_from([(), (5, 1, 1)]), seed=st.integers(0, 9))
def test_unpacking_keeps_entries_in_order_and_particles_in_front(name, particles, seed):
    site = SITES[name]
    torch.manual_seed(seed)
    flat = torch.randn(*particles, site.numel)
    value = site.unpack(flat)
    batch_dims = len(site.shape) - site.event_dim
    event = tuple(
        site.unconstrained_shape[len(site.unconstrained_shape) - site.unconstrained_event_dim :]
    )
    if particles:
        plates = (1, 1, *site.shape[:batch_dims])[-2:]
        assert value.shape == (5, *plates, *event)
    else:
        assert value.shape == site.unconstrained_shape
    assert torch.equal(value.reshape(flat.shape), flat)


@pytest.mark.parametrize("name", SITES)
def test_constrain_reports_the_log_jacobian(name):
    site = SITES[name]
    torch.manual_seed(0)
    u = site.unpack(torch.randn(site.numel, dtype=torch.float64))
    value, log_density = site.constrain(u)
    assert site.support.check(value).all()
    assert value.shape == site.shape
    batch = site.shape[: len(site.shape) - site.event_dim]
    assert log_density.shape == batch
    if site.event_dim == 0:  # entry by entry: compare with a derivative
        slope = torch.func.vmap(torch.func.grad(site.transform()))(u.reshape(-1))
        torch.testing.assert_close(log_density.reshape(-1), -slope.abs().log())


def test_a_site_survives_as_plain_values():
    for site in SITES.values():
        assert LatentSite.from_state(site.to_state()) == site


@pytest.mark.parametrize("name", SITES)
@given(num_samples=st.integers(1, 4), seed=st.integers(0, 9))
def test_packing_undoes_unpacking_and_the_constraint(name, num_samples, seed):
    torch.manual_seed(seed)
    site, other = SITES[name], LatentSite("w", torch.Size([2]), 1, constraints.positive, ())
    flat = torch.randn(num_samples, site.numel + 2, dtype=torch.float64)
    parts = flat.split([site.numel, 2], -1)
    values = {
        each.name: torch.stack([each.constrain(each.unpack(row))[0] for row in part])
        for each, part in zip((site, other), parts, strict=True)
    }
    torch.testing.assert_close(pack([site, other], values, num_samples), flat, rtol=1e-5, atol=1e-6)


def test_packing_values_of_some_rows_is_refused():
    with pytest.raises(SiteError, match="2 prior draws of site 'z' have 6 entries in all; the guide"
                       " has 4 for each.*contrast='adaptive'"):  # fmt: skip
        pack([SITES["plate"]], {"z": torch.rand(2, 3)}, 2)


def _bounded(lower, event=()):
    """A model with a bounded latent in a plate of 5 rows, of which a call shows some."""

    def plate(x, idx):
        return pyro.plate("data", 5, subsample_size=len(x), subsample=idx, dim=-1)

    def model(x, idx):
        bound = lower if lower.dim() == 0 else lower[idx]
        bound = bound.reshape(bound.shape + (1,) * len(event)).expand(bound.shape + event)
        with plate(x, idx):
            z = pyro.sample("z", dist.Uniform(bound, 4.0).to_event(len(event)))
            mean = z.sum(-1) if event else z
            pyro.sample("y", dist.Normal(mean, 1.0), obs=x)

    return model, plate


@pytest.mark.parametrize("event", [(), (2,)])
@pytest.mark.parametrize("first", [2, 5])
@pytest.mark.parametrize("vectorize_particles", [False, True])
def test_a_bound_that_rows_share_serves_any_minibatch(event, first, vectorize_particles):
    model, plate = _bounded(torch.tensor(1.5), event)
    guide = HyperNetworkGuide(model, create_plates=plate)
    guide.setup(torch.ones(first), torch.arange(first))
    objective = LinearisedELBO(3, vectorize_particles=vectorize_particles)
    for idx in (torch.arange(5), torch.tensor([4, 1]), torch.tensor([3])):
        assert math.isfinite(objective.loss(model, guide, torch.ones(len(idx)), idx))
        assert (guide(torch.ones(len(idx)), idx)["z"] > 1.5).all()
    assert guide.sample(3)["z"].shape == (3, 5, *event)


def test_bounds_of_rows_that_were_not_seen_are_refused():
    lower = torch.linspace(0.0, 1.0, 5)
    model, plate = _bounded(lower)
    message = "'z' has a support that differs between rows of plate 'data', which shows some"
    with pytest.raises(SiteError, match=message):
        HyperNetworkGuide(model, create_plates=plate).setup(torch.ones(2), torch.arange(2))
    guide = HyperNetworkGuide(model, create_plates=plate).setup(torch.ones(5), torch.arange(5))
    with pytest.raises(SiteError, match=message):
        guide(torch.ones(2), torch.arange(2))
    guide = HyperNetworkGuide(model).setup(torch.ones(5), torch.arange(5))
    assert (guide(torch.ones(5), torch.arange(5))["z"] > lower).all()
    assert (guide.sample(4)["z"] > lower).all()


@pytest.fixture
def bounded():
    """A guide whose support has bounds for each entry."""

    def model(y=None):
        high = torch.tensor([1.0, 2.0, 3.0])
        a = pyro.sample("a", dist.Uniform(torch.zeros(3), high).to_event(1))
        with pyro.plate("data", 5):
            pyro.sample("y", dist.Normal(a.sum(-1), 1.0), obs=y)

    return HyperNetworkGuide(model).setup(torch.zeros(5))


def bounds_of(guide):
    support = guide.sites[0].support.base_constraint
    return support.lower_bound, support.upper_bound


def test_bounds_go_where_the_guide_goes(bounded, monkeypatch):
    """The device "meta" stands for any other than that of before, of tensors with numbers."""
    bounded()  # its bijection is kept
    there = SimpleNamespace(device=torch.device("meta"), is_meta=False)
    move = LatentSite.move
    monkeypatch.setattr(LatentSite, "move", lambda site, put: move(site, lambda bound: there))
    assert bounded.to(torch.float32) is bounded
    assert {bound.device.type for bound in bounds_of(bounded)} == {"meta"}
    assert bounded.sites[0].value(torch.zeros(4, 3, device="meta")).shape == (4, 3)


def test_bounds_keep_their_numbers_where_tensors_have_none(bounded):
    state, before = bounded.state_dict(), bounds_of(bounded)
    bounded.to("meta").to_empty(device="cpu").load_state_dict(state)
    assert all(map(torch.equal, before, bounds_of(bounded)))


def test_bounds_keep_the_dtype_of_the_model(bounded):
    before = bounds_of(bounded)
    bounded.double()
    assert all(map(torch.equal, before, bounds_of(bounded)))
    assert bounds_of(bounded)[0].dtype is torch.float32


def test_a_state_of_another_device_is_read_where_modules_are_made(bounded, monkeypatch):
    """Read from a file, or handed over in memory by a guide on a GPU."""
    puts = []
    monkeypatch.setattr(LatentSite, "move", lambda site, put: puts.append(put))
    LatentSite.from_state(bounded.sites[0].to_state())
    with torch.device("meta"):
        LatentSite.from_state(bounded.sites[0].to_state())
    assert [put(torch.ones(())).device.type for put in puts] == ["cpu", "meta"]
