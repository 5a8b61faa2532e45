"""
Records: a JSON file for each run whose numbers are shown, so that they can be traced back.

A record has the command, the date, the seeds, the settings, the versions, the machine in general
words, and the rows: one dictionary for each line of the benchmark's own account (a fit, say, not a
mean of fits). Where numbers were once taken over from a printed table, ``source`` says so, and the
rows are its cells as they were printed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["FOLDER", "KEYS", "machine", "read_record", "versions", "write_record"]

FOLDER = Path(__file__).resolve().parent / "records"
#: what every record has
KEYS = ("benchmark", "command", "date", "seeds", "settings", "versions", "machine", "rows")
_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("pyro-implicit", "torch", "pyro-ppl", "numpy", "stochman")


def write_record(
    benchmark: str, arguments: argparse.Namespace, settings: dict[str, Any], rows: Any
) -> None:
    """
    Writes ``--output``, if it was given; after each fit of a long run, so that nothing is lost.

    :param str benchmark: its name in the registry.
    :param arguments: from :func:`benchmarks.common.parse`.
    :param dict settings: whatever else fixes the numbers.
    :param rows: dictionaries of plain values.
    """
    if arguments.output is None:
        return
    record = {
        "benchmark": benchmark,
        "command": _command(benchmark, arguments.argv),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "seeds": arguments.seeds,
        "settings": settings,
        "versions": versions(),
        "machine": machine(),
        "rows": rows,
    }
    text = json.dumps(record, indent=1, default=_plain, ensure_ascii=False) + "\n"
    partial = arguments.output.with_name(arguments.output.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(arguments.output)  # no half-written file is left behind


def read_record(name: str) -> dict[str, Any]:
    """
    :param str name: of a file in ``benchmarks/records``, without its ending.
    """
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def _command(benchmark: str, argv: list[str]) -> str:
    """The command line, without what changes no number."""
    left = iter(argv)
    kept = []
    for word in left:
        name, _, value = word.partition("=")
        if name in ("--output", "--figure", "--data-root", "--pyro"):
            if not value:
                next(left, None)
        elif word != "--quiet":
            kept.append(f'"{word}"' if " " in word else word)
    return " ".join(["python", "-m", "benchmarks", "run", benchmark, *kept])


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


def _plain(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value.tolist()
    return str(value)
