"""
Runs benchmarks, and makes the tables of the result pages from their records.

    python -m benchmarks list                          what there is
    python -m benchmarks list NAME                     one of them: its rows, columns and records
    python -m benchmarks run NAME [options]            one run; --help shows NAME's own options
    python -m benchmarks run NAME --short              a run of seconds, to see that it works
    python -m benchmarks run NAME --record RECORD      with that record's options, and writes it
    python -m benchmarks run FOLDER --short            all of a folder: papers, papers.livi, cost
    python -m benchmarks tables [--check]              writes the tables, or says which are stale
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence

from benchmarks.benchmark import Benchmark
from benchmarks.common import data_root
from benchmarks.registry import BENCHMARKS, FOLDERS, GROUPS


def main(argv: Sequence[str] | None = None) -> int:
    """
    :param argv: the command line without the program's name; the process's by default.
    :returns: the exit status.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list")
    listing.add_argument("name", nargs="?", choices=[*BENCHMARKS, *GROUPS], metavar="NAME")
    running = commands.add_parser("run", add_help=False)
    running.add_argument("name", choices=[*BENCHMARKS, *GROUPS], metavar="NAME")
    running.add_argument("--short", action="store_true")
    running.add_argument("--record", metavar="RECORD")
    tables = commands.add_parser("tables")
    tables.add_argument("--check", action="store_true", help="change nothing; fail if stale")
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command != "run":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if arguments.command == "list":
        print(_listed(arguments.name))
        return 0
    if arguments.command == "tables":
        return _tables(arguments.check)
    if arguments.name in GROUPS:
        if {"-h", "--help"} & set(rest):
            print(_folder(arguments.name))
            return 0
        if arguments.record is not None:
            parser.error(f"{arguments.name} is a folder of benchmarks: a record is of one of them")
        return _run_all(GROUPS[arguments.name], rest, arguments.short)
    benchmark = BENCHMARKS[arguments.name]
    if arguments.record is not None and arguments.record not in benchmark.records:
        parser.error(f"{benchmark.name} has no record {arguments.record!r}: {[*benchmark.records]}")
    benchmark.run(rest, short=arguments.short, record=arguments.record)
    return 0


def _run_all(group: Sequence[Benchmark], options: list[str], short: bool) -> int:
    """Runs one after the other, also where one fails, and tells which did and which could not."""
    failed, skipped, begin = [], [], time.process_time()
    for place, benchmark in enumerate(group, 1):
        print(f"\n{place} of {len(group)}, {benchmark.name}: {benchmark.question}", flush=True)
        if reason := benchmark.lacks(data_root(options)):
            print(f"{benchmark.name}: skipped, {reason}", flush=True)
            skipped.append(benchmark.name)
            continue
        start = time.process_time()
        try:
            benchmark.run(options, short=short)
        except (Exception, SystemExit) as error:  # a bug: the others run
            if isinstance(error, SystemExit) and error.code in (0, 2):  # options, of all of them
                raise
            traceback.print_exc()
            failed.append(benchmark.name)
        print(f"{benchmark.name}: {time.process_time() - start:.0f} CPU seconds", flush=True)
    ran = len(group) - len(failed) - len(skipped)
    print(f"\n{ran} of {len(group)} ran in {time.process_time() - begin:.0f} CPU seconds")
    print(f"skipped: {', '.join(skipped) or 'none'}; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def _listed(name: str | None) -> str:
    if name is None:
        return _listing()
    return _folder(name) if name in GROUPS else _details(BENCHMARKS[name])


def _listing() -> str:
    lines = []
    for folder in FOLDERS:
        lines.append(f"\n{folder.__name__.partition('.')[2]}: {(folder.__doc__ or '').strip()}")
        lines += [f"  {one.name:20} {one.question}" for one in folder.BENCHMARKS]
    return "\n".join(lines[0:]).strip()


def _folder(name: str) -> str:
    lines = [f"usage: python -m benchmarks run {name} [--short] [--data-root DIR] [--quiet]", ""]
    lines += [f"  {one.name:20} {one.question}" for one in GROUPS[name]]
    return "\n".join(
        [*lines, "", "Options are given to each of them; run NAME --help has its own."]
    )


def _details(benchmark: Benchmark) -> str:
    lines = [f"{benchmark.name}: {benchmark.question}", f"  a row: {benchmark.rows}"]
    lines += [f"    {key:20} {what}" for key, what in benchmark.columns.items()]
    lines += [f"  record {name}: {options}".rstrip() for name, options in benchmark.records.items()]
    lines.append(f"  short: {benchmark.short} {dict(benchmark.short_settings) or ''}".rstrip())
    if benchmark.needs or benchmark.extra:
        lines.append(f"  needs: {', '.join([*benchmark.needs, *benchmark.extra.split()])}")
    return "\n".join(lines)


def _tables(check: bool) -> int:
    from benchmarks.tables import stale, update

    found = stale() if check else update()
    for place in found:
        print(f"stale: {place}" if check else f"written: {place}")
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
