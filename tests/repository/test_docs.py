"""Every Python block of the README and of docs/ runs and prints what the text block after it says.

The blocks of one file run in order in one fresh process, as one program. A block marked `python cupy` needs a GPU and
is skipped, with the reason, where there is none. After a change of what they print:

    python tests/repository/test_docs.py    # writes the new texts into the files
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_FENCED = re.compile(r"^```(python(?: cupy)?)\n(.*?)^```\n(?:\s*^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
_TIME = re.compile(r"\b\d+(\.\d+)? (us|ms|s|times)\b")


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


def printed_by(path: Path, on_gpu: bool = False) -> list[str]:
    """What each block prints, run in a fresh process."""
    command = [sys.executable, "-W", "error", __file__, "run", str(path), str(int(on_gpu))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # this checkout, whatever is installed
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, env=environment)
    assert done.returncode == 0, f"{path.name}:\n{done.stderr}"
    return list(json.loads(done.stdout))


def normal(text: str) -> str:
    """Without times and blank ends, which say nothing."""
    return _TIME.sub("#", text).strip()


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_block_runs_and_prints_what_is_said(path: Path) -> None:
    blocks = blocks_of(path)
    for block, printed in zip(blocks, printed_by(path), strict=True):
        if block.text is not None and not block.on_gpu:
            assert normal(printed) == normal(block.text), f"{path.name}: run python tests/repository/test_docs.py"


@pytest.mark.gpu
@pytest.mark.parametrize("path", [p for p in FILES if any(b.on_gpu for b in blocks_of(p))], ids=lambda p: p.name)
def test_blocks_for_a_gpu_run(path: Path) -> None:
    from tracefuse.runtime.devices.cuda_arrays import unavailable

    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    printed_by(path, on_gpu=True)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_links_lead_to_files(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_checks_run_the_readme_s_test_command() -> None:
    commands = re.findall(r"^```sh\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    example, tests = commands[0].strip(), commands[1].strip()
    assert example.endswith("examples/layernorm.py")
    lines = (ROOT / ".ci" / "run").read_text().replace("${PYTHON:-python3}", "python3").replace('"', "")
    for part in tests.split(" && "):
        assert f"step {part}\n" in lines


def write_texts() -> None:
    for path in FILES:
        content = path.read_text()
        printed = printed_by(path)
        for block, text in reversed(list(zip(blocks_of(path), printed, strict=True))):
            if block.text is not None and not block.on_gpu and normal(text) != normal(block.text):
                content = content[: block.place[0]] + text.strip("\n") + "\n" + content[block.place[1] :]
        if content != path.read_text():
            path.write_text(content)
            print(f"{path.relative_to(ROOT)} has new texts")


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        print(json.dumps(run_blocks(Path(sys.argv[2]), sys.argv[3] == "1")))
    else:
        write_texts()
