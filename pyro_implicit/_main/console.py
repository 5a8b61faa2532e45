"""What the main job says: results to standard output, errors to standard error, a line each."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

__all__ = ["EXIT_STATUS_OF_BROKEN_PIPE", "Console", "one_line", "open_console"]

#: of a program whose reader has gone, as shells count: 128 + SIGPIPE
EXIT_STATUS_OF_BROKEN_PIPE = 141


def one_line(text: str) -> str:
    """
    Makes one harmless line of any text.

    :param str text: may hold names of files, which may hold anything.
    :returns: the same with line breaks, terminal codes and the like spelled out.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class Console:
    """
    Standard output and error that may be closed, full, or not able to show a letter.

    :param status: 0, or the exit status that the loss of standard output calls for.
    """

    def __init__(self) -> None:
        self.status = 0
        self._why = ""

    def say(self, text: str) -> None:
        """
        Prints to standard output; once that has failed, prints nothing more.

        :param str text: one line or several.
        """
        if self.status:
            return
        try:
            if sys.stdout is None:
                raise ValueError("it is closed")
            print(text, flush=True)
        except BrokenPipeError:
            self._lose(EXIT_STATUS_OF_BROKEN_PIPE, "its reader has gone")
        except OSError as error:
            self._lose(1, error.strerror or str(error))
        except ValueError:  # what Python raises for a file that is closed
            self._lose(1, "it is closed")

    def _lose(self, status: int, why: str) -> None:
        self.status, self._why = status, why
        _drain(sys.stdout, 1)

    @property
    def lost(self) -> str:
        """Why standard output failed; empty if it did not."""
        return self._why

    def complain(self, text: str) -> None:
        """
        Prints one line to standard error.

        :param str text: printed to standard error as one line, after the program's name.
        """
        if sys.stderr is not None:
            with suppress(OSError, ValueError):
                print(f"pyro_implicit: {one_line(text)}", file=sys.stderr, flush=True)


class _Forgiving:
    """Standard error for progress bars and warnings: not worth an error if nobody can see them."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if self._stream is not None:
            try:
                self._stream.write(text)
            except (OSError, ValueError):
                _drain(self._stream, 2)
                self._stream = None
        return len(text)

    def flush(self) -> None:
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                _drain(self._stream, 2)
                self._stream = None

    def isatty(self) -> bool:
        with suppress(OSError, ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    def fileno(self) -> int:
        if self._stream is None:
            raise io.UnsupportedOperation("closed")
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"


@contextmanager
def open_console() -> Iterator[Console]:
    """
    The console, with standard streams that raise no error of their own; they are put back.

    :returns: the console; when the block ends, everything said was written or is known to be lost.
    """
    _occupy_standard_descriptors()
    errors = getattr(sys.stdout, "errors", None)
    before, sys.stderr = sys.stderr, _Forgiving(sys.stderr)
    _set_errors(sys.stdout, "backslashreplace")  # a name of a file in letters that it lacks
    console = Console()
    try:
        yield console
    finally:
        with suppress(OSError, ValueError):  # the parser's help is printed past the console
            try:
                if sys.stdout is not None:
                    sys.stdout.flush()
            except BrokenPipeError:
                console._lose(EXIT_STATUS_OF_BROKEN_PIPE, "its reader has gone")
            except OSError as error:
                console._lose(1, error.strerror or str(error))
        _set_errors(sys.stdout, errors)
        sys.stderr = before


def _occupy_standard_descriptors() -> None:
    """A file that is opened while descriptor 1 is closed would become standard output."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:
        descriptor = os.open(os.devnull, os.O_RDWR)
    os.close(descriptor)


def _set_errors(stream: Any, errors: str | None) -> None:
    if errors is not None and hasattr(stream, "reconfigure"):
        with suppress(OSError, ValueError):
            stream.reconfigure(errors=errors)


def _drain(stream: Any, descriptor: int) -> None:
    """What a broken stream still holds goes nowhere, or Python would fail over it at its end."""
    with suppress(AttributeError, OSError, ValueError):
        if stream.fileno() == descriptor:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
