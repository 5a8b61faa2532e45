"""
What all benchmarks share: options, seeds, data, time and tables.

A benchmark is a module with a ``main`` that returns its rows and a ``table`` that shows them::

    def main(argv=None):
        arguments = parse(parser(__doc__, seeds=range(3)), argv)
        ...
        write_record("<name>", arguments, {"lr": 3e-3}, rows)
        print(table(rows))
        return rows

It is declared in the ``__init__.py`` of its folder, and run by ``python -m benchmarks run <name>``.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import torch

__all__ = [
    "Stopwatch",
    "data_root",
    "fixed_seed",
    "format_table",
    "load_npz",
    "mean_and_error",
    "mean_and_spread",
    "parse",
    "parser",
    "positive",
    "stopwatch",
]

_NUMBER = re.compile(r"[-+]?[\d.]+( \d{3})*(e[-+]?\d+)?%?|nan|-?inf")
_ROOT = Path(__file__).resolve().parents[1]


def parser(
    description: str,
    seeds: Iterable[int] = range(3),
    *,
    methods: Iterable[str] = (),
    figure: str | None = None,
) -> argparse.ArgumentParser:
    """
    A parser with the options that every benchmark has: ``--data-root``, ``--seeds``, ``--threads``,
    ``--output`` and ``--quiet``; and two that many have.

    :param str description: shown by ``--help``.
    :param seeds: the default of ``--seeds``.
    :param methods: those of which ``--methods`` chooses some, all by default.
    :param str figure: what ``--figure`` draws.
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
        "--output", type=Path, metavar="FILE.json", help="also write a record there"
    )
    result.add_argument("--quiet", action="store_true", help="no progress bars")
    if methods:
        result.add_argument("--methods", nargs="+", choices=methods, default=list(methods))
    if figure is not None:
        result.add_argument("--figure", type=Path, metavar="FILE.png", help=figure)
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


def data_root(argv: Sequence[str]) -> Path:
    """
    :param argv: options of some benchmark.
    :returns: the folder of the data sets that they name, or that is taken without.
    """
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--data-root", type=Path, default=parser("").get_default("data_root"))
    return options.parse_known_args(argv)[0].data_root


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
    A plain-text table that is Markdown too; columns of numbers to the right, floats to three
    digits.

    :param header: one name per column.
    :param rows: cells: text, numbers, or None for an empty one.
    """
    rows = [list(row) for row in rows]
    right = [_is_right([row[j] for row in rows]) for j in range(len(header))]
    cells = [list(header), *([_cell(value) for value in row] for row in rows)]
    widths = [max(2, *(len(row[j]) for row in cells)) for j in range(len(header))]
    align = [str.rjust if r else str.ljust for r in right]
    cells.insert(
        1, ["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)]
    )
    return "\n".join(
        "| " + " | ".join(f(c, w) for f, c, w in zip(align, row, widths, strict=True)) + " |"
        for row in cells
    )


def mean_and_error(values: Sequence[float], form: str, error_form: str | None = None) -> str:
    """
    The mean of some numbers, and its standard error if there are several.

    :param values: one of each seed or split.
    :param str form: of the mean: ``".2f"``.
    :param str error_form: of the error; that of the mean by default.
    :returns: both as text; the mean alone of one number, and of numbers that are not finite.
    """
    text = f"{statistics.fmean(values):{form}}"
    if len(values) == 1 or not all(map(math.isfinite, values)):
        return text
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{text} ± {error:{error_form or form}}"


def mean_and_spread(values: Sequence[float | None], form: str) -> str | None:
    """
    The mean of some numbers, and their standard deviation, which is 0 of a single one.

    :param values: one of each seed; those that are None are left out.
    :param str form: of both: ``".2f"``.
    :returns: both as text; None of no numbers.
    """
    found = [value for value in values if value is not None]
    if not found:
        return None
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return f"{statistics.fmean(found):{form}} ± {spread:{form}}"


def _is_right(values: list[Any]) -> bool:
    cells = [cell for value in values if (cell := _cell(value))]
    return bool(cells) and all(_NUMBER.fullmatch(cell) for cell in cells)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, (float, np.floating)) else str(value)
