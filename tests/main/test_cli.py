"""The command line: what it refuses and how, and one small run of everything."""

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path

import arviz as az
import numpy as np
import pyro
import pytest
import torch
from pyro import poutine
from scipy import stats

import pyro_implicit
from pyro_implicit import HyperNetworkGuide, predict
from pyro_implicit._main import cli, fit, outputs, report
from pyro_implicit._main.cli import main
from pyro_implicit._main.data import split_table
from pyro_implicit._main.model import build_model
from pyro_implicit._main.read_csv import load_csv
from pyro_implicit.chains import Chains
from pyro_implicit.chains.walk import Walk
from pyro_implicit.exceptions import NonFiniteError
from pyro_implicit.generators import ResidualGenerator
from pyro_implicit.saving import load_state
from pyro_implicit.training.fitting.run import Run


@pytest.fixture
def table(tmp_path):
    """A small CSV file with a header, a linear target and some noise."""
    return write_table(tmp_path / "table.csv")


def write_table(path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 2))
    y = 50.0 + 10.0 * x[:, 0] + generator.normal(size=40)
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
        ("1,2\n2,1\n" * 10 + "1,x\n", "data row 21, column '2': 'x' is not a number"),
        ("1,2\n2,1\n" * 10 + "1,inf\n", "data row 21, column '2': inf is not a finite number"),
        ("", "is empty"),
        ("1\n" * 20, "one column found"),
        ("1,2\n" * 9, "9 data rows found"),
        ("1,2\n" * 20 + "1,2,3\n", "line 21: 3 columns found, expected 2"),
        ("1,2\n2,2\n" * 10, "the target .* is constant"),
        (None, "cannot be read"),
    ],
    ids="text inf empty one-column nine-rows ragged constant-target missing".split(),
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
    assert_refused(capsys, tmp_path / "output", status, 2, r"pyro-implicit\[main\]")


@pytest.mark.parametrize("package", ["matplotlib", "h5netcdf", "h5py"])
def test_missing_output_package(capsys, tmp_path, monkeypatch, table, package):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )
    status = main(["--data", str(table), "--output-dir", str(tmp_path / "output")])
    message = rf"need {package}, .*pyro-implicit\[main\]"
    assert_refused(capsys, tmp_path / "output", status, 2, message)


def test_output_dir_is_a_file(capsys, tmp_path, table):
    status = main(["--data", str(table), "--output-dir", str(table / "below")])
    assert_refused(capsys, tmp_path / "output", status, 2, "table.csv is not a folder")


def test_output_dir_cannot_be_written_to(capsys, tmp_path, table, monkeypatch):
    def refuse(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(outputs.tempfile, "TemporaryFile", refuse)
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
        (["--refine", "99"], "99 found, expected at least 100 gradients a chain"),
        (["--seed", "-1"], "-1 found, expected 0 to"),
        (["--seed", str(2**32)], "found, expected 0 to"),
        (["--test-fraction", "1"], "1 found, expected a number between 0 and 1"),
        (["--test-fraction", "half"], "invalid number value: 'half'"),
        (["--sep", "::"], "'::' found, expected one character"),
        (["--method", "laplace"], "invalid choice: 'laplace'"),
        (["--num-samples", "0"], "0 found, expected a positive number"),
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


def test_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"pyro_implicit {pyro_implicit.__version__}\n"


def run(capsys, table, folder, *arguments):
    """Rows of the printed table without the seconds, {method: [numbers]}."""
    options = ["--data", str(table), "--output-dir", str(folder), *QUICK, "--num-steps", "10"]
    assert main([*options, *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == f"table.csv: 36 training rows, 4 test rows, 2 features, seed {lines[0][-1]}"
    assert lines[1] == "predicted: target"
    assert lines[2].split("  ")[0] == "method"
    assert lines[-3:] == [f"wrote {folder / name}" for name in report.REPORT_FILES]
    assert (folder / "scores.txt").read_text() == "\n".join(lines[:-3]) + "\n"
    last = next(i for i, line in enumerate(lines) if line.startswith("Verdict: "))
    assert "nats a row, standard error" in lines[last]
    rows = [re.split(r"\s{2,}", line) for line in lines[3:last]]
    return {row[0]: [float(cell) for cell in row[1:-1]] for row in rows}


@pytest.mark.long
def test_small_run(capsys, tmp_path, table, monkeypatch):
    folder, threads = tmp_path / "new" / "output", torch.get_num_threads()
    first = run(capsys, table, folder, "--seed", "1")
    assert list(first) == ["mean-field VI", "linearised implicit"]
    for rmse, log_likelihood, error, coverage, _ in first.values():
        assert (
            0.0 < rmse < 100.0 and -20.0 < log_likelihood < 0.0 < error and 0.0 <= coverage <= 1.0
        )
    assert sorted(path.name for path in folder.iterdir()) == sorted(report.REPORT_FILES)
    assert (folder / "predictive.png").read_bytes().startswith(b"\x89PNG")

    posterior = az.from_netcdf(folder / "posterior.nc")
    assert posterior["posterior"]["sigma"].shape == (1, 20)
    assert posterior["observed_data"]["y"].shape == (36,)
    assert posterior.attrs["objective"] == "LinearisedELBO"
    assert posterior.attrs["data"] == "table.csv"
    assert posterior.attrs["training_rows"] == posterior.attrs["exported_rows"] == 36
    assert posterior.attrs["notes"].startswith("linearised implicit: the limit of 10 steps")
    assert posterior.attrs["target"] == "target"
    assert posterior["constant_data"]["x"].dims == ("data", "feature")
    assert list(posterior["constant_data"]["feature"].values) == ["a", "b"]
    assert_in_units(posterior, table)

    # The same seed gives the same rows, whatever else is run, and overwrites the files.
    second = run(capsys, table, folder, "--seed", "1", "--nuts", "5")
    assert list(second) == [*first, "NUTS"]
    assert {name: second[name] for name in first} == first
    monkeypatch.setattr(report, "draw", lambda *_: b"")  # once more would tell nothing
    assert run(capsys, table, folder, "--seed", "2") != first
    assert torch.get_num_threads() == threads


def assert_in_units(posterior, table):
    """Data and predictions are those of the table, and the density that of its target."""
    values = np.loadtxt(table, delimiter=",", skiprows=1)
    y, x = posterior["observed_data"]["y"].values, posterior["constant_data"]["x"].values
    for row, target in zip(x, y, strict=True):
        place = np.abs(values[:, :2] - row).sum(-1).argmin()
        np.testing.assert_allclose(np.r_[row, target], values[place], rtol=1e-4, atol=1e-4)
    mean = posterior["posterior"]["mean"].values
    noise = posterior["posterior"]["sigma"].values * posterior.attrs["target_scale"]
    assert np.abs(posterior["posterior_predictive"]["y"].values.mean() - 50.0) < 20.0
    expected = stats.norm(mean, noise[..., None]).logpdf(y)
    np.testing.assert_allclose(posterior["log_likelihood"]["y"].values, expected, rtol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("columns", [["--target", "a"], ["--target", "1"]])
def test_another_target(capsys, tmp_path, table, columns):
    assert quick(table, tmp_path / "output", *columns, "--test-fraction", "0.25") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("table.csv: 30 training rows, 10 test rows, 2 features")
    assert out[1] == "predicted: a"


@pytest.mark.long
def test_classes(capsys, tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=60)
    path, folder = tmp_path / "classes.csv", tmp_path / "output"
    lines = [f"{value};{'yes' if value > 0 else 'no'}" for value in x]
    path.write_text("\n".join(["x;answer", *lines]))
    assert quick(path, folder, "--num-steps", "20", "--save") == 0
    out = capsys.readouterr().out
    assert "predicted: answer, one of no, yes" in out and "accuracy" in out and "ECE" in out
    assert "Note: columns were read as separated by semicolons; --sep says otherwise." in out
    posterior = az.from_netcdf(folder / "posterior.nc")
    assert posterior.attrs["classes"] == "no, yes"
    assert set(posterior["observed_data"]["y"].values.tolist()) == {0, 1}
    state = load_state(folder / "guide.pt")
    assert state["classes"] == ["no", "yes"] and state["feature_names"] == ["x"]
    model = build_model(1, state["training_rows"], num_classes=2)
    guide = HyperNetworkGuide(model, generator=ResidualGenerator)
    guide.load_state_dict(state["guide"])
    draws = predict(model, guide, torch.tensor([[-3.0], [3.0]]), num_samples=50)["y"].float()
    assert float(draws[:, 0].mean()) < float(draws[:, 1].mean())


@pytest.mark.long
def test_methods_alone(capsys, tmp_path, table):
    assert quick(table, tmp_path / "output", "--method", "mean-field", "--save") == 0
    out = capsys.readouterr().out
    assert "mean-field VI" in out and "implicit" not in out and "Verdict" not in out
    assert quick(table, tmp_path / "output", "--method", "nuts", "--nuts", "3") == 0
    out = capsys.readouterr().out
    assert "NUTS" in out and "mean-field" not in out
    posterior = az.from_netcdf(tmp_path / "output" / "posterior.nc")
    assert posterior["posterior"]["sigma"].shape == (1, 3)


@pytest.mark.long
def test_chains_from_modes(capsys, tmp_path, table, monkeypatch):
    monkeypatch.setattr(fit, "NUM_CHAINS", 3)
    folder = tmp_path / "output"
    assert quick(table, folder, "--method", "mean-field", "--refine", "100", "--save") == 0
    out = capsys.readouterr().out
    assert "chains from modes" in out and "implicit" not in out and "less mean-field" in out
    assert "Note: chains from modes: r-hat of predictions is up to" in out
    assert load_state(folder / "guide.pt")["method"] == "mean-field VI"
    posterior = az.from_netcdf(folder / "posterior.nc")
    assert posterior["posterior"]["sigma"].shape == (3, 5)
    assert_in_units(posterior, table)


def test_chains_have_no_guide_to_save(capsys, tmp_path, table):
    assert quick(table, tmp_path / "output", "--method", "refine", "nuts", "--save") == 2
    assert "--save with --method nuts refine, which have no guide" in capsys.readouterr().err
    assert not (tmp_path / "output").exists()


@pytest.mark.long
def test_large_tables_are_trained_by_minibatches(table, monkeypatch):
    monkeypatch.setattr(fit, "BATCH_SIZE", 16)
    split = split_table(load_csv(table), seed=0)
    batches = list(fit.Batches(split))
    assert [len(x) for x, _ in batches] == [16, 16]
    for x, y in batches:
        rows = [torch.eq(split.x_train, row).all(-1).nonzero().item() for row in x]
        assert torch.equal(y, split.y_train[rows])
    model = build_model(2, len(split.x_train))
    options = {"seed": 0, "num_steps": 2, "nuts_samples": 0, "chain_steps": 0, "quiet": True}
    with pyro.settings.context(module_local_params=True):
        fitted = fit.fit_all(model, split, methods=["mean-field", "implicit"], **options)
    assert [one.method for one in fitted] == ["mean-field VI", "linearised implicit"]
    assert all("the limit of 2 steps" in one.notes[0] for one in fitted)


def test_a_chain_gives_its_draws_in_turns():
    chain = fit.Chain({"w": torch.arange(4.0)})
    assert chain.sample(3)["w"].tolist() == [0.0, 1.0, 2.0]
    assert chain.sample(3)["w"].tolist() == [3.0, 0.0, 1.0]
    with poutine.trace() as capture:
        chain(1, 2)
    assert capture.trace.nodes["w"]["value"] == 2.0
    assert fit.most_draws(chain, 10) == 4 and fit.most_draws(None, 10) == 10


QUICK = ["--num-steps", "1", "--num-samples", "20", "--quiet"]


def quick(table, folder, *arguments):
    return main(["--data", str(table), "--output-dir", str(folder), *QUICK, *arguments])


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.long
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
@pytest.mark.parametrize("maker", ["draw", "export"])
def test_a_file_that_fails_takes_no_other_with_it(
    capsys, tmp_path, table, made_fits, small_files, monkeypatch, error, maker
):
    def fail(*args):
        raise error

    monkeypatch.setattr(report, maker, fail)
    failed = {"draw": "predictive.png", "export": "posterior.nc"}[maker]
    folder = tmp_path / "output"
    assert quick(table, folder) == 1
    out, err = capsys.readouterr()
    why = error.strerror if isinstance(error, OSError) else "out of memory"
    assert err == f"pyro_implicit: error: {folder / failed} was not written: {why}\n"
    assert names_in(folder) == sorted(set(report.REPORT_FILES) - {failed})
    assert "linearised implicit" in out and f"wrote {folder / failed}" not in out
    (folder / failed).write_text("old")
    assert quick(table, folder) == 1
    assert capsys.readouterr().err.endswith("; the file there is of an earlier run\n")
    assert (folder / failed).read_text() == "old"


@pytest.fixture(scope="module")
def fits_once(tmp_path_factory):
    """All tables of this module are one: a run of it keeps its fits, and makes all imports."""
    folder, fits = tmp_path_factory.mktemp("once"), []

    def fit_all(*args, **options):
        fits.extend(real(*args, **options))
        return fits

    real = fit.fit_all
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit, "fit_all", fit_all)
        assert quick(write_table(folder / "table.csv"), folder) == 0
    return fits


@pytest.fixture
def made_fits(monkeypatch, fits_once):
    """For tests of what comes after the fits."""
    monkeypatch.setattr(fit, "fit_all", lambda *args, **options: fits_once)


@pytest.fixture
def small_files(monkeypatch):
    """For tests that do not look into the files."""
    monkeypatch.setattr(report, "draw", lambda *args: b"figure")
    monkeypatch.setattr(report, "export", lambda *args: None)
    monkeypatch.setattr("pyro_implicit._main.netcdf.netcdf_bytes", lambda data: b"draws")


def forked(action, tmp_path, **streams):
    """
    Runs ``action`` in a copy of this process with standard streams of its own.

    :returns: exit status, and what went to standard output and error.
    """
    files = {name: tmp_path / f"{name}.txt" for name in ("stdout", "stderr")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if child == 0:
        status = 99
        try:
            for number, (name, file) in enumerate(files.items(), start=1):
                given = streams.get(name)
                if given is None:
                    given = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
                os.dup2(given, number)
                setattr(sys, name, os.fdopen(number, "w", buffering=1))
            status = action()
            if sys.stdout is not None and not sys.stdout.closed:
                sys.stdout.flush()  # as Python does at its end
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    _, wait_status = os.waitpid(child, 0)
    out, err = (file.read_text() if file.exists() else "" for file in files.values())
    return os.waitstatus_to_exitcode(wait_status), out, err


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "kept"),
    [(0, []), (2**10, ["scores.txt"]), (2**17, ["predictive.png", "scores.txt"])],
)
def test_full_disk(tmp_path, table, made_fits, monkeypatch, limit, kept):
    """The system refuses to write more than so many bytes to a file, as a full disk does."""
    folder, write = tmp_path / "output", outputs.Outputs.write

    def limited(*args):
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            write(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

    monkeypatch.setattr(outputs.Outputs, "write", limited)

    def action():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        return quick(table, folder, "--num-samples", "100")

    status, out, err = forked(action, tmp_path)
    assert status == 1 and "linearised implicit" in out
    lines = err.splitlines()
    assert len(lines) == 3 - len(kept)
    assert all(re.match(r"pyro_implicit: error: \S+ was not written: File too", x) for x in lines)
    assert (names_in(folder) if folder.exists() else []) == kept


@pytest.mark.parametrize("how", ["reader gone", "closed", "none", "full"])
def test_standard_output_that_cannot_be_written_to(tmp_path, table, made_fits, small_files, how):
    folder = tmp_path / "output"
    reader, writer = os.pipe()
    os.close(reader)

    def action():
        if how == "closed":
            sys.stdout.close()
        elif how == "none":  # as Python begins with a descriptor that is closed
            os.close(1)
            sys.stdout = None
        return quick(table, folder)

    with open("/dev/full", "w") as full:
        stdout = {"reader gone": writer, "full": full.fileno()}.get(how)
        status, out, err = forked(action, tmp_path, stdout=stdout)
    os.close(writer)
    why = {"reader gone": "its reader has gone", "full": "No space left on device"}
    assert out == "" and status == (141 if how == "reader gone" else 1)
    assert err == (
        "pyro_implicit: error: standard output cannot be written to: "
        f"{why.get(how, 'it is closed')}; the table is in {folder / 'scores.txt'}\n"
    )
    assert names_in(folder) == sorted(report.REPORT_FILES)
    assert "linearised implicit" in (folder / "scores.txt").read_text()


@pytest.mark.parametrize("how", ["reader gone", "none"])
def test_standard_error_that_cannot_be_written_to(tmp_path, table, fits_once, small_files, how):
    reader, writer = os.pipe()
    os.close(reader)

    def action():
        if how == "none":
            sys.stderr = None
        options = ["--output-dir", str(tmp_path / "output"), *QUICK[:-1]]
        return main(["--data", str(table), *options])  # progress bars go there

    status, out, _ = forked(action, tmp_path, stderr=writer)
    os.close(writer)
    assert status == 0 and "wrote" in out


@pytest.mark.long
def test_names_in_letters_that_standard_output_lacks(tmp_path, table, made_fits):
    other = table.with_name("gr\u00f6\u00dfe $x$ \n \udcff.csv")
    other.write_bytes(table.read_bytes())

    def action():
        sys.stdout.reconfigure(encoding="ascii", errors="strict")
        status = quick(other, tmp_path / "output")
        assert sys.stdout.errors == "strict"
        return status

    status, out, err = forked(action, tmp_path)
    assert (status, err) == (0, "")
    assert out.startswith(r"gr\xf6\xdfe $x$ \n \udcff.csv: 36 training rows")
    posterior = az.from_netcdf(tmp_path / "output" / "posterior.nc")
    assert posterior.attrs["data"] == "gr\u00f6\u00dfe $x$ \\n \\udcff.csv"


@pytest.mark.parametrize("before", ["fits", "figure"])
def test_interrupt(capsys, tmp_path, table, made_fits, monkeypatch, before):
    def interrupt(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)

    place = {"fits": "pyro_implicit._main.fit.fit_all", "figure": "pyro_implicit._main.report.draw"}
    monkeypatch.setattr(place[before], interrupt)
    folder = tmp_path / "output"
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # as in the next test
    try:
        assert quick(table, folder) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    out, err = capsys.readouterr()
    scores = folder / "scores.txt"
    so_far = f"; written before: {scores}" if before == "figure" else ""
    assert err == f"pyro_implicit: interrupted{so_far}\n"
    assert (names_in(folder) if folder.exists() else []) == ["scores.txt"] * (before == "figure")


@pytest.mark.long
@pytest.mark.parametrize("method", ["mean-field", "refine"])
def test_interrupt_within_a_fit(capsys, tmp_path, table, monkeypatch, method):
    """Whoever is asked for a fit keeps what was reached; the main job ends."""
    monkeypatch.setattr(fit, "NUM_CHAINS", 2)
    owner, name = {"mean-field": (Run, "_step"), "refine": (Walk, "_step")}[method]
    real, calls = getattr(owner, name), itertools.count()

    def step(*args, **kwargs):
        if next(calls) == 5:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, step)
    options = ["--method", method, *(["--refine", "100"] if method == "refine" else [])]
    assert quick(table, tmp_path / "output", "--num-steps", "20", *options) == 130
    assert capsys.readouterr().err == "pyro_implicit: interrupted\n"
    assert not (tmp_path / "output").exists()


@pytest.mark.long
def test_what_all_draws_predict_alike_has_agreed(monkeypatch, table):
    """r-hat is NaN there."""
    split = split_table(load_csv(table), seed=0)
    monkeypatch.setattr(fit, "NUM_CHAINS", 2)
    found = {"y": torch.tensor([1.02, math.nan])}
    monkeypatch.setattr(Chains, "predictive_r_hat", lambda *_: found)
    model = build_model(2, len(split.x_train))
    chains = fit.fit_chains(model, split, num_steps=100, seed=0, quiet=True)
    assert not any("r-hat" in text for text in chains.notes)


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("nul\0", r"--output-dir '.*nul.x00': a name cannot hold a NUL"),
        ("x" * 300, "cannot be written to .File name too long"),
        ("link", "link is not a folder"),
        ("/proc/nothing", "cannot be written to"),
    ],
    ids="nul long broken-link no-disk".split(),
)
def test_names_that_are_no_folder(capsys, tmp_path, table, folder, message):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert quick(table, tmp_path / folder) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and re.search(message, err)


@pytest.mark.parametrize("name", report.REPORT_FILES)
def test_folder_in_the_place_of_a_file(capsys, tmp_path, table, name):
    (tmp_path / name).mkdir()
    assert quick(table, tmp_path) == 2
    assert f"{name} in it is a folder" in capsys.readouterr().err


def test_disk_without_space(capsys, tmp_path, table, monkeypatch):
    usage = outputs.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(outputs.shutil, "disk_usage", lambda path: usage._replace(free=2**20))
    status = quick(table, tmp_path / "output", "--num-samples", "20000")
    message = r"about [\d.]+ MiB are needed; 1 are free"
    assert_refused(capsys, tmp_path / "output", status, 2, message)


@pytest.mark.parametrize("path", ["nul\0.csv", "x" * 5000, "", "line\nbreak\x1b[2J.csv"])
def test_names_that_are_no_file(capsys, tmp_path, path):
    status = main(["--data", path, "--output-dir", str(tmp_path / "output")])
    assert_refused(capsys, tmp_path / "output", status, 2, "no csv|cannot be read|not the name")


def test_errors_that_are_not_of_the_user_are_raised(tmp_path, table, monkeypatch):
    def fail(*args, **kwargs):
        raise RuntimeError(message)

    monkeypatch.setattr("pyro_implicit._main.fit.fit_all", fail)
    message = "a defect"
    with pytest.raises(RuntimeError, match="a defect"):
        quick(table, tmp_path / "output")
    message = "DefaultCPUAllocator: not enough memory"
    assert quick(table, tmp_path / "output") == 1


# ---- large tables


@pytest.mark.long
def test_rows_of_the_outputs_are_capped(capsys, tmp_path, table, made_fits, monkeypatch):
    monkeypatch.setattr(report, "MAX_EXPORTED_ROWS", 7)
    monkeypatch.setattr(report, "MAX_ROWS_IN_FIGURE", 2)
    folder = tmp_path / "output"
    assert quick(table, folder) == 0
    assert "Note: posterior.nc has 7 of the 36 training rows" in capsys.readouterr().out
    posterior = az.from_netcdf(folder / "posterior.nc")
    assert posterior["log_likelihood"]["y"].shape == (1, 20, 7)
    assert posterior.attrs["training_rows"] == 36 and posterior.attrs["exported_rows"] == 7
    assert "7 of the 36" in posterior.attrs["notes"]


def write_large(path, rows):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, 4)).round(3)
    np.savetxt(path, np.c_[x, x.sum(1) + generator.normal(size=rows)], fmt="%.4f", delimiter=",")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_quarter_of_a_million_rows(tmp_path):
    write_large(tmp_path / "large.csv", 250_000)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from pyro_implicit._main.cli import main\n"
        "status = main()\n"
        "told = Path('/proc/self/status').read_text()\n"  # rusage begins at this process's memory
        "print(int(told.split('VmHWM:')[1].split()[0]) / 2**10)\n"
        "sys.exit(status)"
    )
    folder = tmp_path / "output"
    command = ["-c", code, "--data", tmp_path / "large.csv", "--output-dir", folder]
    root = str(Path(cli.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, *map(str, [*command, *QUICK])],
        env={**os.environ, "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert names_in(folder) == sorted(report.REPORT_FILES)
    assert float(done.stdout.splitlines()[-1]) < 1500.0  # MiB, of which the imports take 600
