"""Supports survive being saved as plain values, and rounding does not leave them."""

from __future__ import annotations

import copy
import io

import pyro
import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyro import poutine
from pyro.distributions import constraints
from pyro.infer.autoguide import init_to_value
from torch.distributions import biject_to

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, fit, refine
from pyro_implicit.exceptions import SiteError, StateError
from pyro_implicit.guides.latent_site import LatentSite
from pyro_implicit.handlers.supports.served_supports import (
    check_support,
    decode_support,
    encode_support,
    keep_inside,
)

SINGLETONS = [
    "real",
    "real_vector",
    "positive",
    "nonnegative",
    "unit_interval",
    "simplex",
    "lower_cholesky",
    "corr_cholesky",
    "ordered_vector",
    "positive_ordered_vector",
    "softplus_positive",
    "positive_definite",
    "sphere",
]

PARAMETRIC = {
    "interval": lambda: constraints.interval(-1.0, 2.0),
    "interval of tensors": lambda: constraints.interval(torch.zeros(3), torch.arange(1.0, 4.0)),
    "greater_than": lambda: constraints.greater_than(3.0),
    "greater_than_eq": lambda: constraints.greater_than_eq(torch.tensor(3.0)),
    "less_than": lambda: constraints.less_than(-2.0),
    "half_open_interval": lambda: constraints.half_open_interval(0.0, 4.0),
    "independent": lambda: constraints.independent(constraints.positive, 2),
    "nested": lambda: constraints.independent(constraints.interval(torch.zeros(3), 5.0), 1),
}


def round_trip(support):
    file = io.BytesIO()
    torch.save(encode_support(support), file)
    file.seek(0)
    return decode_support(torch.load(file, weights_only=True), "z")


@pytest.mark.parametrize("name", SINGLETONS)
def test_named_supports_come_back_as_themselves(name):
    support = getattr(constraints, name)
    assert round_trip(support) is support
    again = round_trip(copy.deepcopy(support))  # as within a deep-copied guide
    assert type(again) is type(support)
    assert again.event_dim == support.event_dim


@pytest.mark.parametrize("name", PARAMETRIC)
def test_supports_with_arguments_come_back_with_them(name):
    support = PARAMETRIC[name]()
    for again in (round_trip(support), round_trip(copy.deepcopy(support))):
        assert type(again) is type(support)
        assert again.event_dim == support.event_dim
        u = torch.randn(2, 3)
        assert torch.equal(biject_to(again)(u), biject_to(support)(u))


def test_a_saved_bound_is_a_copy():
    bound = torch.zeros(3)
    support = round_trip(constraints.greater_than(bound))
    bound += 1
    assert torch.equal(support.lower_bound, torch.zeros(3))


class _Odd(constraints.Constraint):
    event_dim = 0


def test_an_unknown_support_cannot_be_decoded():
    code = encode_support(_Odd())
    assert code["type"] == "unknown"
    with pytest.raises(StateError, match=r"support of site 'z' \(.*Odd.*\) cannot be stored"):
        decode_support(code, "z")
    with pytest.raises(StateError, match=r"support of site 'z' \(unknown\)"):
        decode_support({}, "z")


# ---- values that round to a bound


class ShiftedLogNormal(dist.TransformedDistribution):
    """As users write it: torch takes the image of a shift for the whole line."""

    support = constraints.greater_than(0.1)

    def __init__(self):
        super().__init__(dist.LogNormal(0.0, 1.0), [dist.transforms.AffineTransform(0.1, 1.0)])


FAR = {
    "shifted": (ShiftedLogNormal, -25.0),
    "positive": (lambda: dist.LogNormal(0.0, 9.0), -300.0),
    "gamma": (lambda: dist.Gamma(0.5, 1.0), -120.0),
    "uniform": (lambda: dist.Uniform(0.1, 0.7), 20.0),
    "uniforms": (
        lambda: dist.Uniform(torch.tensor([0.1, 3.0]), torch.tensor([0.7, 9.0])).to_event(1),
        20.0,
    ),
    "pareto": (lambda: dist.Pareto(torch.tensor(0.3), 2.0), -25.0),
}


@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_far_out_stay_inside_of_their_support(name, dtype):
    make, far = FAR[name]
    far = far if dtype == torch.float32 else 7 * far
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:

        def model():
            pyro.sample("x", make())

        site = LatentSite.from_trace(poutine.trace(model).get_trace().nodes["x"], False)
        u = torch.full(site.unconstrained_shape, far, requires_grad=True)
        value, log_density = site.constrain(u)
        log_prob = make().log_prob(value)  # refused by torch's own check where it is outside
        gradient = torch.autograd.grad((log_prob - log_density).sum(), u)[0]
        assert log_prob.isfinite().all() and gradient.isfinite().all()
        assert torch.equal(site.value(u), value)
        assert site.transform().inv(value).isfinite().all()
        start = init_to_value(values={"x": value.detach()})
        guide = HyperNetworkGuide(model, init_loc_fn=start, init_scale=1e-3)
        for draw in (LinearisedELBO(2).loss(model, guide), *guide.sample(3)["x"]):
            assert torch.as_tensor(draw).isfinite().all()
    finally:
        torch.set_default_dtype(before)


@given(u=st.floats(-15, 15), lower=st.floats(-5, 5), width=st.floats(0.1, 5))
def test_values_that_are_inside_are_not_moved(u, lower, width):
    for support in (
        constraints.greater_than(lower),
        constraints.less_than(lower),
        constraints.interval(lower, lower + width),
        constraints.interval(torch.tensor(lower).double(), lower + width),
        constraints.independent(constraints.greater_than(torch.tensor([lower]).double()), 1),
    ):
        value = biject_to(support)(torch.tensor([u], dtype=torch.float64))
        assert torch.equal(keep_inside(support, value), value)


def test_a_bound_is_moved_by_no_more_than_two_neighbours():
    for bound in (0.1, -7.0, 0.0, 1e4):
        at = torch.tensor(bound)
        low = keep_inside(constraints.greater_than(bound), at)
        high = keep_inside(constraints.less_than(torch.tensor(bound)), at)
        assert high < at < low
        assert max(low - at, at - high) <= max(2 * torch.finfo().eps * abs(bound), 2e-38)
    assert keep_inside(constraints.real, at) is at


@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_point_is_no_latent(shape: tuple[int, ...]) -> None:
    fn = dist.Delta(torch.zeros(shape)).to_event(len(shape))
    with pytest.raises(SiteError, match=r"'b' has a Delta .* pyro.deterministic\('b'"):
        check_support("b", fn)


def surveys(y, mark=None):
    rate = pyro.sample("rate", dist.Gamma(4.0, 1.0))
    with pyro.plate("sites", len(y)):
        count = pyro.sample("count", dist.Poisson(rate), infer=mark)
        with pyro.plate("visits", 3):
            pyro.sample("y", dist.Binomial(count, 0.4), obs=y.T)


def listed(y):
    """As the message has it."""
    rate = pyro.sample("rate", dist.Gamma(4.0, 1.0))
    with pyro.plate("sites", len(y)):
        logits = dist.Poisson(rate[..., None]).log_prob(torch.arange(101.0))
        count = pyro.sample(
            "count", dist.Categorical(logits=logits), infer={"enumerate": "parallel"}
        )
        with pyro.plate("visits", 3):
            at = dist.Binomial(count.float(), 0.4, validate_args=False)  # counts below y have none
            pyro.sample("y", at, obs=y.T)


VISITS = torch.tensor([[1.0, 2.0, 1.0], [0.0, 1.0, 2.0]])


@pytest.mark.parametrize("mark", [None, {"enumerate": "parallel"}])
def test_counts_without_a_largest_value_are_told_what_works(mark):
    told = r"'count'.*dist\.Categorical\(logits=dist\.Poisson\(\.\.\.\)\.log_prob\(torch\.arange"
    with pytest.raises(SiteError, match=told):
        fit(surveys, HyperNetworkGuide(surveys), VISITS, mark, num_steps=1, progress=False)
    with pytest.raises(SiteError, match=told):
        refine(surveys, 2, VISITS, mark, num_steps=0, progress=False, kernel="hmc")


@pytest.mark.long
def test_counts_that_are_cut_off_are_summed_out():
    rate = torch.linspace(0.01, 25.0, 4000, dtype=torch.float64)
    counts = torch.arange(101.0, dtype=torch.float64)
    visits = dist.Binomial(counts, torch.tensor(0.4, dtype=torch.float64), validate_args=False)
    each = torch.stack([visits.log_prob(y.double()[:, None]).sum(0) for y in VISITS])
    each = each.masked_fill(counts < VISITS.max(1).values[:, None], -torch.inf)
    prior = dist.Poisson(rate[:, None]).log_prob(counts)
    weight = dist.Gamma(4.0, 1.0).log_prob(rate)
    weight = weight + (prior[:, None] + each).logsumexp(-1).sum(-1)
    exact = (weight.softmax(0) * rate).sum()
    options = {"num_steps": 1000, "progress": False, "seed": 0, "kernel": "hmc"}
    chains = refine(listed, 4, VISITS, **options)
    assert chains.draws["rate"].mean().item() == pytest.approx(float(exact), rel=0.08)
