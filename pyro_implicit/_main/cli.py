"""The command line of the main job."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyro_implicit.exceptions import ArgumentError, ImplicitError, MissingExtraError

from .console import Console, open_console
from .data import DataFileError
from .early import INTERRUPTED, watch_no_more
from .outputs import Outputs, check_folder, describe
from .read_csv import HEADER_CHOICES, load_csv

DESCRIPTION = """\
Fits a Bayesian neural network to a regression table by mean-field variational inference and by an
implicit guide with the linearised objective (and by NUTS with --nuts), prints how well each
predicts a held-out tenth of the rows, and writes that table (scores.txt), a figure (predictive.png)
and the implicit posterior for ArviZ (posterior.nc)."""

LARGEST_COUNT = 10**9


def main(argv: Sequence[str] | None = None) -> int:
    """
    Runs the job.

    :param argv: the command line without the program's name; the process's by default.
    :returns: 0; 2 for unusable input, 1 for another failure, 130 after Ctrl-C, 141 if the reader of
        standard output has gone. Whatever failed is told on standard error, a line each; files that
        were written before are kept.
    """
    with open_console() as console:
        status = _guarded(console, argv)
    return status or console.status


def _guarded(console: Console, argv: Sequence[str] | None) -> int:
    """Runs the job; errors that are not ours to mend become a line and a status."""
    outputs: Outputs | None = None
    try:
        watch_no_more()
        arguments = _parser().parse_args(argv)
        outputs = Outputs(arguments.output_dir)
        _run(arguments, console, outputs)
    except KeyboardInterrupt:
        written = [str(path) for path in outputs.written] if outputs else []
        so_far = f"; written before: {', '.join(written)}" if written else ""
        console.complain(f"interrupted{so_far}")
        return INTERRUPTED
    except (DataFileError, ArgumentError, MissingExtraError) as error:
        console.complain(f"error: {error}")
        return 2
    except (ImplicitError, OSError, MemoryError) as error:
        console.complain(f"error: {describe(error)}")
        return 1
    except RuntimeError as error:
        if not _is_about_memory(error):
            raise
        console.complain("error: out of memory")
        return 1
    return 1 if outputs.failures else 0


def _is_about_memory(error: RuntimeError) -> bool:
    """PyTorch says with a RuntimeError of many lines that it got no memory."""
    return "allocate memory" in str(error) or "not enough memory" in str(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pyro_implicit", description=DESCRIPTION)
    parser.add_argument(
        "--data",
        metavar="FILE.csv",
        help="comma-separated numbers, the target in the last column, a header row or none "
        "(default: the diabetes data of scikit-learn)",
    )
    parser.add_argument(
        "--header",
        choices=HEADER_CHOICES,
        default="auto",
        help="whether the first row of the file is a header (default: auto, which tells its guess)",
    )
    parser.add_argument("--seed", type=_seed, default=0, help="(default: 0)")
    parser.add_argument(
        "--num-steps",
        type=_positive,
        default=3000,
        metavar="N",
        help="optimiser steps of both variational fits (default: 3000)",
    )
    parser.add_argument(
        "--nuts",
        type=_positive,
        nargs="?",
        const=200,
        default=0,
        metavar="N",
        help="also draw N (default: 200) samples by NUTS, after as many warm-up steps",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("pyro_implicit_output"),
        metavar="DIR",
        help="where the files go (default: ./pyro_implicit_output)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    return parser


def _integer(name: str, least: int, most: int, expected: str) -> Callable[[str], int]:
    def convert(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} found, expected {expected}")
        return value

    convert.__name__ = name  # argparse shows it: "invalid integer value"
    return convert


_positive = _integer("integer", 1, LARGEST_COUNT, f"a positive number up to {LARGEST_COUNT}")
_seed = _integer("integer", 0, 2**32 - 1, "0 to 2**32 - 1")


@contextmanager
def _one_thread() -> Iterator[None]:
    """
    Limits torch to one thread.

    Tensors this small gain nothing by more, and where other programs use the processor too, threads
    that wait for one another take more than ten times as long.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(arguments: argparse.Namespace, console: Console, outputs: Outputs) -> None:
    import pyro

    from .data import load_bundled, split_table
    from .fit import fit_all
    from .model import build_model
    from .report import FILES, export_bytes, require_extras
    from .score import score

    data, header = arguments.data, arguments.header
    table = load_bundled() if data is None else load_csv(data, header)
    split = split_table(table, arguments.seed)
    del table
    check_folder(outputs.folder, FILES, export_bytes(split) // 2)  # compressed, it takes less
    require_extras()
    # Parameters stay with their guides: nothing of the caller's parameter store is touched.
    with pyro.settings.context(module_local_params=True), _one_thread():
        model = build_model(split.x_train.shape[-1], len(split.x_train))
        fits = fit_all(
            model,
            split,
            seed=arguments.seed,
            num_steps=arguments.num_steps,
            nuts_samples=arguments.nuts,
            quiet=arguments.quiet,
        )
        pyro.set_rng_seed(arguments.seed)
        scores = [score(model, fit.draws, split) for fit in fits]
        _report(console, outputs, model, split, arguments.seed, fits, scores)


def _report(
    console: Console,
    outputs: Outputs,
    model: Any,
    split: Any,
    seed: int,
    fits: list[Any],
    scores: list[Any],
) -> None:
    """What takes least first, and each by itself: a failure loses nothing but its own file."""
    from .netcdf import netcdf_bytes
    from .report import FIGURE_FILE, POSTERIOR_FILE, SCORES_FILE, draw, export, format_table

    table = format_table(split, seed, fits, scores)
    outputs.write(SCORES_FILE, lambda: f"{table}\n".encode("utf-8", "backslashreplace"))
    outputs.write(FIGURE_FILE, lambda: draw(split, fits, scores))
    console.say(table)
    outputs.write(POSTERIOR_FILE, lambda: netcdf_bytes(export(model, fits[1], split)))
    for path in outputs.written:
        console.say(f"wrote {path}")
    for failure in outputs.failures:
        console.complain(f"error: {failure}")
    if console.lost:
        kept = f"; the table is in {outputs.folder / SCORES_FILE}" if outputs.written else ""
        console.complain(f"error: standard output cannot be written to: {console.lost}{kept}")
