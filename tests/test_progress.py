"""Bars of what happens inside of a call."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest

from pyro_implicit import HyperNetworkGuide, _progress, fit
from pyro_implicit._progress import hidden_progress, progress_is_hidden
from pyro_implicit.guides.initialization import auto


def test_hidden_stays_hidden_within_and_is_over_after() -> None:
    assert not progress_is_hidden()
    with hidden_progress(True), hidden_progress(False):
        assert progress_is_hidden()
    with hidden_progress(False):
        assert not progress_is_hidden()
    assert not progress_is_hidden()


@pytest.mark.long
@pytest.mark.automatic_start
@pytest.mark.parametrize("progress", [True, False])
def test_a_fit_without_progress_shows_none_of_the_start(
    progress: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def model() -> None:
        pyro.sample("x", dist.Normal(0.0, 1.0))

    monkeypatch.setattr(auto, "_BAR_DELAY_SECONDS", 0.0)
    fit(model, HyperNetworkGuide(model), num_steps=1, progress=progress, seed=0)
    assert bool(capsys.readouterr().err) == progress


@pytest.mark.parametrize("shown", [False, True])
def test_a_bar_that_is_shown_leaves_the_choice_to_the_environment(
    shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tqdm looks at TQDM_DISABLE where it is told nothing."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(_progress, "tqdm", lambda *args, **kwargs: told.update(kwargs))
    _progress.progress_bar(shown=shown, desc="bar")
    assert told == ({"desc": "bar"} if shown else {"desc": "bar", "disable": True})
