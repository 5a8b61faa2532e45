"""The comparison on made-up moments, and a few steps of each method on the real posteriors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from pyro import poutine

from benchmarks.common import load_npz, parser
from benchmarks.posterior import posteriordb
from benchmarks.posterior._posteriordb_models import MODELS
from benchmarks.posterior._posteriordb_reference import compare, reference_error, reference_moments

DATA_ROOT: Path = parser("").get_default("data_root")
needs_data = pytest.mark.skipif(
    not (DATA_ROOT / "posteriordb").is_dir(), reason="the reference posteriors are not here"
)


def test_the_worst_parameter_counts() -> None:
    reference = {"a": (0.0, 2.0), "b": (1.0, 0.1)}
    result = compare({"a": (1.0, 2.0), "b": (0.99, 0.12)}, reference)
    assert result["mean_error"] == pytest.approx(0.5) and result["worst"]["mean"] == "a"
    assert result["sd_error"] == pytest.approx(0.2) and result["worst"]["sd"] == "b"
    assert result["errors"]["b"]["mean"] == pytest.approx(-0.1)  # signed


def test_other_parameters_than_the_reference_has() -> None:
    with pytest.raises(ValueError, match=r"\['a'\]; the reference has \['b'\]"):
        compare({"a": (0.0, 1.0)}, {"b": (0.0, 1.0)})


def test_reference_error_is_that_of_independent_draws() -> None:
    draws = np.random.default_rng(0).normal(size=(200, 500))
    mean, sd = reference_error({"draws.a": draws, "data.y": draws[0]})
    assert mean == pytest.approx(1 / math.sqrt(draws.size), rel=0.2)
    assert sd == pytest.approx(1 / math.sqrt(2 * draws.size), rel=0.2)


@needs_data
@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_parameters_of_the_reference(name: str) -> None:
    """And a log-density that is finite where the reference says that the mass is."""
    posterior = MODELS[name]
    arrays = load_npz(DATA_ROOT, f"posteriordb/{posterior.file}.npz")
    reference = reference_moments(arrays)
    data = posterior.tensors(arrays)
    sites = {k.split("[")[0]: [] for k in reference if not k.startswith("theta")}
    for key, (mean, _) in reference.items():
        sites.get(key.split("[")[0], []).append(mean)
    values = {k: torch.tensor(v if k == "beta" else v[0]) for k, v in sites.items()}
    if name == "eight_schools":
        theta = torch.tensor([m for k, (m, _) in reference.items() if k.startswith("theta")])
        values["t"] = (theta - values["mu"]) / values["tau"]
    trace = poutine.trace(poutine.condition(posterior.model, data=values)).get_trace(*data)
    assert math.isfinite(trace.log_prob_sum())
    moments = posterior.moments({k: torch.stack([v, v]) for k, v in values.items()})
    for key, (mean, _) in reference.items():
        assert moments[key][0] == pytest.approx(mean, rel=1e-5)


def test_without_data(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--data-root"):
        posteriordb.main(["--data-root", str(tmp_path), "--quiet"])


def test_a_method_without_a_fit_is_shown_as_such() -> None:
    row = {"model": "a", "method": "laplace", "seconds": 1.0, "cpu_seconds": 1.0}
    table = posteriordb.table([{**row, **posteriordb._NO_FIT, "targets": (0.05, 0.1)}])
    assert "| no fit" in table and "| no " in table
