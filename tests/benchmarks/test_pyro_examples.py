"""What the benchmark of Pyro's examples is made of, without a checkout of Pyro."""

from __future__ import annotations

import json
import logging
import math
import sys
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor

from benchmarks.posterior._pyro_examples_import import load_example, load_notebook
from benchmarks.posterior._pyro_examples_judges import Bound, Moments, Predictive
from benchmarks.posterior._pyro_examples_problem import Declared, Example, Problem
from benchmarks.posterior.pyro_examples import EXAMPLES, SETTINGS, check_table, main


def _normal(y: Tensor) -> None:
    mean = pyro.sample("mean", dist.Normal(0.0, 2.0))
    with pyro.plate("data", 2):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def _exact(y: Tensor) -> None:
    """The posterior: precision 2 + 1/4."""
    variance = 1 / 2.25
    pyro.sample("mean", dist.Normal(y.sum() * variance, variance**0.5))


def test_every_draw_of_the_posterior_has_the_weight_of_the_evidence() -> None:
    problem = EXAMPLES["conjugate"].make(None, SETTINGS)
    covariance = torch.eye(2) + 4.0
    marginal = dist.MultivariateNormal(torch.zeros(2), covariance).log_prob(*problem.args)
    scores = Bound(_normal, problem.args, 1, 5)(_exact)
    assert scores["bound"] == pytest.approx(float(marginal), abs=1e-5) == scores["evidence"]
    assert float(marginal) == pytest.approx(-3.2976, abs=1e-4)


def test_moments_of_draws_that_are_shifted_and_wide() -> None:
    reference = {"mean": torch.randn(1000)}
    judge = Moments(_normal, (torch.zeros(2),), reference, 10)
    assert judge(reference)["error"] == 0
    deviation = reference["mean"].std()
    shifted = {"mean": reference["mean"] + deviation}
    assert judge(shifted)["error"] == pytest.approx(math.sqrt(0.5), abs=1e-4)


def test_predictive_density_is_a_mean_over_draws() -> None:
    draws = {"mean": torch.tensor([0.0, 2.0])}
    judge = Predictive(lambda draw: draw["mean"].log().reshape(1), (), 2)
    assert judge(draws)["held-out"] == pytest.approx(0.0)  # of 0 and 2 the mean is 1


def test_a_dimension_without_a_plate_is_declared() -> None:
    def model() -> None:
        x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))
        with pyro.plate("rows", 3):
            pyro.sample("y", dist.Normal(x, 1.0))

    trace = poutine.trace(Declared()(model)).get_trace()
    assert trace.nodes["x"]["fn"].event_shape == (3,)
    assert trace.nodes["y"]["fn"].event_shape == ()


def test_an_example_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "examples" / "schools"
    folder.mkdir(parents=True)
    (folder / "beside_it.py").write_text("size = 8\n")
    (folder / "main.py").write_text(
        "import logging, visdom\nimport torch\nimport beside_it\n"
        "logging.getLogger().addHandler(logging.NullHandler())\n"
        "torch.set_default_dtype(torch.float64)\nsize = beside_it.size\n"
    )
    handlers = list(logging.getLogger().handlers)
    assert load_example(tmp_path, "schools/main.py").size == 8
    assert logging.getLogger().handlers == handlers
    assert "beside_it" not in sys.modules and str(folder) not in sys.path
    assert torch.get_default_dtype() is torch.float32
    with pytest.raises(SystemExit, match="there is no .*other.py in .*: --pyro takes a checkout"):
        load_example(tmp_path, "other.py")


def test_cells_of_a_notebook(tmp_path: Path) -> None:
    folder = tmp_path / "tutorial" / "source"
    folder.mkdir(parents=True)
    texts = ["%matplotlib inline", "data = torch.zeros(3)", "raise ValueError"]
    cells = [{"cell_type": "code", "source": [text]} for text in texts]
    (folder / "one.ipynb").write_text(json.dumps({"cells": cells}))
    assert load_notebook(tmp_path, "one.ipynb", ["data ="]).data.shape == (3,)


def test_a_check_takes_steps_and_judges_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = main(["--check", "--examples", "conjugate", "--quiet"])
    assert (row["steps"], row["latents"], row["draws"], row["scores"]) == (3, 1, "at once", {})
    assert "| conjugate | " in capsys.readouterr().out


def test_a_refusal_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def undeclared() -> None:
        pyro.sample("x", dist.Normal(torch.zeros(3), 1.0))

    problem = Problem(undeclared, (), lambda: None, lambda fitted: {})
    monkeypatch.setitem(EXAMPLES, "conjugate", Example("", lambda *_: problem, "none"))
    (row,) = main(["--check", "--examples", "conjugate", "--quiet"])
    assert row["note"].startswith("ShapeError: site 'x' has batch_shape (3,)")
    assert "ShapeError" in check_table([row])


def test_a_checkout_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--examples", "LKJ", "--quiet"])
    assert "--pyro CLONE is needed" in capsys.readouterr().err
