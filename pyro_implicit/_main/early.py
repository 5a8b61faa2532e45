"""
Ctrl-C while ``python -m pyro_implicit`` still imports, which takes seconds.

Python imports the package before it runs ``__main__``, so only an import can be there in time: this
module does nothing in any other program.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

__all__ = ["INTERRUPTED", "leave", "watch", "watch_no_more"]

#: exit status of a program that Ctrl-C ended, as shells count: 128 + SIGINT
INTERRUPTED = 130


def leave(*_: Any) -> None:
    """Ends the process with one line: nothing was begun yet, and nothing is to be tidied."""
    os.write(2, b"pyro_implicit: interrupted\n")
    os._exit(INTERRUPTED)


def watch() -> None:
    """Ctrl-C leaves, unless somebody else has decided about it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)


def watch_no_more() -> None:
    """Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


# sys.argv[0] is "-m" only until Python has found the module that it is to run
if sys.argv[:1] == ["-m"] and {"pyro_implicit", "-mpyro_implicit"} & set(sys.orig_argv):
    watch()
