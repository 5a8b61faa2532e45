"""What the losses of a run say: whether it rose, how fine it was, and whether it is another one."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor

from pyro_implicit import HyperNetworkGuide, LinearisedELBO, fit
from pyro_implicit.training.fitting.checks.loss_warnings import (
    note_of_limit,
    note_of_other_run,
    note_of_resolution,
    note_of_rise,
)
from pyro_implicit.training.fitting.pace.stall import slope_of


def test_a_rise_is_told_beyond_the_noise() -> None:
    assert note_of_rise([3.0] * 29) == []
    assert note_of_rise([3.0] * 40) == []
    assert note_of_rise([3.0] * 20 + [4.0] * 20) == []  # a nat is nothing
    assert "5 above that of the first steps (3)" in note_of_rise([3.0] * 20 + [8.0] * 20)[0]
    noise = [8.0 + 10 * (-1) ** i for i in range(20)]
    assert note_of_rise([3.0] * 20 + noise * 10) == []


def test_coarse_batches_are_told() -> None:
    assert note_of_resolution(None) == note_of_resolution(slope_of([1.0] * 500)) == []
    noise = (100 * torch.randn(500, generator=torch.Generator().manual_seed(0))).tolist()
    assert "less than" in note_of_resolution(slope_of(noise))[0]


@pytest.mark.parametrize(
    "history, begun, is_told",
    [
        ([], 0, False),
        ([5.0] * 60, 0, False),  # nothing was resumed
        ([5.0] * 60, 60, False),  # not a step was taken
        ([5.0] * 2 + [90.0] * 3, 2, False),  # too little to compare with
        ([5.0] * 60 + [5.9] * 3, 60, False),
        ([5.0] * 60 + [9.0] * 3, 60, True),
        ([9.0] * 60 + [5.0] * 3, 60, True),
        ([5.0, 15.0] * 30 + [40.0] * 3, 60, False),
        ([5.0, 15.0] * 30 + [90.0] * 3, 60, True),
        ([500.0] * 99 + [5.0] * 50 + [9.0] * 3, 149, True),
    ],
)
def test_another_run(history: list[float], begun: int, is_told: bool) -> None:
    assert bool(note_of_other_run(history, begun)) == is_told


def _model(scale: float) -> object:
    def model(y: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(y)):
            pyro.sample("y", dist.Normal(w, scale), obs=y)

    return model


@pytest.mark.long
def test_a_fit_of_another_model_is_told_what_it_is() -> None:
    model, y = _model(1.0), torch.randn(9)
    guide = HyperNetworkGuide(model, init_from=None).setup(y)
    objective = LinearisedELBO(num_particles=8, vectorize_particles=True)
    more = {"progress": False}
    first = fit(model, guide, y, num_steps=60, seed=0, objective=objective, **more)
    same = fit(model, guide, y, num_steps=120, resume=first, **more)
    assert not any("the run that was resumed" in text for text in same.warnings)
    other = fit(_model(0.01), guide, y, num_steps=180, resume=same, **more)
    assert any("are not those of that run" in text for text in other.warnings)
    assert not any("Try a lower lr, or more" in text for text in other.warnings)


@pytest.mark.parametrize("is_other", [True, False])
def test_latents_of_rows_that_batches_share_are_told(is_other: bool) -> None:
    """Each batch has a value for each of its rows, and so has the guide: of the first batch."""

    def model(x: Tensor) -> None:
        with pyro.plate("data", len(x)):
            z = pyro.sample("z", dist.Normal(0.0, 1.0))
            pyro.sample("x", dist.Normal(z, 0.5), obs=x)

    x = torch.randn(12)
    batches = [(part,) for part in x.split(4)] if is_other else [(x[:4],)] * 3
    guide = HyperNetworkGuide(model, init_from=None)
    text = r"a value of \['z'\] for each of the 4 rows of a batch"
    with pytest.warns(UserWarning, match=text) if is_other else nullcontext():
        result = fit(model, guide, batches=batches, num_steps=4, progress=False, seed=0)
    assert any(re.search(text, one) for one in result.warnings) is is_other


def test_the_limit_is_told_with_what_the_last_steps_brought() -> None:
    falling = slope_of([4.0] * 200 + [3.5] * 100 + [3.0] * 100)
    text = "the limit of 600 steps came before.*more steps may bring more"
    assert re.search(text + r" \(the last quarter .* 0.5 \+- 0 nats\)", note_of_limit(600, falling))
    assert re.search(text + "$", note_of_limit(600, None))
    none = note_of_limit(600, slope_of([3.0] * 300 + [4.0] * 100))
    assert "may bring more" not in none and "at the full rate brought 0 +- 0 nats" in none
    much = slope_of([1000.0] * 200 + [876.0] * 100 + [752.0] * 100)
    assert "brought 120 +- 0 nats" in note_of_limit(600, much)


def test_a_loss_that_was_level_is_not_told_never_to_have_been() -> None:
    told = note_of_limit(600, None, 300)
    assert "level after 300 steps" in told and "limit of 600 steps came before it was level" in told


@pytest.mark.long
def test_more_data_are_gone_on_with_at_the_full_rate() -> None:
    """Losses of more rows are far above those of before, and nothing has gone astray."""
    model, y = _model(1.0), 2 + torch.randn(200, generator=torch.Generator().manual_seed(0))
    guide = HyperNetworkGuide(model)
    first = fit(model, guide, y[:10], num_steps=150, seed=0, progress=False)
    both = fit(model, guide, y, num_steps=450, resume=first, progress=False)
    assert not any("astray" in text for text in both.warnings)
    assert both.rates[150] == both.rates[0]
    exact = float(y.sum() / 201)  # a normal prior of variance 1
    mean = float(guide.sample(4000)["w"].mean())
    assert abs(mean - exact) < 0.15 / 201**0.5
