"""Rows of tensors by number; of distributions, or a signal that they cannot be had."""

from __future__ import annotations

import pyro.distributions as dist
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyro_implicit.handlers.rows.row_slices import NotSliceable, changed_dims, rows_of, take_rows

R = torch.arange(1.0, 6.0) / 7
P = torch.stack([R, 1 - R, 0.3 + R], -1)
EYE = torch.eye(2) + 0.3

SLICEABLE = {
    "Normal": lambda: dist.Normal(R, 2.0),
    "relaxed": lambda: dist.RelaxedBernoulli(torch.tensor(0.5), R),
    "Normal with a scale per row": lambda: dist.Normal(0.0, R),
    "expanded": lambda: dist.Gamma(2.0, 3.0).expand([5]),
    "event": lambda: dist.Normal(P, 1.0).to_event(1),
    "LogNormal": lambda: dist.LogNormal(R, 1.0),
    "StudentT": lambda: dist.StudentT(3.0, R, 2.0),
    "Beta": lambda: dist.Beta(R, 2.0),
    "Uniform": lambda: dist.Uniform(-R, R),
    "Bernoulli of probs": lambda: dist.Bernoulli(R),
    "Bernoulli of logits": lambda: dist.Bernoulli(logits=R),
    "Binomial": lambda: dist.Binomial(7, R),
    "NegativeBinomial": lambda: dist.NegativeBinomial(4.0, logits=R),
    "Categorical of probs": lambda: dist.Categorical(P),
    "Categorical of logits": lambda: dist.Categorical(logits=P),
    "OrderedLogistic": lambda: dist.OrderedLogistic(R, torch.tensor([0.0, 1.0])),
    "Multinomial": lambda: dist.Multinomial(10, P),
    "DirichletMultinomial": lambda: dist.DirichletMultinomial(P, total_count=6),
    "Dirichlet": lambda: dist.Dirichlet(P),
    "MultivariateNormal of a root": lambda: dist.MultivariateNormal(
        P[:, :2], scale_tril=EYE.tril()
    ),
    "MultivariateNormal of a covariance": lambda: dist.MultivariateNormal(P[:, :2], EYE),
    "MultivariateNormal of a precision": lambda: dist.MultivariateNormal(
        P[:, :2], precision_matrix=EYE
    ),
    "LowRankMultivariateNormal": lambda: dist.LowRankMultivariateNormal(
        P[:, :2], torch.ones(2, 1), torch.ones(2)
    ),
    "LKJCholesky": lambda: dist.LKJCholesky(3, R),
}

OTHERS = {
    "mixture": lambda: dist.MixtureSameFamily(dist.Categorical(P), dist.Normal(P, 1.0)),
    "transformed": lambda: dist.TransformedDistribution(
        dist.Normal(R, 1.0), [dist.transforms.ExpTransform()]
    ),
    "masked": lambda: dist.Normal(R, 1.0).mask(R > 0.5),
    "zero-inflated": lambda: dist.ZeroInflatedPoisson(R, gate=R),
    "Delta": lambda: dist.Delta(R),
    "mixture in an event": lambda: dist.MixtureSameFamily(
        dist.Categorical(P.expand(2, 5, 3)), dist.Normal(P.expand(2, 5, 3), 1.0)
    ).to_event(1),
}


@pytest.mark.long
@pytest.mark.parametrize("name", SLICEABLE)
@given(cut=st.tuples(st.integers(0, 4), st.integers(1, 5)).filter(lambda c: c[0] < c[1]))
def test_rows_have_the_density_and_the_settings_of_the_whole(name, cut):
    fn = SLICEABLE[name]()
    rows = take_rows(fn, -1, *cut)
    torch.manual_seed(0)
    value = fn.sample()
    torch.testing.assert_close(rows.log_prob(value[slice(*cut)]), fn.log_prob(value)[slice(*cut)])
    assert rows.event_shape == fn.event_shape
    assert rows.sample().shape == value[slice(*cut)].shape


def test_a_multinomial_keeps_its_number_of_trials():
    rows = take_rows(dist.Multinomial(10, P), -1, 1, 4)
    assert rows.sample().sum(-1).tolist() == [10, 10, 10]


def test_sampled_values_keep_what_they_were_made_from():
    fn = dist.Categorical(logits=P)
    fn.sample()  # makes probs, too
    torch.testing.assert_close(take_rows(fn, -1, 0, 2).logits, fn.logits[:2])


def test_an_outer_batch_dimension_is_kept():
    fn = dist.Normal(torch.randn(3, 1, 5), torch.ones(5))
    rows = take_rows(fn, -1, 2, 4)
    assert rows.batch_shape == (3, 1, 2)
    torch.testing.assert_close(rows.loc, fn.loc[..., 2:4])
    other = take_rows(fn, -3, 1, 2)
    assert other.batch_shape == (1, 1, 5)


@pytest.mark.parametrize("name", OTHERS)
def test_other_distributions_are_signalled(name):
    with pytest.raises(NotSliceable):
        take_rows(OTHERS[name](), -1, 1, 3)


class Widened(dist.Normal):
    """Made again, it has another shape."""

    def __init__(self, loc, scale, validate_args=None):
        super().__init__(loc.expand(3, *loc.shape), scale, validate_args=validate_args)


class OfFloats(dist.Normal):
    """Its parameter is a number."""

    def __init__(self, loc, scale, validate_args=None):
        super().__init__(loc, scale, validate_args=validate_args)
        self.scale = float(scale)


def test_distributions_of_ones_own_that_are_not_their_parameters_are_signalled():
    for fn in (Widened(R, torch.tensor(1.0)), OfFloats(R, 1.0)):
        with pytest.raises(NotSliceable):
            take_rows(fn, -1, 1, 3)


def test_rows_of_a_tensor():
    value = torch.arange(12.0).reshape(3, 4)
    for rows in ([2, 0], torch.tensor([1, 3, 1]), torch.tensor([3, 2, 1, 0])):
        assert torch.equal(rows_of(value, -1, rows), value[:, rows])
    assert rows_of(value, -1, None) is rows_of(value, -1, torch.arange(4)) is value
    one = value[:, :1]
    assert rows_of(one, -1, torch.tensor([3, 2])) is one


@pytest.mark.parametrize(
    ("fewer", "more", "expected"),
    [
        ((3, 4), (3, 5), [-1]),
        ((3, 4), (4, 4), [-2]),
        ((3, 3), (4, 4), [-2, -1]),
        ((3, 4), (3, 4), []),
        ((), (), []),
        ((4,), (3, 4), None),
    ],
)
def test_dimensions_that_follow_the_rows(fewer, more, expected):
    assert changed_dims(torch.Size(fewer), more) == expected


def test_a_distribution_without_the_dimension_of_the_rows_has_none() -> None:
    with pytest.raises(NotSliceable):
        take_rows(dist.Normal(R, 1.0), -2, 0, 3)


class Clipped(dist.Normal):
    """A user's distribution with an option that it keeps under another name."""

    def __init__(self, loc, scale, low=0.0, validate_args=None):
        self._low = low
        super().__init__(loc, scale, validate_args=validate_args)

    def sample(self, sample_shape=()):
        return super().sample(sample_shape).clamp(min=self._low)


class Named(Clipped):
    def __init__(self, loc, scale, low=0.0, validate_args=None):
        self.low = low
        super().__init__(loc, scale, low, validate_args=validate_args)


class OfLogScale(dist.Normal):
    def __init__(self, loc, scale, validate_args=None):
        super().__init__(loc, scale.exp(), validate_args=validate_args)


@pytest.mark.parametrize("low", [9.0, torch.tensor(9.0)])
def test_options_of_a_distribution_of_ones_own_are_kept(low):
    """Or its rows are not to be had: what takes the default in their place is another one."""
    rows = take_rows(Named(R, torch.ones(5), low), -1, 1, 3)
    assert rows.batch_shape == (2,) and bool((rows.sample() == 9).all())
    with pytest.raises(NotSliceable, match="Clipped"):
        take_rows(Clipped(R, torch.ones(5), low), -1, 1, 3)
    with pytest.raises(NotSliceable, match="Named"):  # of each row, perhaps
        take_rows(Named(R, torch.ones(5), low + torch.zeros(5)), -1, 1, 3)


def test_a_constructor_that_transforms_its_arguments_is_not_called_twice():
    with pytest.raises(NotSliceable, match="OfLogScale"):
        take_rows(OfLogScale(R, torch.full((5,), -3.0)), -1, 1, 3)


class Labelled(dist.Normal):
    def __init__(self, loc, scale, label=None, validate_args=None):
        self.label = label
        super().__init__(loc, scale, validate_args=validate_args)


def test_an_option_that_is_none_is_kept():
    rows = take_rows(Labelled(R, torch.ones(5)), -1, 1, 3)
    assert rows.batch_shape == (2,) and rows.label is None
