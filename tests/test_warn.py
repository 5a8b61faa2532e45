"""Warnings point at the user's line: a call of ours, a step of SVI, or a line of the model."""

from __future__ import annotations

import ast
import inspect
import warnings
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from torch import nn

import pyro_implicit
from pyro_implicit import _hints
from pyro_implicit._hints import hint
from pyro_implicit._warn import warn
from pyro_implicit.exceptions import PerformanceHint


def line_of(text: str, function: object) -> int:
    source, start = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return start + next(i for i, line in enumerate(source) if text in line)


def model() -> None:
    pyro.sample("z", dist.Normal(0.0, 1.0))
    warn("from here", RuntimeWarning)  # as a network of ours that the model calls


def test_the_line_of_a_call() -> None:
    with pytest.warns(UserWarning, match="said") as caught:
        warn("said")  # by a program that is no library
    (one,) = caught
    assert one.filename == __file__
    assert one.lineno == line_of('warn("said")', test_the_line_of_a_call)


def test_the_line_of_a_model_within_pyro_and_torch() -> None:
    class Inner(nn.Module):
        def forward(self) -> None:
            warn("from a layer", RuntimeWarning)

    svi = SVI(model, lambda: model(), pyro.optim.Adam({}), Trace_ELBO())
    with pytest.warns(RuntimeWarning) as caught:
        svi.evaluate_loss()
        Inner()()
    *steps, layer = caught
    assert {one.filename for one in caught} == {__file__}
    assert {one.lineno for one in steps} == {line_of("from here", model)}
    assert layer.lineno == line_of("from a layer", test_the_line_of_a_model_within_pyro_and_torch)


def test_the_line_of_a_step_where_no_line_of_the_model_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through our code and Pyro's, up to the step."""
    monkeypatch.setattr(_hints, "_shown_hints", set())

    class Objective(Trace_ELBO):
        def loss(self, *args: object) -> float:
            hint("a topic", "slow.")
            return 0.0

    Objective.loss.__code__ = Objective.loss.__code__.replace(co_filename=pyro.__file__)
    svi = SVI(lambda: None, lambda: None, pyro.optim.Adam({}), Objective())
    with pytest.warns(PerformanceHint) as caught:
        svi.evaluate_loss()
    test = test_the_line_of_a_step_where_no_line_of_the_model_is_at_work
    assert (caught[0].filename, caught[0].lineno) == (__file__, line_of("evaluate_loss()", test))


def test_no_line_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    code = compile("def led(f):\n    f('said')", torch.__file__, "exec")
    names: dict[str, object] = {}
    exec(code, names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # every file is a library's
        monkeypatch.setattr("pyro_implicit._warn._SKIPPED_FILES", ("",))
        names["led"](warn)  # type: ignore[operator]
    assert [str(one.message) for one in caught] == ["said"]


def test_nothing_else_in_the_package_warns() -> None:
    root = Path(pyro_implicit.__file__).parent
    for path in root.rglob("*.py"):
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        own = [n.lineno for n in calls if ast.unparse(n.func) == "warnings.warn"]
        assert path.name == "_warn.py" or not own, f"{path.relative_to(root)}: {own}"
