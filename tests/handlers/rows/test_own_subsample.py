"""Models that choose rows at random are refused where rows are scored or predicted."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO

from pyro_implicit import (
    HyperNetworkGuide,
    evaluate,
    fit,
    log_predictive_density,
    predict,
    to_arviz,
)
from pyro_implicit.exceptions import SiteError
from pyro_implicit.handlers.rows.own_subsample import sizes_of_arguments

X = torch.linspace(0.0, 10.0, 40)
REFUSED = r"plate 'r' draws {} of its 40 rows at random.*plate\('r', 40, subsample_size=len\(x\)\)"


def chooses(x, y=None, shown=5):
    """A model that gets all rows and shows some."""
    w = pyro.sample("w", dist.Normal(0.0, 1.0))
    with pyro.plate("r", len(x), subsample_size=shown) as rows:
        pyro.sample("a", dist.Normal(w * x[rows], 1.0), obs=None if y is None else y[rows])


def guide(*_, **__):
    pyro.sample("w", dist.Normal(1.0, 0.1))


CALLS = {
    "evaluate": lambda model, *data, **options: evaluate(
        model, guide, *data, num_samples=2, **options
    ),
    "log_predictive_density": lambda model, *data: log_predictive_density(
        model, guide, *data, num_samples=2
    ),
    "predict": lambda model, *data, **options: predict(
        model, guide, *data, num_samples=2, **options
    ),
    "to_arviz": lambda model, *data, **options: to_arviz(
        model, guide, *data, num_samples=2, **options
    ),
}


@pytest.mark.parametrize("shown", [5, 32])
@pytest.mark.parametrize("name", CALLS)
def test_rows_at_random_are_refused(name, shown):
    """32 are as many as models are looked at with."""
    options = [{}] if name == "log_predictive_density" else [{}, {"batch_size": 32}]
    for each in options:
        with pytest.raises(SiteError, match=REFUSED.format(shown)):
            CALLS[name](chooses, X, X, shown, **each)


def test_rows_at_random_are_refused_in_validation():
    start = HyperNetworkGuide(chooses, init_from=None)
    with pytest.raises(SiteError, match=REFUSED.format(5)):
        fit(chooses, start, X, X, objective=Trace_ELBO(), num_steps=2, validation=(X, X))


def test_a_model_that_holds_its_data_is_refused():
    with pytest.raises(SiteError, match=REFUSED.format(5)):
        evaluate(lambda: chooses(X, X), guide, num_samples=1)


@pytest.mark.parametrize("name", CALLS)
def test_minibatches_and_chosen_rows_are_taken(name):
    def minibatch(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("r", 1000, subsample_size=len(x)):
            pyro.sample("a", dist.Normal(w * x, 1.0), obs=y)

    def within(batch):
        minibatch(*batch["rows"])

    def chosen(x, y):
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("r", len(x), subsample=torch.arange(5)) as rows:
            pyro.sample("a", dist.Normal(w * x[rows], 1.0), obs=y[rows])

    conditioned = poutine.condition(chooses, data={"r": torch.arange(5)})
    for model, data in [(minibatch, (X, X)), (within, ({"rows": [X, X]},)), (chosen, (X, X))]:
        CALLS[name](model, *data)
    CALLS[name](conditioned, X, X)


def test_sizes_are_found_in_containers():
    nested = [torch.ones(3, 7), {"a": (torch.ones(4), 9)}, torch.tensor(1.0), "text", None]
    assert sizes_of_arguments(nested, {"z": X.numpy()}) == {3, 4, 40}
