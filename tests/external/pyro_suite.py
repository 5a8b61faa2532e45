"""
Pyro's own tests of inference, with the guides and objectives of this package in place of its own.

    python tests/external/pyro_suite.py CLONE [--run NAME ...] [--start] [-- options of pytest]

``CLONE`` is a checkout of Pyro, or its folder ``tests`` and ``setup.cfg`` alone; Pyro itself is the
checkout's where it is there, else the installed one. Before the tests of a run are collected, its
autoguides become ours and its bounds one of our objectives (``pyro_suite_plugin.py``):

- ``autoguide``: ``test_autoguide.py``, our guides with ``LinearisedELBO``;
- ``pyro_guides``: the same file, the guides that stay Pyro's with ``AlphaEnergy(alpha=0)``, which
  is the ELBO and serves guides that have a density;
- ``predictive``, ``valid_models``, ``inference``: these files with ``AlphaEnergy(alpha=0)``,
  ``RenyiELBO`` being our ``IWAE``; guides written by hand stay, and so does ``Predictive``;
- ``continuous``: the tests of plates in ``test_valid_models.py`` once more, with ``Normal`` in the
  place of ``Bernoulli``, which a guide may not draw here.

A test in which nothing of ours took part is not counted. Printed are, by run, the tests that pass;
right refusals, each named in ``pyro_suite_expected.py`` with the reason; own ones, which pass once
the single number named there is another; and all others, which are defects: the exit status is then
1. Guides begin bare, which spares most of the time, and as users' do (``init_from="auto"``) in
tests that look at numbers after training; ``--start`` begins all of them so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

#: runs by name: file of Pyro's
RUNS = {
    "autoguide": "tests/infer/test_autoguide.py",
    "pyro_guides": "tests/infer/test_autoguide.py",
    "predictive": "tests/infer/test_predictive.py",
    "valid_models": "tests/infer/test_valid_models.py",
    "continuous": "tests/infer/test_valid_models.py",
    "inference": "tests/infer/test_inference.py",
}
#: what torch says of Pyro's own code (``weighed_quantile``, ``WeighedPredictive``)
TOLD_OF_PYRO = (
    "Using a non-tuple sequence for multidimensional indexing",
    "Converting a tensor with requires_grad=True to a scalar",
)
KINDS = ("passed", "refused", "own", "defect")
HERE = Path(__file__).resolve()


def main(argv: list[str] | None = None) -> int:
    """Runs each file in a process of its own and prints what came of its tests."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("clone", type=Path, help="a checkout of Pyro")
    parser.add_argument("--run", action="append", choices=list(RUNS), help="(default: all)")
    parser.add_argument("--start", action="store_true", help="guides with the start of users")
    words = sys.argv[1:] if argv is None else argv
    cut = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:cut])
    runs = arguments.run or list(RUNS)
    for run in runs:
        if not (arguments.clone / RUNS[run]).is_file():
            parser.error(f"no {RUNS[run]} in {arguments.clone}: expected a checkout of Pyro")
    reports = {}
    for run in runs:
        print(f"\n==== {run}: {RUNS[run]}", flush=True)
        reports[run] = _run(run, arguments.clone, arguments.start, words[cut + 1 :])
        _tell(reports[run])
    return _table(reports)


def _run(run: str, clone: Path, start: bool, options: list[str]) -> list[list[str]]:
    """The outcomes of a run's tests: kind, test, and why."""
    report = Path(os.environ.get("TMPDIR", "/tmp")) / f"pyro_suite_{os.getpid()}.txt"
    report.write_text("")
    paths = [str(HERE.parent), str(HERE.parents[2]), str(clone.resolve())]
    command = [sys.executable, "-m", "pytest", "-p", "pyro_suite_plugin", "-q", "--no-header"]
    command += ["--tb=no", "-p", "no:cacheprovider", "-W", "ignore::FutureWarning"]
    command += ["-W", "ignore::pyro_implicit.exceptions.PerformanceHint"]
    for told in TOLD_OF_PYRO:
        command += ["-W", f"ignore:{told}:UserWarning"]
    command += [RUNS[run]]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "PYRO_SUITE_RUN": run,
        "PYRO_SUITE_REPORT": str(report),
        "PYRO_SUITE_START": "auto" if start else "",
        "CI": "",
    }
    subprocess.run([*command, *options], cwd=clone, env=environment, check=False)
    lines = [line.split("\t") for line in report.read_text().splitlines()]
    report.unlink()
    return lines


def _tell(lines: list[list[str]]) -> None:
    """Prints the outcomes of one run by kind and reason."""
    kinds: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for kind, test, why in lines:
        kinds[kind][why].append(test)
    for kind in KINDS:
        print(f"\n{kind}: {sum(map(len, kinds[kind].values()))}")
        for why, tests in sorted(kinds[kind].items()):
            if why:
                print(f"  {len(tests)} x {tests[0]}: {why}")


def _table(reports: dict[str, list[list[str]]]) -> int:
    """Prints the numbers of all runs; returns 1 if there is a defect, or a run without a test."""
    print(f"\n| run | {' | '.join(KINDS)} |\n|{'---|' * (len(KINDS) + 1)}")
    failed = False
    for run, lines in reports.items():
        counts = Counter(line[0] for line in lines)
        print(f"| {run} | {' | '.join(str(counts[kind]) for kind in KINDS)} |")
        failed |= bool(counts["defect"]) or not lines
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
