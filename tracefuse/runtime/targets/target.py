"""A target: everything that running a segment on one kind of processor takes, as one object.

docs/adding_a_target.md says what a further target has to bring.

Knows: the parts of a target. Must not know: which targets there are, segments, plans, frontends.
"""

from __future__ import annotations

from dataclasses import dataclass

from tracefuse.runtime.targets.array_device import ArrayDevice
from tracefuse.runtime.targets.array_library import ArrayLibrary
from tracefuse.runtime.targets.call_text import CallText
from tracefuse.runtime.targets.kernel_compiler import KernelCompiler
from tracefuse.schedule.template import TemplateSet


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """What lowers segments (templates), compiles and launches kernels (compiler), holds arrays (device), computes what
    no kernel does (library), and writes the Python text of a call (calls). name: as the option `target` has it."""

    name: str
    templates: TemplateSet
    compiler: KernelCompiler
    device: ArrayDevice
    library: ArrayLibrary
    calls: CallText
