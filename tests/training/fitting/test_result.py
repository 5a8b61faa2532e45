"""What a fit hands back: what is in it, how it is told and plotted."""

from __future__ import annotations

import math
import sys
from typing import Any

import matplotlib.pyplot as plt
import pytest
from pyro.infer import Trace_ELBO

from pyro_implicit import LinearisedELBO
from pyro_implicit.exceptions import ArgumentError, MissingExtraError
from pyro_implicit.training import FitResult


def _result(**changes: Any) -> FitResult:
    given: dict[str, Any] = {
        "history": [float(i) for i in range(20)],
        "reason": "limit",
        "objective": LinearisedELBO(),
        "seconds": 2.5,
    }
    return FitResult(**given | changes)


def test_it_is_told_in_a_few_lines() -> None:
    text = str(_result(scores={10: -2.0, 20: -3.0}, warnings=["look out"]))
    lines = text.splitlines()
    assert lines[0] == "20 steps in 2.5 s: the limit of steps was reached."
    assert lines[1].startswith("loss 18.5 (mean of the last tenth), objective LinearisedELBO(")
    assert lines[2:] == ["best validation score -2, after 10 steps", "warning: look out"]
    assert "history" not in repr(_result())
    told = str(_result(start="start: mode, at fan-in: why\n  and more")).splitlines()
    assert told[2:] == ["start: mode, at fan-in: why"]
    assert str(_result(promise="a bound")).splitlines()[1].endswith("): a bound")
    for name in ("start", "promise"):
        with pytest.raises(ArgumentError, match=f"{name} is 3; expected a text"):
            _result(**{name: 3})


def test_scores_that_are_not_finite_are_never_the_best() -> None:
    scores = {10: math.nan, 20: -3.0, 30: math.inf}
    assert "best validation score -3, after 20 steps" in str(_result(scores=scores))
    assert "no validation score was finite, of 1" in str(_result(scores={10: math.nan}))


def test_an_objective_without_a_repr_is_told_by_its_class() -> None:
    assert str(_result(objective=Trace_ELBO())).endswith("objective Trace_ELBO")


def test_without_a_step_there_is_no_loss() -> None:
    result = _result(history=[])
    assert result.num_steps == 0 and math.isnan(result.loss)
    with pytest.raises(ArgumentError, match="no step was taken"):
        result.plot()


def test_plot() -> None:
    plt.switch_backend("agg")
    ax = _result(scores={10: -2.0}).plot()
    loss, mean = ax.get_lines()
    assert list(loss.get_ydata()) == list(range(20))
    assert list(mean.get_ydata()) == list(range(20))  # a short series is its own running mean
    long = _result(history=[1.0] * 500)
    assert long.plot(ax) is ax
    assert ax.get_lines()[-1].get_ydata() == pytest.approx([1.0] * 500)
    plt.close("all")


def test_plot_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match="pip install pyro-implicit"):
        _result().plot()
    with pytest.raises(ArgumentError, match="ax=3; expected Matplotlib axes"):
        _result().plot(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"history": 3}, "history is 3; expected a list of numbers"),
        ({"history": ["a"]}, "an entry of history='a'"),
        ({"rates": [None]}, "an entry of rates=None"),
        ({"rates": [-0.1]}, "an entry of rates=-0.1; expected a finite number >= 0"),
        ({"reason": "bored"}, "reason='bored'"),
        ({"seconds": -1.0}, "seconds=-1.0"),
        ({"objective": 3}, "objective=3; expected an objective"),
        ({"terms": [3]}, "terms is 3"),
        ({"terms": [{"entropy": "a"}]}, r"terms\['entropy'\]='a'"),
        ({"scores": {-1: 2.0}}, "a step of scores=-1"),
        ({"scores": {1: "a"}}, r"scores\[1\]='a'"),
        ({"warnings": [3]}, "expected several names"),
        ({"state": 3}, "state is 3"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        _result(**changes)


def test_scores_of_an_earlier_run_are_told_to_be_that() -> None:
    known: dict[str, Any] = {"history": [1.0], "reason": "limit", "objective": Trace_ELBO()}
    result = FitResult(**known, seconds=1.0, scores={100: -1.0}, state={"is_scored": False})
    assert "of a run before this one" in str(result)
    result = FitResult(**known, seconds=1.0, scores={100: -1.0}, state={"is_scored": True})
    assert "of a run before this one" not in str(result)
