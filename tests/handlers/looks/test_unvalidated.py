"""Checks that distributions of a model brought along are off for the run, and theirs again."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from pyro import poutine
from torch.func import vmap

from pyro_implicit.handlers.looks.unvalidated import Unvalidated

PRIOR = dist.LogNormal(torch.zeros(3), 1.0, validate_args=True).to_event(1)


def model():
    return pyro.sample("w", PRIOR)


def density(value):
    trace = poutine.trace(poutine.condition(model, data={"w": value})).get_trace()
    return trace.log_prob_sum()


def flags(fn):
    found = []
    while fn is not None:
        found.append(vars(fn).get("_validate_args"))
        fn = getattr(fn, "base_dist", None)
    return found


def test_a_prior_with_checks_vectorises():
    before = flags(PRIOR)
    assert any(before)
    values = torch.rand(4, 3)
    with pyro.validation_enabled(False), Unvalidated():
        found = vmap(density)(values)
    torch.testing.assert_close(found, PRIOR.log_prob(values))
    assert flags(PRIOR) == before


def test_what_does_not_check_is_left_as_it_is():
    fn = dist.Normal(0.0, 1.0, validate_args=False)
    with Unvalidated(), poutine.trace() as watcher:
        pyro.sample("x", fn)
    assert watcher.trace.nodes["x"]["fn"] is fn
