"""`python -m tracefuse view script.py`: runs a script and writes a page for every fusion that it compiles."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence

from tracefuse import config
from tracefuse.diagnostics.dumping import DEFAULT_FOLDER, VIEW_FILE


def view_script(arguments: Sequence[str]) -> list[str]:
    """Runs a script with the option `dump="view"` and returns the paths of the new pages, in order of compilation.

    arguments: of the command line, after `view`. An error of the script passes through after the pages are written.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tracefuse view",
        description="Runs a script and writes a page for every fusion that it compiles.",
    )
    parser.add_argument("--folder", default=DEFAULT_FOLDER, help="where to write the pages (default: %(default)s)")
    parser.add_argument("script", help="a Python file")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the script")
    parsed = parser.parse_args(arguments)
    folder = os.path.abspath(parsed.folder)
    before = set(_pages(folder))
    argv, path = sys.argv, sys.path[:]
    sys.argv = [parsed.script, *parsed.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(parsed.script)))
    try:
        with config.options(dump="view", dump_dir=folder):
            runpy.run_path(parsed.script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = argv, path
        pages = [page for page in _pages(folder) if page not in before]
        for page in pages:
            print(page)
        if not pages:
            print("the script compiled no fusion", file=sys.stderr)
    return pages


def _pages(folder: str) -> list[str]:
    """Returns the pages in a folder of dumps."""
    if not os.path.isdir(folder):
        return []
    pages = (os.path.join(folder, entry, VIEW_FILE) for entry in sorted(os.listdir(folder)))
    return [page for page in pages if os.path.exists(page)]
