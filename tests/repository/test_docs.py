"""Every Python block of the README and of docs/ runs and prints what the text block after it says.

The blocks of one file run in order in one fresh process, as one program. A block marked `python cupy` needs a GPU and
is skipped, with the reason, where there is none. After a change of what they print:

    python -m tests.repository.test_docs    # writes the new texts into the files
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.repository import documentation_blocks
from tests.repository.documentation_blocks import blocks_of
from tests.session.script_processes import ROOT, run_script

FILES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_TIME = re.compile(r"\b\d+(\.\d+)? (us|ms|s|times)\b")


def printed_by(path: Path, on_gpu: bool = False) -> list[str]:
    """What each block prints, run in a fresh process."""
    done = run_script(Path(documentation_blocks.__file__), str(path), str(int(on_gpu)))
    assert done.returncode == 0, f"{path.name}:\n{done.stderr}"
    return list(json.loads(done.stdout))


def normal(text: str) -> str:
    """Without times and blank ends, which say nothing."""
    return _TIME.sub("#", text).strip()


def anchors_of(page: Path) -> list[str]:
    """The anchors that GitHub makes of a page's headings: lower case, hyphens for spaces, no other punctuation."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_block_runs_and_prints_what_is_said(path: Path) -> None:
    blocks = blocks_of(path)
    for block, printed in zip(blocks, printed_by(path), strict=True):
        if block.text is not None and not block.on_gpu:
            assert normal(printed) == normal(block.text), f"{path.name}: run python -m tests.repository.test_docs"


@pytest.mark.gpu
@pytest.mark.parametrize("path", [p for p in FILES if any(b.on_gpu for b in blocks_of(p))], ids=lambda p: p.name)
def test_blocks_for_a_gpu_run(path: Path) -> None:
    from tracefuse.runtime.devices.cuda_arrays import unavailable

    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    printed_by(path, on_gpu=True)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_links_lead_to_files_and_to_their_headings(path: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#]*)(?:#([^)]*))?\)", path.read_text()):
        page = path.parent / target if target else path
        assert page.exists(), f"{path.name} links to {target}"
        assert not anchor or anchor in anchors_of(page), f"{path.name} links to {target}#{anchor}"


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
    write_texts()
