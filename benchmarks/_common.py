"""
What all benchmarks share: options, seeds, data, time, tables and a record that can be traced back.

A benchmark is run from the root of the repository as ``python -m benchmarks.<name>`` and looks so::

    arguments = parse(parser(DESCRIPTION, seeds=range(3)), argv)
    ...
    print(format_table(["model", "seconds"], [["eight schools", 12.3]]))
    write_record("benchmarks.<name>", arguments, settings={"lr": 3e-3}, results=rows)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch

__all__ = [
    "Stopwatch",
    "fixed_seed",
    "format_table",
    "load_npz",
    "machine",
    "parse",
    "parser",
    "positive",
    "stopwatch",
    "versions",
    "write_record",
]

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("pyro-implicit", "torch", "pyro-ppl", "numpy", "stochman")


def parser(description: str, seeds: Iterable[int] = range(3)) -> argparse.ArgumentParser:
    """
    A parser with the options that every benchmark has: ``--data-root``, ``--seeds``, ``--threads``,
    ``--output`` and ``--quiet``.

    :param str description: shown by ``--help``.
    :param seeds: the default of ``--seeds``.
    """
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument(
        "--data-root",
        type=Path,
        default=Path(os.environ.get("PYRO_IMPLICIT_DATA", _ROOT.parent / "shared" / "data")),
        metavar="DIR",
        help="folder of the public data sets (default: $PYRO_IMPLICIT_DATA, else ../shared/data)",
    )
    seeds = list(seeds)
    result.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        default=seeds,
        metavar="SEED",
        help=f"(default: {' '.join(map(str, seeds))})",
    )
    result.add_argument(
        "--threads", type=positive, default=1, metavar="N", help="threads of torch (default: 1)"
    )
    result.add_argument(
        "--output", type=Path, metavar="FILE.json", help="also write all results there"
    )
    result.add_argument("--quiet", action="store_true", help="no progress bars")
    return result


def parse(options: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """
    Parses, sets the number of threads, and remembers the command for :func:`write_record`.

    :param options: from :func:`parser`, with more options added.
    :param argv: the command line without the program's name; the process's by default.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    arguments = options.parse_args(argv)
    arguments.argv = argv
    torch.set_num_threads(arguments.threads)
    return arguments


def positive(text: str) -> int:
    """For argparse: an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} found, expected a positive number")
    return value


def load_npz(data_root: Path, name: str) -> dict[str, np.ndarray]:
    """
    :param Path data_root: as the user gave it.
    :param str name: file below it, ``"uci/concrete.npz"``.
    :returns: its arrays. A missing file ends the program with a message that says what to do.
    """
    path = data_root / name
    if not path.is_file():
        raise SystemExit(
            f"error: there is no {name} in {data_root}; say where it is with --data-root or "
            "PYRO_IMPLICIT_DATA"
        )
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


@contextmanager
def fixed_seed(seed: int, dtype: torch.dtype = torch.float32) -> Iterator[None]:
    """
    An empty parameter store, that seed for every generator, and that default dtype; the store is
    emptied and the dtype put back afterwards.
    """
    before = torch.get_default_dtype()
    pyro.clear_param_store()
    pyro.set_rng_seed(seed)
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        pyro.clear_param_store()


@dataclass
class Stopwatch:
    """Seconds of a block: by the clock, and of this process alone (other jobs left out)."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Measures the block; the numbers are there when it has ended."""
    watch = Stopwatch()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        yield watch
    finally:
        watch.seconds = time.perf_counter() - wall
        watch.cpu_seconds = time.process_time() - cpu


def format_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """
    A plain-text table that is Markdown too; numbers to the right, floats to three digits.

    :param header: one name per column.
    :param rows: cells: text, numbers, or None for an empty one.
    """
    rows = [list(row) for row in rows]
    right = [any(_is_number(row[j]) for row in rows) for j in range(len(header))]
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[j]) for row in cells) for j in range(len(header))]
    align = [str.rjust if r else str.ljust for r in right]
    cells.insert(
        1, ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    )
    return "\n".join(
        "| " + " | ".join(f(c, w) for f, c, w in zip(align, row, widths, strict=True)) + " |"
        for row in cells
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, (float, np.floating)) else str(value)


def versions() -> dict[str, str]:
    """Versions of Python and of what the numbers depend on, and the commit of this checkout."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    found["commit"] = _commit()
    return found


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def machine() -> dict[str, Any]:
    """The machine in words and numbers, without its name."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def write_record(
    benchmark: str, arguments: argparse.Namespace, settings: dict[str, Any], results: Any
) -> None:
    """
    Writes ``--output``, if it was given: command, seeds, settings, versions, machine and results.

    :param str benchmark: name of the module, ``"benchmarks.posteriordb"``.
    :param arguments: from :func:`parse`.
    :param dict settings: whatever else fixes the numbers.
    :param results: plain values.
    """
    if arguments.output is None:
        return
    record = {
        "command": " ".join(["python", "-m", benchmark, *arguments.argv]),
        "seeds": arguments.seeds,
        "settings": settings,
        "versions": versions(),
        "machine": machine(),
        "results": results,
    }
    text = json.dumps(record, indent=1, default=_plain) + "\n"
    partial = arguments.output.with_name(arguments.output.name + ".partial")
    partial.write_text(text)
    partial.replace(arguments.output)  # no half-written file is left behind


def _plain(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value.tolist()
    return str(value)
