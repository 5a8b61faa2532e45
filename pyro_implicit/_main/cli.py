"""The command line of the main job."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pyro_implicit.exceptions import ArgumentError, ImplicitError, MissingExtraError

from .data import DataFileError

DESCRIPTION = """\
Fits a Bayesian neural network to a regression table by mean-field variational inference and by an
implicit guide with the linearised objective (and by NUTS with --nuts), prints how well each
predicts a held-out tenth of the rows, and writes posterior.nc (the implicit posterior, for ArviZ)
and predictive.png."""


def main(argv: Sequence[str] | None = None) -> int:
    """
    Runs the job.

    :param argv: the command line without the program's name; the process's by default.
    :returns: 0, 2 for unusable input (one line on standard error says what), 1 for another failure.
    """
    arguments = _parser().parse_args(argv)
    try:
        _run(arguments)
    except (DataFileError, ArgumentError, MissingExtraError) as error:
        return _fail(error, 2)
    except (ImplicitError, OSError) as error:
        return _fail(error, 1)
    return 0


def _fail(error: Exception, status: int) -> int:
    print(f"pyro_implicit: error: {error}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pyro_implicit", description=DESCRIPTION)
    parser.add_argument(
        "--data",
        metavar="FILE.csv",
        help="comma-separated numbers, the target in the last column, a header row or none "
        "(default: the diabetes data of scikit-learn)",
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


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} found, expected a positive number")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{value} found, expected 0 to 2**32 - 1")
    return value


def _check_output_dir(folder: Path) -> None:
    """Finds out before the fits, without making anything, that the folder can be written to."""
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise ArgumentError(f"--output-dir {folder}: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ArgumentError(f"--output-dir {folder}: {existing} cannot be written to")


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread of torch: tensors this small gain nothing by more, and where other programs use
    the processor too, threads that wait for one another take more than ten times as long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _run(arguments: argparse.Namespace) -> None:
    import pyro

    from .data import load_bundled, load_csv, split_table
    from .fit import fit_all
    from .model import build_model
    from .report import export, format_table, require_extras, write_outputs
    from .score import score

    table = load_bundled() if arguments.data is None else load_csv(arguments.data)
    split = split_table(table, arguments.seed)
    _check_output_dir(arguments.output_dir)
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
        print(format_table(split, arguments.seed, fits, scores), flush=True)
        inference_data = export(model, fits[1], split)
    for path in write_outputs(arguments.output_dir, inference_data, split, fits, scores):
        print(f"wrote {path}")
