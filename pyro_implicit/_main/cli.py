"""The command line of the main job."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyro_implicit.exceptions import ArgumentError, ImplicitError, MissingExtraError

from .console import Console, open_console
from .data import TEST_FRACTION, DataFileError
from .outputs import Outputs, check_folder, describe
from .read_csv import HEADER_CHOICES, load_csv

DESCRIPTION = """\
Fits a Bayesian neural network to a table by mean-field variational inference and by an implicit
guide with the linearised objective (with --refine also by chains from 16 modes, with --nuts by
NUTS), prints how well each predicts held-out rows and whether they differ, and writes that table
(scores.txt), a figure (predictive.png) and the implicit posterior for ArviZ (posterior.nc; where
there is none, that of the chains, of NUTS or of mean-field)."""

MAX_COUNT = 10**9
EXIT_STATUS_OF_INTERRUPT = 130  # as shells count: 128 + SIGINT
DEFAULT_NUTS_SAMPLES = 200
DEFAULT_CHAIN_STEPS = 5000
GUIDE_FILE = "guide.pt"
METHOD_CHOICES = ("mean-field", "implicit", "refine", "nuts")
METHODS_TO_EXPORT = ("implicit", "refine", "nuts", "mean-field")  # the first one that was run
METHODS_TO_SAVE = ("implicit", "mean-field")  # those with a state: the first one that was run


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
        arguments = _parser().parse_args(argv)
        outputs = Outputs(arguments.output_dir)
        _run(arguments, console, outputs)
    except KeyboardInterrupt:
        written = [str(path) for path in outputs.written] if outputs else []
        so_far = f"; written before: {', '.join(written)}" if written else ""
        console.complain(f"interrupted{so_far}")
        return EXIT_STATUS_OF_INTERRUPT
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
    _add_data_options(parser)
    _add_fit_options(parser)
    _add_chain_options(parser)
    _add_output_options(parser)
    return parser


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        metavar="FILE.csv",
        help="a table of numbers (text of a few kinds becomes columns, or classes to predict), "
        "compressed or not (default: the diabetes data of scikit-learn)",
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="the column to predict, by its name or its number in the file, from 1 on (default: "
        "the last)",
    )
    parser.add_argument(
        "--sep",
        type=_separator,
        metavar="CHARACTER",
        help="what separates columns; tab and space can be written as words (default: found out)",
    )
    parser.add_argument(
        "--header",
        choices=HEADER_CHOICES,
        default="auto",
        help="whether the first row of the file is a header (default: auto, which tells its guess)",
    )
    parser.add_argument(
        "--test-fraction",
        type=_fraction,
        default=TEST_FRACTION,
        metavar="SHARE",
        help=f"share of the rows that is held out (default: {TEST_FRACTION:g})",
    )


def _add_fit_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=_seed, default=0, help="(default: 0)")
    parser.add_argument(
        "--method",
        choices=METHOD_CHOICES,
        nargs="+",
        default=["mean-field", "implicit"],
        help="what is fitted (default: mean-field implicit)",
    )
    parser.add_argument(
        "--num-steps",
        type=_positive,
        default=3000,
        metavar="N",
        help="most optimiser steps of each variational fit (default: 3000)",
    )
    parser.add_argument(
        "--num-samples",
        type=_positive,
        default=500,
        metavar="N",
        help="draws of the posterior for scores and files (default: 500)",
    )
    parser.add_argument(
        "--save", action="store_true", help=f"also write the guide's state ({GUIDE_FILE})"
    )


def _add_chain_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--refine",
        type=_chain_steps,
        nargs="?",
        const=DEFAULT_CHAIN_STEPS,
        default=0,
        metavar="N",
        help="also run 16 chains of N (default: 5000) gradients of all rows from as many modes",
    )
    parser.add_argument(
        "--nuts",
        type=_positive,
        nargs="?",
        const=DEFAULT_NUTS_SAMPLES,
        default=0,
        metavar="N",
        help="also draw N (default: 200) samples by NUTS, after as many warm-up steps",
    )


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("pyro_implicit_output"),
        metavar="DIR",
        help="where the files go (default: ./pyro_implicit_output)",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument("--version", action="version", version=f"pyro_implicit {_version()}")


def _integer(name: str, least: int, most: int, expected: str) -> Callable[[str], int]:
    def convert(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} found, expected {expected}")
        return value

    convert.__name__ = name  # argparse shows it: "invalid integer value"
    return convert


_positive = _integer("integer", 1, MAX_COUNT, f"a positive number up to {MAX_COUNT}")
_chain_steps = _integer("integer", 100, MAX_COUNT, "at least 100 gradients a chain")
_seed = _integer("integer", 0, 2**32 - 1, "0 to 2**32 - 1")


def _fraction(text: str) -> float:
    value = float(text)
    if not 0.0 < value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} found, expected a number between 0 and 1")
    return value


_fraction.__name__ = "number"


def _separator(text: str) -> str:
    words = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";"}
    character = words.get(text, text)
    if len(character) != 1 or character in '\r\n"':
        raise argparse.ArgumentTypeError(f"{text!r} found, expected one character, such as ';'")
    return character


def _version() -> str:
    import pyro_implicit

    return pyro_implicit.__version__


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
    from .report import REPORT_FILES, export_bytes, require_extras
    from .score import score

    methods = _methods(arguments)
    table = (
        load_bundled()
        if arguments.data is None
        else load_csv(arguments.data, arguments.header, arguments.target, arguments.sep)
    )
    split = split_table(table, arguments.seed, arguments.test_fraction)
    del table
    names = (*REPORT_FILES, *([GUIDE_FILE] if arguments.save else []))
    needed = export_bytes(split, arguments.num_samples)
    check_folder(outputs.folder, names, needed // 2)  # compressed, it takes less
    require_extras(bool(split.classes))
    # Parameters stay with their guides: nothing of the caller's parameter store is touched.
    with pyro.settings.context(module_local_params=True), _one_thread():
        model = build_model(split.x_train.shape[-1], len(split.x_train), len(split.classes))
        fits = fit_all(
            model,
            split,
            methods=sorted(methods),
            seed=arguments.seed,
            num_steps=arguments.num_steps,
            nuts_samples=arguments.nuts or DEFAULT_NUTS_SAMPLES,
            chain_steps=arguments.refine or DEFAULT_CHAIN_STEPS,
            quiet=arguments.quiet,
        )
        pyro.set_rng_seed(arguments.seed)
        scores = [
            score(model, fit.guide, split, arguments.num_samples, arguments.seed) for fit in fits
        ]
        _report(console, outputs, model, split, arguments, fits, scores)


def _methods(arguments: argparse.Namespace) -> set[str]:
    """What is to be fitted."""
    methods = {*arguments.method}
    methods |= {name for name in ("refine", "nuts") if getattr(arguments, name)}
    if arguments.save and not methods & {*METHODS_TO_SAVE}:
        raise ArgumentError(
            f"--save with --method {' '.join(sorted(methods))}, which have no guide to save; "
            f"expected one of {', '.join(METHODS_TO_SAVE)} among the methods."
        )
    return methods


def _report(
    console: Console,
    outputs: Outputs,
    model: Any,
    split: Any,
    arguments: argparse.Namespace,
    fits: list[Any],
    scores: list[Any],
) -> None:
    """What takes least first, and each by itself: a failure loses nothing but its own file."""
    from .netcdf import netcdf_bytes
    from .report import FIGURE_FILE, POSTERIOR_FILE, SCORES_FILE, draw, export, format_table, saved

    table = format_table(split, arguments.seed, fits, scores)
    exported = _first(fits, METHODS_TO_EXPORT)
    outputs.write(SCORES_FILE, lambda: f"{table}\n".encode("utf-8", "backslashreplace"))
    outputs.write(FIGURE_FILE, lambda: draw(split, fits, scores))
    console.say(table)
    if arguments.save:
        outputs.write(GUIDE_FILE, lambda: saved(_first(fits, METHODS_TO_SAVE), split))
    outputs.write(
        POSTERIOR_FILE,
        lambda: netcdf_bytes(export(model, exported, split, arguments.num_samples)),
    )
    for path in outputs.written:
        console.say(f"wrote {path}")
    for failure in outputs.failures:
        console.complain(f"error: {failure}")
    if console.lost:
        kept = f"; the table is in {outputs.folder / SCORES_FILE}" if outputs.written else ""
        console.complain(f"error: standard output cannot be written to: {console.lost}{kept}")


def _first(fits: list[Any], names: Sequence[str]) -> Any:
    """The fit by the first of these methods that there is."""
    from .fit import METHOD_NAMES

    found = {fit.method: fit for fit in fits}
    return next(found[METHOD_NAMES[name]] for name in names if METHOD_NAMES[name] in found)
