"""Latents of rows that a minibatch does not name."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoDelta, AutoGuideList, AutoMultivariateNormal, AutoNormal
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pyro_implicit import ConditionalHyperNetworkGuide, HyperNetworkGuide, LightningVI, fit
from pyro_implicit.exceptions import SiteError
from pyro_implicit.objectives import IWAE
from pyro_implicit.training.fitting.checks.random_rows import check_random_rows

NUM = 12
X, Y = torch.zeros(NUM), torch.randn(NUM)
ROWS = torch.arange(NUM)
BATCHES = [(X[i : i + 6], Y[i : i + 6], ROWS[i : i + 6]) for i in (0, 6)]
OPTIONS: dict[str, Any] = {"num_steps": 3, "progress": False}


def model(x: Tensor, y: Tensor, rows: Tensor) -> None:
    with pyro.plate("data", NUM, subsample_size=len(x)):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z + x, 1.0), obs=y)


def named(x: Tensor, y: Tensor, rows: Tensor) -> None:
    with pyro.plate("data", NUM, subsample=rows):
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z + x, 1.0), obs=y)


def chosen(x: Tensor, y: Tensor, rows: Tensor) -> None:
    with pyro.plate("data", NUM, subsample_size=5) as some:
        z = pyro.sample("z", dist.Normal(0.0, 1.0))
        pyro.sample("y", dist.Normal(z + x[some], 1.0), obs=y[some])


def encoder(x: Tensor, y: Tensor, rows: Tensor) -> None:
    slope = pyro.param("slope", torch.tensor(0.4))
    with pyro.plate("data", NUM, subsample_size=len(x)):
        pyro.sample("z", dist.Normal(slope * y, 0.7))


def table(x: Tensor, y: Tensor, rows: Tensor) -> None:
    locs = pyro.param("locs", torch.arange(float(NUM)))
    with pyro.plate("data", NUM, subsample_size=len(x)) as some:
        pyro.sample("z", dist.Normal(locs[some], 0.7))


def _list(model: Any) -> AutoGuideList:
    guides = AutoGuideList(model)
    guides.append(AutoNormal(model))
    return guides


@pytest.mark.parametrize("objective", [Trace_ELBO(), IWAE(2)])
@pytest.mark.parametrize(
    "make", [AutoNormal, AutoDelta, AutoMultivariateNormal, _list, lambda model: table]
)
def test_latents_of_rows_that_nobody_names_are_refused(make: Any, objective: Any) -> None:
    # of a mean over draws IWAE asks for all rows by itself
    said = r"the guide has latents of each row of plate 'data'|'data' shows 6 of its 12 rows, and"
    with pytest.raises(SiteError, match=said):
        fit(model, make(model), batches=BATCHES, objective=objective, **OPTIONS)


def test_rows_that_are_named_data_that_are_chosen_and_encoders_are_not() -> None:
    def plates(x: Tensor, y: Tensor, rows: Tensor) -> Any:
        return pyro.plate("data", NUM, subsample=rows)

    objective = Trace_ELBO()
    fit(named, AutoNormal(named, create_plates=plates), batches=BATCHES, objective=objective,
        **OPTIONS)  # fmt: skip
    pyro.clear_param_store()
    fit(chosen, AutoNormal(chosen), X, Y, ROWS, objective=objective, **OPTIONS)
    fit(model, encoder, batches=BATCHES, objective=objective, **OPTIONS)
    guide = ConditionalHyperNetworkGuide(model, context=lambda x, y, rows: y[:, None])
    fit(model, guide, batches=BATCHES, **OPTIONS)
    pyro.clear_param_store()
    fit(model, AutoNormal(model), X, Y, ROWS, objective=objective, **OPTIONS)


def test_a_list_of_guides_is_judged_by_that_which_has_the_rows() -> None:
    def both(x: Tensor, y: Tensor, rows: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", NUM, subsample_size=len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(w + z, 1.0), obs=y)

    def plate(x: Tensor, y: Tensor, rows: Tensor) -> Any:
        return pyro.plate("data", NUM, subsample_size=len(x))

    hidden: Any = poutine.block(both, expose=["z"])
    encoder = ConditionalHyperNetworkGuide(hidden, context=lambda x, y, rows: y[:, None])
    for of_rows in (encoder, AutoNormal(hidden)):
        pyro.clear_param_store()
        guides = AutoGuideList(both, create_plates=plate)
        guides.append(AutoNormal(poutine.block(both, expose=["w"])))
        guides.append(of_rows)
        refused = pytest.raises(SiteError, match="the guide has latents of each row")
        with nullcontext() if of_rows is encoder else refused:
            fit(both, guides, batches=BATCHES, **OPTIONS)


@pytest.mark.parametrize("scale", [1e-3, 0.7])
@pytest.mark.parametrize("start", [torch.zeros(NUM), torch.arange(float(NUM))])
def test_tables_that_begin_at_one_value_are_seen_before_any_step(
    start: Tensor, scale: float
) -> None:
    def guide(x: Tensor, y: Tensor, rows: Tensor) -> None:
        locs = pyro.param("locs", start.clone())
        scales = pyro.param("scales", torch.full((NUM,), scale))
        with pyro.plate("data", NUM, subsample_size=len(x)) as some:
            pyro.sample("z", dist.Normal(locs[some], scales[some]))

    guide(*BATCHES[0])
    with pytest.raises(SiteError, match="the guide has latents of each row"):
        check_random_rows(model, guide, BATCHES[0], {})
    assert torch.equal(pyro.param("locs"), start)


def test_rows_that_are_passed_along_with_their_number_are_not_refused() -> None:
    def plate(x: Tensor, y: Tensor, rows: Tensor) -> Any:
        return pyro.plate("data", NUM, subsample_size=len(x), subsample=rows)

    def both(x: Tensor, y: Tensor, rows: Tensor) -> None:
        with plate(x, y, rows):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + x, 1.0), obs=y)

    def by_hand(x: Tensor, y: Tensor, rows: Tensor) -> None:
        locs = pyro.param("locs", torch.arange(float(NUM)))
        with plate(x, y, rows) as some:
            pyro.sample("z", dist.Normal(locs[some], 0.7))

    for guide in (AutoNormal(both, create_plates=plate), by_hand):
        pyro.clear_param_store()
        fit(both, guide, batches=BATCHES, objective=Trace_ELBO(), **OPTIONS)


@pytest.mark.parametrize("count", [4, 5])
def test_data_that_the_model_takes_are_told_by_the_data_not_by_sizes(count: int) -> None:
    """``count`` scales of as many latents are the only argument, and 5 rows are shown."""

    def own(scales: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, scales).to_event(1))
        with pyro.plate("data", NUM, subsample_size=5) as some:
            z = pyro.sample("z", dist.Normal(w.sum(), 1.0))
            pyro.sample("y", dist.Normal(z, 1.0), obs=Y[some])

    fit(own, AutoNormal(own), torch.ones(count), objective=Trace_ELBO(), **OPTIONS)


def test_each_plate_is_judged_by_itself() -> None:
    def two(x: Tensor, y: Tensor, rows: Tensor) -> None:
        with pyro.plate("own", NUM, subsample_size=6) as some:
            a = pyro.sample("a", dist.Normal(0.0, 1.0))
            pyro.sample("b", dist.Normal(a, 1.0), obs=Y[some])
        model(x, y, rows)

    objective = Trace_ELBO()
    with pytest.raises(SiteError, match="latents of each row of plate 'data'"):
        fit(two, AutoNormal(two), batches=BATCHES, objective=objective, **OPTIONS)


def test_a_guide_that_counts_its_calls_tells_nothing() -> None:
    calls = [0]

    def counting(x: Tensor, y: Tensor, rows: Tensor) -> None:
        calls[0] += 1
        slope = pyro.param("slope", torch.tensor(0.4))
        with pyro.plate("data", NUM, subsample_size=len(x)):
            pyro.sample("z", dist.Normal(slope * y, 1.0 + 0.9 ** calls[0]))

    fit(model, counting, batches=BATCHES, objective=Trace_ELBO(), **OPTIONS)


def test_another_argument_of_as_many_numbers_is_no_batch() -> None:
    def own(x: Tensor, y: Tensor, loc: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(loc, 1.0).to_event(1))
        with pyro.plate("data", NUM, subsample_size=5) as some:
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(w.sum() * x[some] + z, 1.0), obs=y[some])

    fit(own, AutoNormal(own), X, Y, torch.zeros(5), objective=Trace_ELBO(), **OPTIONS)

    def some_rows(*_: Any) -> Any:
        return pyro.plate("data", NUM, subsample_size=5)

    guide = HyperNetworkGuide(own, create_plates=some_rows, init_from=None)
    fit(own, guide, X, Y, torch.zeros(5), **OPTIONS)
    guide._model = None  # as of one that is loaded: sizes are all that is known
    guide._plates_of_data.clear()
    with pytest.raises(SiteError, match="latents of each row of plate 'data'"):
        fit(own, guide, X, Y, torch.zeros(5), **OPTIONS)


def test_lightning_refuses_them_too() -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="needs the extra 'lightning'")
    trainer = pl.Trainer(
        limit_val_batches=0,
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's, of loaders
        with pytest.raises(SiteError, match="the guide has latents of each row of plate 'data'"):
            loader = DataLoader(TensorDataset(X, Y, ROWS), batch_size=6)
            trainer.fit(LightningVI(model, AutoNormal(model), Trace_ELBO()), loader)


def test_models_that_observe_no_argument_are_not_refused() -> None:
    """Factors, constants with rows in their distribution, and data that are alike at both ends."""
    middle = torch.zeros(NUM)
    middle[5] = 1.0

    def by_factor(z: Tensor, some: Tensor) -> None:
        pyro.factor("y", dist.Normal(z, 1.0).log_prob(Y[some]))

    def by_parameter(z: Tensor, some: Tensor) -> None:
        pyro.sample("y", dist.Normal(z + Y[some], 1.0), obs=torch.ones(4))

    def by_rare_data(z: Tensor, some: Tensor) -> None:
        pyro.sample("y", dist.Bernoulli(logits=z), obs=middle[some])

    for observe in (by_factor, by_parameter, by_rare_data):

        def own(scales: Tensor, observe: Any = observe) -> None:
            w = pyro.sample("w", dist.Normal(0.0, scales).to_event(1))
            with pyro.plate("data", NUM, subsample_size=4) as some:
                observe(pyro.sample("z", dist.Normal(w.sum(), 1.0)), some)

        pyro.clear_param_store()
        scales = torch.ones(4)
        result = fit(own, AutoNormal(own), scales, objective=Trace_ELBO(), **OPTIONS)
        assert not any("were handed over" in text for text in result.warnings)


def test_a_batch_is_a_batch_whatever_its_densities_depend_on() -> None:
    def offset(x: Tensor, y: Tensor, rows: Tensor) -> None:
        with pyro.plate("data", NUM, subsample_size=len(x)) as some:
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("y", dist.Normal(z + Y[some], 1.0), obs=y)

    with pytest.raises(SiteError, match="numbers that it draws at random"):
        fit(offset, AutoNormal(offset), batches=BATCHES, objective=Trace_ELBO(), **OPTIONS)
