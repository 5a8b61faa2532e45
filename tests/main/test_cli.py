"""The command line: what it refuses and how, and one small run of everything."""

from __future__ import annotations

import importlib.util
import re
import sys

import arviz as az
import numpy as np
import pyro
import pytest
import torch

from pyro_implicit._main import cli, fit, report
from pyro_implicit._main.cli import main
from pyro_implicit._main.data import load_csv, split_table
from pyro_implicit._main.model import build_model
from pyro_implicit.exceptions import NonFiniteError


@pytest.fixture
def table(tmp_path):
    """A small CSV file with a header, a linear target and some noise."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 2))
    y = 50.0 + 10.0 * x[:, 0] + generator.normal(size=40)
    path = tmp_path / "table.csv"
    np.savetxt(path, np.c_[x, y], delimiter=",", header="a,b,target", comments="")
    return path


def assert_refused(capsys, folder, status, expected_status, message):
    """One line on standard error, nothing on standard output, nothing written."""
    out, err = capsys.readouterr()
    assert status == expected_status
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("pyro_implicit: error: ")
    assert re.search(message, err)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1,2\n" * 20 + "1,x\n", "line 21, column 2: 'x' is not a number"),
        ("1,2\n" * 20 + "nan,2\n", "line 21, column 1: 'nan' is not a finite number"),
        ("1,2\n" * 20 + "1,inf\n", "line 21, column 2: 'inf' is not a finite number"),
        ("", "is empty"),
        ("1\n" * 20, "one column found"),
        ("1,2\n" * 9, "9 data rows found"),
        ("1,2\n" * 20 + "1,2,3\n", "line 21: 3 columns found, expected 2"),
        ("1,2\n" * 20, "the target .* is constant"),
        (None, "cannot be read"),
    ],
    ids="text nan inf empty one-column nine-rows ragged constant-target missing".split(),
)
def test_malformed_table(capsys, tmp_path, content, message):
    path, folder = tmp_path / "malformed.csv", tmp_path / "output"
    if content is not None:
        path.write_text(content)
    status = main(["--data", str(path), "--output-dir", str(folder)])
    assert_refused(capsys, folder, status, 2, message)


def test_directory_as_table(capsys, tmp_path):
    folder = tmp_path / "output"
    status = main(["--data", str(tmp_path), "--output-dir", str(folder)])
    assert_refused(capsys, folder, status, 2, "cannot be read")


def test_default_data_without_scikit_learn(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    status = main(["--output-dir", str(tmp_path / "output")])
    assert_refused(capsys, tmp_path / "output", status, 2, r"pyro-implicit\[tutorials\]")


@pytest.mark.parametrize("package", ["matplotlib", "h5netcdf", "h5py"])
def test_missing_output_package(capsys, tmp_path, monkeypatch, table, package):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )
    status = main(["--data", str(table), "--output-dir", str(tmp_path / "output")])
    message = rf"need {package}, .*pyro-implicit\[tutorials\]"
    assert_refused(capsys, tmp_path / "output", status, 2, message)


def test_output_dir_is_a_file(capsys, tmp_path, table):
    status = main(["--data", str(table), "--output-dir", str(table / "below")])
    assert_refused(capsys, tmp_path / "output", status, 2, "table.csv is not a folder")


def test_output_dir_cannot_be_written_to(capsys, tmp_path, table, monkeypatch):
    monkeypatch.setattr(cli.os, "access", lambda path, mode: False)
    status = main(["--data", str(table), "--output-dir", str(tmp_path / "output")])
    assert_refused(capsys, tmp_path / "output", status, 2, "cannot be written to")


@pytest.mark.parametrize("error", [NonFiniteError("loss is NaN"), OSError("disk is full")])
def test_failure_while_running(capsys, tmp_path, table, monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr("pyro_implicit._main.fit.fit_all", fail)
    status = main(["--data", str(table), "--output-dir", str(tmp_path / "output")])
    assert_refused(capsys, tmp_path / "output", status, 1, str(error))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num-steps", "0"], "0 found, expected a positive number"),
        (["--num-steps", "many"], "invalid"),
        (["--nuts", "-1"], "-1 found, expected a positive number"),
        (["--seed", "-1"], "-1 found, expected 0 to"),
        (["--seed", str(2**32)], "found, expected 0 to"),
        (["--colour"], "unrecognized arguments"),
    ],
)
def test_bad_options(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "--output-dir DIR" in capsys.readouterr().out


def run(capsys, table, folder, *arguments):
    """Rows of the printed table without the seconds, {method: [numbers]}."""
    options = ["--data", str(table), "--output-dir", str(folder), "--num-steps", "30", "--quiet"]
    assert main([*options, *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == f"table.csv: 36 training rows, 4 test rows, 2 features, seed {lines[0][-1]}"
    assert lines[1].split("  ")[0] == "method"
    assert lines[-2:] == [f"wrote {folder / 'posterior.nc'}", f"wrote {folder / 'predictive.png'}"]
    rows = [re.split(r"\s{2,}", line) for line in lines[2:-3]]
    return {row[0]: [float(cell) for cell in row[1:-1]] for row in rows}


@pytest.fixture
def few_draws(monkeypatch):
    monkeypatch.setattr(fit, "NUM_DRAWS", 20)
    monkeypatch.setattr(report, "EXPORT_DRAWS", 20)


def test_small_run(capsys, tmp_path, table, few_draws):
    folder, threads = tmp_path / "new" / "output", torch.get_num_threads()
    first = run(capsys, table, folder, "--seed", "1")
    assert list(first) == ["mean-field VI", "linearised implicit"]
    for rmse, log_likelihood, error, coverage in first.values():
        assert (
            0.0 < rmse < 100.0 and -20.0 < log_likelihood < 0.0 < error and 0.0 <= coverage <= 1.0
        )
    assert sorted(path.name for path in folder.iterdir()) == ["posterior.nc", "predictive.png"]
    assert (folder / "predictive.png").read_bytes().startswith(b"\x89PNG")

    posterior = az.from_netcdf(folder / "posterior.nc")
    assert posterior["posterior"]["sigma"].shape == (1, 20)
    assert posterior["observed_data"]["y"].shape == (36,)
    assert posterior.attrs["objective"] == "LinearisedELBO"
    assert posterior.attrs["data"] == "table.csv"

    # The same seed gives the same rows, whatever else is run, and overwrites the files.
    second = run(capsys, table, folder, "--seed", "1", "--nuts", "5")
    assert list(second) == [*first, "NUTS"]
    assert {name: second[name] for name in first} == first
    assert run(capsys, table, folder, "--seed", "2") != first
    assert torch.get_num_threads() == threads


def test_large_tables_are_trained_by_minibatches(table, few_draws, monkeypatch):
    monkeypatch.setattr(fit, "BATCH_SIZE", 16)
    split = split_table(load_csv(table), seed=0)
    x, y = fit._batch(split)
    assert x.shape == (16, 2) and y.shape == (16,)
    rows = [torch.eq(split.x_train, row).all(-1).nonzero().item() for row in x]
    assert torch.equal(y, split.y_train[rows])
    model = build_model(2, len(split.x_train))
    with pyro.settings.context(module_local_params=True):
        fitted = fit.fit_all(model, split, seed=0, num_steps=2, nuts_samples=0, quiet=True)
    assert [len(each.draws["sigma"]) for each in fitted] == 2 * [fit.NUM_DRAWS]


def test_failed_writing_leaves_nothing(capsys, tmp_path, table, few_draws, monkeypatch):
    def fail(*args):
        raise OSError("disk is full")

    monkeypatch.setattr(report, "_draw", fail)
    folder = tmp_path / "output"
    options = ["--data", str(table), "--output-dir", str(folder), "--num-steps", "1", "--quiet"]
    assert main(options) == 1
    assert capsys.readouterr().err == "pyro_implicit: error: disk is full\n"
    assert list(folder.iterdir()) == []
