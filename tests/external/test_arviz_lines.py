"""
Both lines of ArviZ give the same numbers, names and labels for the same draws.

The other line needs another interpreter (ArviZ >= 1 wants Python >= 3.12): the one that
``PYRO_IMPLICIT_ARVIZ1_PYTHON`` names, with ``arviz`` and nothing of ours installed; or, in the slow
run, a fresh virtual environment of a newer Python that is on the PATH.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal

from pyro_implicit import to_arviz
from pyro_implicit.arviz import compatibility as _arviz

HERE = Path(__file__).parent
SCRIPT = HERE / "arviz_adapter.py"
VARIABLE = "PYRO_IMPLICIT_ARVIZ1_PYTHON"


def load_script():
    spec = importlib.util.spec_from_file_location("arviz_adapter", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model(x, counts, y):
    w = pyro.sample("net.0.weight", dist.Normal(0.0, 1.0).expand([2, 3]).to_event(2))
    rate = pyro.deterministic("rate", torch.exp(0.3 * w.sum(0)))
    with pyro.plate("sites", 3):
        pyro.sample("counts", dist.Poisson(rate), obs=counts)
    with pyro.plate("data", 100, subsample_size=len(x)):
        pyro.sample("y", dist.Normal(x @ w, 1.0).to_event(1), obs=y)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What to_arviz hands to the adapter for a small model, as files."""
    folder = tmp_path_factory.mktemp("groups")
    pyro.set_rng_seed(0)
    x = torch.randn(9, 2)
    arguments = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exported_module(), "make_inference_data", lambda *a: arguments.extend(a))
        to_arviz(
            model,
            AutoMultivariateNormal(model),
            x,
            torch.tensor([0.0, 2.0, 1.0]),
            torch.randn(9, 3),
            num_samples=300,
            objective=Trace_ELBO(),
            dims={"net.0.weight": ["input", "output"], "rate": ["output"]},
            coords={"output": ["a", "b", "c"]},
        )
    groups, coords, dims, attrs = arguments
    told = {
        "groups": {group: list(variables) for group, variables in groups.items()},
        "coords": {name: np.asarray(labels).tolist() for name, labels in coords.items()},
        "dims": dims,
        "attrs": attrs,
    }
    (folder / "groups.json").write_text(json.dumps(told))
    arrays = {
        f"{g}:{n}": array for g, variables in groups.items() for n, array in variables.items()
    }
    np.savez(folder / "groups.npz", **arrays)
    return folder, arrays


def exported_module():
    """The module that hands over to ArviZ."""
    return importlib.import_module("pyro_implicit.arviz.export")


def check_report(report, arrays, saved_arrays):
    assert set(arrays) == set(saved_arrays)
    for name, expected in saved_arrays.items():
        np.testing.assert_array_equal(arrays[name], np.atleast_1d(expected))
        assert arrays[name].dtype == expected.dtype
    assert report["dims"]["posterior:net.0.weight"] == ["chain", "draw", "input", "output"]
    assert report["dims"]["log_likelihood:y"] == ["chain", "draw", "data"]
    assert report["dims"]["observed_data:y"] == ["data", "y_dim_0"]
    assert report["coords"]["posterior:output"] == ["a", "b", "c"]
    assert report["coords"]["posterior:chain"] == [0]
    assert report["attrs"][0] == report["attrs"][1]
    assert report["attrs"][0]["guide"] == "AutoMultivariateNormal"
    if report["round_trip"]:
        assert report["round_trip"].pop("equal")
        assert report["round_trip"] == {k: report[k] for k in ("dims", "coords", "attrs")}
    assert report["khat"][:2] == pytest.approx([0.3, 0.9], abs=0.05)
    assert report["khat"][2] < 0.3
    assert report["restarts"]["dims"] == ["chain", "draw", "restart", "data"]


def run_elsewhere(python, folder):
    """The script in another interpreter, which must not know this package or its environment."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    subprocess.run(
        [python, "-I", str(SCRIPT), _arviz.__file__, str(folder)],
        check=True,
        env=environment,
        cwd=folder,
        timeout=300,
    )
    with np.load(folder / "report.npz") as file:
        arrays = dict(file)
    return json.loads((folder / "report.json").read_text()), arrays


def check_both_lines(python, saved):
    folder, arrays = saved
    here, found_here = load_script().run(_arviz.__file__, folder)
    there, found_there = run_elsewhere(python, folder)
    check_report(here, found_here, arrays)
    check_report(there, found_there, arrays)
    assert int(there["version"].split(".")[0]) >= 1 and there["type"] == "DataTree"
    assert there["imported"] == []
    assert (here["dims"], here["coords"]) == (there["dims"], there["coords"])
    assert here["attrs"] == there["attrs"]
    assert here["elpd"].keys() == there["elpd"].keys() == {"counts", "y"}
    for name, elpd in here["elpd"].items():  # the lines smooth the tails a little differently
        assert there["elpd"][name] == pytest.approx(elpd, rel=1e-4)
    assert there["restarts"]["elpd"] == pytest.approx(here["restarts"]["elpd"], rel=1e-2)
    # they choose the length of the tail a little differently
    assert there["khat"] == pytest.approx(here["khat"], abs=0.05)


@pytest.mark.long
def test_this_interpreter(saved):
    folder, arrays = saved
    report, found = load_script().run(_arviz.__file__, folder)
    check_report(report, found, arrays)
    assert report["type"] == ("InferenceData" if report["version"].startswith("0") else "DataTree")
    assert report["restarts"]["plots"] == ["predictive check", "LOO-PIT"]


@pytest.mark.long
def test_the_other_line_named_by_the_environment(saved):
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} does not name a Python >= 3.12 that has arviz >= 1")
    check_both_lines(python, saved)


@pytest.mark.slow
def test_the_other_line_in_a_fresh_environment(saved, tmp_path):
    python = next(filter(None, map(shutil.which, ("python3.12", "python3.13", "python3.14"))), None)
    if python is None:
        pytest.skip("no python3.12, python3.13 or python3.14 on the PATH")
    steps = (
        [python, "-m", "venv", str(tmp_path / "venv")],
        [str(tmp_path / "venv" / "bin" / "python"), "-m", "pip", "install", "--quiet", "arviz"],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, timeout=900)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
            pytest.skip(f"{' '.join(step[1:])} failed: {reason[0]}")
    check_both_lines(steps[1][0], saved)


def test_the_adapter_is_imported_without_arviz_or_torch():
    """Importing ArviZ 0.23 warns and writes to the home directory: only an export may do that."""
    code = (
        "import sys, runpy; runpy.run_path(sys.argv[1]); "
        "sys.exit(bool({'arviz', 'torch', 'pyro', 'xarray'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-I", "-c", code, _arviz.__file__], check=True, timeout=60)
