"""`dump`: writes the stages of a compilation into a folder, with a script that reproduces it.

The folder has a number and the name of the function: `tracefuse_dump/0003_softmax`. Every dump contains `repro.py`,
which is written before anything is compiled, so that it survives a failure of the compiler.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tracefuse.config import Options
from tracefuse.diagnostics.explain import Explanation
from tracefuse.diagnostics.repro import script_text
from tracefuse.dynamic.concretization import Concretization
from tracefuse.errors import OptionError
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.printing import definition_text
from tracefuse.kernel.kernel_text import kernel_text
from tracefuse.logs import say
from tracefuse.passes.pipeline import PassChange
from tracefuse.runtime.compiled_segment import CompiledSegment
from tracefuse.runtime.devices.array_descriptions import input_texts
from tracefuse.runtime.host_text import HostProgram
from tracefuse.runtime.plan import Plan

DEFAULT_FOLDER = "tracefuse_dump"

VIEW_FILE = "view.html"
"""The page that `view` writes."""


class Dump:
    """The dump of one compilation. Writes nothing if the option `dump` is empty.

    changes: the changes of passes so far; the list may grow.
    """

    def __init__(self, options: Options, name: str, changes: Sequence[PassChange] = ()) -> None:
        self.options, self.changes = options, changes
        self.wanted = frozenset(options.dump.split(",")) if options.dump else frozenset()
        self.name = re.sub(r"\W+", "_", name).strip("_") or "fusion"
        self.folder = _new_folder(options.dump_dir or DEFAULT_FOLDER, self.name) if self.wanted else ""

    def before(self, fusion: Fusion, arguments: Sequence[Any], concrete: Concretization) -> None:
        """Writes what is known before anything is compiled. Raises OptionError if the folder cannot be written."""
        if not self.wanted:
            return
        definition = definition_text(fusion, self.name, {})
        script = script_text(definition, self.name, input_texts(arguments), self.options)
        self._write("repro.py", script)
        self._write_wanted("fusion", "fusion.txt", f"{fusion}\n\n{definition}\n")
        self._write_wanted("concretized", "concretized.txt", f"{concrete}\n\n{concrete.fusion}\n")
        say(self.options, 1, lambda: f"{self.name}: dumped into {self.folder}")

    @contextmanager
    def passes(self) -> Iterator[None]:
        """Writes a numbered file for each pass that changed something, even if the `with` block raises."""
        try:
            yield
        finally:
            for position, change in enumerate(self.changes):
                text = f"# {change.name}: {1e3 * change.seconds:.2f} ms\n{change.text}\n"
                self._write_wanted("passes", f"pass{position:02d}_{change.name}.txt", text)

    def after(self, plan: Plan, sizes: Mapping[int, int], call_text: str) -> None:
        """Writes the compiled plan: segments, kernels, their source, and the host program."""
        if not self.wanted:
            return
        interfaces = [_segment_text(segment, k) for k, segment in enumerate(plan.segments)]
        explanation = Explanation(plan, sizes)
        self._write_wanted("segments", "segments.txt", "\n".join([str(explanation), "", *interfaces]))
        if "view" in self.wanted:
            self._write(VIEW_FILE, explanation.view(self.name).to_html())
        kernels = (f"# segment {k}\n{_kernels(segment)}" for k, segment in enumerate(plan.segments))
        self._write_wanted("kernel", "kernels.txt", "\n".join(kernels))
        for k, segment in enumerate(plan.segments):
            for position, function in enumerate(segment.functions):
                source = getattr(function, "source", "")
                ending = "cu" if 'extern "C" __global__' in source else "ll"
                self._write_wanted("source", f"segment{k}_{position}.{ending}", source)
        self._write_wanted("host_ir", "host_ir.txt", f"{HostProgram.of(plan)}\n\n{plan.program}\n\n{call_text}")

    def _write_wanted(self, content: str, file: str, text: str) -> None:
        if content in self.wanted:
            self._write(file, text)

    def _write(self, file: str, text: str) -> None:
        path = os.path.join(self.folder, file)
        try:
            with open(path, "w", encoding="utf-8") as opened:
                opened.write(text)
        except OSError as error:
            raise _refused(self.folder, error) from None


def _new_folder(parent: str, name: str) -> str:
    """Creates a folder, numbered after the last one."""
    parent = os.path.abspath(os.path.expanduser(parent))
    try:
        os.makedirs(parent, exist_ok=True)
        numbers = (int(entry[:4]) for entry in os.listdir(parent) if re.match(r"\d{4}_", entry))
        number = max(numbers, default=-1) + 1
        while True:  # another process may take the same number
            folder = os.path.join(parent, f"{number:04d}_{name}")
            try:
                os.mkdir(folder)
            except FileExistsError:
                number += 1
                continue
            return folder
    except OSError as error:
        raise _refused(parent, error) from None


def _refused(folder: str, error: OSError) -> OptionError:
    return OptionError(
        f"option dump: cannot write in {folder}: {error.strerror}", hint="set dump_dir to another folder"
    )


def _segment_text(segment: CompiledSegment, position: int) -> str:
    interface = segment.part.segment
    maps = f"index_map {dict(interface.index_map)}  value_map {dict(interface.value_map)}"
    maps += f"  extent_map {dict(interface.extent_map)}"
    return f"{definition_text(segment.part.fusion, f'segment{position}', {})}\n    # {maps}\n"


def _kernels(segment: CompiledSegment) -> str:
    if segment.lowered is None:
        return f"{segment.name}: a library call\n"
    return "\n".join(kernel_text(launch.kernel) for launch in segment.lowered.launches)
