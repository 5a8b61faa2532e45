"""
Pyro's own tests of autoguides and objectives, with the guides and objectives of this package.

    python tests/external/pyro_suite.py CLONE [--objective NAME] [-- options of pytest]

``CLONE`` is a checkout of Pyro at the version that is installed. Its guides of the classes in
``GUIDES`` are replaced, and its evidence bounds by one of ours, before its tests are collected.
Printed are the tests that pass, refusals that name what cannot be (an error of this package), tests
that look at what only Pyro's classes have (``OWN``), and all others, which are defects until looked
at: the exit status is 1 if there are any. Guides begin bare, which spares most of the time;
``--start`` gives them the start that users have, which ``test_quantiles`` needs at its high rate.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

#: files of Pyro's that are run, and the tests in them that take a guide
FILES = ("tests/infer/test_autoguide.py",)
#: guides that are replaced, by ours of the kind named
GUIDES = {
    "AutoDiagonalNormal": "DefaultGuide",
    "AutoMultivariateNormal": "ResidualGuide",
    "AutoLowRankMultivariateNormal": "MatrixGuide",
}
#: bounds that are replaced by one of ours
BOUNDS = (
    "Trace_ELBO",
    "TraceMeanField_ELBO",
    "TraceGraph_ELBO",
    "TraceEnum_ELBO",
    "JitTrace_ELBO",
    "JitTraceGraph_ELBO",
    "JitTraceEnum_ELBO",
)
#: tests of what only Pyro's own classes have, and what it is
OWN = {
    "test_exact": "a loss without variance at the posterior; ours spreads by 0.06 at 100 draws",
    "test_init_loc_fn": "the median at the start to six digits; ours are of draws",
    "test_init_scale": "the private method _loc_scale of a Gaussian",
}

_OBJECTIVE = "PYRO_SUITE_OBJECTIVE"
_REPORT = "PYRO_SUITE_REPORT"
_START = "PYRO_SUITE_START"


def main(argv: list[str] | None = None) -> int:
    """Runs the tests in a process of their own and prints what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("clone", type=Path, help="a checkout of Pyro")
    parser.add_argument("--objective", default="LinearisedELBO", help="(default: LinearisedELBO)")
    parser.add_argument("--start", action="store_true", help="guides with the start of users")
    words = sys.argv[1:] if argv is None else argv
    cut = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:cut])
    if not (arguments.clone / FILES[0]).is_file():
        parser.error(f"there is no {FILES[0]} in {arguments.clone}: expected a checkout of Pyro")
    report = Path(os.environ.get("TMPDIR", "/tmp")) / f"pyro_suite_{os.getpid()}.txt"
    here = Path(__file__).resolve()
    paths = [str(here.parent), str(here.parents[2]), str(arguments.clone.resolve())]
    names = " or ".join(GUIDES.values())
    command = [sys.executable, "-m", "pytest", "-p", here.stem, "-q", "--no-header", "--tb=no"]
    command += [
        "-W",
        "ignore::FutureWarning",
        "-p",
        "no:cacheprovider",
        "-k",
        names,
        *FILES,
        *words[cut + 1 :],
    ]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        _OBJECTIVE: arguments.objective,
        _REPORT: str(report),
        _START: "auto" if arguments.start else "",
        "CI": "",
    }
    subprocess.run(command, cwd=arguments.clone, env=environment, check=False)
    return _tell(report)


def _tell(report: Path) -> int:
    """Prints the outcomes by kind; returns 1 if there is a defect."""
    if not report.is_file():
        print("no test was run")
        return 1
    kinds: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in report.read_text().splitlines():
        kind, test, why = line.split("\t")
        kinds[kind][why].append(test)
    report.unlink()
    for kind in ("passed", "refused", "own", "defect"):
        print(f"\n{kind}: {sum(map(len, kinds[kind].values()))}")
        for why, tests in sorted(kinds[kind].items()):
            if why:
                print(f"  {len(tests)} x {tests[0]}: {why}")
    return int(bool(kinds["defect"]))


# ---- in the process of the tests: a plugin of pytest


def pytest_configure(config: Any) -> None:
    """Replaces guides and bounds, before the tests import them."""
    if _OBJECTIVE not in os.environ:
        return
    import pyro.infer
    import pyro.infer.autoguide as autoguide

    import pyro_implicit

    guides = _guides()
    for theirs, ours in GUIDES.items():
        setattr(autoguide, theirs, guides[ours])
        setattr(autoguide.guides, theirs, guides[ours])
    objective = getattr(pyro_implicit, os.environ[_OBJECTIVE])
    for bound in BOUNDS:
        setattr(pyro.infer, bound, type(bound, (objective,), {}))


def _guides() -> dict[str, type]:
    """Guides of ours with the arguments of Pyro's."""
    from pyro_implicit import HyperNetworkGuide, MMNNGuide
    from pyro_implicit.generators import ResidualGenerator

    options: dict[str, tuple[type, dict[str, Any]]] = {
        "DefaultGuide": (HyperNetworkGuide, {}),
        "ResidualGuide": (HyperNetworkGuide, {"generator": ResidualGenerator}),
        "MatrixGuide": (MMNNGuide, {}),
    }
    made = {}
    for name, (kind, fixed) in options.items():

        def init(
            self: Any,
            model: Any,
            init_loc_fn: Any = None,
            init_scale: float | None = None,
            *_: Any,
            kind: type = kind,
            fixed: dict[str, Any] = fixed,
            **others: Any,
        ) -> None:
            if init_scale is not None:
                others["init_scale"] = init_scale
            others["init_from"] = os.environ.get(_START) or None
            kind.__init__(self, model, init_loc_fn=init_loc_fn, **fixed, **others)

        made[name] = type(name, (kind,), {"__init__": init, "__module__": __name__})
        globals()[name] = made[name]  # so that they can be pickled
    return made


def pytest_runtest_makereport(item: Any, call: Any) -> None:
    """Writes one line for each test."""
    report = os.environ.get(_REPORT)
    if report is None or call.when != "call":
        return
    kind, why = "passed", ""
    if call.excinfo is not None:
        expected = item.get_closest_marker("xfail") is not None
        kind, why = _kind(item.function.__name__, call.excinfo.value, expected)
    with open(report, "a") as file:
        file.write(f"{kind}\t{item.name}\t{why}\n")


def _kind(test: str, error: BaseException, expected: bool) -> tuple[str, str]:
    from pyro_implicit.exceptions import ImplicitError

    text = (str(error) or "no message").splitlines()[0].replace("\t", " ")[:150]
    if test in OWN:
        return "own", OWN[test]
    if expected:
        return "passed", ""  # marked as failing in Pyro, too
    if isinstance(error, ImplicitError):
        return "refused", f"{type(error).__name__}: {text}"
    if type(error).__name__ in ("XFailed", "Skipped"):
        return "passed", ""
    return "defect", f"{type(error).__name__}: {text}"


if __name__ == "__main__":
    sys.exit(main())
