"""Runs the Python blocks of a page of the documentation: `python -m tests.repository.documentation_blocks PATH GPU`.

Prints what each block prints, as JSON. With GPU 0, blocks that need a GPU do not run.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

_FENCED = re.compile(r"^```(python(?: cupy)?)\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A block of code, whether it needs a GPU, what it prints (None: not said), and where that stands in the file."""

    code: str
    on_gpu: bool
    text: str | None
    place: tuple[int, int]


def blocks_of(path: Path) -> list[Block]:
    content = path.read_text()
    return [Block(m[2], m[1] != "python", m[3], m.span(3)) for m in _FENCED.finditer(content)]


def run_blocks(path: Path, on_gpu: bool) -> list[str]:
    """What each block prints, run in this process."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for block in blocks_of(path):
        if block.on_gpu and not on_gpu:
            printed.append("")
            continue
        lines = block.code.splitlines(keepends=True)
        linecache.cache["example.py"] = len(block.code), None, lines, "example.py"  # so that messages can read the line
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exec(compile(block.code, "example.py", "exec"), names)
        printed.append("\n".join(line.rstrip() for line in output.getvalue().splitlines()))
    return printed


if __name__ == "__main__":
    print(json.dumps(run_blocks(Path(sys.argv[1]), sys.argv[2] == "1")))
