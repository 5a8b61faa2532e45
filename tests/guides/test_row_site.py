"""One row of a latent that is local to a plate."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine

from pyro_implicit.exceptions import SiteError
from pyro_implicit.guides.row_site import read_row_site


def node(program) -> dict:
    return poutine.trace(program).get_trace().nodes["z"]


@pytest.mark.parametrize(
    ("make", "event_shape", "numel"),
    [
        (lambda: dist.Normal(0.0, 1.0), (), 1),
        (lambda: dist.Normal(torch.zeros(2, 3), 1.0).to_event(2), (2, 3), 6),
        (lambda: dist.Dirichlet(torch.ones(4)), (4,), 3),
        (lambda: dist.Uniform(1.0, 3.0), (), 1),
        (lambda: dist.Uniform(torch.zeros(2), torch.tensor([1.0, 5.0])).to_event(1), (2,), 2),
    ],
)
def test_shape_support_and_start_are_those_of_the_first_row(make, event_shape, numel) -> None:
    def program():
        with pyro.plate("rows", 10, subsample_size=4):
            pyro.sample("z", make())

    site, start = read_row_site(node(program))
    assert (site.shape, site.numel) == (event_shape, numel)
    (frame,) = site.frames
    assert (frame.name, frame.size, frame.full_size, frame.dim) == ("rows", 4, 10, -1)
    value = site.transform()(start.reshape(site.unconstrained_shape))
    assert make().expand((4,)).support.check(value.expand(4, *event_shape)).all()
    many = torch.randn(7, 5, numel)
    assert site.transform()(site.unpack(many)).shape == (7, 5, *event_shape)


def test_a_latent_in_no_plate_or_in_two() -> None:
    with pytest.raises(SiteError, match="'z' is in no plate.*local=True.*AutoGuideList"):
        read_row_site(node(lambda: pyro.sample("z", dist.Normal(0.0, 1.0))))

    def nested():
        with pyro.plate("a", 2, dim=-2), pyro.plate("b", 3, dim=-1):
            pyro.sample("z", dist.Normal(0.0, 1.0))

    with pytest.raises(SiteError, match=r"in plates \['a', 'b'\]"):
        read_row_site(node(nested))


def test_a_support_that_differs_between_rows() -> None:
    def program():
        with pyro.plate("rows", 3):
            pyro.sample("z", dist.Uniform(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])))

    with pytest.raises(SiteError, match="'z' has a support that differs between rows"):
        read_row_site(node(program))


def test_batch_dimensions_that_no_plate_declares() -> None:
    def program():
        with pyro.plate("rows", 3, dim=-2):
            pyro.sample("z", dist.Normal(torch.zeros(3, 2), 1.0))

    with pyro.validation_enabled(False), pytest.raises(SiteError, match=r"forget \.to_event"):
        read_row_site(node(program))


def test_a_latent_without_entries() -> None:
    def program():
        with pyro.plate("rows", 4):
            pyro.sample("z", dist.Normal(torch.zeros(0), 1.0).to_event(1))

    with pytest.raises(SiteError, match=r"have no numbers: a shape such as \(0,\)"):
        read_row_site(node(program))
