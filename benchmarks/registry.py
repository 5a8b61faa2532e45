"""All benchmarks, as the folders declare them."""

from __future__ import annotations

from benchmarks import cost, numerics, posterior, robustness
from benchmarks.benchmark import Benchmark
from benchmarks.papers import kivi, livi, predictive, vip

__all__ = ["BENCHMARKS", "FOLDERS", "GROUPS", "benchmark_of_record"]

FOLDERS = (cost, posterior, livi, kivi, vip, predictive, numerics, robustness)
BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark for folder in FOLDERS for benchmark in folder.BENCHMARKS
}


def _groups() -> dict[str, list[Benchmark]]:
    groups: dict[str, list[Benchmark]] = {}
    for folder in FOLDERS:
        name = folder.__name__.partition(".")[2]
        for group in dict.fromkeys((name.partition(".")[0], name)):
            groups.setdefault(group, []).extend(folder.BENCHMARKS)
    return groups


#: benchmarks by folder: ``"papers"`` has those of ``"papers.livi"`` and the other papers
GROUPS = _groups()


def benchmark_of_record(name: str) -> Benchmark:
    """
    :param str name: of a record.
    """
    return next(benchmark for benchmark in BENCHMARKS.values() if name in benchmark.records)
