"""
Runs notebooks, each in a copy of one process that has already imported what most of them need.

``python notebooks.py`` reads from standard input the paths of a notebook and of the folder to run
it in, as a list in JSON per line, and answers each with a line: the name and the text of the error,
or ``null``. It is started by ``test_tutorials.py``. Cells see what they would see in a kernel
(IPython, its displays, a module of their own), except for messages between kernel and client, and
for guides, which start bare as in other tests.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

SHARED = ("arviz", "matplotlib.pyplot", "sklearn.datasets", "pyro_implicit")


def execute(notebook: str, folder: str) -> None:
    """All cells of code, in order, up to the first one that fails."""
    from IPython.core.interactiveshell import InteractiveShell

    os.chdir(folder)
    shell = InteractiveShell.instance()
    sys.modules["__main__"] = shell.user_module  # as in a kernel, for what is sent to processes
    for cell in json.loads(Path(notebook).read_text())["cells"]:
        if cell["cell_type"] == "code":
            shell.run_cell("".join(cell["source"]), store_history=True).raise_error()


def in_a_copy(notebook: str, folder: str) -> str | None:
    """What went wrong, by a pipe from the copy of this process that ran the notebook."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(2, 1)  # what the cells print is no answer
            execute(notebook, folder)
            os._exit(0)
        except BaseException:
            os.write(writer, traceback.format_exc()[-4000:].encode())
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        error = pipe.read()
    _, status = os.waitpid(child, 0)
    return None if status == 0 else error or f"ended with {os.waitstatus_to_exitcode(status)}"


def main() -> None:
    import warnings
    from importlib import import_module

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the imports of others
        for name in SHARED:
            import_module(name)
    from pyro_implicit.guides import ImplicitGuide

    ImplicitGuide.__init__.__kwdefaults__["init_from"] = None
    for line in sys.stdin:
        print(json.dumps(in_a_copy(*json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
