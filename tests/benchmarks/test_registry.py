"""Every benchmark that is declared runs, tells what it declares, and writes a record."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pyro
import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.benchmark import FIGURES, Benchmark
from benchmarks.common import parser
from benchmarks.records import FOLDER, KEYS
from benchmarks.registry import BENCHMARKS, FOLDERS, benchmark_of_record
from benchmarks.shared.uci_peers import has_laplace

Rows = list[dict[str, Any]]
REAL: Path = parser("").get_default("data_root")
#: what starts other processes, which import everything once more
SLOW = ("ddp", "scaling")


#: figures of many panels, by helpers that the other figures are drawn with
PANELS = ("objectives", "predictive_curve", "predictive_grid", "toy_regression", "vip_solar")
CASES = [pytest.param(k, marks=[pytest.mark.slow] if k in SLOW else []) for k in BENCHMARKS]


# ---- what the rows of a short run must be, beside finite


def _all_methods(rows: Rows, module: ModuleType) -> None:
    assert [row["method"] for row in rows] == list(module.METHODS)


def _every_method(rows: Rows, module: ModuleType) -> None:
    left_out = {one for one in module.METHODS if "laplace" in one.lower() and not has_laplace()}
    assert {row["method"] for row in rows} >= set(module.METHODS) - left_out


def _every_cell(rows: Rows, module: ModuleType) -> None:
    found = {(row["guide"], row["shape"], row["draws"]) for row in rows}
    assert len(found) == len(rows) == 2 * len(module.SHAPES) * 3


def _every_guide(rows: Rows, module: ModuleType) -> None:
    assert {row["guide"] for row in rows} == set(module.GUIDES)


def _all_in_two_states(rows: Rows, module: ModuleType) -> None:
    found = [(row["method"], row["state"]) for row in rows]
    assert found == [(method, state) for method in module.METHODS for state in ("best", "last")]


_WITHOUT_A_TERM = ("map", "ensemble", "MC dropout", "SWAG", "mean-field", "no KL")


def _no_claim_without_a_term(rows: Rows, module: ModuleType) -> None:
    for width in dict.fromkeys(row.get("width") for row in rows):
        _all_methods([row for row in rows if row.get("width") == width], module)
    for row in rows:
        without = row["method"] in _WITHOUT_A_TERM
        assert (row["claimed_kl"] is None) == without
        assert 0 <= row.get("test_error", 0) <= 1 and 0 <= row.get("coverage", 0) <= 1


def _mnist(rows: Rows, module: ModuleType) -> None:
    expected = [name for name in module.METHODS if name != "laplace" or find_spec("laplace")]
    assert [row["method"] for row in rows] == expected
    shares = [
        row[f"{score} {angle}"]
        for row in rows
        for score in ("accuracy", "ece")
        for angle in (0, 60)
    ]
    assert all(0 <= share <= 1 for share in shares)


def _step_cost(rows: Rows, module: ModuleType) -> None:
    assert rows[0]["guide"] is None and rows[0]["time"] == 1
    assert {row["objective"] for row in rows[1:]} == set(module.OBJECTIVES)
    assert all(row["time"] > 1 for row in rows[1:])


def _process_cost(rows: Rows, module: ModuleType) -> None:
    assert [row["N"] for row in rows] == [10_000, 20_000]
    # a matrix of all pairs of 20 000 would be 3.2 GB
    assert all(row["gradient"] > 0 and row["growth"] < 3e8 for row in rows)


def _speed(rows: Rows, module: ModuleType) -> None:
    jobs = {(row["what"], row["method"]): row["cpu_ms"] for row in rows}
    for row in rows:  # a ratio is of two jobs of one group
        base = jobs.get((row["what"], row["base"]))
        assert row["ratio"] == (None if base is None else row["cpu_ms"] / base)
    assert len({row["what"] for row in rows}) == 2 + len(module.PARTS)  # predict has three groups


def _ddp(rows: Rows, module: ModuleType) -> None:
    assert [row["processes"] for row in rows] == [1, 2]
    assert rows[0]["MB sent per step"] == 0
    assert rows[1]["MB sent per step"] == 4 * rows[1]["parameters"] / 1e6


def _posteriordb(rows: Rows, module: ModuleType) -> None:
    _all_methods(rows, module)
    start = next(row for row in rows if row["method"] == "start")
    assert start["mean_error"] < 0.15 and start["sd_error"] < 0.05


def _objectives(rows: Rows, module: ModuleType) -> None:
    assert len(rows) == 3 * len(module.METHODS)  # of three targets
    assert all("claimed_kl" in row for row in rows)


def _logdet(rows: Rows, module: ModuleType) -> None:
    for state in ("untrained", "trained"):
        found = {row["method"]: row for row in rows if row["generator"].endswith(", " + state)}
        many, converged = found["Lanczos, 20 steps"], found["LOBPCG, converged"]
        assert abs(many["upper"]) < 1 and abs(many["lower"]) < 1
        assert many["cosine"] > found["Lanczos, 2 steps"]["cosine of one"]
        assert converged["lower"] < -10 and converged["residual"] < 1e-3


def _ratio(rows: Rows, module: ModuleType) -> None:
    assert {row["dtype"] for row in rows} == set(module.DTYPES)
    assert {row["estimator"] for row in rows} == set(module.ESTIMATORS)
    assert all(("clipped" in row) != ("critic_accuracy" in row) for row in rows)


def _bfloat16(rows: Rows, module: ModuleType) -> None:
    assert [row["precision"] for row in rows] == ["32-true", "bf16-mixed"]
    assert all(row["steps"] == 1 and row["not finite"] == 0 for row in rows)


def _kills(rows: Rows, module: ModuleType) -> None:
    assert sum(len(row["killed in step"]) for row in rows) == 1
    assert all(row["same end"] for row in rows)


CHECKS: dict[str, Callable[[Rows, ModuleType], None]] = {
    "step_cost": _step_cost,
    "process_cost": _process_cost,
    "ddp": _ddp,
    "speed": _speed,
    "posteriordb": _posteriordb,
    "objectives": _objectives,
    "mnist": _mnist,
    "kivi_uci": _no_claim_without_a_term,
    "kivi_mnist": _no_claim_without_a_term,
    "vip_solar": _all_methods,
    "vip_lotka_volterra": _all_methods,
    "vip_cep": _all_methods,
    "toy_regression": _every_method,
    "entropy_estimates": _every_guide,
    "vip_synthetic": _every_method,
    "vip_uci": _every_method,
    "forecasting": _every_method,
    "predictive_curve": _every_method,
    "predictive_grid": _every_cell,
    "predictive_branches": _all_in_two_states,
    "logdet_accuracy": _logdet,
    "ratio_accuracy": _ratio,
    "bfloat16": _bfloat16,
    "kill_and_resume": _kills,
}


@pytest.fixture()
def as_before() -> Iterator[None]:
    """Threads, and the validation that torch.compile turns off for good."""
    threads = torch.get_num_threads()
    with pyro.settings.context(validate_distributions_torch=True):
        yield
    torch._dynamo.reset()
    torch.set_num_threads(threads)


def _data(benchmark: Benchmark, made_up: Path) -> Path:
    for name in benchmark.needs:
        if not (made_up / name).is_file():
            if not (REAL / name).is_file():
                pytest.skip(f"there is no {name} in the data folder")
            return REAL
    return made_up


# runs that are too short say so
@pytest.mark.filterwarnings("ignore:.*LOBPCG")
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
# Lightning's advice, and Python's on forks beside threads
@pytest.mark.filterwarnings("ignore:The '.*' does not have many workers")
@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")
@pytest.mark.filterwarnings("ignore:GPU available but not used")
@pytest.mark.filterwarnings("ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated")
@pytest.mark.filterwarnings("ignore:the step size .* does not suit")  # after so few steps
@pytest.mark.filterwarnings("ignore:the r-hat of latents")  # likewise
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
@pytest.mark.usefixtures("as_before")
@pytest.mark.program
@pytest.mark.parametrize("name", CASES)
def test_short_run(
    name: str, small_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = BENCHMARKS[name]
    for package in benchmark.extra.split():
        pytest.importorskip(package)
    output, figure = tmp_path / "record.json", tmp_path / "figure.png"
    options = ["--quiet", "--data-root", str(_data(benchmark, small_data))]
    drawn = benchmark.figure and name not in PANELS
    options += ["--output", str(output)] + (["--figure", str(figure)] if drawn else [])
    rows = benchmark.run(options, short=True)
    assert set(benchmark.columns) <= set().union(*rows)
    assert not any("Error" in str(row.get("note", "")) for row in rows)
    numbers = [value for row in rows for value in row.values() if isinstance(value, float)]
    assert all(math.isfinite(value) for value in numbers)
    if name in CHECKS:
        CHECKS[name](rows, benchmark.load())
    record = json.loads(output.read_text())
    assert tuple(record) == KEYS and record["benchmark"] == name
    assert record["rows"] == json.loads(json.dumps(rows, default=str))
    assert benchmark.load().table(record["rows"]).startswith("| ")
    assert "\n| -" in capsys.readouterr().out
    assert not drawn or figure.stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("name", PANELS)
def test_figures_of_many_panels(name: str, small_data: Path, tmp_path: Path) -> None:
    figure = tmp_path / "figure.png"
    options = ["--quiet", "--data-root", str(small_data), "--figure", str(figure)]
    BENCHMARKS[name].run(options, short=True)
    assert figure.stat().st_size > 1000


def test_every_module_with_a_main_is_declared() -> None:
    root = FOLDER.parent
    declared = {root / f"{one.module.replace('.', '/')}.py" for one in BENCHMARKS.values()}
    found = {path for path in root.rglob("*.py") if "\ndef main(" in path.read_text()}
    assert found - declared == {root / "__main__.py", root / "cost" / "train_distributed.py"}
    assert sum(len(folder.BENCHMARKS) for folder in FOLDERS) == len(BENCHMARKS)


def test_records_are_declared_and_whole() -> None:
    declared = [name for one in BENCHMARKS.values() for name in one.records]
    assert len(set(declared)) == len(declared)
    found = {path.stem for path in FOLDER.glob("*.json")}
    assert found == set(declared)
    for name in found:
        record = json.loads((FOLDER / f"{name}.json").read_text())
        assert set(KEYS) <= set(record), name
        assert record["benchmark"] == benchmark_of_record(name).name
        assert record["rows"] and all(isinstance(row, dict) for row in record["rows"])
        assert not any(word in json.dumps(record["machine"]) for word in ("host", "node"))


def test_figures_belong_to_records() -> None:
    figures = {path.stem for path in FIGURES.glob("*.png")}
    assert figures <= {name for one in BENCHMARKS.values() if one.figure for name in one.records}


@pytest.mark.long
def test_settings_are_put_back_after_a_short_run() -> None:
    benchmark = BENCHMARKS["non_gaussian"]
    before = dict(benchmark.load().SETTINGS)
    benchmark.run(["--quiet"], short=True)
    assert before == benchmark.load().SETTINGS


# ---- the command line


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    listing = capsys.readouterr().out
    assert all(f"  {name} " in listing for name in BENCHMARKS)
    assert main(["list", "kivi_uci"]) == 0
    details = capsys.readouterr().out
    assert "claimed_kl" in details and "record kivi_uci" in details and "uci/boston" in details


def test_options_of_a_benchmark_are_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["run", "non_gaussian", "--help"])
    assert done.value.code == 0
    assert "--num-steps" in capsys.readouterr().out


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_of_each_benchmark(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["run", name, "--help"])
    assert done.value.code == 0
    assert "--seeds" in capsys.readouterr().out


@pytest.mark.long
def test_run_and_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FOLDER", "FIGURES"):
        monkeypatch.setattr(f"benchmarks.benchmark.{name}", tmp_path)
    before = torch.get_num_threads()
    short = ["--short", "--quiet", "--num-steps", "1", "--seeds", "4"]
    assert main(["run", "non_gaussian", "--record", "non_gaussian", *short]) == 0
    torch.set_num_threads(before)
    record = json.loads((tmp_path / "non_gaussian.json").read_text())
    assert record["seeds"] == [4] and {row["seed"] for row in record["rows"]} == {4}
    assert record["command"].startswith("python -m benchmarks run non_gaussian --seeds 0 1")
    assert str(tmp_path) not in json.dumps(record)
    assert (tmp_path / "non_gaussian.png").stat().st_size > 1000
    assert "| Banana" in capsys.readouterr().out


@pytest.fixture()
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], bool]]:
    """What was asked of each benchmark, in the place of running it; one has a bug."""
    asked = []

    def run(self: Benchmark, argv: list[str], *, short: bool) -> Rows:
        asked.append((self.name, argv, short))
        if self.name == "kivi_uci":
            raise SystemExit("a bug")
        return []

    monkeypatch.setattr(Benchmark, "run", run)
    return asked


PAPERS = [b.name for f in FOLDERS if "papers" in f.__name__ for b in f.BENCHMARKS]


def test_a_folder_runs_to_its_end(
    ran: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Benchmark, "lacks", lambda self, data_root: "")
    assert main(["run", "papers", "--short", "--quiet"]) == 1
    assert ran == [(name, ["--quiet"], True) for name in PAPERS]
    told = capsys.readouterr()
    for place, name in enumerate(PAPERS, 1):
        assert f"{place} of {len(PAPERS)}, {name}: " in told.out
    assert f"\n{len(PAPERS) - 1} of {len(PAPERS)} ran in 0 CPU seconds" in told.out
    assert "skipped: none; failed: kivi_uci" in told.out
    assert "a bug" in told.err
    assert main(["run", "papers", "--help"]) == 0 and len(ran) == len(PAPERS)
    assert "kivi_uci" in capsys.readouterr().out
    assert main(["list", "papers"]) == 0
    assert "kivi_uci" in capsys.readouterr().out
    assert main(["run", "papers.vip"]) == 0
    assert {name for name, *_ in ran[len(PAPERS) :]} < set(PAPERS)


def test_what_lacks_data_or_packages_is_skipped(
    ran: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "papers", "--short", "--data-root", str(tmp_path)]) == 0
    without = [name for name in PAPERS if not BENCHMARKS[name].needs]
    assert [name for name, *_ in ran] == without and len(without) < len(PAPERS)
    told = capsys.readouterr().out
    assert f"kivi_uci: skipped, no uci/boston.npz in {tmp_path}: see --data-root" in told
    assert f"\n{len(without)} of {len(PAPERS)} ran" in told and "; failed: none" in told
    found = "benchmarks.benchmark.find_spec"
    monkeypatch.setattr(found, lambda name: None if name == "torchvision" else name)
    lacks = BENCHMARKS["kivi_mnist"].lacks(tmp_path)
    assert lacks == 'torchvision not installed: pip install -e ".[benchmarks]"'


def test_a_wrong_option_of_a_folder_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "papers.kivi", "--stpes", "3"])
    assert capsys.readouterr().err.count("--stpes") == 1


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["run", "nothing"], "invalid choice"),
        (["run", "kivi_uci", "--record", "vip_uci"], "kivi_uci has no record 'vip_uci'"),
        (["run", "papers", "--record", "vip_uci"], "papers is a folder of benchmarks"),
        (["list", "--short"], "unrecognized arguments: --short"),
    ],
)
def test_refusals(command: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command)
    assert told in capsys.readouterr().err
